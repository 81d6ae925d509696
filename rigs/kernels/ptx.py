"""Compile a Triton kernel for a GPU that is not there, and read what the assembler says
about it.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rigs.kernels import hazards

MATRIX_INSTRUCTIONS = re.compile(r"\b(HGMMA|QGMMA|HMMA|QMMA|IMMA)\b")


@dataclass(frozen=True)
class Report:
    """What one compiled kernel uses, and what its loops may do wrong.

    shared: bytes of shared memory; registers and stack (spills): of a thread; matrix_instructions:
    how many stand in its code; findings: races, and how far copies run ahead (see `hazards.py`).
    """

    shared: int
    registers: int
    stack: int
    matrix_instructions: int
    findings: hazards.Findings


def compile_kernel(
    kernel: Any,
    types: dict[str, str],
    constants: dict[str, Any],
    *,
    capability: int,
    warps: int,
    stages: int,
) -> Report:
    """Compile for compute capability `capability` (90 for sm_90) without a device.

    Args:
        kernel: a `triton.jit` function.
        types: Triton type names of the arguments that are not constants ("*bf16", "i32", "fp32").
        constants: values of the `tl.constexpr` arguments; None for an optional tensor that is left
            out.
        capability: 80, 89 or 90.
        warps: warps of a program.
        stages: stages of the software pipeline.
    """
    loose = {kernel.arg_names[i] for i, p in enumerate(kernel.params) if p.do_not_specialize}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if name not in constants and name not in loose and signature[name] != "fp32"
    }
    source = ASTSource(
        kernel, signature, {(names.index(k),): v for k, v in constants.items()}, aligned
    )
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(
        source, target=target, options={"num_warps": warps, "num_stages": stages}
    )
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        usage, code = _cuobjdump("-res-usage", cubin), _cuobjdump("-sass", cubin)
    return Report(
        shared=compiled.metadata.shared,
        registers=int(re.search(r"REG:(\d+)", usage)[1]),
        stack=int(re.search(r"STACK:(\d+)", usage)[1]),
        matrix_instructions=len(MATRIX_INSTRUCTIONS.findall(code)),
        findings=hazards.find(compiled.asm["ttgir"]),
    )


def _cuobjdump(flag: str, cubin: Path) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, flag, cubin], check=True, capture_output=True, text=True).stdout
