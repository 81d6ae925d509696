"""Each kernel beside plain torch, torch.compile of the same reference, the library's bare product, and its own floor.

    python benchmarks/gpu/kernels.py                       # base model's shapes, bf16
    python benchmarks/gpu/kernels.py --device cpu --toy    # a dry run of a few seconds

The floor of a row is the larger of its operations over the device's rate of a bf16 product (float8: twice that) and its
unavoidable bytes over its rate of a copy, both measured at the start. `library_ms` is cuBLAS's matrix product alone,
without norm, bias, activation or residual: what a kernel with all of them has to come near to be worth having.

Times are those of the device alone: runs are replayed as a CUDA graph, on inputs that take turns so that none is found
in the L2 cache. What cannot be captured (it waits for the device) is timed by the host's clock, and its row says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from common import Ceilings, Clock, Journal, Row, about, attempt, by_token, ceilings, options

from aveyb_retrieval.kernels.activations import activate_around
from aveyb_retrieval.kernels.add_norm import add_norm
from aveyb_retrieval.kernels.dispatch import Backend, force_backend
from aveyb_retrieval.kernels.dynamic_mix import dynamic_mix, dynamic_mix_over_gate
from aveyb_retrieval.kernels.enrich import enrich
from aveyb_retrieval.kernels.float8 import (
    Float8Rows,
    enrich_float8,
    fuse_float8,
    quantize_reference,
    quantize_weight,
)
from aveyb_retrieval.kernels.fuse import fuse
from aveyb_retrieval.kernels.late_interaction import late_interaction
from aveyb_retrieval.kernels.maxsim import split_scores
from aveyb_retrieval.kernels.static_mix import static_mix, static_mix_over_gate

if TYPE_CHECKING:
    from collections.abc import Callable

_CACHE_BYTES = 100e6  # inputs that take turns are larger than any L2 cache


@dataclass(frozen=True)
class Case:
    """One row: a name, what runs, its operations and bytes; `library`: the bare product. compiled: worth compiling."""

    name: str
    run: Callable[[], Any]
    operations: float
    moved: float
    library: Callable[[], Any] | None = None
    compiled: bool = True


def mixing_cases(splits: int, size: int, width: int, device: torch.device, backward: bool) -> list[Case]:
    """The layer's four operations on full splits, forward or forward and backward."""

    def make(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, device=device) / shape[-1] ** 0.5).bfloat16().requires_grad_(backward)

    x, enriched = make(splits, size, width), make(splits, size, 4 * width).detach()
    mixed, gate, bypass = (part.requires_grad_(backward) for part in enriched.split((width, width, 2 * width), dim=-1))
    wide, wide_bias, scale = make(4 * width, width), make(4 * width), make(width)
    matrix, fuser, bias = make(size, size), make(width, 3 * width), make(width)
    upstream = torch.randn(splits, size, 4 * width, device=device).bfloat16()

    def both(forward: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Callable[[], Any]:
        def run() -> Any:
            out = forward(*inputs)
            return torch.autograd.grad(out, inputs, upstream[..., : out.shape[-1]]) if backward else out

        return run

    rows, times = splits * size, 3 if backward else 1
    mixing, dense = 2.0 * rows * size * width * times, 2.0 * rows * width**2 * times
    moved = 2.0 * rows * width * times  # one [n, T, D] of bf16 read or written
    cases: list[Case] = []
    for name, normalization, activation in (("released", "l1", "none"), ("paper", "sum", "relu")):
        dynamic = partial(dynamic_mix, normalization=normalization, eps=1e-12, activation=activation)
        cases.append(
            Case(f"dynamic_mix {name}", both(dynamic, mixed, gate), (2.3 if backward else 2) * mixing, 3 * moved)
        )
    cases.append(Case("static_mix", both(static_mix, mixed, gate, matrix), mixing, 3 * moved))
    library = partial(torch.nn.functional.linear, x, wide)
    for activation in ("gelu", "relu2"):
        run = both(partial(enrich, eps=1e-6, activation=activation), x, scale, wide, wide_bias)
        cases.append(Case(f"enrich {activation}", run, 4 * dense, 5 * moved, None if backward else library))

    def fused(
        context: torch.Tensor, bypass: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:
        return fuse(context, bypass, weight[:, :width], weight[:, width:], bias, residual, None)

    library = partial(torch.nn.functional.linear, enriched[..., width:], fuser)
    run = both(fused, mixed, bypass, fuser, x)
    cases.append(Case("fuse", run, 3 * dense, 5 * moved, None if backward else library))
    return cases


def pass_cases(splits: int, size: int, width: int, device: torch.device) -> list[Case]:
    """The passes of a layer in inference that kernels take over, and mixing with the gate's activation on the way."""

    def make(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, device=device) / shape[-1] ** 0.5).bfloat16()

    enriched, branch, residual = make(splits, size, 4 * width), make(splits, size, width), make(splits, size, width)
    scale, matrix, norms = make(width), make(size, size), torch.ones(splits, size, device=device)
    mixed, gate, _ = enriched.split((width, width, 2 * width), dim=-1)
    rows = splits * size
    mixing, moved = 2.0 * rows * size * width, 2.0 * rows * width
    common: dict[str, Any] = {"lengths": None, "bias": None}
    cases = [Case("add_norm", partial(add_norm, branch, residual, None, scale, eps=1e-6), 0.0, 4 * moved)]
    for name, normalization, sigma in (("gelu", "l1", "none"), ("relu2", "sum", "relu")):
        around = partial(activate_around, enriched, name, width, 2 * width, norms="head")
        options = common | {"activation": sigma, "gate_activation": name}
        static = partial(static_mix_over_gate, mixed, gate, matrix, **options)
        dynamic = partial(dynamic_mix_over_gate, mixed, gate, norms, normalization=normalization, eps=1e-12, **options)
        cases += [
            Case(f"activate_around {name}", around, 0.0, 6 * moved, compiled=False),
            Case(f"static_mix over gate {name}", static, mixing, 3 * moved, compiled=False),
            Case(f"dynamic_mix over gate {name}", dynamic, 2 * mixing, 3 * moved, compiled=False),
        ]
    return cases


def float8_cases(splits: int, size: int, width: int, device: torch.device) -> list[Case]:
    """Enricher and fuser on float8 operands, rounding of the rows included."""

    def make(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, device=device) / shape[-1] ** 0.5).bfloat16()

    x, enriched = make(splits, size, width), make(splits, size, 4 * width)
    bias, wide_bias = make(width), make(4 * width)
    context, bypass = enriched[..., :width], enriched[..., 2 * width :]
    wide, fuser = quantize_weight(make(4 * width, width), make(width)), quantize_weight(make(width, 3 * width))
    rows = splits * size
    dense, moved = 2.0 * rows * width**2 / 2, 2.0 * rows * width  # float8 products run at twice the rate

    def product(weight: Float8Rows) -> Callable[[], torch.Tensor]:
        a = quantize_reference(make(rows, weight.values.shape[1]))
        scales = a.scales[:, None], weight.scales[None]
        return lambda: torch._scaled_mm(a.values, weight.values.t(), *scales, out_dtype=torch.bfloat16)

    enricher = partial(enrich_float8, x, wide, wide_bias, eps=1e-6, activation="gelu")
    fusing = partial(fuse_float8, (context, bypass), fuser, bias, x, None)
    return [
        Case("enrich float8", enricher, 4 * dense, 5 * moved, product(wide), compiled=False),
        Case("fuse float8", fusing, 3 * dense, 5 * moved, product(fuser), compiled=False),
    ]


