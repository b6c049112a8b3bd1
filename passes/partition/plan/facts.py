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
from ir.ops import OPS
from ir.ops.declaration import InKernels
from ir.ops.layout import is_annotation
from ir.program import Op, Program, Value, all_ops, all_regions
from ir.types import f32
from passes.cost.machine import Machine
from passes.partition.closed_sharding import ClosedSharding, Shardings
from passes.partition.plan.pending_reductions import (
    added_to,
    never_pending,
    reduced_anyway,
    summands,
    sums_over_devices,
    wanted_whole,
)
from passes.partition.plan.shared_operands import shares_of_readers
from passes.partition.plan.wanted_by_users import AnyWant, wanted_alike, wanted_by_users
from passes.partition.registry import Constants
from passes.partition.rewrites.static_starts import constants_of


@dataclass(frozen=True, eq=False)
class Facts:
    """The facts of one program, for a machine."""

    program: Program
    machine: Machine
    shardings: Shardings

    @cached_property
    def uses(self) -> Counter[Value]:
        """The number of ops that use each value, directly or through its annotations."""
        known = uses_of(self.program)
        uses = Counter({value: len(users) for value, users in known.users.items()})
        annotated = {value: op.operands[0] for value, op in known.makers.items() if is_annotation(op)}
        for value, source in reversed(annotated.items()):
            uses[source] += uses[value] - 1
        for value, source in annotated.items():
            uses[value] = uses[source]
        return uses

    @cached_property
    def needed(self) -> frozenset[Value]:
        """Values that ops use, or that regions return."""
        return frozenset(self.uses).union(uses_of(self.program).given)

    @cached_property
    def only_narrowed(self) -> frozenset[Value]:
        """The annotated values whose only uses convert their elements to fewer bytes."""
        uses = uses_of(self.program)
        annotated = (v for v, op in uses.makers.items() if is_annotation(op) and v not in uses.given)
        return frozenset(v for v in annotated if _are_fewer_bytes(v, uses.users.get(v, ())))

    @cached_property
    def read_by_products(self) -> frozenset[Value]:
        """Values that products read in fewer bytes than they have, so that a gather for products sends fewer bytes.
        Empty if the machine's products take f32 as it is."""
        if self.machine.kernels is None or not self.machine.kernels.narrow:
            return frozenset()
        users = uses_of(self.program).users.items()
        return frozenset(
            v for v, ops in users if v.dtype == f32 and any(OPS[op.name].role is InKernels.PRODUCT for op in ops)
        )

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
        """For values whose only use reduces them along dims, perhaps behind elementwise ops, the share of their bytes
        that remains."""
        uses, found = uses_of(self.program), dict[Value, int]()
        for region in all_regions(self.program):
            own = {value for op in region.ops for value in op.results}
            for op in reversed(region.ops):
                is_elementwise = OPS[op.name].family == "elementwise" and op.result in found
                if not is_elementwise and (op.name != "reduce" or len(op.results) != 1):
                    continue
                nbytes = found.get(op.result, op.result.type.nbytes)
                found.update((v, nbytes) for v in own.intersection(op.operands) if uses.count(v) == 1)
        return {value: nbytes / value.type.nbytes for value, nbytes in found.items() if nbytes < value.type.nbytes}

    @cached_property
    def narrowed_behind(self) -> Mapping[Value, float]:
        """For values whose only use converts their elements to fewer bytes, perhaps behind ops that arrange them in
        another way, the share of an all_reduce's bytes that is left if the conversion is between its halves: what is
        scattered has the wider type, and what is gathered the narrower one."""
        uses, found = uses_of(self.program), dict[Value, float]()
        for region in all_regions(self.program):
            for op in reversed(region.ops):
                if len(op.operands) != 1 or len(op.results) != 1 or uses.count(op.operands[0]) != 1:
                    continue
                (operand,), result = op.operands, op.result
                if _narrows(op):
                    found[operand] = (1 + result.dtype.nbytes / operand.dtype.nbytes) / 2
                elif result in found and OPS[op.name].family == "layout" and result.type.size == operand.type.size:
                    found[operand] = found[result]
        return found

    @cached_property
    def summands(self) -> Mapping[Value, int]:
        """For each value that is a part of a sum, the number of parts, itself included, that one reduction serves."""
        return summands(self.program, self.sums)

    @cached_property
    def added_to(self) -> Mapping[Value, Value]:
        """For parts of a sum that one reduction serves, another part of it."""
        return added_to(self.program, self.summands)

    @cached_property
    def wanted_by_users(self) -> Mapping[Value, Sequence[AnyWant]]:
        """What the users of values want, where that is not for all the propagated sharding."""
        return wanted_by_users(self.program, self.shardings.propagated)

    @cached_property
    def wanted_alike(self) -> Mapping[Value, Mapping[ClosedSharding, int]]:
        """The shardings other than the propagated one in which several users of a value want it, and how many."""
        return wanted_alike(self.program, self.shardings.propagated)

    @cached_property
    def shares(self) -> Mapping[Op, Sequence[float]]:
        """For products or lookups that read an operand in the same way, the share of each in its gather, which serves
        all."""
        return shares_of_readers(self.program, self.shardings.propagated)

    @cached_property
    def constants(self) -> Constants:
        """The integers that are known."""
        return constants_of(all_ops(self.program))


def _are_fewer_bytes(value: Value, users: Sequence[Op]) -> bool:
    """Whether everything that the users make of a value's elements is in total fewer bytes than the value."""
    if not all(map(_narrows, users)):
        return False
    made = {(op.name, OPS[op.name].means(op.attrs)): op.result.dtype.nbytes for op in users}
    return sum(made.values()) < value.dtype.nbytes


def _narrows(op: Op) -> bool:
    """Whether the op converts each element to fewer bytes."""
    if OPS[op.name].family != "elementwise" or len(op.operands) != 1:
        return False
    (operand,), result = op.operands, op.result
    return result.shape == operand.shape and result.dtype.nbytes < operand.dtype.nbytes
