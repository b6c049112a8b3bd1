"""Trials: a part of a program is partitioned to see what it costs, and nothing of it stays.

A trial sees the values of the program as they are, and writes what it needs of them to builders of its own.
"""

from __future__ import annotations

from dataclasses import replace

from ir.builder import RegionBuilder
from ir.ops.collective import COLLECTIVES
from ir.program import Region, Value, walk
from passes.cost import seconds_of
from passes.partition.local import Layout
from passes.partition.partitioner import Partitioner, Placed


class _Copies(dict[Value, Placed]):
    """Where the trial's values lie; those of the program are copied when they are first asked for."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.trial = trial
        self.layouts: dict[int, dict[Layout, Value]] = {}

    def __missing__(self, value: Value) -> Placed:
        real = self.trial.program_values[value]
        layouts = self.layouts.setdefault(id(real.layouts), dict(real.layouts))
        copy = replace(real, layouts=layouts, home=self.trial.builder(real.home), argument=None)
        self[value] = copy
        return copy


class Trial:
    """A partitioner that leaves the one it is made from, and what that has written, as they are."""

    def __init__(self, real: Partitioner) -> None:
        self.program_values, self.times = real.placed, real.times
        self.builders: dict[RegionBuilder, RegionBuilder] = {}
        self.partitioner = Partitioner(real.propagated, real.resharder, real.localizers, real.control, real.policy)
        self.partitioner.uses = real.uses
        self.partitioner.reduced_anyway = real.reduced_anyway
        self.partitioner.chooser = real.chooser
        self.partitioner.placed = _Copies(self)
        self.partitioner.functions = real.functions
        self.partitioner.inlined = real.inlined
        self.partitioner.wants = dict(real.wants)
        self.partitioner.known_parts = real.known_parts
        self.partitioner.decisions = real.decisions
        self.partitioner.warned = set(real.warned)

    def builder(self, real: RegionBuilder) -> RegionBuilder:
        """What stands for a builder of the program."""
        copy = self.builders.get(real)
        if copy is None:
            copy = self.builders[real] = RegionBuilder()
            self.partitioner.times[copy] = self.times.get(real, 1.0)
        return copy

    def sends_nothing(self) -> bool:
        """Whether what the trial has written moves no data between devices, and calls no function that might."""
        written = (op for copy in self.builders.values() for op in walk(Region((), tuple(copy.ops), ())))
        return not any(op.name in COLLECTIVES or op.name == "call" for op in written)

    def seconds(self, b: RegionBuilder) -> float:
        """Time of all that the trial has written, for each time that the region of `b` runs."""
        times = self.partitioner.times
        total = sum(
            times[copy] * seconds_of(copy.ops, self.partitioner.functions.seconds) for copy in self.builders.values()
        )
        return total / times[self.builder(b)]
