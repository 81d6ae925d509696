"""Static contextualizer as kernels: the learned matrix, the activation and the gate in one pass.

With dO = grad * gate (where sigma is open): d gate = grad * sigma(V Z + b) is the forward with
`grad` in the gate's place; d Z = V^T dO; d V = sum over splits of dO Z^T, summed in a fixed order:
every program adds up one group of splits into its own float32 partial.
"""

# Arguments of kernels are typed by Triton at launch, those of autograd hooks by torch, of operators by their signature.  # noqa: E501
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from aveyb_retrieval.kernels.triton.tiles import (
    activated,
    architecture,
    at_split,
    blocks,
    config_for,
    inference_operator,
    larger,
    load_tile,
    own_rows,
    power_of_two,
    precision,
    store_tile,
    valid_rows,
)

_MAX_PARTIALS = (
    64  # groups of splits whose weight gradients are summed apart: bounds memory, fills the device
)


@triton.jit
def gated_grad(
    grad,
    gate,
    out,
    rows,
    d,
    grad_row,
    gate_row,
    out_row,
    n,
    D: tl.constexpr,
    N: tl.constexpr,
    RELU: tl.constexpr,
):
    """Return dO, float32 `[rows, N]`: the gradient of `V Z + b`, 0 where sigma was shut."""
    value = load_tile(grad, rows, d, grad_row, n, D, D % N == 0).to(tl.float32)
    value *= load_tile(gate, rows, d, gate_row, n, D, D % N == 0).to(tl.float32)
    if RELU:
        value = tl.where(load_tile(out, rows, d, out_row, n, D, D % N == 0) == 0, 0.0, value)
    return value


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    mixed,
    gate,
    weight,
    bias,
    lengths,
    out,
    mixed_split,
    mixed_row,
    gate_split,
    gate_row,
    weight_split,
    weight_row,
    out_split,
    out_row,
    T,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    WHOLE: tl.constexpr,
    RELU: tl.constexpr,
    BIAS: tl.constexpr,
    RAGGED: tl.constexpr,
    GATE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid (splits, blocks of M rows, blocks of N columns). out `[n, T, D]`: g * sigma(V @ mixed +
    b).

    g is the gate after the activation GATE ("none": the gate itself). out may be the gate: a
    program reads of it what it writes, and before. weight_split: 0 when all splits share one
    matrix. WHOLE: blocks of K never reach beyond a row of V (a mask along the contiguous axis would
    keep its loads out of the pipeline); what it holds beyond `n` meets zeros.
    """
    split, first, n = own_rows(lengths, T, M, RAGGED)
    rows, d = first + tl.arange(0, M), tl.program_id(2) * N + tl.arange(0, N)
    mixed += split * mixed_split
    weight += split * weight_split
    value = tl.zeros((M, N), dtype=tl.float32)
    for k in range(0, n, K):
        inner = k + tl.arange(0, K)
        v = load_tile(weight, rows, inner, weight_row, n, T, WHOLE)
        value = tl.dot(
            v,
            load_tile(mixed, inner, d, mixed_row, n, D, D % N == 0),
            value,
            input_precision=PRECISION,
        )
    if BIAS:
        value += tl.load(bias + rows, mask=rows < T, other=0.0).to(tl.float32)[:, None]
    if RELU:
        value = larger(value, 0.0)
    raw = load_tile(gate + split * gate_split, rows, d, gate_row, n, D, D % N == 0).to(tl.float32)
    value *= activated(raw, GATE)
    value = tl.where(rows[:, None] < n, value, 0.0)
    store_tile(out + split * out_split, rows, d, out_row, value, T, D, D % N == 0)


@triton.jit(do_not_specialize=["T"])
def backward_input_kernel(
    grad, gate, out, weight, lengths, grad_mixed,
    grad_split, grad_row, gate_split, gate_row, out_split, out_row, weight_row, T,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, WHOLE: tl.constexpr,
    RELU: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid as the forward's.

    grad_mixed `[n, T, D]` contiguous: V^T dO. WHOLE: blocks of M fit into a row of V.
    """
    split, first, n = own_rows(lengths, T, M, RAGGED)
    rows, d = first + tl.arange(0, M), tl.program_id(2) * N + tl.arange(0, N)
    grad, gate, out = at_split(split, grad, grad_split, gate, gate_split, out, out_split)
    value = tl.zeros((M, N), dtype=tl.float32)
    for k in range(0, n, K):
        inner = k + tl.arange(0, K)
        v = load_tile(weight, inner, rows, weight_row, n, T, WHOLE)
        mixture_grad = gated_grad(
            grad, gate, out, inner, d, grad_row, gate_row, out_row, n, D, N, RELU
        )
        value = tl.dot(tl.trans(v), mixture_grad.to(v.dtype), value, input_precision=PRECISION)
    store_tile(
        grad_mixed + split * T * D,
        rows,
        d,
        D,
        tl.where(rows[:, None] < n, value, 0.0),
        T,
        D,
        D % N == 0,
    )


