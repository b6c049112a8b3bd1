"""What the planner has to know of the whole program: who uses a value, and in what form it is needed.

Each fact is found when it is first needed, and shared with all trials.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ir.dataflow import uses_of
from ir.mesh import AxisRef
from ir.program import Op, Program, Value, all_ops
from passes.cost.machine import Machine
from passes.partition.plan.pending_reductions import (
    never_pending,
    reduced_anyway,
    summands,
    sums_over_devices,
    wanted_whole,
)
from passes.partition.plan.recompute import (
    narrowed_behind,
    only_narrowed,
    read_by_products,
    remains_of,
    uses_by_any_name,
)
from passes.partition.plan.shardings import Shardings
from passes.partition.plan.shared_operands import shares_of_readers
from passes.partition.plan.static_starts import constants_of
from passes.partition.registry import Constants


@dataclass(frozen=True, eq=False)
class Facts:
    """The facts of one program, for a machine."""

    program: Program
    machine: Machine
    shardings: Shardings

    @cached_property
    def uses(self) -> Counter[Value]:
        """The number of ops that use each value."""
        return uses_by_any_name(self.program)

    @cached_property
    def needed(self) -> frozenset[Value]:
        """Values that ops use, or that regions return."""
        return frozenset(self.uses).union(uses_of(self.program).given)

    @cached_property
    def only_narrowed(self) -> frozenset[Value]:
        """Values whose only uses convert them to fewer bytes."""
        return only_narrowed(self.program)

    @cached_property
    def read_by_products(self) -> frozenset[Value]:
        """Values that products read in fewer bytes than they have."""
        return read_by_products(self.program, self.machine)

    @cached_property
    def reduced_anyway(self) -> frozenset[Value]:
        """Values whose reductions are done in any case."""
        return reduced_anyway(self.program, self.sums, self.never_pending, self.shardings.propagated)

    @cached_property
    def wanted_whole(self) -> frozenset[Value]:
        """Values that are needed with their reductions done, and not only as operands of ops that commute with
        those."""
        return wanted_whole(self.program, self.never_pending)

    @cached_property
    def sums(self) -> Mapping[Value, frozenset[AxisRef]]:
        """Values that are partial sums if they are computed with operands in their wanted shardings, and over which
        axes."""
        return sums_over_devices(self.program, self.shardings.propagated)

    @cached_property
    def never_pending(self) -> frozenset[Value]:
        """Values that can never have a pending reduction."""
        return never_pending(self.program, self.sums)

    @cached_property
    def remains(self) -> Mapping[Value, float]:
        """For values that are only reduced along dims, the share of their bytes that remains."""
        return remains_of(self.program)

    @cached_property
    def narrowed_behind(self) -> Mapping[Value, float]:
        """For values that are only converted to fewer bytes, the share of an all_reduce's bytes that is left then."""
        return narrowed_behind(self.program)

    @cached_property
    def summands(self) -> Mapping[Value, int]:
        """For each value that is a part of a sum, the number of parts, itself included, that one reduction serves."""
        return summands(self.program, self.sums)

    @cached_property
    def shares(self) -> Mapping[Op, Sequence[float]]:
        """For products or lookups that read an operand in the same way, the share of each in its gather, which serves
        all."""
        return shares_of_readers(self.program, self.shardings.propagated)

    @cached_property
    def constants(self) -> Constants:
        """The integers that are known."""
        return constants_of(all_ops(self.program))
