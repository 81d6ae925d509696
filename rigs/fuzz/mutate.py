"""Damage: a piece of data made from a sound one by some of the changes that disks, tools and
attackers make.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

INTERESTING = (
    0,
    1,
    -1,
    255,
    256,
    2**15,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    10**30,
    -(2**63),
)
TEXTS = (
    "",
    " ",
    "\0",
    "\ud800",
    "\ufeff",
    "é",
    "e\u0301",
    "🦆",
    "'",
    '"',
    "a" * 3000,
    "../x",
    "$eq",
    "NEAR(",
    "*",
    "\n",
    "{}",
    "%s",
)


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Change some bytes, cut, repeat, insert or swap a part."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        place = rng.randrange(len(out) + 1)
        size = rng.choice((1, 2, 4, 8, 64, 1000))
        match rng.randrange(7):
            case 0 if out:
                out[place % len(out)] ^= 1 << rng.randrange(8)
            case 1:
                out[place : place + size] = rng.randbytes(size)
            case 2:
                del out[place : place + size]
            case 3:
                out[place:place] = out[max(0, place - size) : place]
            case 4:
                del out[place:]
            case 5:
                out[place : place + 8] = (rng.choice(INTERESTING) % 2**64).to_bytes(
                    8, rng.choice(("little", "big"))
                )
            case _:
                out[place : place + 4] = (rng.choice(INTERESTING) % 2**32).to_bytes(4, "little")
    return bytes(out)


def value(rng: random.Random, depth: int = 0) -> Any:
    """Any value that JSON can write, the odd ones often."""
    kind = rng.randrange(9 if depth < 4 else 6)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind == 1:
        return rng.choice(INTERESTING)
    if kind == 2:
        return rng.choice((0.0, -0.0, 1e308, 1e-320, 0.5, float("nan"), float("inf")))
    if kind <= 5:
        return text(rng)
    if kind <= 7:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {text(rng): value(rng, depth + 1) for _ in range(rng.randrange(4))}


def text(rng: random.Random) -> str:
    """A short text, often an odd one."""
    if rng.random() < 0.5:
        return rng.choice(TEXTS)
    return "".join(
        chr(rng.choice((rng.randrange(128), rng.randrange(0x3000), rng.randrange(0x110000))))
        for _ in range(5)
    )


def mutate_json(rng: random.Random, data: Any) -> Any:
    """Replace, add or remove one member somewhere inside."""
    copy = json.loads(json.dumps(data))
    node = copy
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return copy
        key = rng.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.7:
            node = node[key]
            continue
        match rng.randrange(4):
            case 0:
                del node[key]
            case 1 if isinstance(node, dict):
                node[text(rng)] = value(rng)
            case _:
                node[key] = value(rng)
        return copy
