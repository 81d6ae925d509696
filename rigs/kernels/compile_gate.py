"""Every kernel at every shipped tile, compiled for GPUs that need not be there; `--write` renews
the committed table.

python -m rigs.kernels.compile_gate --write
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import triton

from aveyb_retrieval.kernels.triton import (
    dynamic_mix,
    maxsim,
    positionwise,
    static_mix,
)
from aveyb_retrieval.kernels.triton.tiles import TABLE as TILES
from aveyb_retrieval.kernels.triton.tiles import Config, config_for
from rigs.kernels.ptx import Report, compile_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "compile_gate"
WIDTH, SPLIT = 768, 256  # the base model
SHARED_MEMORY = {"sm_90": 232_448, "sm_80": 166_912, "sm_89": 101_376}  # bytes one program may use

# What the presets switch: released (L1, no sigma, no bias, GELU) and paper (sum, ReLU, bias, ReLU
# squared).
RELEASED = {"RELEASED": True, "L1": True, "RELU": False, "BIAS": False}
PAPER = {"RELEASED": False, "L1": False, "RELU": True, "BIAS": True}
# As training calls them, and as inference does: the gate comes without its activation.
TRAINED = [RELEASED | {"GATE": "none"}, PAPER | {"GATE": "none"}]
ENCODING = [RELEASED | {"GATE": "gelu"}, PAPER | {"GATE": "relu2"}]
GELU, RELU2 = RELEASED | {"ACTIVATION": "gelu"}, PAPER | {"ACTIVATION": "relu2"}
SCALAR, PLAIN = RELEASED | {"ALPHA": True}, PAPER | {"ALPHA": False}
GAP = {"COLUMNS": 4 * WIDTH, "START": 2 * WIDTH, "STOP": 3 * WIDTH, "NORMS": True}
NORM = {"A": WIDTH, "BLOCK_A": 1024}

KERNELS: dict[str, list[tuple[Any, list[dict[str, Any]]]]] = {
    "add_norm": [(positionwise.add_norm_kernel, [NORM | SCALAR, NORM | PLAIN])],
    "activate": [
        (positionwise.activate_kernel, [GAP | GELU, GAP | RELU2]),
        (positionwise.relu2_backward_kernel, [{"COLUMNS": 4 * WIDTH}]),
    ],
    "dynamic_mix_norms": [
        (dynamic_mix.norms_kernel, [{}]),
        (dynamic_mix.mixture_grad_kernel, [RELEASED, PAPER]),
    ],
    "dynamic_mix_shares": [(dynamic_mix.shares_kernel, [RELEASED, PAPER])],
    "dynamic_mix_cosines": [(dynamic_mix.backward_cosines_kernel, [RELEASED, PAPER])],
    "dynamic_mix_weights": [(dynamic_mix.backward_weights_kernel, [{}])],
    "dynamic_mix_input": [(dynamic_mix.backward_input_kernel, [{}])],
    "static_mix": [(static_mix.forward_kernel, TRAINED)],
    "static_mix_activating": [(static_mix.forward_kernel, ENCODING)],
    "static_mix_input": [(static_mix.backward_input_kernel, [RELEASED, PAPER])],
    "static_mix_weight": [(static_mix.backward_weight_kernel, [RELEASED, PAPER])],
    "maxsim": [(maxsim.all_pairs_kernel, [{}])],
    "best_by_id": [(maxsim.best_by_id_kernel, [{}])],
    "count_by_id": [(maxsim.count_kernel, [{}])],
    "late_interaction": [(maxsim.late_interaction_kernel, [{}])],
}
# they gather, add and round
WITHOUT_PRODUCTS = {
    "activate",
    "add_norm",
    "count_by_id",
    "dynamic_mix_norms",
    "dynamic_mix_weights",
}
POINTERS = {
    "*fp32": (
        "inverse_norms denominators row_terms bias_sums weight_partials bias_partials scales scores"
        "  best_out best counts"
    ),
    "*i64": (
        "lengths first_split current earlier by_current current_starts by_earlier earlier_starts "
        "ids entries starts begins asked_from asked_to"
    ),
    "*i32": "arguments",
    "i32": "T S n_rows n_splits n_candidates n_query n_vocabulary width",
    "fp32": "eps",
}
# What is None where a switch is off.
ABSENT = {
    "BIAS": "bias",
    "RAGGED": "lengths",
    "ALPHA": "alpha",
}
# they share a row with a forward
_BACKWARD = (positionwise.relu2_backward_kernel, dynamic_mix.mixture_grad_kernel)
_REPORTS: dict[str, Report] = {}
TYPE_OF = {name: kind for kind, names in POINTERS.items() for name in names.split()}


@dataclass(frozen=True)
class Case:
    """One compilation: a kernel, the switches that matter, an architecture, an element type and a
    tile.
    """

    name: str
    kernel: Any
    switches: dict[str, Any]
    arch: str
    element: str
    tile: Config

    @property
    def key(self) -> str:
        preset = {True: " released", False: " paper"}.get(self.switches.get("RELEASED"), "")
        rows = {True: " ragged", False: " full"}.get(self.switches.get("RAGGED"), "")
        backward = " backward" if self.kernel in _BACKWARD else ""
        return f"{self.name}{backward}{preset}{rows} {self.arch} {self.element}"

    def compile(self) -> Report:
        """The report of this case, compiled once in a process."""
        if self.key not in _REPORTS:
            _REPORTS[self.key] = self._compile()
        return _REPORTS[self.key]

    def _compile(self) -> Report:
        names = self.kernel.arg_names
        constants = {
            "D": WIDTH,
            "C": SPLIT,
            "M": self.tile.m,
            "N": self.tile.n,
            "K": self.tile.k,
            "WHOLE": True,
            "PRECISION": "tf32x3" if self.element == "fp32" else "ieee",
            **self.switches,
        }
        constants = {k: v for k, v in constants.items() if k in names}
        for switch, tensors in ABSENT.items():
            if switch in constants and not constants[switch]:
                constants |= dict.fromkeys(tensors.split())
        return compile_kernel(
            self.kernel,
            {name: self._type(name) for name in names if name not in constants},
            constants,
            capability=int(self.arch[3:]),
            warps=self.tile.warps,
            stages=self.tile.stages,
        )

    def _type(self, name: str) -> str:
        if name.endswith(("_row", "_split")) and name != "first_split":
            return "i32"
        return TYPE_OF.get(name, "*" + self.element)


def shipped() -> Iterator[tuple[str, str, int]]:
    """(architecture, kernel, element size) of every row of the table."""
    for arch, kernels in TILES.items():
        for kernel, sizes in kernels.items():
            for size in sizes:
                yield arch, kernel, size


def cases() -> Iterator[Case]:
    """Every row of the shipped table with every preset (float16 compiles to the same code as
    bfloat16).
    """
    for arch, name, size in shipped():
        for kernel, variants in KERNELS[name]:
            for switches, ragged in product(
                variants, (False, True) if "RAGGED" in kernel.arg_names else (None,)
            ):
                element = {2: "bf16", 4: "fp32"}[size]
                rows = {} if ragged is None else {"RAGGED": ragged}
                yield Case(
                    name, kernel, switches | rows, arch, element, config_for(name, arch, size)
                )


def row(case: Case, report: Report) -> dict[str, Any]:
    """One line of the table."""
    tile = case.tile
    return {
        "case": case.key,
        "tile": f"{tile.m} x {tile.n or '-'} x {tile.k}",
        "warps": tile.warps,
        "stages": tile.stages,
        "shared_bytes": report.shared,
        "shared_limit": SHARED_MEMORY[case.arch],
        "registers": report.registers,
        "stack": report.stack,
        "matrix_instructions": report.matrix_instructions,
        "programs_per_multiprocessor": resident(report, tile.warps, case.arch),
        "prefetched": report.findings.prefetched,
        "races": len(report.findings.races),
    }


def resident(report: Report, warps: int, arch: str) -> int:
    """How many programs one multiprocessor holds at a time, by registers and by shared memory."""
    registers = -(-report.registers // 8) * 8 * 32 * warps
    return min(65_536 // registers, (SHARED_MEMORY[arch] + 1024) // (report.shared + 1024))


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table as committed."""
    head = list(rows[0])
    cells = [["-" if row[name] is None else str(row[name]) for name in head] for row in rows]
    lines = [" | ".join(line) for line in (head, ["---"] * len(head), *cells)]
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the committed table")
    parser.add_argument(
        "--only",
        default="",
        help="compile new cases and those that match this expression; the others stay",
    )
    options = parser.parse_args()
    before = {
        line["case"]: line for line in json.loads(TABLE.with_suffix(".json").read_text())["rows"]
    }
    chosen = [
        case for case in cases() if re.search(options.only, case.key) or case.key not in before
    ]
    found = {case.key: row(case, case.compile()) for case in chosen}
    rows = [found.get(case.key) or before[case.key] for case in cases()]
    print(markdown(list(found.values())))
    if options.write:
        about = (
            f"Assembled without a GPU by Triton {triton.__version__}; d {WIDTH}, S {SPLIT}. Nothing"
            " here is a timing."
        )
        text = f"# Compile gate\n\n{about}\n\n{markdown(rows)}\n"
        TABLE.with_suffix(".md").write_text(text)
        TABLE.with_suffix(".json").write_text(
            json.dumps({"triton": triton.__version__, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
