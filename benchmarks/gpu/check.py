"""Every kernel on the GPU against float64, the whole model against the CPU, batch invariance, determinism.

Each operation runs on 4, 64 and 512 splits (8 programs leave most of a device idle, and a race may need neighbors), 50
times while another stream keeps the matrix units busy: every repetition must give the same bits. `torch_error` is the
error of plain torch in the same dtype: what rounding alone costs.

python benchmarks/gpu/check.py                         # ends with code 1 if anything is out of bounds
python benchmarks/gpu/check.py --device cpu --toy      # a dry run; TRITON_INTERPRET=1 runs the kernels as well
"""

from __future__ import annotations

import os
import sys
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from common import Clock, Journal, Row, about, attempt, by_token, ceilings, options
from passes import pass_rows
from verdicts import BOUNDS, PRESETS, REPETITIONS, Load, Outputs, line, relative_error, verdict

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM, AveyBModel
from aveyb_retrieval.kernels import float8, maxsim
from aveyb_retrieval.kernels.dispatch import Backend, force_backend
from aveyb_retrieval.kernels.dynamic_mix import dynamic_mix
from aveyb_retrieval.kernels.enrich import enrich
from aveyb_retrieval.kernels.fuse import fuse
from aveyb_retrieval.kernels.late_interaction import late_interaction
from aveyb_retrieval.kernels.static_mix import static_mix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def mixing(
    operation: str, preset: str, lengths: list[int], size: int, width: int, device: torch.device
) -> tuple[dict[str, torch.Tensor], Callable[..., Outputs]]:
    """Float64 leaves of a ragged group, and a function of (leaves, backend) that gives the output and all gradients."""
    settings = PRESETS[preset]
    enriched = torch.randn(len(lengths), size, 4 * width, dtype=torch.float64, device=device)
    leaves = {"enriched": enriched.relu().square() if preset == "paper" else torch.nn.functional.gelu(enriched)}
    leaves["upstream"] = torch.randn(len(lengths), size, width, dtype=torch.float64, device=device)
    if operation == "static_mix":
        leaves["matrix"] = torch.randn(size, size, dtype=torch.float64, device=device) / size**0.5
    if settings["bias"]:
        leaves["bias"] = 0.1 * torch.randn(size, dtype=torch.float64, device=device)

    def run(leaves: dict[str, torch.Tensor], backend: Backend) -> Outputs:
        used = {k: v.detach().requires_grad_() for k, v in leaves.items() if k != "upstream"}
        mixed, gate, _ = used["enriched"].split((width, width, 2 * width), dim=-1)
        common: dict[str, Any] = {
            "lengths": torch.tensor(lengths, device=mixed.device),
            "bias": used.get("bias"),
            "activation": settings["activation"],
            "backend": backend,
        }
        if operation == "static_mix":
            out = static_mix(mixed, gate, used["matrix"], **common)
        else:
            out = dynamic_mix(mixed, gate, normalization=settings["normalization"], eps=1e-6, **common)
        grads = torch.autograd.grad(out, list(used.values()), leaves["upstream"])
        return {"out": out.detach()} | dict(zip(used, grads, strict=True))

    return leaves, run


