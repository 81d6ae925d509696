"""Every kernel, forward and backward: right against float64, repeatable, whole, and its time beside
torch's.

What a kernel leaves unwritten shows: `torch.empty` gives NaN while results are judged. Times are
the device's alone, on inputs that take turns, beside plain torch, torch.compile of the same
reference, and a floor of operations and bytes.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from measure import ceilings, draw_ids, milliseconds, relative_error, replayed, synchronize

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.kernels.dispatch import force_backend
from aveyb_retrieval.kernels.maxsim import late_interaction, split_scores
from aveyb_retrieval.kernels.mixing import (
    dynamic_mix,
    dynamic_mix_over_gate,
    static_mix,
    static_mix_over_gate,
)
from aveyb_retrieval.kernels.positionwise import activate, activate_around, add_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from run import Context

    Tensors = dict[str, torch.Tensor]
    Run = Callable[[Tensors, str], Tensors]

BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
# the enricher's activation, sigma, options of similarities
PRESETS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "released": ("gelu", "none", {"normalization": "l1", "eps": 1e-6}),
    "paper": ("relu2", "relu", {"normalization": "sum", "eps": 1e-6}),
}
REPETITIONS = 6
GROUPS = 16


def prepare(device: str) -> None:
    """Import what parts need, without touching the device."""
    if device == "cuda":
        from aveyb_retrieval.kernels.triton import (
            dynamic_mix,  # noqa: F401
            maxsim,  # noqa: F401
            positionwise,  # noqa: F401
            static_mix,  # noqa: F401
        )


@contextmanager
def poisoned() -> Iterator[None]:
    """Within the block `torch.empty` gives NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class Judge:
    """Where and how cases are judged.

    Attributes:
        device: and its kernels, or on a CPU plain torch beside itself.
        size: S.
        splits: how many.
        dtype: of what the kernels are given.
    """

    device: torch.device
    size: int
    splits: int
    dtype: torch.dtype

    def draw(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        return (scale * torch.randn(shape, device=self.device)).to(self.dtype)

    def lengths(self, ragged: bool) -> torch.Tensor | None:
        size, n = self.size, self.splits
        few = [size, 1, size // 2 + 1, size - 1]
        return torch.tensor([few[i % 4] for i in range(n)], device=self.device) if ragged else None

    def __call__(self, run: Run, given: Tensors, bound: float | None = None) -> dict[str, Any]:
        """Columns of a row. run: named results of named tensors by a backend."""
        kernel = "triton" if self.device.type == "cuda" else "torch"
        wanted = run(
            {name: x.double() if x.is_floating_point() else x for name, x in given.items()}, "torch"
        )
        with poisoned():
            first = run(given, kernel)
        plain = run(given, "torch")
        same = all(
            torch.equal(x, first[name])
            for _ in range(REPETITIONS)
            for name, x in run(given, kernel).items()
        )
        errors = {name: relative_error(first[name], wanted[name]) for name in wanted}
        of_torch = {name: relative_error(plain[name], wanted[name]) for name in wanted}
        limits = {name: max(bound or BOUNDS[self.dtype], 2 * of_torch[name]) for name in wanted}
        worst = max(errors, key=lambda name: errors[name] / limits[name])
        wrong = [name for name in wanted if not errors[name] <= limits[name]]
        return {
            "ok": same and not wrong,
            "error": errors[worst],
            "of": worst,
            "torch_error": of_torch[worst],
            "same": same,
            "note": ", ".join(wrong) or None,
        }


def _graded(
    forward: Callable[..., torch.Tensor], leaves: Tensors, upstream: torch.Tensor
) -> Tensors:
    """The output of `forward(**leaves)`, and the gradient of every leaf."""
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}
    out = forward(**leaves)
    grads = torch.autograd.grad(out, list(leaves.values()), upstream.to(out.dtype))
    return {"out": out.detach()} | {
        f"d_{name}": grad for name, grad in zip(leaves, grads, strict=True)
    }


def _mixing(judge: Judge, operation: str, preset: str, width: int, ragged: bool) -> dict[str, Any]:
    name, sigma, similarity = PRESETS[preset]
    enriched = judge.draw(judge.splits, judge.size, 4 * width)
    given = {"enriched": activate(enriched, name, backend="torch")}
    given["upstream"] = judge.draw(judge.splits, judge.size, width)
    if operation == "static":
        given["weight"] = judge.draw(judge.size, judge.size, scale=judge.size**-0.5)
    if preset == "paper":
        given["bias"] = judge.draw(judge.size, scale=0.1)
    lengths = judge.lengths(ragged)

    def run(leaves: Tensors, backend: Any) -> Tensors:
        first, second = (0, width) if preset == "released" else (3 * width, 2 * width)
        views = {"mixed": leaves["enriched"][..., first : first + width]}
        views["gate"] = leaves["enriched"][..., second : second + width]
        views |= {name: leaves[name] for name in ("weight", "bias") if name in leaves}
        how: dict[str, Any] = {"lengths": lengths, "activation": sigma, "backend": backend}
        mix = (
            partial(static_mix, **how)
            if operation == "static"
            else partial(dynamic_mix, **how, **similarity)
        )
        return _graded(mix, views, leaves["upstream"])

    return judge(run, given)


def _passes(judge: Judge, preset: str, width: int, ragged: bool) -> dict[str, Any]:
    """What inference launches in a layer, and ReLU squared with its gradient."""
    name, sigma, similarity = PRESETS[preset]
    n, size = judge.splits, judge.size
    given = {"enriched": judge.draw(n, size, 4 * width), "upstream": judge.draw(n, size, 4 * width)}
    given |= {part: judge.draw(n, size, width) for part in ("branch", "residual")}
    given |= {"weight": judge.draw(size, size, scale=size**-0.5), "bias": judge.draw(size)}
    given |= {"scale": judge.draw(width), "alpha": judge.draw()}
    lengths = judge.lengths(ragged)

    def run(leaves: Tensors, backend: Any) -> Tensors:
        with torch.no_grad():
            enriched = leaves["enriched"].clone()
            norms = activate_around(enriched, name, 2 * width, 3 * width, backend=backend)
            found = {"activated": enriched.clone(), "norms": norms}
            how: dict[str, Any] = {
                "lengths": lengths,
                "bias": leaves["bias"] if preset == "paper" else None,
            }
            how |= {"activation": sigma, "gate_activation": name, "backend": backend}
            _, gate, mixed = enriched.split((2 * width, width, width), dim=-1)
            found["static"] = static_mix_over_gate(mixed, gate, leaves["weight"], **how).clone()
            gate.copy_(leaves["enriched"][..., 2 * width : 3 * width])
            found["dynamic"] = dynamic_mix_over_gate(
                mixed, gate, norms, **how, **similarity
            ).clone()
            alpha = leaves["alpha"] if preset == "released" else None
            parts = leaves["branch"], leaves["residual"], alpha, leaves["scale"]
            found["x"], found["normed"] = add_norm(*parts, eps=1e-6, backend=backend)
        graded = _graded(
            lambda enriched: activate(enriched, "relu2", backend=backend),
            {"enriched": leaves["enriched"]},
            leaves["upstream"],
        )
        return found | {f"relu2 {part}": x for part, x in graded.items()}

    return judge(run, given)


def _pairs(judge: Judge, width: int, splits_of: list[int]) -> dict[str, Any]:
    """MaxSim of all pairs (documents of few splits) and by token id (of many), in one call."""
    starts = [sum(splits_of[:i]) for i in range(len(splits_of) + 1)]
    lengths = torch.full((starts[-1],), judge.size, device=judge.device)
    lengths[-1] = judge.size // 3 + 1
    ids = (torch.rand(starts[-1], judge.size, device=judge.device) ** 2 * 400).long()

    def run(leaves: Tensors, backend: Any) -> Tensors:
        scores = split_scores(ids, lengths, starts, leaves["table"], 1e-12, backend=backend)
        # -inf must stand where it stands there
        return {"scores": scores.masked_fill(torch.isneginf(scores), -7.0)}

    return judge(run, {"table": judge.draw(400, width)}, 2e-5)


def _late(judge: Judge, width: int) -> dict[str, Any]:
    starts = torch.tensor([0, 5, 5, 70, 300, 812])

    def run(leaves: Tensors, backend: Any) -> Tensors:
        return {
            "scores": late_interaction(leaves["query"], leaves["tokens"], starts, backend=backend)
        }

    return judge(run, {"tokens": judge.draw(812, width), "query": judge.draw(33, width)}, 1e-5)


def _training(judge: Judge, preset: str, width: int, layers: int) -> dict[str, Any]:
    """Loss and every gradient of a model, float32 weights under autocast to the dtype, against
    float32 torch.
    """
    from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM

    make = AveyBConfig.released_base if preset == "released" else AveyBConfig.paper_base
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "split_size": judge.size,
        "vocab_size": 2048,
    }
    torch.manual_seed(3)
    with torch.device(judge.device):
        model = AveyBForMaskedLM(make(**sizes)).train()
    ids = torch.randint(0, 2048, (4, 3 * judge.size + 5 * (preset == "paper")), device=judge.device)
    names = [name for name, _ in model.named_parameters()]

    def run(lower: bool, backend: Any) -> Tensors:
        lower = lower and judge.dtype != torch.float32
        with force_backend(backend), torch.autocast(judge.device.type, judge.dtype, enabled=lower):
            loss = model(ids, labels=ids).loss
        grads = torch.autograd.grad(loss, list(model.parameters()))
        return {"loss": loss.detach()[None]} | dict(zip(names, grads, strict=True))

    kernel = "auto" if judge.device.type == "cuda" else "torch"
    wanted, got, plain = run(False, "torch"), run(True, kernel), run(True, "torch")
    again = run(True, kernel)
    found = {}
    for name in wanted:
        error, of_torch = (
            relative_error(got[name], wanted[name]),
            relative_error(plain[name], wanted[name]),
        )
        found[name] = (
            error / max(2e-2 if judge.dtype != torch.float32 else 1e-3, 2 * of_torch),
            error,
            of_torch,
        )
    worst = max(found, key=lambda name: found[name][0])
    # embeddings' gradients are summed by torch in an order of its own
    same = all(torch.equal(got[name], again[name]) for name in names if "embed" not in name)
    return {
        "ok": found[worst][0] <= 1 and same,
        "error": found[worst][1],
        "of": worst,
        "torch_error": found[worst][2],
        "same": same,
    }


