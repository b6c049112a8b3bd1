"""Lower bounds for all plans between two shardings: the least time, and the least bytes received.

A plan that reaches them need not be compared with others, and plans that are sure to exceed a known one need not be
examined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
        self.lasts = [*({a} for a in axes), *(set(axes) - {a} for a in axes)] or [set[AxisRef]()]
        """For each sampled device the axes along which it is the last one; along the others it is the first."""
        self.are_doubling = all(a.size & (a.size - 1) == 0 for a in axes)
        """Whether the sizes of all axes are powers of 2."""
        self._shards: dict[tuple[int, Axes], list[tuple[int, int]]] = {}
        self._held: dict[tuple[int, Axes, Axes], list[tuple[int, int]]] = {}

    def held(self, n: int, axes: Axes, wanted: Axes) -> list[tuple[int, int]]:
        """For each sampled device, of the indices of a dim of size n that it has when the dim is split over `wanted`:
        how many it has when `axes` split the dim, and how many shards over `axes` contain some of them."""
        found = self._held.get((n, axes, wanted))
        if found is None:
            chunk = max(1, shard_size(n, axes))
            pairs = zip(self._shards_of(n, axes), self._shards_of(n, wanted), strict=True)
            found = [(max(0, min(a[1], b[1]) - max(a[0], b[0])), -(-b[1] // chunk) - b[0] // chunk) for a, b in pairs]
            self._held[n, axes, wanted] = found
        return found

    def _shards_of(self, n: int, axes: Axes) -> list[tuple[int, int]]:
        """Where each sampled device's shard of a dim begins and ends."""
        found = self._shards.get((n, axes))
        if found is None:
            chunk = shard_size(n, axes)
            found = self._shards[n, axes] = []
            for ends in self.lasts:
                index = 0
                for a in axes:
                    index = index * a.size + (a.size - 1 if a in ends else 0)
                found.append((min(n, index * chunk), min(n, (index + 1) * chunk)))
        return found


class Bounds:
    """The lower bounds for a task's plans, from its source and from any sharding on the way."""

    def __init__(self, task: Task, sampled: SampledDevices) -> None:
        self.task = task
        self.sampled = sampled
        self.shape, self.target = task.shape, task.target
        self.axes = task.source.used | task.target.used
        self.local = task.target.local_shape(task.shape)
        self.size = math.prod(self.local)

    def least(self, sharding: ClosedSharding) -> Least:
        """The lower bounds from that sharding on.

        The present shards must be read, and the target's written. In a collective over n devices, which takes log2(n)
        messages, the number of devices of which a device has data grows at most n times. If the sizes of all axes are
        powers of 2, the number of messages is an integer.
        """
        if sharding == self.target:
            return _NOTHING
        local = sharding.local_shape(self.shape)
        pending = math.prod([axis.size for axis, kind in sharding.partial if (axis, kind) not in self.target.partial])
        sources, lacking = self._needed(sharding, local, pending) if self.size else (1, 0.0)
        if self.sampled.are_doubling:
            sources = 1 << (sources - 1).bit_length()
        received = lacking * self.task.itemsize
        copied = memory_seconds(self.task.machine, (math.prod(local) + self.size) * self.task.itemsize)
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
        dims = list(zip(self.shape, sharding.axes, self.target.axes, strict=True))
        held = [self.sampled.held(n, axes, wanted) for n, axes, wanted in dims if axes or wanted]
        sizes = [self.sampled.held(n, wanted, wanted) for n, axes, wanted in dims if axes or wanted]
        whole = math.prod([n for n, axes, wanted in dims if not axes and not wanted])
        sources, lacking = 1, 0
        for i in range(len(self.sampled.lasts) if held else 0):
            size, mine, shards = 1, 1, 1
            for have, want in zip(held, sizes, strict=True):
                size *= want[i][0]
                mine *= have[i][0]
                shards *= have[i][1]
            sources = max(sources, shards if mine or not size else shards + 1)
            lacking = max(lacking, size - mine)
        return sources, lacking * whole

    def _needed_by_groups(self, sharding: ClosedSharding, local: Sequence[int]) -> tuple[int, float]:
        """The same if a sum is still pending in the end: the devices that have parts of it must receive what they lack
        together."""
        group = axes_size(axis for axis, _ in self.target.partial)
        split = {a for axes in sharding.axes for a in axes}
        different = axes_size(axis for axis, _ in self.target.partial if axis in split)
        mine = math.prod(map(min, local, self.local))
        return -(-self.size // (mine * group)), max(0, self.size - different * mine) / group
