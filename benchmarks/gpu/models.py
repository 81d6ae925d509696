"""The model on a GPU: any batch right, tokens a second beside ModernBERT's two forms, a training
step, a profile.

ModernBERT runs in plain torch without flash-attn, with the attention of transformers ("sdpa", whose
local layers take a mask over all pairs) and with one whose local layers take linear time
("banded"): the faster of the two is what ours has to be compared with. Weights are random, ids have
the distribution of words.
"""

from __future__ import annotations

import copy
import time
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from measure import (
    ceilings,
    draw_ids,
    front_flops,
    layer_flops,
    milliseconds,
    relative_error,
    synchronize,
)

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network import split_encoder
from aveyb_retrieval.encoder.network.cuda_graphs import CudaGraphs
from aveyb_retrieval.encoder.network.split_encoder import InferenceModel, SplitEncoder
from aveyb_retrieval.kernels.dispatch import force_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from run import Context

# queries of one block of a local layer; its keys are those of the block and of its two neighbors
BAND = 128
TINY = {"vocab_size": 500, "hidden_size": 32, "num_hidden_layers": 2, "split_size": 16}
MODELS: dict[str, tuple[Callable[..., AveyBConfig], dict[str, Any], torch.dtype]] = {
    "released": (AveyBConfig.released_base, {}, torch.bfloat16),
    "paper": (AveyBConfig.paper_base, {"hidden_size": 384}, torch.bfloat16),
    "masked": (AveyBConfig.released_base, {"tail": "masked"}, torch.bfloat16),
    "float32": (AveyBConfig.released_base, {"tail": "masked"}, torch.float32),
}
SHAPES = {  # texts, tokens of each, ids
    "ours": [
        (8, 512, "zipf"),
        (8, 2048, "zipf"),
        (8, 8192, "zipf"),
        (1, 98_304, "zipf"),
        (8, 98_304, "zipf"),
        (1, 512, "zipf"),
        (1, 32_768, "zipf"),
        (8, 8192, "uniform"),
    ],
    "masked": [(1, 10, "zipf"), (1000, 10, "zipf"), (200, 300, "zipf")],
    "launches": [
        (8, 512, "zipf"),
        (8, 2048, "zipf"),
        (8, 8192, "zipf"),
        (1, 10, "zipf"),
        (1, 98_304, "zipf"),
    ],
    "torch": [(8, 512, "zipf"), (8, 2048, "zipf"), (8, 8192, "zipf"), (1, 98_304, "zipf")],
    "banded": [
        (8, 512, "zipf"),
        (8, 2048, "zipf"),
        (8, 8192, "zipf"),
        (1, 32_768, "zipf"),
        (1, 98_304, "zipf"),
    ],
    "sdpa": [(8, 512, "zipf"), (8, 2048, "zipf"), (8, 8192, "zipf"), (1, 32_768, "zipf")],
}


def prepare(device: str) -> None:
    """Import what parts need, without touching the device."""
    if device == "cuda":
        from aveyb_retrieval.kernels.triton import (
            dynamic_mix,  # noqa: F401
            maxsim,  # noqa: F401
            positionwise,  # noqa: F401
            static_mix,  # noqa: F401
        )


def random_model(config: AveyBConfig, dtype: torch.dtype, device: torch.device) -> InferenceModel:
    """An encoder with weights drawn on the device."""
    with torch.device(device):
        model = InferenceModel(config.settings)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("spatial_proj", "down_proj")):
                    torch.nn.init.xavier_normal_(parameter)
                elif parameter.dim() == 2:
                    parameter.normal_(std=0.02)
                else:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0).add_(
                        0.1 * torch.randn_like(parameter)
                    )
    return model.to(dtype).eval()


@contextmanager
def launch_by_launch() -> Iterator[None]:
    """Within the block no model replays graphs."""
    with mock.patch.object(split_encoder, "_REPLAYS", ()):
        yield


@contextmanager
def compiled() -> Iterator[None]:
    """Within the block torch.compile runs the layers instead of our kernels, in graphs, too."""
    torch.compiler.reset()
    whole = torch.compile(SplitEncoder.run_layers, dynamic=False)
    with force_backend("torch"), mock.patch.object(SplitEncoder, "run_layers", whole):
        yield
    torch.compiler.reset()


