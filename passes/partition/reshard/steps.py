"""Steps of reshards, each a collective or a local rearrangement, and plans, which are sequences of steps.

A step knows its collective and the axes of that, its cost, and how it is written. Those at any digits of dims are in
`strided`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ir.builder import RegionBuilder
from ir.causes import Cause
from ir.mesh import Axes, DimAxes, Mesh, axes_size, merge_axes, without_minor
from ir.ops.reduction import neutral_of, owner_reduction, zero_of
from ir.program import DeviceOrder, Value
from ir.records import record
from ir.sharding import ReductionKind, shard_size
from ir.types import DType
from passes.cost.machine import Machine
from passes.cost.model import communication_seconds, memory_seconds, received_bytes, reduction_in_parts
from passes.partition.closed_sharding import ClosedSharding, device_orders, is_aligned, local_bytes
from passes.partition.exchange.box_exchange import Box, exchange, exchange_seconds
from passes.partition.reshard.strided_sharding import StridedSharding
from passes.partition.shards import (
    integer,
    on_the_first,
    put_shard,
    resize,
    shard_index,
    shard_start,
    splat,
    take_shard,
)
from passes.sub_axes import SubAxes

Cost = tuple[float, float]
"""Seconds, and bytes that the worst device receives in collectives."""

AnySharding = ClosedSharding | StridedSharding


@record
class Task:
    """A reshard to be planned: a tensor, with its global shape and element size in bytes, that a machine brings from
    one sharding over these sub-axes to another."""

    machine: Machine
    sub_axes: SubAxes
    shape: tuple[int, ...]
    itemsize: float
    source: ClosedSharding
    target: ClosedSharding

    def bytes_of(self, sharding: ClosedSharding) -> int:
        """The size of a shard."""
        return local_bytes(self.shape, self.itemsize, sharding)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a step leads: the sharding `after` of a tensor of that global shape. Its ops are named `name`."""

    b: RegionBuilder
    shape: Sequence[int]
    after: AnySharding
    sub_axes: SubAxes
    name: str


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """One step between two shardings, which are passed to its methods. Costs are for a machine."""

    @property
    def communication(self) -> tuple[str, Axes]:
        """The collective and the axes that it runs over. Empty for local steps and box exchanges."""
        return "", ()

    def sent(self, machine: Machine, nbytes: int) -> Sequence[tuple[str, int]]:
        """The collectives of a step whose operand has that many bytes, each with the bytes that a device puts in."""
        kind, _ = self.communication
        return ((kind, nbytes),) if kind else ()

    def is_local(self, shape: Sequence[int], before: AnySharding) -> bool:
        """Whether the step from that sharding of a tensor of that global shape needs no communication."""
        return not self.communication[0]

    def cost(self, task: Task, before: ClosedSharding, after: ClosedSharding) -> Cost:
        """The cost between two shardings of the task's tensor."""
        seconds, received = self.cost_of_sizes(task, before, after, task.bytes_of(before), task.bytes_of(after))
        return seconds + self.shift_seconds(task, before, after), received

    def cost_of_sizes(
        self, task: Task, before: ClosedSharding, after: ClosedSharding, size: int, size_after: int
    ) -> Cost:
        """The cost between two shardings, of shards with these bytes, but for shifts of boundaries."""
        padded = math.ceil(size * self.padded(task.shape, before, after))
        return self.cost_of(task.machine, padded, size_after)

    def cost_of(self, machine: Machine, before: int, after: int) -> Cost:
        """The cost of making shards of `after` bytes from shards of `before` bytes with the same boundaries.

        Devices rearrange what they send and receive in any case, so digits of several dims cost no more.
        """
        seconds, received = memory_seconds(machine, before + after), 0.0
        _, axes = self.communication
        for kind, nbytes in self.sent(machine, before):
            seconds += communication_seconds(machine, kind, axes, nbytes)
            received += received_bytes(kind, axes_size(axes), nbytes)
        return seconds, received

    def padded(self, shape: Sequence[int], before: ClosedSharding, after: ClosedSharding) -> float:
        """The factor by which shards grow by padding so that a collective can cut them into equal parts along a dim."""
        return 1.0

    def shift_seconds(self, task: Task, before: ClosedSharding, after: ClosedSharding) -> float:
        """Time to shift the boundaries between shards that do not tile one another."""
        return 0.0

    @abstractmethod
    def write(self, x: Value, to: Destination) -> Value:
        """The shard after the step, from the shard `x` before it."""


