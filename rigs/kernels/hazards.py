"""Read a compiled kernel's loops for data races of Hopper's asynchronous matrix instruction
(wgmma), and for prefetch.

A wgmma reads its operands from shared memory (A also from registers) after it was issued, until a
wait says that it is done. Two mistakes of a compiler escape the interpreter, the assembler and most
runs on a GPU:

* a copy into shared memory overwrites a buffer that a pending wgmma still reads (triton-lang/triton
  issue 6691);
* the next iteration writes the registers of A while the wgmma of this one is pending
  (triton-lang/triton issue 9433).

Both show in TTGIR, the compiler's last form before LLVM: buffers, copies, products and waits stand
there in the order in which they run. Every loop is stepped through a few times with that order,
with the products that may be pending and the copies that may be in flight.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ITERATIONS = 6  # more than any pipeline has stages, so that every buffer has been used again
_VALUE = r"%[\w#]+"
_ALLOCATION = re.compile(
    rf"({_VALUE})(?::\d+)? = ttg\.local_alloc ?({_VALUE})? ?:? ?.*-> !ttg\.memdesc<([\dx]+)x"
)
_VIEW = re.compile(
    rf"({_VALUE}) = ttg\.memdesc_(?:index|trans|subslice|reinterpret|reshape) ({_VALUE})"
)
_COPY = re.compile(rf"ttg\.async_copy_global_to_local {_VALUE}, ({_VALUE})")
_BULK_COPY = re.compile(r"ttng\.async_tma_copy_global_to_local (.*?) :")
_STORE = re.compile(rf"ttg\.local_store {_VALUE}, ({_VALUE})")
_PRODUCT = re.compile(
    rf"({_VALUE}) = ttng\.warp_group_dot ({_VALUE}), ({_VALUE}), .*? : (tensor|!ttg\.memdesc)<"
)
_PRODUCT_WAIT = re.compile(r"ttng\.warp_group_dot_wait .*pendings = (\d+)")
_PLAIN_PRODUCT = re.compile(r"= tt\.dot ")
_COMMIT = re.compile(r"= ttg\.async_commit_group")
_COPY_WAIT = re.compile(r"ttg\.async_wait .*num = (\d+)")
_DEFINITIONS = re.compile(rf"\s*({_VALUE}(?::\d+)?(?:, {_VALUE}(?::\d+)?)*) = ")


@dataclass
class Loop:
    """The lines of one region (a function's body or a loop's), nested loops as items of
    their own.
    """

    items: list[str | Loop] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """All lines, those of nested loops included."""
        for item in self.items:
            if isinstance(item, Loop):
                yield from item.lines()
            else:
                yield item


@dataclass(frozen=True)
class Findings:
    """What stepping through a kernel showed.

    races: one sentence each; none in a sound kernel. prefetched: in the worst loop that both copies
    and multiplies, iterations whose copies are in flight while a product is started; None without
    such a loop.
    """

    races: tuple[str, ...]
    prefetched: int | None


def find(ttgir: str) -> Findings:
    """Step through every loop of a kernel's TTGIR."""
    walk = _Walk()
    walk.region(_parse(ttgir))
    return Findings(tuple(sorted(walk.races)), min(walk.prefetched.values(), default=None))


def _parse(ttgir: str) -> Loop:
    """The text as nested loops.

    An `scf.if` is part of its surroundings: its branches are taken one after the other.
    """
    root = Loop()
    stack = [(-1, root)]
    for line in ttgir.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("}") and stack[-1][0] == indent:
            stack.pop()
            continue
        stack[-1][1].items.append(line)
        if re.search(r"\bscf\.(for|while)\b", line):
            inner = Loop()
            stack[-1][1].items.append(inner)
            stack.append((indent, inner))
    return root


@dataclass(frozen=True)
class _Pending:
    """A wgmma that may still be reading: its buffers as (allocation, slot), and its A where that is
    in registers.
    """

    name: str
    reads: frozenset[tuple[str, int]]
    registers: str | None


