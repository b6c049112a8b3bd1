"""What the steps of a reshard cost: seconds, and bytes that the worst device receives in collectives."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.mesh import Axes, axes_size
from ir.sharding import shard_size
from passes.cost.machine import Machine
from passes.cost.model import communication_seconds, memory_seconds, received_bytes, reduction_in_parts
from passes.partition.closed_sharding import ClosedSharding, is_aligned, local_bytes
from passes.partition.exchange.box_exchange import Box, exchange_seconds
from passes.partition.reshard.steps import (
    AllToAll,
    Gather,
    Reduce,
    ReduceScatter,
    Retile,
    Rotate,
    Slice,
    Step,
    communication,
)

Cost = tuple[float, float]
"""Seconds, and bytes received."""


def step_cost(
    machine: Machine, shape: Sequence[int], itemsize: float, before: ClosedSharding, step: Step, after: ClosedSharding
) -> Cost:
    """The cost of a step between two layouts of a tensor of that shape."""
    size = local_bytes(shape, itemsize, before) * _padded(shape, before, step, after)
    seconds, received = collective_cost(machine, step, math.ceil(size), local_bytes(shape, itemsize, after))
    return seconds + _shifts(machine, shape, itemsize, before, step, after), received


def _padded(shape: Sequence[int], before: ClosedSharding, step: Step, after: ClosedSharding) -> float:
    """How much larger shards become by padding so that a collective can cut them into equal parts along a dim."""
    match step:
        case AllToAll(axes, _, dim) | ReduceScatter(axes, _, dim):
            n = shape[dim]
            return shard_size(n, after.axes[dim]) * axes_size(axes) / max(1, shard_size(n, before.axes[dim]))
        case _:
            return 1.0


def collective_cost(machine: Machine, step: Step, before: int, after: int) -> Cost:
    """The cost of a step that makes shards of `after` bytes from shards of `before` bytes, boundaries as they are.

    Devices arrange what they send and receive in any case, so it is no dearer to bring digits of several dims together.
    """
    seconds = memory_seconds(machine, before + after)
    if isinstance(step, Rotate):
        rounds, group, part = axes_size(step.axes), axes_size(step.target), before // axes_size(step.axes)
        seconds += rounds * communication_seconds(machine, "collective_permute", step.target, part)
        seconds += memory_seconds(machine, before)
        return seconds, rounds * received_bytes("collective_permute", group, part)
    kind, axes = communication(step)
    if not kind:
        return seconds, 0.0
    sent = reduction_in_parts(machine, axes, before) if _is_product(step) else ((kind, before),)
    seconds += sum(communication_seconds(machine, each, axes, nbytes) for each, nbytes in sent)
    group = axes_size(axes)
    return seconds, sum(received_bytes(each, group, nbytes) for each, nbytes in sent)


def _is_product(step: Step) -> bool:
    """Whether it is a reduction that no backend has in one call, for any type of elements."""
    return isinstance(step, Reduce) and step.kind == "prod"


def retile_cost(machine: Machine, shape: Sequence[int], itemsize: float, step: Retile) -> Cost:
    """The cost of shifting the boundaries between shards."""
    before, after = step.before.local_shape(), step.after.local_shape()
    size = step.before.shard_elements * itemsize
    seconds = memory_seconds(machine, size + step.after.shard_elements * itemsize)
    for n, have, want, axes in zip(shape, before, after, step.before.axes, strict=True):
        if axes and have != want:
            seconds += exchange_seconds(machine, n, axes, Box(0, want, want), size / max(1, have), have)
    return seconds, 0.0


def _shifts(
    machine: Machine, shape: Sequence[int], itemsize: float, before: ClosedSharding, step: Step, after: ClosedSharding
) -> float:
    """Time to shift the boundaries between shards that do not tile one another."""

    def shift(layout: ClosedSharding, dim: int, inner: Axes, *, gather: bool) -> float:
        n, outer = shape[dim], layout.axes[dim]
        if is_aligned(n, outer, inner):
            return 0.0
        wide, usual = shard_size(n, (*outer, *inner)) * axes_size(inner), shard_size(n, outer)
        source, target = (wide, usual) if gather else (usual, wide)
        row = local_bytes(shape, itemsize, layout) / max(1, usual)
        return exchange_seconds(machine, n, outer, Box(0, target, target), row, source)

    match step:
        case Gather(dim, axes):
            return shift(after, dim, axes, gather=True)
        case Slice(dim, axes) | ReduceScatter(axes, _, dim):
            return shift(before, dim, axes, gather=False)
        case AllToAll(axes, source, target):
            return shift(after, source, axes, gather=True) + shift(before, target, axes, gather=False)
        case _:
            return 0.0
