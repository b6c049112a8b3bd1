"""Steps that do a pending reduction: on all devices, or scattered along a dim."""

from __future__ import annotations

from collections.abc import Sequence

from ir.mesh import Axes, axes_size, merge_axes, without_minor
from ir.ops.reduction import owner_reduction
from ir.program import Value
from ir.records import record
from ir.sharding import ReductionKind
from ir.types import DType
from passes.cost.machine import Machine
from passes.cost.model import reduction_in_parts
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.reshard.steps import Destination, Step, Task, padded_to_cut, shift_seconds, with_shards_of


@record
class Reduce(Step):
    """all_reduce of partial results."""

    axes: Axes
    kind: ReductionKind

    @property
    def communication(self) -> tuple[str, Axes]:
        return "all_reduce", self.axes

    def sent(self, machine: Machine, nbytes: int) -> Sequence[tuple[str, int]]:
        """A product is sent as other collectives, because no backend has one as a single call, for any element type."""
        return reduction_in_parts(machine, self.axes, nbytes) if self.kind == "prod" else (("all_reduce", nbytes),)

    def write(self, x: Value, to: Destination) -> Value:
        return to.b.op("all_reduce", x, name=to.name, axes=merge_axes(self.axes), kind=_kind(self.kind, x.dtype))


@record
class ReduceScatter(Step):
    """reduce_scatter of partial results along a dim, whose minor axes become `axes`."""

    axes: Axes
    kind: ReductionKind
    dim: int

    @property
    def communication(self) -> tuple[str, Axes]:
        return "reduce_scatter", self.axes

    def padded(self, shape: Sequence[int], before: ClosedSharding, after: ClosedSharding) -> float:
        return padded_to_cut(shape, self.dim, self.axes, before, after)

    def shift_seconds(self, task: Task, before: ClosedSharding, after: ClosedSharding) -> float:
        return shift_seconds(task, before, self.dim, self.axes, gather=False)

    def write(self, x: Value, to: Destination) -> Value:
        dim, axes = self.dim, self.axes
        size = to.after.local_shape(to.shape)[dim] * axes_size(axes)
        x = with_shards_of(to.b, x, dim, to.shape[dim], without_minor(to.after.axes[dim], axes), size)
        return to.b.op(
            "reduce_scatter", x, name=to.name, axes=merge_axes(axes), dim=dim, kind=_kind(self.kind, x.dtype)
        )


def _kind(kind: ReductionKind, dtype: DType) -> ReductionKind:
    """The reduction for elements of that type. Types without a sum have another reduction that combines a part with
    zeros."""
    return owner_reduction(dtype) if kind == "sum" else kind