def check_compiled(context: Context, group: str) -> None:
    """Layers by torch.compile against float32 in plain torch; a text alone against a batch of it,
    bit for bit.
    """
    device = torch.device(context.device)
    make, settings, dtype = MODELS[group]
    settings = settings | (TINY if context.toy else {"num_hidden_layers": 4, "vocab_size": 2048})
    torch.manual_seed(1)
    model = random_model(make(**settings), dtype, device)
    exact = copy.deepcopy(model).float()
    tokens = 2 * (TINY["split_size"] if context.toy else 256)
    ids = draw_ids("uniform", 8, tokens, 400, device)

    def right() -> dict[str, Any]:
        with torch.inference_mode():
            with force_backend("torch"):
                wanted, plain = exact.encode_batch(ids), model.encode_batch(ids)
            with compiled():
                got = model.encode_batch(ids)
        error, bound = relative_error(got, wanted), 2 * relative_error(plain, wanted)
        return {"ok": error <= max(bound, 1e-4), "error": error, "torch_error": bound / 2}

    def same() -> dict[str, Any]:
        with torch.inference_mode(), compiled():
            together = model.encode_batch(ids)
            alone = torch.cat([model.encode_batch(ids[i : i + 1]) for i in range(len(ids))])
        return {"ok": torch.equal(together, alone), "error": relative_error(alone, together)}

    context.attempt(f"{group} compiled", right)
    context.attempt(f"{group} compiled, alone and in a batch", same)