def ranking_cases(documents: int, splits: int, size: int, width: int, device: torch.device) -> list[Case]:
    """All pairs of a batch, the token-id shortcut of one document, and reranking."""
    vocabulary = 50_304 if size == 256 else 400
    table = torch.randn(vocabulary, width, device=device).bfloat16()
    # Zipf-like ids: words repeat, as in text.
    draw = torch.rand(documents * splits, size, device=device, dtype=torch.float64)
    ids = (vocabulary**draw).long().clamp_max(vocabulary - 1)
    lengths = torch.full((documents * splits,), size, device=device)
    starts = [splits * i for i in range(documents + 1)]
    pairs = splits * (splits - 1) / 2
    operations = 2.0 * pairs * size**2 * width
    query, tokens = torch.randn(32, 128, device=device).bfloat16(), 300 if size == 256 else 20
    rerank = torch.randn(100 * documents * tokens, 128, device=device).bfloat16()
    rerank_starts = torch.arange(100 * documents + 1) * tokens
    moved = 2.0 * documents * splits * size * width
    ranking = partial(Case, compiled=False)  # shapes that depend on the data, or one product: nothing to compile
    return [
        ranking(
            f"all pairs {documents} x {splits}",
            lambda: split_scores(ids, lengths, starts, table, 1e-12),
            operations * documents,
            moved,
        ),
        ranking(
            f"by token 1 x {splits}",
            lambda: by_token(ids[:splits], lengths[:splits], table, 1e-12),
            operations,
            moved / documents,
        ),
        ranking(
            "late_interaction",
            lambda: late_interaction(query, rerank, rerank_starts),
            2.0 * len(rerank) * 32 * 128,
            256.0 * len(rerank),
        ),
    ]


