"""Lower bounds for all plans between two shardings: the least time, and the least bytes received.

A plan that reaches them need not be compared with others, and plans that are sure to exceed a known one need not be
examined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ir.mesh import Axes, AxisRef, axes_size
from ir.sharding import shard_size
from passes.cost.model import least_communication_seconds, memory_seconds
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.reshard.steps import Task


@dataclass(frozen=True, slots=True)
class Least:
    """Seconds, and the bytes that the worst device receives, those of box exchanges included."""

    seconds: float
    received: float


_NOTHING = Least(0.0, 0.0)


class SampledDevices:
    """A few devices for which the bytes that they must receive are counted: those at the beginning or end of each
    axis."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.count = 2 * len(axes) or 1
        self.are_doubling = all(a.size & (a.size - 1) == 0 for a in axes)
        """Whether the sizes of all axes are powers of 2."""
        self._dims: dict[tuple[int, Axes], SampledDim] = {}

    def dim(self, n: int, wanted: Axes) -> SampledDim:
        """What they have of a dim of size n that is split over `wanted` in the end."""
        found = self._dims.get((n, wanted))
        if found is None:
            found = self._dims[n, wanted] = SampledDim(self.axes, n, wanted)
        return found


class SampledDim:
    """What the sampled devices of a mesh with these axes have of a dim of size n when it is split over some of them,
    out of what they have when it is split over those that are wanted."""

    def __init__(self, axes: Axes, n: int, wanted: Axes) -> None:
        self.axes = axes
        self.n = n
        self._wanted = self._shards(wanted)
        self._held: dict[Axes, tuple[Sequence[int], Sequence[int]]] = {}
        self.wanted = [end - begin for begin, end in self._wanted]
        """The number of indices that each device wants."""

    def held(self, axes: Axes) -> tuple[Sequence[int], Sequence[int]]:
        """For each device, of the indices that it wants: how many it has, and how many shards contain some of them."""
        found = self._held.get(axes)
        if found is None:
            chunk = max(1, shard_size(self.n, axes))
            pairs = zip(self._shards(axes), self._wanted, strict=True)
            own = [max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in pairs]
            found = self._held[axes] = own, [-(-end // chunk) - begin // chunk for begin, end in self._wanted]
        return found

    def _shards(self, axes: Axes) -> list[tuple[int, int]]:
        """Where each device's shard begins and ends."""
        chunk = shard_size(self.n, axes)
        return [(min(self.n, i * chunk), min(self.n, (i + 1) * chunk)) for i in self._positions(axes)]

    def _positions(self, axes: Axes) -> Sequence[int]:
        """Where each device is along these axes: those that are the last along one axis and the first along all others,
        then those that are the first along one and the last along all others."""
        steps: dict[AxisRef, int] = {}
        end = 1
        for axis in reversed(axes):
            steps[axis] = (axis.size - 1) * end
            end *= axis.size
        found = [steps.get(axis, 0) for axis in self.axes]
        return [*found, *(end - 1 - step for step in found)] or (0,)


class Bounds:
    """The lower bounds for a task's plans, from its source and from any sharding on the way."""

    def __init__(self, task: Task, sampled: SampledDevices) -> None:
        self.task = task
        self.sampled = sampled
        self.shape, self.target = task.shape, task.target
        self.axes = task.source.used | task.target.used
        self.local = task.target.local_shape(task.shape)
        self.size = math.prod(self.local)
        self._dims = [sampled.dim(n, axes) for n, axes in zip(task.shape, task.target.axes, strict=True)]
        self._ones = (1,) * sampled.count

    @cached_property
    def _sizes(self) -> Sequence[int]:
        """The number of elements that each sampled device has in the end."""
        found: Sequence[int] = self._ones
        for dim in self._dims:
            found = [a * b for a, b in zip(found, dim.wanted, strict=True)]
        return found

    def least(self, sharding: ClosedSharding, local: Sequence[int] | None = None) -> Least:
        """The lower bounds from that sharding on, in which shards have the shape `local`, if it is known already.

        Of the present shards as much as the target's have must be read, and these written; what is added must all be
        read, on some device. In a collective over n devices, which takes log2(n) messages, the number of devices of
        which a device has data grows at most n times. If the sizes of all axes are powers of 2, the number of messages
        is an integer.
        """
        if sharding == self.target:
            return _NOTHING
        local = sharding.local_shape(self.shape) if local is None else local
        pending = math.prod([axis.size for axis, kind in sharding.partial if (axis, kind) not in self.target.partial])
        sources, lacking = self._needed(sharding, local, pending) if self.size else (1, 0.0)
        if self.sampled.are_doubling:
            sources = 1 << (sources - 1).bit_length()
        received = lacking * self.task.itemsize
        have = math.prod(local)
        read = min(have, self.size)
        if pending > 1:
            read = max(read, have * axes_size(sharding.used) // axes_size(self.axes | sharding.used))
        copied = memory_seconds(self.task.machine, (read + self.size) * self.task.itemsize)
        seconds = least_communication_seconds(self.task.machine, self.axes, sources, received)
        return Least(copied + seconds, received)

    def _needed(self, sharding: ClosedSharding, local: Sequence[int], pending: int) -> tuple[int, float]:
        """From how many devices some device must have data in the end, and how many elements it must receive.

        If a sum is pending, each of its elements is received once for each addition, and once by every further device
        that needs it. Some device receives the mean of this over all devices, and some device receives what it needs at
        least once.
        """
        if self.target.partial:
            return (pending, 0.0) if sharding.partial else self._needed_by_groups(sharding, local)
        sources, lacking = self._needed_by_sampled(sharding)
        if pending == 1:
            return sources, lacking
        devices = axes_size(self.axes)
        copies = devices // math.prod([axes_size(axes) for axes in self.target.axes])
        return sources * pending, max(self.size, math.prod(self.shape) * (pending + copies - 2) / devices)

    def _needed_by_sampled(self, sharding: ClosedSharding) -> tuple[int, int]:
        mine: Sequence[int] = self._ones
        shards: Sequence[int] = self._ones
        for axes, dim in zip(sharding.axes, self._dims, strict=True):
            own, holders = dim.held(axes)
            mine = [a * b for a, b in zip(mine, own, strict=True)]
            shards = [a * b for a, b in zip(shards, holders, strict=True)]
        devices = list(zip(shards, mine, self._sizes, strict=True))
        sources = max([count if own or not size else count + 1 for count, own, size in devices])
        return max(1, sources), max([size - own for _, own, size in devices])

    def _needed_by_groups(self, sharding: ClosedSharding, local: Sequence[int]) -> tuple[int, float]:
        """The same if a sum is still pending in the end: the devices that have parts of it must receive what they lack
        together."""
        group = axes_size(axis for axis, _ in self.target.partial)
        split = {a for axes in sharding.axes for a in axes}
        different = axes_size(axis for axis, _ in self.target.partial if axis in split)
        mine = math.prod(map(min, local, self.local))
        return -(-self.size // (mine * group)), max(0, self.size - different * mine) / group
