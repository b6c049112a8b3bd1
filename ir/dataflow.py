"""Which op makes each value, which ops use it, and where its last use is. Each is computed once and cached.

Programs and regions are immutable, and passes need these often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

from ir.program import Op, Program, Region, Value, used_inside, walk

Source = TypeVar("Source", Program, Region)
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """`users` maps values to the ops that have them as operands, once for each time; `given` counts how often regions
    return them. `makers` maps a value to the op that it is a result of; parameters have none."""

    makers: Mapping[Value, Op]
    users: Mapping[Value, Sequence[Op]]
    given: Mapping[Value, int]

    def count(self, value: Value) -> int:
        """How often ops use a value and regions return it."""
        return len(self.users.get(value, ())) + self.given.get(value, 0)


def _kept(find: Callable[[Source], Found]) -> Callable[[Source], Found]:
    """The function with its results cached by argument. A result must not refer to the argument, which would then never
    be freed."""
    known: WeakKeyDictionary[Source, Found] = WeakKeyDictionary()

    def found(source: Source) -> Found:
        answer = known.get(source)
        if answer is None:
            answer = known[source] = find(source)
        return answer

    return found


def _uses(bodies: Sequence[Region]) -> Uses:
    makers: dict[Value, Op] = {}
    users: dict[Value, list[Op]] = {}
    given: dict[Value, int] = {}
    for body in bodies:
        regions = [body]
        for op in walk(body):
            regions.extend(op.regions)
            for value in op.results:
                makers[value] = op
            for value in op.operands:
                users.setdefault(value, []).append(op)
        for region in regions:
            for value in region.results:
                given[value] = given.get(value, 0) + 1
    return Uses(makers, users, given)


@_kept
def uses_of(program: Program) -> Uses:
    """The uses of all values of a program."""
    return _uses([function.body for function in program.functions.values()])


@_kept
def uses_within(region: Region) -> Uses:
    """The uses, in a region and those inside it, of all values that these use."""
    return _uses([region])


@_kept
def last_uses(region: Region) -> Sequence[Sequence[Value]]:
    """For each op of a region, the region's values whose last use it is. The region's results are used to its end."""
    last: dict[Value, int] = dict.fromkeys(region.params, 0)
    for i, op in enumerate(region.ops):
        for value in (*op.results, *op.operands, *used_inside(op)):
            last[value] = i
    own = {*region.params, *(v for op in region.ops for v in op.results)}.difference(region.results)
    dying: list[list[Value]] = [[] for _ in region.ops]
    for value, i in last.items():
        if value in own and region.ops:
            dying[i].append(value)
    return dying
