"""Trials: a part of a program is planned to find its cost, and is then dropped or kept.

A trial sees the values of the program as they are, and adds what it needs of them to builders of its own.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

from ir.builder import Names, RegionBuilder
from ir.ops import OPS
from ir.ops.control import is_call
from ir.program import Op, Region, Value, walk
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan.partitioned_value import PartitionedValue
from passes.partition.plan.planner import Planner


class _Copies(dict[Value, PartitionedValue]):
    """The shardings of a trial's values. Those of the program are copied when they are first used, along with the
    builders of their regions. `times` says how often these run."""

    def __init__(self, real: Planner) -> None:
        super().__init__()
        self.real = real
        self.copied: dict[Value, PartitionedValue] = {}
        self.builders: dict[RegionBuilder, RegionBuilder] = {}
        self.times: dict[RegionBuilder, float] = {}
        # The copies of names and of shardings of the program, by their ids, along with the originals.
        self.names: dict[int, tuple[Names, Names]] = {}
        self.shardings: dict[int, tuple[dict[ClosedSharding, Value], dict[ClosedSharding, Value]]] = {}

    def __missing__(self, value: Value) -> PartitionedValue:
        real = self.real.partitioned[value]
        _, shardings = self.shardings.setdefault(id(real.shardings), (real.shardings, dict(real.shardings)))
        found = replace(real, shardings=shardings, home=self.builder(real.home), argument=None)
        self[value], self.copied[value] = found, real
        return found

    def builder(self, real: RegionBuilder) -> RegionBuilder:
        """The copy of a builder of the program."""
        found = self.builders.get(real)
        if found is None:
            _, names = self.names.setdefault(id(real.names), (real.names, Names(base=real.names)))
            found = self.builders[real] = RegionBuilder(names)
            self.times[found] = self.real.times.get(real, 1.0)
        return found


class Trial:
    """A planner that does not change the planner that it is made from, nor what that has planned, until it is kept.

    It raises TooSlowError when what it has planned takes longer than the limit.
    """

    def __init__(self, real: Planner, limit: float = math.inf) -> None:
        self.real = real
        self.partitioned = _Copies(real)
        self.planner = copy.copy(real)
        self.planner.copied = real
        self.planner.partitioned = self.partitioned
        self.planner.arguments = {}
        self.planner.spent = {}
        self.planner.sending = set()
        self.planner.planned_seconds, self.planner.limit = 0.0, limit
        self.planner.times = self.partitioned.times
        self.planner.wants = dict(real.wants)
        self.planner.warnings = []
        self.planner.warned = set(real.warned)

    def builder(self, real: RegionBuilder) -> RegionBuilder:
        """The trial's copy of a builder of the program."""
        return self.partitioned.builder(real)

    def sends_nothing(self) -> bool:
        """Whether nothing that was planned on trial communicates, or calls a function that might."""
        if self.planner.sending:
            return False
        planned = (op for copy in self.partitioned.builders.values() for op in walk(Region((), tuple(copy.ops), ())))
        return not any(map(_may_send, planned))

    def seconds(self, b: RegionBuilder) -> float:
        """Time of everything that was planned on trial, for each time that the region of `b` runs."""
        times = self.planner.times
        total = sum(times[copy] * self.planner.seconds(copy.ops) for copy in self.partitioned.builders.values())
        return total / times[self.builder(b)]

    def can_be_kept(self) -> bool:
        """Whether the program would be planned in the same way outside a trial. It would not if arguments of a function
        are used, because these may be requested in other shardings there."""
        return all(real.argument is None for real in self.partitioned.copied.values())

    def keep(self) -> None:
        """Adds what was planned on trial to the plan."""
        real, own, copies = self.real, self.planner, self.partitioned
        homes = {copied: builder for builder, copied in copies.builders.items()}
        shardings = {id(copied): given for given, copied in copies.shardings.values()}
        for value, partitioned in copies.items():
            if value not in copies.copied:
                here = shardings.get(id(partitioned.shardings), partitioned.shardings)
                real.partitioned[value] = replace(
                    partitioned, shardings=here, home=homes.get(partitioned.home, partitioned.home)
                )
        for given, found in copies.shardings.values():
            given.update(found)
        for builder, own_builder in copies.builders.items():
            builder.ops.extend(own_builder.ops)
        for names, own_names in copies.names.values():
            names.take(own_names)
        real.times.update((b, times) for b, times in own.times.items() if b not in homes)
        real.spent.update(own.spent)
        real.sending.update(own.sending)
        real.planned_seconds += own.planned_seconds
        real.warnings.extend(own.warnings)
        real.warned.update(own.warned)


def _may_send(op: Op) -> bool:
    """Whether an op communicates whatever its strategy is, or runs something that might."""
    return is_call(op) or OPS[op.name].family in ("host", "collective")
