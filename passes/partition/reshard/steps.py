"""Steps of reshards, each a collective or a local rearrangement, and plans, which are sequences of steps.

A step knows its collective and the axes of that, its cost, and how it is written. Each kind is in the file of its
mechanism: `local_steps`, `reductions`, `moves`, `strided`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ir.builder import RegionBuilder
from ir.causes import Cause
from ir.mesh import Axes, axes_size, merge_axes
from ir.ops.reduction import zero_of
from ir.program import Value
from ir.records import record
from ir.sharding import shard_size
from passes.cost.machine import Machine
from passes.cost.model import communication_seconds, memory_seconds, received_bytes
from passes.partition.closed_sharding import ClosedSharding, is_aligned, local_bytes
from passes.partition.exchange.box_exchange import Box, exchange, exchange_seconds
from passes.partition.reshard.strided_sharding import StridedSharding
from passes.partition.shards import resize, splat
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


@record
class ReshardPlan:
    """Steps with the shardings that they lead to, their total time, and the bytes that the worst device receives."""

    steps: tuple[tuple[Step, AnySharding], ...] = ()
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
    steps: Sequence[tuple[Step, AnySharding]],
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
    if not axes:
        return resize(b, x, dim, size)
    return x if x.shape[dim] == size else exchange(b, x, dim, n, axes, Box(0, size, size))