Steps = Sequence[tuple[Step, AnySharding]]
"""Steps with the shardings that they lead to."""


@record
class ReshardPlan:
    """Steps, their total time, and the bytes that the worst device receives."""

    steps: Steps = ()
    seconds: float = 0.0
    received: float = 0.0

    def then(self, other: ReshardPlan) -> ReshardPlan:
        """This plan followed by the other."""
        return ReshardPlan((*self.steps, *other.steps), self.seconds + other.seconds, self.received + other.received)

    def is_local(self, shape: Sequence[int], source: AnySharding) -> bool:
        """Whether the plan, from that sharding, needs no communication."""
        befores = (source, *(after for _, after in self.steps))
        return all(step.is_local(shape, before) for (step, _), before in zip(self.steps, befores, strict=False))


def emit_steps(
    b: RegionBuilder,
    x: Value,
    shape: Sequence[int],
    before: AnySharding,
    steps: Steps,
    sub_axes: SubAxes,
    name: str,
    cause: Cause,
) -> Value:
    """The shard after all steps, from its shard `x` in sharding `before`. Each op's cause names its step."""
    mesh, now = sub_axes.mesh, before
    for step, after in steps:
        pending = {a for a, _ in after.partial}
        reduced = tuple([mesh.spell(a) for a in merge_axes([a for a, _ in now.partial if a not in pending])])
        moved = replace(cause, source=now.spell(mesh), target=after.spell(mesh), reduced=reduced)
        with b.at(b.span, moved):
            x = emit_step(step, x, Destination(b, shape, after, sub_axes, name))
        now = after
    return x


def emit_step(step: Step, x: Value, to: Destination) -> Value:
    """The shard after the step, as `Step.write` returns it. If it has no elements, nothing is sent."""
    local = to.after.local_shape(to.shape)
    if 0 in local or 0 in x.shape:
        return splat(to.b, zero_of(x.dtype), x.type.with_shape(local))
    return step.write(x, to)


# Without communication: a device keeps a part, or pads it with the identity of a reduction that is then pending.


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
    return b.op("multiply", shard_index(b, inner), integer(b, chunk), name="start")


@record
class MakePartial(Step):
    """One device of each group keeps the value, the others have the reduction's identity. No communication."""

    axes: Axes
    kind: ReductionKind

    def write(self, x: Value, to: Destination) -> Value:
        if self.kind not in ("sum", "prod"):
            return x
        return on_the_first(to.b, x, self.axes, neutral_of(self.kind, x.dtype), to.name)


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
        start = to.b.op("multiply", shard_index(to.b, self.axes), integer(to.b, chunk), name="start")
        x = put_shard(to.b, splat(to.b, neutral_of(self.kind, x.dtype), x.type.with_shape(room)), x, dim, start)
        return resize(to.b, x, dim, to.after.local_shape(to.shape)[dim])


# A pending reduction is done: on all devices, or scattered along a dim.


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


# Shards, or parts of them, go to other devices: from dim to dim, or unchanged.


@record
class Gather(Step):
    """all_gather of the minor `axes` of a dim."""

    dim: int
    axes: Axes

    @property
    def communication(self) -> tuple[str, Axes]:
        return "all_gather", self.axes

    def shift_seconds(self, task: Task, before: ClosedSharding, after: ClosedSharding) -> float:
        return shift_seconds(task, after, self.dim, self.axes, gather=True)

    def write(self, x: Value, to: Destination) -> Value:
        dim, size = self.dim, to.after.local_shape(to.shape)[self.dim]
        x = to.b.op("all_gather", x, name=to.name, axes=merge_axes(self.axes), dim=dim)
        return with_shards_of(to.b, x, dim, to.shape[dim], to.after.axes[dim], size)


