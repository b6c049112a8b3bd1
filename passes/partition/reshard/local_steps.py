"""Steps without communication: a device keeps a part, or pads it with the identity of a reduction that is then
pending."""

from __future__ import annotations

from collections.abc import Sequence

from ir.builder import RegionBuilder
from ir.mesh import Axes, axes_size, without_minor
from ir.ops.reduction import neutral_of
from ir.program import Value
from ir.records import record
from ir.sharding import ReductionKind
from ir.types import TensorType, s32
from passes.cost.machine import Machine
from passes.cost.model import memory_seconds
from passes.partition.closed_sharding import ClosedSharding, is_aligned
from passes.partition.reshard.steps import AnySharding, Cost, Destination, Step, Task, shift_seconds, with_shards_of
from passes.partition.shards import put_shard, resize, shard_index, shard_start, splat, take_shard


@record
class Slice(Step):
    """Each device keeps its part of a dim, which is then split over `axes` too, as the minor ones. No communication."""

    dim: int
    axes: Axes

    def is_local(self, shape: Sequence[int], before: AnySharding) -> bool:
        return is_aligned(shape[self.dim], before.axes[self.dim], self.axes)

    def cost_of(self, machine: Machine, before: int, after: int) -> Cost:
        """Only what is kept is read."""
        return memory_seconds(machine, 2 * after), 0.0

    def shift_seconds(self, task: Task, before: ClosedSharding, after: ClosedSharding) -> float:
        return shift_seconds(task, before, self.dim, self.axes, gather=False)

    def write(self, x: Value, to: Destination) -> Value:
        dim, axes, chunk = self.dim, self.axes, to.after.local_shape(to.shape)[self.dim]
        outer = without_minor(to.after.axes[dim], axes)
        x = with_shards_of(to.b, x, dim, to.shape[dim], outer, chunk * axes_size(axes))
        return take_shard(to.b, x, dim, _start(to.b, to.shape[dim], outer, axes, chunk), chunk)


def _start(b: RegionBuilder, n: int, outer: Axes, inner: Axes, chunk: int) -> Value:
    """Where the device's new shard begins within its old one."""
    if not outer:
        return shard_start(b, n, inner)
    return b.op("multiply", shard_index(b, inner), splat(b, chunk, TensorType((), s32)), name="start")


@record
class MakePartial(Step):
    """One device of each group keeps the value, the others have the reduction's identity. No communication."""

    axes: Axes
    kind: ReductionKind

    def write(self, x: Value, to: Destination) -> Value:
        if self.kind not in ("sum", "prod"):
            return x
        index = shard_index(to.b, self.axes)
        first = to.b.op("compare", index, splat(to.b, 0, index.type), name="first", direction="EQ")
        return to.b.op("select", first, x, splat(to.b, neutral_of(self.kind, x.dtype), x.type), name=to.name)


@record
class Spread(Step):
    """Each device's part of a dim is padded with the reduction's identity: the minor `axes` of the dim become partial.

    No communication.
    """

    axes: Axes
    kind: ReductionKind
    dim: int

    def write(self, x: Value, to: Destination) -> Value:
        dim, chunk, parts = self.dim, x.shape[self.dim], axes_size(self.axes)
        room = tuple(chunk * parts if d == dim else n for d, n in enumerate(x.shape))
        start = to.b.op("multiply", shard_index(to.b, self.axes), splat(to.b, chunk, TensorType((), s32)), name="start")
        x = put_shard(to.b, splat(to.b, neutral_of(self.kind, x.dtype), x.type.with_shape(room)), x, dim, start)
        return resize(to.b, x, dim, to.after.local_shape(to.shape)[dim])