def mixing_rows(device: torch.device, backend: Backend, size: int, width: int, toy: bool) -> Iterator[Row]:
    """Static and dynamic mixing, both presets, three dtypes, ragged, forward and gradients."""
    load = Load(device)
    for splits in (4, 8) if toy else (4, 64, 512):
        lengths = [(size, 1, size // 2 + 1, size - 1)[i % 4] for i in range(splits)]
        for operation, preset, (dtype, bound) in product(("static_mix", "dynamic_mix"), PRESETS, BOUNDS.items()):

            def check(
                operation: str = operation,
                preset: str = preset,
                dtype: torch.dtype = dtype,
                bound: float = bound,
                lengths: list[int] = lengths,
            ) -> Row:
                leaves, run = mixing(operation, preset, lengths, size, width, device)
                rounded = {k: v.to(dtype) for k, v in leaves.items()}
                wanted = run({k: v.double() for k, v in rounded.items()}, "torch")
                got, plain = run(rounded, backend), run(rounded, "torch")
                worst, torch_error = (max(relative_error(x[k], wanted[k]) for k in wanted) for x in (got, plain))
                same = load.repeat(lambda: run(rounded, backend), got)
                return verdict(worst, bound, same) | {"torch_error": torch_error}

            yield attempt({"check": f"{operation} {preset} {dtype} {splits} splits"}, check)


def linear_rows(device: torch.device, backend: Backend, size: int, width: int, splits: int) -> Iterator[Row]:
    """Enricher and fuser, both presets, three dtypes, with gradients; then on float8 operands against plain torch."""
    load = Load(device)
    shapes = {"x": (splits, size - 1, width), "scale": (width,), "wide": (4 * width, width), "wide_bias": (4 * width,)}
    shapes |= {"enriched": (splits, size - 1, 4 * width), "matrix": (width, 3 * width), "bias": (width,), "alpha": ()}
    shapes |= {"wide_grad": shapes["enriched"], "grad": shapes["x"]}
    leaves = {
        k: torch.randn(v, dtype=torch.float64, device=device) / (v[-1] ** 0.5 if len(v) == 2 else 1)
        for k, v in shapes.items()
    }
    for activation, alpha in (("gelu", True), ("relu2", False)):
        unused = {"wide_grad", "grad"} | (set() if alpha else {"alpha"})

        def run(
            leaves: dict[str, torch.Tensor], backend: Backend, gelu: str = activation, unused: set[str] = unused
        ) -> Outputs:
            used = {k: v.detach().requires_grad_() for k, v in leaves.items() if k not in unused}
            x, enriched = used["x"], used["enriched"]
            out = enrich(x, used["scale"], used["wide"], used["wide_bias"], eps=1e-6, activation=gelu, backend=backend)
            context, _, bypass = enriched.split((width, width, 2 * width), dim=-1)
            weights = used["matrix"].split((width, 2 * width), dim=1)
            fused = fuse(context, bypass, *weights, used["bias"], x, used.get("alpha"), backend=backend)
            grads = torch.autograd.grad((out, fused), list(used.values()), (leaves["wide_grad"], leaves["grad"]))
            return {"enriched_out": out.detach(), "fused": fused.detach()} | dict(zip(used, grads, strict=True))

        for dtype, bound in BOUNDS.items():
            rounded = {k: v.to(device, dtype) for k, v in leaves.items()}
            wanted = run({k: v.double() for k, v in rounded.items()}, "torch")
            got = run(rounded, backend)
            worst = max(relative_error(got[k], wanted[k]) for k in wanted)
            plain = run(rounded, "torch")
            error = max(relative_error(plain[k], wanted[k]) for k in wanted)
            same = load.repeat(lambda rounded=rounded, run=run: run(rounded, backend), got)
            name = f"enrich, fuse {activation} {dtype} {splits} splits"
            yield {"check": name} | verdict(worst, bound, same) | {"torch_error": error}

        wide, matrix = (
            float8.quantize_weight(v.to(device)) for v in (leaves["wide"] * leaves["scale"], leaves["matrix"])
        )

        def rounded_run(
            backend: Backend,
            inputs: dict[str, torch.Tensor],
            gelu: str = activation,
            alpha: bool = alpha,
            wide: float8.Float8Rows = wide,
            matrix: float8.Float8Rows = matrix,
        ) -> Outputs:
            x, enriched = inputs["x"], inputs["enriched"]
            out = float8.enrich_float8(x, wide, inputs["wide_bias"], eps=1e-6, activation=gelu, backend=backend)
            parts, factor = (enriched[..., :width], enriched[..., 2 * width :]), inputs["alpha"] if alpha else None
            fused = float8.fuse_float8(parts, matrix, inputs["bias"], x, factor, backend=backend)
            return {"out": out, "fused": fused}

        kernel: Backend = backend if device.type == "cuda" else "torch"  # Triton's interpreter rounds to float8 wrongly
        for dtype in (d for d in BOUNDS if d != torch.float16):
            inputs = {k: v.to(device, dtype) for k, v in leaves.items()}
            got, wanted = rounded_run(kernel, inputs), rounded_run("torch", inputs)
            worst = max(relative_error(got[k], wanted[k]) for k in wanted)
            same = load.repeat(lambda inputs=inputs, run=rounded_run, kernel=kernel: run(kernel, inputs), got)
            # A value next to a tie may be rounded the other way, by 6 % of itself.
            yield line(f"float8 {activation} {dtype}", worst, max(5e-3, BOUNDS[dtype] / 4), same)


def form_rows(device: torch.device, toy: bool) -> Iterator[Row]:
    """Forms of a model's inference against its plain one: CUDA graphs on the same device, float8 on the CPU."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "split_size": 16} if toy else {"num_hidden_layers": 4}
    for preset, make in (("released", AveyBConfig.released_base), ("paper", AveyBConfig.paper_base)):
        torch.manual_seed(2)
        model = AveyBModel(make(vocab_size=1000, **sizes)).eval()
        size = model.config.split_size
        texts = [torch.randint(0, 1000, (n, t)) for n, t in ((1, 10), (3, 10), (1, size), (4, size), (2, 3 * size + 5))]

        def encode(ids: torch.Tensor, model: AveyBModel = model) -> torch.Tensor:
            with torch.inference_mode(), force_backend("auto" if model.device.type == "cuda" else "torch"):
                return model(ids.to(model.device)).last_hidden_state

        model.use_float8()
        rounded = [encode(ids) for ids in texts]
        model.use_float8(False)
        model.to(device)
        plain = [encode(ids) for ids in texts]
        model.use_float8()
        got = [encode(ids) for ids in texts]
        same = all(torch.equal(encode(ids), out) for ids, out in zip(texts, got, strict=True))
        model.use_float8(False)
        worst = max(relative_error(a, b) for a, b in zip(got, rounded, strict=True))
        yield line(f"model {preset} float8, {device.type} against CPU", worst, 2e-2, same)
        if device.type == "cuda":
            model.use_cuda_graphs()
            got = [encode(ids) for _ in range(REPETITIONS) for ids in texts]
            worst = max(relative_error(a, plain[i % len(texts)]) for i, a in enumerate(got))
            same = all(torch.equal(a, got[i % len(texts)]) for i, a in enumerate(got))
            yield line(f"model {preset} CUDA graphs", worst, 1e-5, same)


def ranking_rows(device: torch.device, backend: Backend, size: int, width: int, toy: bool) -> Iterator[Row]:
    """MaxSim of a batch, its chosen pairs with gradient, the shortcut, and late interaction."""
    load = Load(device)
    # Documents of so many splits, 9, 64 and 512 in all; those of more than 64 take the shortcut.
    for counts in ([3, 1, 5],) if toy else ([3, 1, 5], [30, 1, 33], [300, 64, 148]):
        starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
        total, last = starts[-1], slice(starts[-2], starts[-1])
        lengths = torch.full((total,), size, device=device)
        lengths[-1] = size // 3 + 1
        ids = (torch.rand(total, size, device=device) ** 2 * 400).long()
        for dtype in BOUNDS:
            table = torch.randn(400, width, device=device).to(dtype)
            wanted = maxsim.split_scores(ids, lengths, starts, table.double(), 1e-12, backend="torch")
            earlier = wanted > float("-inf")

            def batch(table: torch.Tensor, backend: Backend, ids: torch.Tensor = ids, **more: Any) -> Outputs:
                return {"out": maxsim.split_scores(ids, more["lengths"], more["starts"], table, 1e-12, backend=backend)}

            def alone(table: torch.Tensor, backend: Backend, ids: torch.Tensor = ids, **more: Any) -> Outputs:
                own = ids[more["last"]], more["lengths"][more["last"]]
                return {"out": by_token(*own, table, 1e-12, backend=backend)}

            given: dict[str, Any] = {"lengths": lengths, "starts": starts, "last": last}
            for name, run, rows in (("split_scores", batch, slice(None)), ("by token", alone, last)):
                columns = slice(None) if run is batch else slice(counts[-1])
                mask, right = earlier[rows, columns], wanted[rows, columns]
                got, plain = (run(table, kind, ids, **given)["out"] for kind in (backend, "torch"))
                same = load.repeat(
                    lambda run=run, table=table, ids=ids, given=given: run(table, backend, ids, **given), {"out": got}
                )
                row = line(f"{name} {dtype} {total} splits", relative_error(got[mask], right[mask]), 1e-5, same)
                yield row | {"torch_error": relative_error(plain[mask], right[mask])}
    for dtype in BOUNDS:
        yield from pair_rows(device, backend, size, width, dtype, load)


def pair_rows(
    device: torch.device, backend: Backend, size: int, width: int, dtype: torch.dtype, load: Load
) -> Iterator[Row]:
    """Chosen pairs of splits with gradient, and late interaction, in one dtype."""
    exact = 1e-5 if backend == "triton" else 1e-2  # plain torch rounds products of bfloat16 rows to bfloat16
    unit = torch.nn.functional.normalize(torch.randn(4, size, width, device=device), dim=-1).to(dtype)
    pairs = torch.tensor([[1, 2, 2, 3], [0, 0, 1, 2]], device=device)
    whole = torch.full((4,), size, device=device)

    def selected(unit: torch.Tensor, backend: Backend) -> Outputs:
        leaf = unit.detach().requires_grad_()
        scores = maxsim.maxsim_selected(leaf, whole, *pairs, backend=backend)
        (grad,) = torch.autograd.grad(scores, leaf, torch.arange(1.0, 5.0, device=scores.device).to(scores.dtype))
        return {"out": scores.detach(), "grad": grad}

    got, wanted, plain = selected(unit, backend), selected(unit.double(), "torch"), selected(unit, "torch")
    worst, torch_error = (max(relative_error(x[k], wanted[k]) for k in wanted) for x in (got, plain))
    same = load.repeat(lambda: selected(unit, backend), got)
    # Plain torch rounds low-precision cosines, so that now and then another token is the best and gets the gradient.
    loose = backend == "torch" and dtype != torch.float32
    yield line(f"maxsim_selected {dtype}", worst, 0.2 if loose else BOUNDS[dtype], same) | {"torch_error": torch_error}
    rows_of = torch.tensor([0, 5, 5, 70, 300])
    documents, query = (torch.randn(n, 128, device=device).to(dtype) for n in (300, 20))

    def reranked(backend: Backend, wide: bool = False) -> Outputs:
        rows = (query.double(), documents.double()) if wide else (query, documents)
        return {"out": late_interaction(*rows, rows_of, backend=backend)}

    scores, right = reranked(backend), reranked("torch", wide=True)["out"]
    same = load.repeat(lambda: reranked(backend), scores)
    row = line(f"late_interaction {dtype}", relative_error(scores["out"], right), exact, same)
    yield row | {"torch_error": relative_error(reranked("torch")["out"], right)}


def model_rows(device: torch.device, backend: Backend, toy: bool) -> Iterator[Row]:
    """The whole model: against float32 torch on the CPU, alone against batched, and repeated."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "split_size": 16} if toy else {"num_hidden_layers": 6}
    for preset, make in (("released", AveyBConfig.released_base), ("paper", AveyBConfig.paper_base)):
        torch.manual_seed(1)
        config = make(vocab_size=1000 if toy else 50_368, **sizes)
        model = AveyBModel(config).eval()
        counts = [5 * config.split_size + 7, 3, 2 * config.split_size]
        ids = [torch.randint(0, config.vocab_size, (n,)) for n in counts]
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(i) for i in ids], batch_first=True)
        with torch.inference_mode(), force_backend("torch"):
            wanted = model(padded, mask).last_hidden_state
        model = model.to(device)

        def encode(ids: torch.Tensor, mask: torch.Tensor | None, model: AveyBModel = model) -> torch.Tensor:
            with torch.inference_mode(), force_backend(backend):
                return model(ids.to(device), None if mask is None else mask.to(device)).last_hidden_state

        got = encode(padded, mask)
        same = all(torch.equal(got, encode(padded, mask)) for _ in range(REPETITIONS))
        name = f"model {preset} {backend} float32"
        yield line(f"{name}, CPU against {device.type}", relative_error(got, wanted), 1e-4, same)
        alone = [encode(i[None], None)[0] for i in ids]
        together = [got[row, : len(i)] for row, i in enumerate(ids)]
        worst = max(relative_error(a, b) for a, b in zip(alone, together, strict=True))
        bitwise = all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
        # cuBLAS may choose another algorithm for another number of rows: equal bits are reported, not required.
        yield line(f"{name}, alone against batched", worst, 1e-5, True) | {"bitwise": bitwise}


