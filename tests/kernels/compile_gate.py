"""Every kernel at every shipped tile, compiled for GPUs that need not be there; `--write` renews the committed table.

python -m tests.kernels.compile_gate --write
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import triton

from aveyb_retrieval.kernels.triton import dynamic_mix, late_interaction, maxsim, static_mix
from aveyb_retrieval.kernels.triton.configs import SHARED_MEMORY, Config, config_for, shipped
from tests.kernels.ptx import Report, compile_kernel

TABLE = Path(__file__).parents[2] / "benchmarks" / "results" / "compile_gate"
WIDTH, SPLIT = 768, 256  # the base model

# What the presets switch: released (L1, no sigma, no bias) and paper (sum, ReLU, bias).
RELEASED = {"L1": True, "RELU": False, "BIAS": False}
PAPER = {"L1": False, "RELU": True, "BIAS": True}

KERNELS: dict[str, list[tuple[Any, list[dict[str, Any]]]]] = {
    "dynamic_mix": [(dynamic_mix.forward_kernel, [RELEASED, PAPER])],
    "dynamic_mix_shares": [(dynamic_mix.backward_shares_kernel, [{}])],
    "dynamic_mix_cosines": [(dynamic_mix.backward_cosines_kernel, [RELEASED, PAPER])],
    "dynamic_mix_input": [(dynamic_mix.backward_input_kernel, [RELEASED, PAPER])],
    "static_mix": [(static_mix.forward_kernel, [RELEASED, PAPER])],
    "static_mix_input": [(static_mix.backward_input_kernel, [RELEASED, PAPER])],
    "static_mix_weight": [(static_mix.backward_weight_kernel, [RELEASED, PAPER])],
    "maxsim": [(maxsim.all_pairs_kernel, [{"SCALED": True}])],
    "maxsim_selected": [(maxsim.selected_pairs_kernel, [{}])],
    "maxsim_input": [(maxsim.selected_backward_kernel, [{}])],
    "best_by_id": [(maxsim.best_by_id_kernel, [{}])],
    "count_by_id": [(maxsim.count_kernel, [{}])],
    "late_interaction": [(late_interaction.late_interaction_kernel, [{}])],
}
WITHOUT_PRODUCTS = {"count_by_id"}  # it gathers and adds
POINTERS = {
    "*fp32": "inverse_norms denominators row_terms bias_sums weight_partials bias_partials scales scores best_out "
    "best counts",
    "*i64": "lengths first_split current earlier by_current current_starts by_earlier earlier_starts "
    "last_seen entries starts",
    "*i32": "arguments",
    "i32": "T S n_splits n_ids n_candidates n_query",
    "fp32": "eps",
}
TYPE_OF = {name: kind for kind, names in POINTERS.items() for name in names.split()}


@dataclass(frozen=True)
class Case:
    """One compilation: a kernel, the switches that matter, an architecture, an element type and a tile."""

    name: str
    kernel: Any
    switches: dict[str, Any]
    arch: str
    element: str
    tile: Config

    @property
    def key(self) -> str:
        preset = {True: " released", False: " paper"}.get(self.switches.get("L1"), "")
        rows = {True: " ragged", False: " full"}.get(self.switches.get("RAGGED"), "")
        return f"{self.name}{preset}{rows} {self.arch} {self.element}"

    def compile(self) -> Report:
        names = self.kernel.arg_names
        constants = {
            "D": WIDTH, "C": SPLIT, "M": self.tile.m, "N": self.tile.n, "K": self.tile.k, "WHOLE": True,
            "PRECISION": "tf32x3" if self.element == "fp32" else "ieee", **self.switches,
        }  # fmt: skip
        constants = {k: v for k, v in constants.items() if k in names}
        for switch, tensor in (("BIAS", "bias"), ("RAGGED", "lengths")):
            if constants.get(switch) is False:
                constants[tensor] = None
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
        if self.name == "maxsim_input" and name == "grad":
            return "*fp32"
        return TYPE_OF.get(name, "*" + self.element)


def cases() -> Iterator[Case]:
    """Every row of the shipped table with every preset (float16 compiles to the same code as bfloat16)."""
    for arch, name, size in shipped():
        for kernel, variants in KERNELS[name]:
            for switches, ragged in product(variants, (False, True) if "RAGGED" in kernel.arg_names else (None,)):
                element = {2: "bf16", 4: "fp32"}[size]
                rows = {} if ragged is None else {"RAGGED": ragged}
                yield Case(name, kernel, switches | rows, arch, element, config_for(name, arch, size))


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
    }


def resident(report: Report, warps: int, arch: str) -> int:
    """How many programs one multiprocessor holds at a time, by registers and by shared memory."""
    registers = -(-report.registers // 8) * 8 * 32 * warps
    return min(65_536 // registers, (SHARED_MEMORY[arch] + 1024) // (report.shared + 1024))


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table as committed."""
    head = list(rows[0])
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(str(r[h]) for h in head) for r in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the committed table")
    rows = [row(case, case.compile()) for case in cases()] if (options := parser.parse_args()) else []
    print(markdown(rows))
    if options.write:
        about = (
            f"Assembled without a GPU by Triton {triton.__version__}; d {WIDTH}, S {SPLIT}. Nothing here is a timing."
        )
        text = f"# Compile gate\n\n{about}\n\n{markdown(rows)}\n"
        TABLE.with_suffix(".md").write_text(text)
        TABLE.with_suffix(".json").write_text(json.dumps({"triton": triton.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