@record
class AllToAll(Step):
    """The minor `axes` of dim `source` become the minor axes of dim `target`."""

    axes: Axes
    source: int
    target: int

    @property
    def communication(self) -> tuple[str, Axes]:
        return "all_to_all", self.axes

    def padded(self, shape: Sequence[int], before: ClosedSharding, after: ClosedSharding) -> float:
        return padded_to_cut(shape, self.target, self.axes, before, after)

    def shift_seconds(self, task: Task, before: ClosedSharding, after: ClosedSharding) -> float:
        gathered = shift_seconds(task, after, self.source, self.axes, gather=True)
        return gathered + shift_seconds(task, before, self.target, self.axes, gather=False)

    def write(self, x: Value, to: Destination) -> Value:
        source, target, local = self.source, self.target, to.after.local_shape(to.shape)
        outer = without_minor(to.after.axes[target], self.axes)
        x = with_shards_of(to.b, x, target, to.shape[target], outer, local[target] * axes_size(self.axes))
        x = to.b.op("all_to_all", x, name=to.name, axes=merge_axes(self.axes), split=target, concat=source)
        return with_shards_of(to.b, x, source, to.shape[source], to.after.axes[source], local[source])


@record
class Permute(Step):
    """collective_permute of whole shards. Position p of order `target` receives from the same position of `source`."""

    target: Axes
    source: Axes

    @property
    def communication(self) -> tuple[str, Axes]:
        return "collective_permute", self.target

    def write(self, x: Value, to: Destination) -> Value:
        target, source = (DeviceOrder(to.sub_axes.mesh, merge_axes(axes)) for axes in (self.target, self.source))
        return to.b.op("collective_permute", x, name=to.name, target=target, source=source)


def permutation(source: DimAxes, target: DimAxes) -> Permute:
    """The collective_permute between two shardings with the same shards over other axes.

    Axes that only one of the two shardings uses index copies in the other; they are paired so that every device takes
    part.
    """
    before, after = [a for d in source for a in d], [a for d in target for a in d]
    return Permute((*after, *(a for a in before if a not in after)), (*before, *(a for a in after if a not in before)))


@record
class Reorder(Step):
    """collective_permute between the device orders of two meshes; None is the default mesh."""

    source: Mesh | None
    target: Mesh | None

    @property
    def communication(self) -> tuple[str, Axes]:
        return "collective_permute", self.other.whole_axes()

    def cost_of(self, machine: Machine, before: int, after: int) -> Cost:
        """The cost of sending whole shards to other devices."""
        kind, axes = self.communication
        return communication_seconds(machine, kind, axes, before), received_bytes(kind, axes_size(axes), before)

    @property
    def other(self) -> Mesh:
        """The mesh that is not the default one."""
        mesh = self.source or self.target
        assert mesh is not None
        return mesh

    def write(self, x: Value, to: Destination) -> Value:
        home, away = device_orders(to.sub_axes, self.other)
        target, source = (home, away) if self.target is None else (away, home)
        return to.b.op("collective_permute", x, name=to.name, target=target, source=source)


# Shards of other sizes: boundaries that do not tile one another shift before or after a step.


def shift_seconds(task: Task, sharding: ClosedSharding, dim: int, inner: Axes, *, gather: bool) -> float:
    """Time to shift the boundaries between shards of a dim so that those over `inner` tile them: before these are cut
    from the shards in `sharding`, or after they are gathered to them."""
    n, outer = task.shape[dim], sharding.axes[dim]
    if is_aligned(n, outer, inner):
        return 0.0
    wide, usual = shard_size(n, (*outer, *inner)) * axes_size(inner), shard_size(n, outer)
    source, target = (wide, usual) if gather else (usual, wide)
    row = task.bytes_of(sharding) / max(1, usual)
    return exchange_seconds(task.machine, n, outer, Box(0, target, target), row, source)


def padded_to_cut(shape: Sequence[int], dim: int, axes: Axes, before: ClosedSharding, after: ClosedSharding) -> float:
    """The factor by which shards grow by padding along a dim so that `axes` can cut it into equal parts."""
    n = shape[dim]
    return shard_size(n, after.axes[dim]) * axes_size(axes) / max(1, shard_size(n, before.axes[dim]))


def with_shards_of(b: RegionBuilder, x: Value, dim: int, n: int, axes: Axes, size: int) -> Value:
    """`x`, a shard over `axes` of a dim of size n, resized to `size` elements a shard.

    An unsplit dim is cut or padded at its end; between split ones the boundaries shift.
    """
    if x.shape[dim] == size:
        return x
    return exchange(b, x, dim, n, axes, Box(0, size, size)) if axes else resize(b, x, dim, size)