@triton.jit(do_not_specialize=["T", "n_splits"])
def backward_weight_kernel(
    grad,
    mixed,
    gate,
    out,
    lengths,
    weight_partials,
    bias_partials,
    grad_split,
    grad_row,
    mixed_split,
    mixed_row,
    gate_split,
    gate_row,
    out_split,
    out_row,
    T,
    n_splits,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    RELU: tl.constexpr,
    RAGGED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid (groups, blocks of M rows of V, blocks of N columns). Group g adds up the splits g, g +
    groups, ...

    weight_partials float32 `[groups, T, T]`: dO Z^T; bias_partials float32 `[groups, T]`: dO summed
    over the width.
    """
    group, n_groups = tl.program_id(0), tl.num_programs(0)
    rows, columns = tl.program_id(1) * M + tl.arange(0, M), tl.program_id(2) * N + tl.arange(0, N)
    value = tl.zeros((M, N), dtype=tl.float32)
    bias_sum = tl.zeros((M,), dtype=tl.float32)
    split = group.to(tl.int64)
    for _ in range(group, n_splits, n_groups):
        n = valid_rows(lengths, split, T, RAGGED)
        for k in range(0, D, K):
            d = k + tl.arange(0, K)
            own_grad, own_gate, own_out = at_split(
                split, grad, grad_split, gate, gate_split, out, out_split
            )
            mixture_grad = gated_grad(
                own_grad, own_gate, own_out, rows, d, grad_row, gate_row, out_row, n, D, K, RELU
            )
            z = load_tile(mixed + split * mixed_split, columns, d, mixed_row, n, D, D % K == 0)
            value = tl.dot(mixture_grad.to(z.dtype), tl.trans(z), value, input_precision=PRECISION)
            bias_sum += tl.sum(mixture_grad, 1)
        split += n_groups
    base = weight_partials + group.to(tl.int64) * T * T
    store_tile(base, rows, columns, T, value, T, T, False)
    if tl.program_id(2) == 0:
        tl.store(bias_partials + group * T + rows, bias_sum, mask=rows < T)


def mix(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    relu: bool,
    out: torch.Tensor | None = None,
    gate_activation: str = "none",
) -> torch.Tensor:
    """`g * sigma(weight @ mixed + b)`, `[n, T, D]`; weight `[T, T]` for all, or one for each: `[n,
    >= T, >= T]`.

    out: written to and returned, last axis contiguous; it may be the gate. None: a new tensor.
    gate_activation: what makes g of the gate, "gelu", "relu2" or "none".
    """
    n, width, dim = mixed.shape
    if out is None:
        out = torch.empty((n, width, dim), dtype=mixed.dtype, device=mixed.device)
    row = "static_mix" if gate_activation == "none" else "static_mix_activating"
    tile = config_for(row, architecture(mixed.device), mixed.element_size())
    side = power_of_two(width)
    m, columns, inner = min(tile.m, side), min(tile.n, power_of_two(dim)), min(tile.k, side)
    if n:
        with torch.cuda.device_of(mixed):
            forward_kernel[n, blocks(width, m), blocks(dim, columns)](
                mixed,
                gate,
                weight,
                bias,
                lengths,
                out,
                mixed.stride(0),
                mixed.stride(1),
                gate.stride(0),
                gate.stride(1),
                weight.stride(0) if weight.ndim == 3 else 0,
                weight.stride(-2),
                out.stride(0),
                out.stride(1),
                width,
                D=dim,
                M=m,
                N=columns,
                K=inner,
                WHOLE=weight.shape[-1] % inner == 0,
                RELU=relu,
                BIAS=bias is not None,
                RAGGED=lengths is not None,
                GATE=gate_activation,
                PRECISION=precision(mixed.dtype),
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
    return out


@torch.library.custom_op("aveyb::static_mix", mutates_args=())
def static_mix_op(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    relu: bool,
) -> torch.Tensor:
    """`gate * sigma(V @ mixed + b)`, `[n, T, D]`."""
    return mix(mixed, gate, weight, lengths, bias, relu)


@static_mix_op.register_fake
def _(mixed, *_) -> torch.Tensor:
    return mixed.new_empty(mixed.shape)


def _over_gate(mixed, gate, weight, lengths, bias, relu, gate_activation) -> None:
    mix(mixed, gate, weight, lengths, bias, relu, out=gate, gate_activation=gate_activation)


# `static_mix_op` of a gate that lacks its activation, written over that gate.
static_mix_over_gate_op = inference_operator(
    "static_mix_over_gate(Tensor mixed, Tensor(a!) gate, Tensor weight, Tensor? lengths, Tensor?"
    " bias, bool relu, str gate_activation) -> ()",
    _over_gate,
    lambda *_: None,
)


@torch.library.custom_op("aveyb::static_mix_backward", mutates_args=())
def static_mix_backward_op(
    grad: torch.Tensor,
    mixed: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    lengths: torch.Tensor | None,
    relu: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `mixed` `[n, T, D]`, of V and of the bias before their last sums, float32 `[g,
    T, T]`, `[g, T]`.
    """
    n, width, dim = mixed.shape
    device, element, arch = mixed.device, mixed.element_size(), architecture(mixed.device)
    grad_mixed = torch.empty((n, width, dim), dtype=mixed.dtype, device=device)
    groups = min(n, _MAX_PARTIALS)
    weight_partials = torch.empty((groups, width, width), dtype=torch.float32, device=device)
    bias_partials = torch.empty((groups, width), dtype=torch.float32, device=device)
    if n == 0:
        return grad_mixed, weight_partials, bias_partials
    side, whole = power_of_two(width), power_of_two(dim)
    shared = {
        "D": dim,
        "RELU": relu,
        "RAGGED": lengths is not None,
        "PRECISION": precision(mixed.dtype),
    }
    with torch.cuda.device_of(mixed):
        tile = config_for("static_mix_input", arch, element)
        m, columns = min(tile.m, side), min(tile.n, whole)
        backward_input_kernel[n, blocks(width, m), blocks(dim, columns)](
            grad,
            gate,
            out,
            weight,
            lengths,
            grad_mixed,
            grad.stride(0),
            grad.stride(1),
            gate.stride(0),
            gate.stride(1),
            out.stride(0),
            out.stride(1),
            weight.stride(0),
            width,
            M=m,
            N=columns,
            K=min(tile.k, side),
            WHOLE=width % m == 0,
            **shared,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        tile = config_for("static_mix_weight", arch, element)
        m, columns = min(tile.m, side), min(tile.n, side)
        backward_weight_kernel[groups, blocks(width, m), blocks(width, columns)](
            grad,
            mixed,
            gate,
            out,
            lengths,
            weight_partials,
            bias_partials,
            grad.stride(0),
            grad.stride(1),
            mixed.stride(0),
            mixed.stride(1),
            gate.stride(0),
            gate.stride(1),
            out.stride(0),
            out.stride(1),
            width,
            n,
            M=m,
            N=columns,
            K=min(tile.k, whole),
            **shared,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return grad_mixed, weight_partials, bias_partials


@static_mix_backward_op.register_fake
def _(grad, mixed, *_) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    width = mixed.shape[1]
    groups = torch.sym_min(mixed.shape[0], _MAX_PARTIALS)
    partials = mixed.new_empty((groups, width, width), dtype=torch.float32)
    return (
        mixed.new_empty(mixed.shape),
        partials,
        mixed.new_empty((groups, width), dtype=torch.float32),
    )


def _setup_context(ctx, inputs, output) -> None:
    mixed, gate, weight, lengths, bias, ctx.relu = inputs
    ctx.save_for_backward(mixed, gate, weight, lengths, bias, output)


def _backward(ctx, grad):
    mixed, gate, weight, lengths, bias, out = ctx.saved_tensors
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    grad_gate = static_mix_op(mixed, grad, weight, lengths, bias, ctx.relu)
    grad_mixed, weights, biases = static_mix_backward_op(
        grad, mixed, gate, weight, out, lengths, ctx.relu
    )
    grad_bias = None if bias is None else biases.sum(0).to(bias.dtype)
    return grad_mixed, grad_gate, weights.sum(0).to(weight.dtype), None, grad_bias, None


static_mix_op.register_autograd(_backward, setup_context=_setup_context)