def check(context: Context, group: str) -> None:
    """Batches of every kind, as replays, against float32 in plain torch; again after others ran,
    bit for bit.
    """
    device = torch.device(context.device)
    make, settings, dtype = MODELS[group]
    size = TINY["split_size"] if context.toy else 256
    settings = settings | (TINY if context.toy else {"num_hidden_layers": 4, "vocab_size": 2048})
    torch.manual_seed(1)
    model = random_model(make(**settings), dtype, device)
    exact = copy.deepcopy(model).float()
    batches = {
        "16 splits": [2 * size] * 8,
        "ragged": [5 * size + 7, 1, 3 * size, size, size // 3, 2 * size - 1],
        "queries": [3 + i % 9 for i in range(40)],
        "one query": [10],
        "documents": [8 * size] * 9,
        "long": [70 * size + 5, 40],
        "one full split": [size],
    }

    def encode(used: InferenceModel, counts: list[int]) -> torch.Tensor:
        mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
        ids = torch.randint(
            0,
            used.config.vocab_size,
            mask.shape,
            generator=torch.Generator().manual_seed(len(counts)),
        )
        with torch.inference_mode():
            return used.encode_batch(ids.to(device), mask.long())

    if dtype == torch.float32:  # its kernels take long to compile
        batches = {name: batches[name] for name in ("16 splits", "ragged", "long")}
    first: dict[str, torch.Tensor] = {}

    def judge(name: str) -> dict[str, Any]:
        begin = time.perf_counter()
        first[name] = encode(model, batches[name])
        synchronize(device)
        seconds = time.perf_counter() - begin
        with launch_by_launch():
            launched = encode(model, batches[name])
            with force_backend("torch"):
                wanted, plain = encode(exact, batches[name]), encode(model, batches[name])
        error, bound = (
            relative_error(first[name], wanted),
            2e-2 if dtype == torch.bfloat16 else 1e-4,
        )
        bound = max(bound, 2 * relative_error(plain, wanted))
        return {
            "ok": error <= bound,
            "error": error,
            "torch_error": relative_error(plain, wanted),
            "to_launches": relative_error(first[name], launched),
            "first_s": seconds,
        }

    for name in batches:
        context.attempt(f"{group} {name}", lambda name=name: judge(name))

    def again() -> dict[str, Any]:
        different = [
            name
            for _ in range(3)
            for name in first
            if not torch.equal(encode(model, batches[name]), first[name])
        ]
        return {"ok": not different, "note": ", ".join(different) or None}

    context.attempt(f"{group} again", again)


def encode(context: Context, group: str) -> None:
    """Tokens a second of base models in bfloat16; launches: without graphs, torch: without kernels,
    too; compiled: torch.compile's code instead of the kernels, in graphs.
    """
    device = torch.device(context.device)
    top = ceilings(device, context.toy, context.out)
    if group == "modernbert":
        return _encode_modernbert(context, device)
    config = AveyBConfig.released_base(**(TINY if context.toy else {}))
    model = random_model(config, torch.bfloat16, device)
    with ExitStack() as stack:
        if group == "compiled":
            stack.enter_context(compiled())
        elif group != "ours":
            stack.enter_context(launch_by_launch())
        if group == "torch":
            stack.enter_context(force_backend("torch"))
        shapes = SHAPES["torch" if group == "compiled" else group]
        _encode_rows(context, f"ours, {group}", model.encode_batch, shapes, device)
        if group == "ours":
            context.attempt("graphs held", lambda: _memory(model))
            model = random_model(
                AveyBConfig.from_dict(config.to_dict() | {"tail": "masked"}), torch.bfloat16, device
            )
            _encode_rows(
                context, "ours, short splits masked", model.encode_batch, SHAPES["masked"], device
            )
    words = 400 if context.toy else 30_000
    for batch, tokens, kind in SHAPES["ours"][:5] if group == "ours" else ():
        floor = tokens * layer_flops(config) + front_flops(
            config, draw_ids(kind, 1, tokens, words, device)[0]
        )
        context.add(name="floor", batch=batch, tokens=tokens, ms=1e3 * batch * floor / top.flops)


def _memory(model: InferenceModel) -> dict[str, Any]:
    graphs = model._graphs
    held = 0 if graphs is None else len(graphs._captured)
    return {
        "graphs": held,
        "gib": torch.cuda.memory_reserved() / 2**30 if model.device.type == "cuda" else None,
    }


def _encode_rows(
    context: Context,
    name: str,
    forward: Callable[[torch.Tensor], Any],
    shapes: list[Any],
    device: torch.device,
) -> None:
    for batch, tokens, kind in shapes:
        tokens = max(4, tokens // 64) if context.toy else tokens
        if context.left() < 1.5:
            context.add(name=name, batch=batch, tokens=tokens, note="no time")
            continue
        ids = draw_ids(kind, batch, tokens, 400 if context.toy else 30_000, device)

        def measure(ids: torch.Tensor = ids) -> dict[str, Any]:
            with torch.inference_mode():
                if device.type == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                begin = time.perf_counter()
                forward(ids)
                synchronize(device)
                first = time.perf_counter() - begin
                ms = (
                    milliseconds(lambda: forward(ids), device)
                    if 4 * first < context.left()
                    else 1e3 * first
                )
                synchronize(device)
                begin = time.perf_counter()
                forward(ids)
                host = 1e3 * (time.perf_counter() - begin)  # until the host has said everything
                synchronize(device)
            gib = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
            return {
                "ms": ms,
                "per_s": 1e3 * ids.numel() / ms,
                "host_ms": host,
                "first_s": first,
                "gib": gib,
            }

        context.attempt(name, measure, batch=batch, tokens=tokens, ids=kind)
        if device.type == "cuda":
            synchronize(device)


def profile(context: Context, group: str) -> None:
    """Which kernels the device's time goes to in a forward, and when the host has said
    each replay.
    """
    device = torch.device(context.device)
    batch, tokens = (int(part) for part in group.split(" x "))
    config = AveyBConfig.released_base(**(TINY if context.toy else {}))
    model = random_model(config, torch.bfloat16, device)
    ids = draw_ids(
        "zipf", batch, tokens // (64 if context.toy else 1), 400 if context.toy else 30_000, device
    )
    on_device = device.type == "cuda"
    kinds = [
        torch.profiler.ProfilerActivity.CUDA if on_device else torch.profiler.ProfilerActivity.CPU
    ]
    replay, said = CudaGraphs.__call__, []

    def timed(*arguments: Any) -> Any:
        found = replay(*arguments)
        said.append(round(1e3 * (time.perf_counter() - begin), 2))
        return found

    with torch.inference_mode():
        for _ in range(2):
            model.encode_batch(ids)
        synchronize(device)
        with torch.profiler.profile(activities=kinds) as found:
            for _ in range(3):
                model.encode_batch(ids)
            synchronize(device)
        with mock.patch.object(CudaGraphs, "__call__", timed):
            begin = time.perf_counter()
            model.encode_batch(ids)
            host = 1e3 * (time.perf_counter() - begin)
        synchronize(device)
    context.add(name=f"{group}: host", ms=host, replays=said)
    events = [
        (e.self_device_time_total if on_device else e.self_cpu_time_total, e)
        for e in found.key_averages()
    ]
    events.sort(key=lambda pair: -pair[0])
    total = sum(us for us, _ in events) / 3e3
    context.add(
        name=f"{group}: all kernels", ms=total, launches=sum(e.count for _, e in events) // 3
    )
    for us, event in events[:20]:
        name = event.key.replace("at::native::", "").removeprefix("void ")
        context.add(name=name[:170], ms=us / 3e3, launches=event.count // 3)


def banded_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """ModernBERT's attention, local layers in linear time: exact, blocks of 128 queries against 384
    keys.

    `[B, H, N, d]` each -> `[B, N, H, d]`. Global layers take torch's flash attention, for which no
    mask may be given.
    """
    attend = torch.nn.functional.scaled_dot_product_attention
    batch, heads, length, dim = query.shape
    if sliding_window is None or length <= BAND:
        return attend(query, key, value, scale=scaling).transpose(1, 2), None
    if length % BAND or sliding_window - 1 > BAND:
        raise ValueError(
            f"{length} tokens are no multiple of {BAND}, or a window of {sliding_window} is too"
            " wide"
        )
    blocks = length // BAND

    def around(x: torch.Tensor) -> torch.Tensor:
        """`[B blocks, H, 3 BAND, d]`."""
        x = torch.nn.functional.pad(x, (0, 0, BAND, BAND)).unfold(2, 3 * BAND, BAND)
        return x.permute(0, 2, 1, 4, 3).reshape(batch * blocks, heads, 3 * BAND, dim)

    own = (
        query.view(batch, heads, blocks, BAND, dim)
        .transpose(1, 2)
        .reshape(batch * blocks, heads, BAND, dim)
    )
    own_at, key_at = (
        torch.arange(BAND, device=query.device),
        torch.arange(3 * BAND, device=query.device) - BAND,
    )
    near = (own_at[:, None] - key_at).abs() <= sliding_window - 1
    there = torch.arange(blocks, device=query.device)[:, None] * BAND + key_at
    mask = near & ((there >= 0) & (there < length))[:, None]
    mask = mask.repeat(batch, 1, 1)[:, None]
    out = attend(own, around(key), around(value), attn_mask=mask, scale=scaling).view(
        batch, blocks, heads, BAND, dim
    )
    return out.transpose(2, 3).reshape(batch, length, heads, dim), None


def _modernbert(kind: Any, toy: bool, device: torch.device, **more: Any) -> Any:
    from transformers import ModernBertConfig
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS["banded"] = banded_attention
    special = {
        f"{name}_token_id": i % 3 for i, name in enumerate(("pad", "bos", "eos", "cls", "sep"))
    }
    tiny = {"vocab_size": 500, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2,
            "intermediate_size": 48} | special  # fmt: skip
    config = ModernBertConfig(max_position_embeddings=131_072, **(tiny if toy else {}), **more)
    config._attn_implementation = "sdpa"
    with torch.device(device):
        return kind(config)


def _no_masks(attention: str) -> dict[str, Any]:
    """What keeps transformers from making masks over all pairs."""
    return (
        {"attention_mask": {"full_attention": None, "sliding_attention": None}}
        if attention == "banded"
        else {}
    )


def _encode_modernbert(context: Context, device: torch.device) -> None:
    from transformers import ModernBertModel

    model = _modernbert(ModernBertModel, context.toy, device).to(torch.bfloat16).eval()

    def forward(ids: torch.Tensor, attention: str) -> torch.Tensor:
        model.config._attn_implementation = attention
        return model(ids, **_no_masks(attention)).last_hidden_state

    def agree() -> dict[str, Any]:
        ids = draw_ids("zipf", 2, 3 * BAND, 400, device)
        with torch.inference_mode():
            error = relative_error(forward(ids, "banded"), forward(ids, "sdpa"))
        return {"ok": error < 2e-2, "error": error}

    context.attempt("ModernBERT: banded is sdpa", agree)
    for attention in ("banded", "sdpa"):
        shapes = [s for s in SHAPES[attention] if not context.toy or s[1] == 8192]
        _encode_rows(
            context,
            f"ModernBERT {attention}",
            lambda ids, a=attention: forward(ids, a),
            shapes,
            device,
        )


def train(context: Context, group: str) -> None:
    """Forward and backward under bf16 autocast, a fifth of 8 x 2,048 tokens asked for; logits of
    those alone.
    """
    from transformers import ModernBertForMaskedLM

    from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM

    device = torch.device(context.device)
    batch, tokens, words = (2, 2 * BAND, 400) if context.toy else (8, 2048, 30_000)
    ids = draw_ids("zipf", batch, tokens, words, device)
    labels = ids.masked_fill(torch.rand(ids.shape, device=device) > 0.2, -100)
    config = AveyBConfig.released_base(**(TINY if context.toy else {}))
    for attention in ("banded", "sdpa") if group == "modernbert" else ("",):

        def measure(attention: str = attention) -> dict[str, Any]:
            if attention:
                model = _modernbert(
                    ModernBertForMaskedLM, context.toy, device, sparse_prediction=True
                ).train()
                model.config._attn_implementation = attention
            else:
                with torch.device(device):
                    model = AveyBForMaskedLM(config).train()

            def step() -> None:
                model.zero_grad(set_to_none=True)
                with torch.autocast(device.type, torch.bfloat16):
                    loss = model(input_ids=ids, labels=labels, **_no_masks(attention)).loss
                loss.backward()

            plain = {"torch": lambda: force_backend("torch"), "compiled": compiled}
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            with plain.get(group, nullcontext)():
                ms = milliseconds(step, device)
            gib = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
            return {"ms": ms, "per_s": 1e3 * ids.numel() / ms, "gib": gib}

        context.attempt(
            f"training {group} {attention}".strip(), measure, batch=batch, tokens=tokens
        )