def training_rows(device: torch.device, backend: Backend, toy: bool) -> Iterator[Row]:
    """Loss and the gradient of every parameter, repeated under load: beside float32 torch on the CPU.

    In float32, and under autocast, where the bound is twice the error of plain torch on the same device.
    """
    load = Load(device)
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "split_size": 16} if toy else {"num_hidden_layers": 4}
    for preset, make in (("released", AveyBConfig.released_base), ("paper", AveyBConfig.paper_base)):
        torch.manual_seed(3)
        model = AveyBForMaskedLM(make(vocab_size=1000, **sizes)).train()
        size = model.config.split_size
        ids = torch.randint(0, 1000, (4, 3 * size + 5))

        def run(
            backend: Backend,
            dtype: torch.dtype = torch.float32,
            model: AveyBForMaskedLM = model,
            ids: torch.Tensor = ids,
        ) -> Outputs:
            own = ids.to(model.device)
            lower = torch.autocast(own.device.type, dtype, enabled=dtype != torch.float32)
            with force_backend(backend), lower:
                loss = model(own, labels=own).loss
            grads = torch.autograd.grad(loss, list(model.parameters()))
            return {"loss": loss.detach()} | dict(zip(dict(model.named_parameters()), grads, strict=True))

        wanted = run("torch")
        model.to(device)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            if dtype == torch.float16 and device.type == "cpu":
                continue  # a CPU's products of float16 are not what is asked about
            got, plain = run(backend, dtype), run("torch", dtype)
            worst, torch_error = (max(relative_error(x[k], wanted[k]) for k in wanted) for x in (got, plain))
            # Of all operations only the embedding's gradient may add up in another order from run to run.
            fixed = {k: v for k, v in got.items() if "embed" not in k}
            same = load.repeat(lambda run=run, dtype=dtype: run(backend, dtype), fixed)
            bound = 1e-3 if dtype == torch.float32 else 2 * torch_error + 1e-3
            name = f"training {preset} {dtype}, {device.type} against float32 on the CPU"
            yield line(name, worst, bound, same) | {"torch_error": torch_error}