def _cases(device: torch.device, toy: bool) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    base, small = (32, 24) if toy else (768, 384)
    combinations = [
        ("released", base, False),
        ("released", base, True),
        ("paper", base, True),
        ("paper", small, False),
        ("paper", small, True),
    ]
    for dtype in (torch.float16 if toy else torch.bfloat16, torch.float32):
        judge = Judge(
            device, 32 if toy else 256, 4 if toy else (96 if dtype != torch.float32 else 48), dtype
        )
        name = str(dtype)[6:]
        for operation in ("dynamic", "static"):
            for preset, width, ragged in combinations:
                text = f"{operation}_mix {preset} {width} {'ragged' if ragged else 'full'} {name}"
                yield text, partial(_mixing, judge, operation, preset, width, ragged)
        for preset, width, ragged in combinations[:3] + combinations[4:]:
            text = f"passes {preset} {width} {'ragged' if ragged else 'full'} {name}"
            yield text, partial(_passes, judge, preset, width, ragged)
        for width in (base, small):
            yield (
                f"maxsim {width} {name}",
                partial(_pairs, judge, width, [3, 1, 5] if toy else [70, 20, 6]),
            )
        yield f"late_interaction {name}", partial(_late, judge, 128)
        preset, width = ("released", base) if dtype != torch.float32 else ("paper", small)
        if not toy or dtype == torch.float32:
            yield (
                f"training {preset} {name}",
                partial(_training, judge, preset, width, 2 if toy else 4),
            )