def milliseconds(cases: list[Case], clock: Clock, what: Callable[[Case], Callable[[], Any]]) -> tuple[float, bool]:
    """Of one run, and whether it is the device's time alone. `cases` are the same on inputs of their own."""
    runs = [what(case) for case in cases]
    if clock.device.type == "cuda":
        try:
            return clock.replayed(runs), True
        except RuntimeError:
            torch.cuda.synchronize(clock.device)
    return clock.median(runs[0]), False


def measure(cases: list[Case], clock: Clock, ceiling: Ceilings, compiled: bool) -> Row:
    """One row: milliseconds of every implementation, and how near the kernel comes to its floor.

    compiled: measure torch.compile, too, which takes seconds to compile.
    """
    on_gpu, case = clock.device.type == "cuda", cases[0]
    floor = 1e3 * max(case.operations / ceiling.flops, case.moved / ceiling.bytes)
    row: Row = {"floor_ms": floor}

    def time_of(column: str, backend: Backend, what: Callable[[Case], Callable[[], Any]]) -> None:
        def timed() -> Row:
            with force_backend(backend):
                found, alone = milliseconds(cases, clock, what)
            return {column: found} | ({} if alone or not on_gpu else {f"{column}_by": "host"})

        measured = attempt({}, timed)
        if "note" in measured:
            measured = {
                "ok": False,
                "note": "; ".join(filter(None, (row.get("note"), f"{column}: {measured['note']}"))),
            }
        row.update(measured)

    if case.library is not None:
        time_of("library_ms", "torch", lambda c: c.library or c.run)
    time_of("torch_ms", "torch", lambda c: c.run)
    if compiled and on_gpu and case.compiled:
        torch._dynamo.reset()  # all rows compile one code object, of which only eight forms are kept
        time_of("compiled_ms", "torch", lambda c: torch.compile(c.run))
    if on_gpu:
        time_of("kernel_ms", "triton", lambda c: c.run)
    best = row.get("kernel_ms") or row.get("torch_ms")
    return row | ({"of_floor": floor / best} if best else {})


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    device = torch.device(chosen.device)
    clock = Clock(device, chosen.minutes)
    torch.manual_seed(0)
    size, width = (16, 32) if chosen.toy else (256, 768)
    ceiling = ceilings(clock, chosen.toy, chosen.out)
    journal = Journal(chosen.out, "kernels", about(device, toy=chosen.toy, **ceiling.facts()))

    def run(tokens: int, backward: bool, make: Callable[[], list[Case]], bytes_of: float, compiled: bool) -> None:
        """Measure cases of one size, made as often as their inputs have to take turns."""
        copies = min(8, 1 + int(_CACHE_BYTES / bytes_of)) if device.type == "cuda" else 1
        made = [make() for _ in range(copies)]
        for same in zip(*made, strict=True):
            row = {"tokens": tokens, "kernel": same[0].name, "backward": backward}
            if clock.left() < 20:
                journal.add(row | {"note": "left out: no time"})
            else:
                journal.add(row | attempt({}, lambda same=same: measure(list(same), clock, ceiling, compiled)))

    # Forward first, then what ranks, then backward: the least important is what a deadline cuts off.
    small, large = (64, 128) if chosen.toy else (4096, 65_536)
    for tokens in (large, small):
        splits, moved = tokens // size, 2.0 * 8 * tokens * width
        run(tokens, False, partial(mixing_cases, splits, size, width, device, False), moved, tokens == large)
        run(tokens, False, partial(pass_cases, splits, size, width, device), moved, tokens == large)
        run(tokens, False, partial(float8_cases, splits, size, width, device), moved, False)
    for documents, splits in ((2, 3), (1, 6)) if chosen.toy else ((8, 8), (8, 32), (2, 128), (1, 384)):
        make = partial(ranking_cases, documents, splits, size, width, device)
        run(documents * splits * size, False, make, _CACHE_BYTES, False)
    for tokens in (large, small):
        moved = 2.0 * 16 * tokens * width
        run(tokens, True, partial(mixing_cases, tokens // size, size, width, device, True), moved, tokens == large)
    journal.close()


if __name__ == "__main__":
    main()
