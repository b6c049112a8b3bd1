"""How much of a device's memory a program takes, from the lifetimes of its values.

An estimate for a compiler that fuses nothing: every value has a buffer from its op to its last use. A loop updates what
it carries in place, and so do dynamic_update_slice and elementwise ops with an operand that is used for the last time.
The entry's arguments belong to the caller and stay alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ir.dataflow import last_uses
from ir.ops import OPS
from ir.ops.control import is_call, is_loop
from ir.program import Op, Program, Region, Value, callee_of


def peak_bytes(program: Program) -> int:
    """The most bytes that values take at one time: on each device in an SPMD program, on one device in a global one."""
    return MemoryEstimate(program).peak()


class MemoryEstimate:
    """Adds up the values that are alive, with `size` bytes each. The peak of each function is found once. `alive` has
    for each op the bytes that are alive while it runs."""

    def __init__(self, program: Program, size: Callable[[Value], int] = lambda value: value.type.nbytes) -> None:
        self.program = program
        self.size = size
        self.peaks: dict[str, int] = {}
        self.alive: dict[Op, int] = {}

    def peak(self) -> int:
        """The peak of the whole program."""
        return self.region(self.program.main.body, kept=self.program.main.params)

    def region(self, region: Region, kept: Iterable[Value] = ()) -> int:
        """The peak of the values that the region defines, parameters included. Those `kept` stay alive to its end."""
        lasting = frozenset(kept)
        dying = [[v for v in dead if v not in lasting] for dead in last_uses(region)]
        alive = self._bytes(region.params)
        peak = alive
        for op, dead in zip(region.ops, dying, strict=True):
            made = self._bytes(op.results)
            self.alive[op] = alive + max(made + self._inside(op) - self._reused(op, dead), 0)
            peak = max(peak, self.alive[op])
            alive += made - self._bytes(dead)
        return peak

    def _inside(self, op: Op) -> int:
        """The bytes that the regions or the callee of an op take beyond its operands and results."""
        if is_call(op):
            callee = self.program.functions[str(callee_of(op))]
            if callee.name not in self.peaks:
                self.peaks[callee.name] = self.region(callee.body, kept=callee.params)
            return max(self.peaks[callee.name] - self._bytes(callee.params) - self._bytes(op.results), 0)
        return max((max(self.region(r) - self._bytes(op.results), 0) for r in op.regions), default=0)

    def _reused(self, op: Op, dead: Sequence[Value]) -> int:
        """The bytes of results that are written over operands."""
        if is_loop(op):
            return self._bytes(v for v in dict.fromkeys(op.operands) if v in dead)
        opdef = OPS[op.name]
        if opdef.in_place:
            return self._bytes(op.operands[i] for i in opdef.in_place if op.operands[i] in dead)
        if opdef.family == "elementwise":
            free = [self.size(v) for v in dict.fromkeys(op.operands) if v in dead]
            return next((n for n in free if n == self.size(op.results[0])), 0)
        return 0

    def _bytes(self, values: Iterable[Value]) -> int:
        return sum(map(self.size, values))
