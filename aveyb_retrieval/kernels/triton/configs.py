"""The shipped table of tile shapes: fitted to each architecture's shared memory and registers by compiling for it.

`tests/kernels/test_compile_gate.py` compiles every row and fails on spills, too much shared memory or a data race. The
rows were chosen by what the compiler reports, those of the static and dynamic mixing on sm_90 also by their times on an
H100. Rows of one stage on sm_90 are products with an operand computed in registers, which must not be pipelined there
(see `__init__.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Config:
    """Tile of one program: `m` rows, `n` columns, `k` of the summed axis; warps; software pipeline stages."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


# kernel -> bytes of an element -> tile; 4 bytes: float32, multiplied as three TF32 products.
_HALF, _WIDE = 2, 4
_Table = dict[str, dict[int, Config]]
_AMPERE: _Table = {
    "add_norm": {_HALF: Config(4, 0, 0, 8, 1), _WIDE: Config(4, 0, 0, 8, 1)},
    "activate": {_HALF: Config(4, 256, 0, 4, 1), _WIDE: Config(4, 256, 0, 4, 1)},
    "dynamic_mix_norms": {_HALF: Config(4, 256, 0, 4, 1), _WIDE: Config(4, 256, 0, 4, 1)},
    "dynamic_mix_shares": {_HALF: Config(64, 0, 64, 8, 2), _WIDE: Config(32, 0, 16, 8, 2)},
    "dynamic_mix_cosines": {_HALF: Config(64, 0, 32, 8, 3), _WIDE: Config(32, 0, 16, 8, 2)},
    "dynamic_mix_weights": {_HALF: Config(16, 0, 0, 4, 1), _WIDE: Config(16, 0, 0, 4, 1)},
    "dynamic_mix_input": {_HALF: Config(64, 128, 32, 8, 3), _WIDE: Config(32, 64, 16, 8, 2)},
    "coupled_mix": {_HALF: Config(64, 64, 32, 8, 3), _WIDE: Config(64, 64, 16, 8, 3)},
    "coupled_mix_backward": {_HALF: Config(64, 64, 32, 8, 2), _WIDE: Config(64, 32, 16, 8, 2)},
    "static_mix": {_HALF: Config(128, 128, 32, 8, 3), _WIDE: Config(64, 64, 32, 8, 2)},
    "static_mix_activating": {_HALF: Config(128, 64, 32, 8, 3), _WIDE: Config(64, 64, 32, 8, 2)},
    "static_mix_input": {_HALF: Config(128, 128, 32, 8, 2), _WIDE: Config(64, 64, 32, 8, 2)},
    "static_mix_weight": {_HALF: Config(64, 64, 64, 8, 2), _WIDE: Config(64, 32, 16, 8, 2)},
    "maxsim": {_HALF: Config(128, 128, 64, 8, 3), _WIDE: Config(64, 128, 16, 8, 3)},
    "maxsim_selected": {_HALF: Config(128, 128, 32, 8, 3), _WIDE: Config(64, 64, 32, 8, 2)},
    "maxsim_input": {_HALF: Config(64, 64, 64, 4, 2), _WIDE: Config(64, 64, 32, 8, 2)},
    "best_by_id": {_HALF: Config(128, 128, 32, 8, 3), _WIDE: Config(64, 128, 16, 8, 3)},
    "count_by_id": {_WIDE: Config(0, 128, 0, 4, 3)},
    "late_interaction": {_HALF: Config(64, 64, 64, 4, 2), _WIDE: Config(64, 64, 16, 8, 2)},
}
_HOPPER: _Table = {
    "add_norm": {_HALF: Config(4, 0, 0, 8, 1), _WIDE: Config(4, 0, 0, 8, 1)},
    "activate": {_HALF: Config(4, 256, 0, 4, 1), _WIDE: Config(4, 256, 0, 4, 1)},
    "dynamic_mix_norms": {_HALF: Config(4, 256, 0, 4, 1), _WIDE: Config(4, 256, 0, 4, 1)},
    "dynamic_mix_shares": {_HALF: Config(128, 0, 64, 8, 4), _WIDE: Config(64, 0, 16, 8, 3)},
    "dynamic_mix_cosines": {_HALF: Config(64, 0, 64, 8, 3), _WIDE: Config(32, 0, 16, 8, 2)},
    "dynamic_mix_weights": {_HALF: Config(16, 0, 0, 4, 1), _WIDE: Config(16, 0, 0, 4, 1)},
    "dynamic_mix_input": {_HALF: Config(128, 128, 64, 8, 3), _WIDE: Config(64, 64, 32, 8, 3)},
    "coupled_mix": {_HALF: Config(128, 128, 64, 8, 3), _WIDE: Config(64, 64, 32, 8, 3)},
    "coupled_mix_backward": {_HALF: Config(64, 64, 64, 8, 2), _WIDE: Config(64, 64, 16, 8, 2)},
    "static_mix": {_HALF: Config(128, 128, 64, 8, 3), _WIDE: Config(64, 64, 32, 8, 3)},
    "static_mix_activating": {_HALF: Config(128, 64, 64, 8, 4), _WIDE: Config(64, 64, 32, 8, 3)},
    "static_mix_input": {_HALF: Config(128, 128, 64, 8, 2), _WIDE: Config(64, 64, 32, 8, 2)},
    "static_mix_weight": {_HALF: Config(128, 128, 64, 8, 1), _WIDE: Config(64, 64, 32, 8, 2)},
    "maxsim": {_HALF: Config(128, 256, 64, 8, 3), _WIDE: Config(128, 128, 32, 8, 2)},
    "maxsim_selected": {_HALF: Config(128, 128, 64, 8, 3), _WIDE: Config(64, 128, 32, 8, 3)},
    "maxsim_input": {_HALF: Config(64, 64, 64, 4, 1), _WIDE: Config(64, 64, 32, 8, 2)},
    "best_by_id": {_HALF: Config(128, 256, 64, 8, 3), _WIDE: Config(64, 128, 32, 8, 3)},
    "count_by_id": {_WIDE: Config(0, 128, 0, 4, 3)},
    "late_interaction": {_HALF: Config(64, 64, 64, 4, 3), _WIDE: Config(64, 64, 32, 8, 3)},
}
TABLE = {"sm_90": _HOPPER, "sm_80": _AMPERE, "sm_89": _AMPERE}  # the rows of sm_80 fit sm_89's shared memory, too


def architecture(device: torch.device) -> str:
    """The table's name for a device: by shared memory a program may use, which is what tiles are fitted to."""
    if device.type != "cuda":  # the interpreter has no limits; it walks through the tiles of the largest device
        return "sm_90"
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) in ((8, 6), (8, 9)) or major == 12:
        return "sm_89"
    return "sm_80" if major == 8 else "sm_90"


def config_for(kernel: str, arch: str, element_size: int) -> Config:
    """The tile of `kernel` on `arch` ("sm_90", "sm_80", "sm_89") for elements of 2 or 4 bytes."""
    return TABLE[arch][kernel][element_size]