def main() -> None:
    chosen = options(__doc__ or "").parse_args()
    device = torch.device(chosen.device)
    clock = Clock(device, chosen.minutes)
    kernels = device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    backend: Backend = "triton" if kernels else "torch"
    if kernels and device.type != "cuda":
        del BOUNDS[torch.bfloat16]  # Triton's interpreter multiplies the bit patterns of bfloat16
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    size, width = (32, 32) if chosen.toy else (256, 768)
    models: Backend = backend if device.type == "cuda" else "torch"
    journal = Journal(chosen.out, "check", about(device, toy=chosen.toy, backend=backend))
    ceilings(clock, chosen.toy, chosen.out)
    sources = {
        "mixing": mixing_rows(device, backend, size, width, chosen.toy),
        "ranking": ranking_rows(device, backend, size, width, chosen.toy),
        "passes": pass_rows(device, backend, size, width, chosen.toy),
        "model": model_rows(device, "auto", chosen.toy),
        "model, all kernels": model_rows(device, models, chosen.toy),
        "training": training_rows(device, models, chosen.toy),
        "forms": form_rows(device, chosen.toy),
        "linear": linear_rows(device, backend, size, width, 4),
        "linear, 64 splits": linear_rows(device, backend, size, width, 8 if chosen.toy else 64),
        "linear, 512 splits": linear_rows(device, backend, size, width, 16 if chosen.toy else 512),
    }
    for name, source in sources.items():
        while True:
            if clock.left() < 0:
                journal.add({"check": name, "ok": False, "note": "left out: no time"})
                break
            row = attempt({"check": f"{name}: a row"}, lambda source=source: next(source, {"end": True}))
            if "end" in row:
                break
            journal.add(row)
            if "note" in row and row["check"].endswith(": a row"):
                break  # a generator that raised has ended
    journal.close()
    sys.exit(0 if all(row["ok"] for row in journal.rows) else 1)


if __name__ == "__main__":
    main()