class _Walk:
    """Shared memory and pending products, line after line.

    Two loops may use one name for different values.
    """

    def __init__(self) -> None:
        self.races: set[str] = set()
        self.prefetched: dict[int, int] = {}  # by loop
        self._buffers: dict[str, int] = {}  # slots of each allocation
        self._parent: dict[str, str] = {}  # of each view, what it is a view of
        self._written: dict[str, int] = {}  # copies into each allocation so far
        self._read: dict[str, int] = {}  # iterations that have read from it
        self._pending: list[_Pending] = []
        self._in_flight = 0  # groups of copies

    def region(self, loop: Loop, inside: bool = False) -> None:
        """Step through a region: a loop's `_ITERATIONS` times."""
        names = {
            name
            for line in loop.lines()
            if (m := _DEFINITIONS.match(line))
            for name in re.findall(r"%\w+", m[1])
        }
        groups = sum(1 for item in loop.items if isinstance(item, str) and _COMMIT.search(item))
        for _ in range(_ITERATIONS if inside else 1):
            for product in self._pending if inside else ():
                if product.registers is not None and product.registers.split("#")[0] in names:
                    self.races.add(
                        f"registers: {product.registers} is rewritten while {product.name} may"
                        " read it"
                    )
            used: set[str] = set()
            for item in loop.items:
                if isinstance(item, Loop):
                    self.region(item, inside=True)
                else:
                    self._step(item, used, id(loop), groups)
            for allocation in used:
                self._read[allocation] += 1

    def _step(self, line: str, used: set[str], loop: int, groups: int) -> None:
        """Carry out one line."""
        self._step_memory(line)
        if product := _PRODUCT.search(line):
            self._multiply(product, used)
        elif wait := _PRODUCT_WAIT.search(line):
            self._pending = self._pending[max(0, len(self._pending) - int(wait[1])) :]
        if groups and (product or _PLAIN_PRODUCT.search(line)):
            self.prefetched[loop] = min(
                self.prefetched.get(loop, _ITERATIONS), self._in_flight // groups
            )

    def _step_memory(self, line: str) -> None:
        if match := _ALLOCATION.search(line):
            shape = match[3].split("x")
            self._buffers[match[1]] = int(shape[0]) if len(shape) > 2 and match[2] is None else 1
            self._written[match[1]] = self._read[match[1]] = 0
            self._parent.pop(match[1], None)
            if match[2] is not None:
                self._write(match[1])
        elif match := _VIEW.search(line):
            self._parent[match[1]] = match[2]
        elif match := _COPY.search(line) or _STORE.search(line):
            self._write(self._root(match[1]))
        elif match := _BULK_COPY.search(line):
            for root in {
                self._root(value) for value in re.findall(_VALUE, match[1])
            } & self._buffers.keys():
                self._write(root)
        elif _COMMIT.search(line):
            self._in_flight += 1
        elif match := _COPY_WAIT.search(line):
            self._in_flight = min(self._in_flight, int(match[1]))

    def _multiply(self, match: re.Match[str], used: set[str]) -> None:
        reads = set()
        for value in (match[3],) if match[4] == "tensor" else (match[2], match[3]):
            root = self._root(value)
            if root not in self._buffers:
                raise ValueError(
                    f"{match[1]} reads {value}, of which no allocation is known: {match[0]}"
                )
            if self._written[root] == 0:
                raise ValueError(
                    f"{match[1]} reads {root} before anything was written to it: {match[0]}"
                )
            used.add(root)
            reads.add((root, self._read[root] % self._buffers[root]))
        self._pending.append(
            _Pending(match[1], frozenset(reads), match[2] if match[4] == "tensor" else None)
        )

    def _write(self, root: str) -> None:
        """The next buffer of an allocation is overwritten."""
        slot = self._written[root] % self._buffers[root]
        for product in self._pending:
            if (root, slot) in product.reads:
                self.races.add(
                    f"buffer: {root} ({self._buffers[root]} of it) is refilled while {product.name}"
                    " may read it"
                )
        self._written[root] += 1

    def _root(self, value: str) -> str:
        while value in self._parent:
            value = self._parent[value]
        return value