def check(context: Context, group: str) -> None:
    """Judge the cases of one group of `GROUPS`: forms of one operation, which share what has been
    compiled.
    """
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    cases = list(_cases(torch.device(context.device), context.toy))
    each = -(-len(cases) // GROUPS)
    for name, measure in cases[each * int(group) : each * (int(group) + 1)]:
        context.attempt(name, measure)


@dataclass(frozen=True)
class Timed:
    """One row: what runs, its operations and bytes; compiled: torch.compile can take it."""

    run: Callable[[], Any]
    operations: float
    bytes: float
    compiled: bool = True


@dataclass(frozen=True)
class Layer:
    """The operations of a layer on splits of one size, each on tensors of its own, which one in
    place may change.
    """

    device: torch.device
    splits: int
    size: int
    width: int

    def draw(self, *shape: int) -> torch.Tensor:
        return (torch.randn(shape, device=self.device) / shape[-1] ** 0.5).bfloat16()

    def tokens(self, times: int = 1) -> torch.Tensor:
        return self.draw(self.splits, self.size, times * self.width)

    def enriched(self) -> tuple[torch.Tensor, torch.Tensor]:
        _, gate, mixed = self.tokens(4).split((2 * self.width, self.width, self.width), dim=-1)
        return mixed, gate

    @property
    def product(self) -> float:
        return 2.0 * self.splits * self.size**2 * self.width

    @property
    def moved(self) -> float:
        return 2.0 * self.splits * self.size * self.width

    def mixing(self, operation: str, preset: str, backward: bool) -> Timed:
        _, sigma, similarity = PRESETS[preset]
        leaves = [part.requires_grad_(backward) for part in self.enriched()]
        how: dict[str, Any] = {"activation": sigma}
        if operation == "static":
            leaves.append(self.draw(self.size, self.size).requires_grad_(backward))
        forward = (
            partial(static_mix, **how)
            if operation == "static"
            else partial(dynamic_mix, **how, **similarity)
        )
        upstream = self.tokens()

        def run() -> Any:
            out = forward(*leaves)
            return torch.autograd.grad(out, leaves, upstream) if backward else out

        products, times = 1 if operation == "static" else 2, 3 if backward else 1
        return Timed(run, products * times * self.product, 3 * times * self.moved, not backward)

    def over_gate(self, operation: str, preset: str) -> Timed:
        name, sigma, similarity = PRESETS[preset]
        (mixed, gate), weight = self.enriched(), self.draw(self.size, self.size)
        norms = 1 / mixed.float().norm(dim=-1)
        how: dict[str, Any] = {"activation": sigma, "gate_activation": name}
        if operation == "static":
            return Timed(
                partial(static_mix_over_gate, mixed, gate, weight, **how),
                self.product,
                3 * self.moved,
            )
        run = partial(dynamic_mix_over_gate, mixed, gate, norms, **how, **similarity)
        return Timed(run, 2 * self.product, 3 * self.moved)

    def around(self, name: str) -> Timed:
        run = partial(activate_around, self.tokens(4), name, 2 * self.width, 3 * self.width)
        return Timed(run, 0, 6 * self.moved)

    def norm(self) -> Timed:
        parts = self.tokens(), self.tokens(), self.draw(1)[0], self.draw(self.width)
        return Timed(partial(add_norm, *parts, eps=1e-6), 0, 4 * self.moved)

    def relu2(self, backward: bool) -> Timed:
        x, upstream = self.tokens(4).requires_grad_(backward), self.tokens(4)

        def run() -> Any:
            out = activate(x, "relu2")
            return torch.autograd.grad(out, x, upstream)[0] if backward else out

        return Timed(run, 0, (20 if backward else 8) * self.moved, not backward)

    def cases(self) -> dict[str, Callable[[], Timed]]:
        """Name -> a function that makes the case."""
        made: dict[str, Callable[[], Timed]] = {}
        mixings = (("dynamic", "released"), ("dynamic", "paper"), ("static", "released"))
        for operation, preset in mixings:
            made[f"{operation}_mix {preset}"] = partial(self.mixing, operation, preset, False)
        for operation in ("dynamic", "static"):
            for preset, (name, _, _) in PRESETS.items():
                made[f"{operation}_mix over gate {name}"] = partial(
                    self.over_gate, operation, preset
                )
        made |= {
            f"activate_around {name}": partial(self.around, name) for name in ("gelu", "relu2")
        }
        made |= {"add_norm": self.norm, "relu2": partial(self.relu2, False)}
        for operation, preset in mixings:
            made[f"{operation}_mix {preset}, with gradients"] = partial(
                self.mixing, operation, preset, True
            )
        return made | {"relu2, with gradients": partial(self.relu2, True)}


def _ranking_cases(device: torch.device, toy: bool) -> dict[str, Callable[[], Timed]]:
    words, size, width = (400, 16, 32) if toy else (50_304, 256, 768)

    def scores(documents: int, splits: int) -> Timed:
        table = torch.randn(words, width, device=device).bfloat16()
        ids = draw_ids("zipf", documents * splits, size, words, device)
        lengths, starts = (
            torch.full((len(ids),), size, device=device),
            [splits * i for i in range(documents + 1)],
        )
        operations = 2.0 * documents * splits * (splits - 1) / 2 * size**2 * width
        return Timed(
            lambda: split_scores(ids, lengths, starts, table, 1e-12),
            operations,
            2.0 * ids.numel() * width,
        )

    def late(documents: int) -> Timed:
        tokens, query = (
            torch.randn(300 * documents, 128, device=device),
            torch.randn(32, 128, device=device),
        )
        starts = torch.arange(documents + 1) * 300
        run = partial(late_interaction, query.bfloat16(), tokens.bfloat16(), starts=starts)
        return Timed(run, 2.0 * len(tokens) * 32 * 128, 256.0 * len(tokens))

    sizes = ((1, 6),) if toy else ((8, 2), (8, 8), (8, 32), (1, 384))
    made: dict[str, Callable[[], Timed]] = {
        f"maxsim {d} x {s}": partial(scores, d, s) for d, s in sizes
    }
    return made | {"late_interaction 1,000 x 300": partial(late, 10 if toy else 1000)}


def timing(context: Context, group: str) -> None:
    """Milliseconds of every operation by kernels and by plain torch ("kernels"), or by
    torch.compile ("compiled").
    """
    device = torch.device(context.device)
    top = ceilings(device, context.toy, context.out)
    size, width = (16, 32) if context.toy else (256, 768)
    torch.manual_seed(0)
    for splits in (4, 2) if context.toy else (512, 64, 16):
        for name, make in Layer(device, splits, size, width).cases().items():
            context.attempt(
                name, partial(_measure, context, make, top, group, splits <= 64), splits=splits
            )
    for name, make in _ranking_cases(device, context.toy).items() if group == "kernels" else ():
        context.attempt(name, partial(_measure, context, make, top, "host", False))


def _measure(
    context: Context, make: Callable[[], Timed], top: Any, group: str, turns: bool
) -> dict[str, Any]:
    device = torch.device(context.device)
    # inputs that take turns, where one set would fit into the L2 cache
    cases = [make() for _ in range(3 if turns and group == "kernels" else 1)]
    row: dict[str, Any] = {
        "floor_ms": 1e3 * max(cases[0].operations / top.flops, cases[0].bytes / top.bytes)
    }
    if group == "compiled":
        if not cases[0].compiled:
            return {"note": "not compiled"}
        # all rows compile one code object, of which only eight forms are kept
        torch._dynamo.reset()
        with force_backend("torch"):
            return row | {"compiled_ms": replayed([torch.compile(cases[0].run)], device)}
    backends = (
        {"kernel_ms": "triton", "torch_ms": "torch"}
        if device.type == "cuda"
        else {"torch_ms": "torch"}
    )
    for column, backend in backends.items():
        with force_backend(backend):  # type: ignore[arg-type]
            if group == "host":  # torch's form waits for the device, so that it cannot be captured
                row[column] = milliseconds(cases[0].run, device)
            else:
                row[column] = replayed([case.run for case in cases], device)
    synchronize(device)
    if "kernel_ms" in row:
        row |= {
            "of_floor": row["floor_ms"] / row["kernel_ms"],
            "times": row["torch_ms"] / row["kernel_ms"],
        }
    return row
