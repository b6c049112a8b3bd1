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

Held = tuple[Sequence[int], Sequence[int]]
"""For each sampled device, of the indices of a dim that it wants: how many it has, and how many shards contain some of
them."""


class SampledDevices:
    """A few devices for which the bytes that they must receive are counted: those at the beginning or end of each
    axis."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.count = 2 * len(axes) or 1
        self.are_doubling = all(a.size & (a.size - 1) == 0 for a in axes)
        """Whether the sizes of all axes are powers of 2."""
        self._shards: dict[tuple[int, Axes], list[tuple[int, int]]] = {}
        self._held: dict[tuple[int, Axes], dict[Axes, Held]] = {}

    def held(self, n: int, wanted: Axes) -> dict[Axes, Held]:
        """What sampled devices hold of the indices of a dim of size n that they have when it is split over `wanted`, by
        the axes that split it now, as far as it is known."""
        return self._held.setdefault((n, wanted), {})

    def held_over(self, n: int, axes: Axes, wanted: Axes) -> Held:
        """The same when `axes` split the dim."""
        chunk = max(1, shard_size(n, axes))
        pairs = list(zip(self._shards_of(n, axes), self._shards_of(n, wanted), strict=True))
        own = [max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in pairs]
        return own, [-(-b[1] // chunk) - b[0] // chunk for _, b in pairs]

    def _shards_of(self, n: int, axes: Axes) -> list[tuple[int, int]]:
        """Where each sampled device's shard of a dim begins and ends."""
        found = self._shards.get((n, axes))
        if found is None:
            chunk = shard_size(n, axes)
            shards = ((i * chunk, (i + 1) * chunk) for i in self._positions(axes))
            found = self._shards[n, axes] = [(min(n, begin), min(n, end)) for begin, end in shards]
        return found

    def _positions(self, axes: Axes) -> Sequence[int]:
        """Where each sampled device is along these axes: those that are the last along one axis and the first along all
        others, then those that are the first along one and the last along all others."""
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
        self._dims = [(n, axes, sampled.held(n, axes)) for n, axes in zip(task.shape, task.target.axes, strict=True)]
        self._ones = (1,) * sampled.count

    @cached_property
    def _sizes(self) -> Sequence[int]:
        """The number of elements that each sampled device has in the end."""
        found: Sequence[int] = self._ones
        for n, axes, _ in self._dims:
            found = [a * b for a, b in zip(found, self.sampled.held_over(n, axes, axes)[0], strict=True)]
        return found

    def least(self, sharding: ClosedSharding, local: Sequence[int] | None = None) -> Least:
        """The lower bounds from that sharding on, in which shards have the shape `local`, if it is known already.

        The present shards must be read, and the target's written. In a collective over n devices, which takes log2(n)
        messages, the number of devices of which a device has data grows at most n times. If the sizes of all axes are
        powers of 2, the number of messages is an integer.
        """
        if sharding == self.target:
            return _NOTHING
        local = sharding.local_shape(self.shape) if local is None else local
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
        mine: Sequence[int] = self._ones
        shards: Sequence[int] = self._ones
        for axes, (n, wanted, known) in zip(sharding.axes, self._dims, strict=True):
            held = known.get(axes)
            if held is None:
                held = known[axes] = self.sampled.held_over(n, axes, wanted)
            mine = [a * b for a, b in zip(mine, held[0], strict=True)]
            shards = [a * b for a, b in zip(shards, held[1], strict=True)]
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
