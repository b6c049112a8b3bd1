"""Trials: a part of a program is planned to find its cost, and is then dropped or kept.

A trial sees the values of the program as they are, and adds what it needs of them to builders of its own.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

from ir.builder import Names, RegionBuilder
from ir.program import Value
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan.draft import Draft
from passes.partition.plan.partitioned_value import PartitionedValue
from passes.partition.plan.planner import Planner
from passes.partition.plan.warnings import Warnings


class _DraftOver(Draft):
    """A draft over another one, the `real` one. It adds to copies of the builders of that one, with names that are free
    in these."""

    def __init__(self, real: Draft, limit: float) -> None:
        super().__init__(real.shardings, real.versions, real.spellings, limit)
        self.real = real
        self.copies: dict[RegionBuilder, RegionBuilder] = {}
        self.names: dict[int, tuple[Names, Names]] = {}
        """The names of the real draft, by their ids, and those that are made over them."""

    def builder(self, real: RegionBuilder) -> RegionBuilder:
        """The copy of a builder."""
        found = self.copies.get(real)
        if found is None:
            _, names = self.names.setdefault(id(real.names), (real.names, Names(base=real.names)))
            found = self.copies[real] = RegionBuilder(names)
            self.times[found] = self.real.runs(real)
        return found

    def sends_nothing(self) -> bool:
        """Whether nothing in it communicates."""
        return not self.sending and not any(map(self.sends, (op for b in self.copies.values() for op in b.ops)))

    def keep(self) -> None:
        """Adds everything to the real draft."""
        real, copies = self.real, set(self.copies.values())
        for builder, copied in self.copies.items():
            builder.ops.extend(copied.ops)
        for names, own_names in self.names.values():
            names.take(own_names)
        real.times.update((b, times) for b, times in self.times.items() if b not in copies)
        real.spent.update(self.spent)
        real.sending.update(self.sending)
        real.planned_seconds += self.planned_seconds


class _ValuesOver(dict[Value, PartitionedValue]):
    """The values of a trial. Those of the program, the `real` ones, are copied when they are first used: reshards of
    them are added to the trial's draft."""

    def __init__(self, real: dict[Value, PartitionedValue], draft: _DraftOver) -> None:
        super().__init__()
        self.real = real
        self.draft = draft
        self.copied: dict[Value, PartitionedValue] = {}
        self.shardings: dict[int, tuple[dict[ClosedSharding, Value], dict[ClosedSharding, Value]]] = {}
        """The shardings of real values, which equal values share, by their ids, and the copies of these."""

    def __missing__(self, value: Value) -> PartitionedValue:
        real = self.real[value]
        _, shardings = self.shardings.setdefault(id(real.shardings), (real.shardings, dict(real.shardings)))
        found = replace(real, shardings=shardings, home=self.draft.builder(real.home), argument=None)
        self[value], self.copied[value] = found, real
        return found

    def keep(self) -> None:
        """Adds the trial's own values, and the shardings that others have there, to the real ones."""
        homes = {copied: builder for builder, copied in self.draft.copies.items()}
        shardings = {id(copied): given for given, copied in self.shardings.values()}
        for value, partitioned in self.items():
            if value not in self.copied:
                partitioned.shardings = shardings.get(id(partitioned.shardings), partitioned.shardings)
                partitioned.home = homes.get(partitioned.home, partitioned.home)
                self.real[value] = partitioned
        for given, found in self.shardings.values():
            given.update(found)


class Trial:
    """A planner that does not change the planner that it is made from, nor what that has planned, until it is kept.

    It raises TooSlowError when what it has planned takes longer than the limit.
    """

    def __init__(self, real: Planner, limit: float = math.inf) -> None:
        self.real = real
        self.draft = _DraftOver(real.draft, limit)
        self.partitioned = _ValuesOver(real.values.partitioned, self.draft)
        self.planner = copy.copy(real)
        self.planner.copied = real
        self.planner.values = replace(real.values, draft=self.draft, partitioned=self.partitioned, arguments={})
        self.planner.warnings = Warnings(gathered=set(real.warnings.gathered))

    def seconds(self, b: RegionBuilder) -> float:
        """Time of everything that was planned on trial, for each time that the region of `b` runs."""
        draft = self.draft
        total = sum(draft.times[copied] * draft.seconds(copied.ops) for copied in draft.copies.values())
        return total / draft.runs(draft.builder(b))

    def can_be_kept(self) -> bool:
        """Whether the program would be planned in the same way outside a trial. It would not if arguments of a function
        are used, because these may be requested in other shardings there."""
        return all(real.argument is None for real in self.partitioned.copied.values())

    def keep(self) -> None:
        """Adds what was planned on trial to the plan."""
        self.partitioned.keep()
        self.draft.keep()
        self.real.warnings.found.extend(self.planner.warnings.found)
        self.real.warnings.gathered.update(self.planner.warnings.gathered)
