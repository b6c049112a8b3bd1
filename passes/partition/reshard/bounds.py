"""Lower bounds for all plans between two shardings: the least time, and the least bytes received.

A plan that reaches them need not be compared with others, and plans that are sure to exceed a known one need not be
examined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.mesh import Axes, AxisRef, DimAxes, axes_size
from ir.records import record
from ir.sharding import local_shape, shard_size
from passes.cost.model import least_communication_seconds, memory_seconds
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.reshard.steps import Task


@record
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
        self.are_doubling = all(a.size & (a.size - 1) == 0 for a in axes)
        """Whether the sizes of all axes are powers of 2."""
        self._dims: dict[tuple[int, Axes], SampledDim] = {}
        self._wanted: dict[tuple[tuple[int, ...], DimAxes], Wanted] = {}

    def wanted(self, shape: tuple[int, ...], axes: DimAxes) -> Wanted:
        """What they have of a tensor of that shape whose dims are split over these axes in the end."""
        found = self._wanted.get((shape, axes))
        if found is None:
            dims = [self.dim(n, split) for n, split in zip(shape, axes, strict=True)]
            found = self._wanted[shape, axes] = Wanted(dims, local_shape(shape, axes))
        return found

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
        self.is_whole = not wanted
        """Whether each device wants the whole dim."""
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


class Wanted:
    """What the sampled devices want of a tensor: its `dims`; `local` and `size`, a padded shard's shape and number of
    elements; and `sizes`, the number that each device has without padding."""

    def __init__(self, dims: Sequence[SampledDim], local: tuple[int, ...]) -> None:
        self.dims = dims
        self.local = local
        self.size = math.prod(local)
        self.sizes = [math.prod(sizes) for sizes in zip(*(dim.wanted for dim in dims), strict=True)]


class Bounds:
    """The lower bounds for a task's plans, from its source and from any sharding on the way."""

    def __init__(self, task: Task, sampled: SampledDevices) -> None:
        self.task = task
        self.sampled = sampled
        self.shape, self.target = task.shape, task.target
        self.axes = task.source.used | task.target.used
        self.wanted = sampled.wanted(task.shape, task.target.axes)

    def least(self, sharding: ClosedSharding) -> Least:
        """The lower bounds from that sharding on.

        Of the present shards as much as the target's have must be read, and these written; what is added must all be
        read, on some device. In a collective over n devices, which takes log2(n) messages, the number of devices of
        which a device has data grows at most n times. If the sizes of all axes are powers of 2, the number of messages
        is an integer.
        """
        if sharding == self.target:
            return _NOTHING
        local = sharding.local_shape(self.shape)
        pending = math.prod([axis.size for axis, kind in sharding.partial if (axis, kind) not in self.target.partial])
        sources, lacking = self._needed(sharding, local, pending) if self.wanted.size else (1, 0.0)
        if self.sampled.are_doubling:
            sources = 1 << (sources - 1).bit_length()
        received = lacking * self.task.itemsize
        have = math.prod(local)
        read = min(have, self.wanted.size)
        if pending > 1:
            read = max(read, have * axes_size(sharding.used) // axes_size(self.axes | sharding.used))
        copied = memory_seconds(self.task.machine, (read + self.wanted.size) * self.task.itemsize)
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
        return sources * pending, max(self.wanted.size, math.prod(self.shape) * (pending + copies - 2) / devices)

    def _needed_by_sampled(self, sharding: ClosedSharding) -> tuple[int, int]:
        whole, split = 1, list[tuple[Sequence[int], Sequence[int]]]()
        for axes, dim in zip(sharding.axes, self.wanted.dims, strict=True):
            if axes or not dim.is_whole:
                split.append(dim.held(axes))
            else:
                whole *= dim.n
        if not split:
            return 1, 0
        (mine, shards), *others = split
        for own, holders in others:
            mine = [a * b for a, b in zip(mine, own, strict=True)]
            shards = [a * b for a, b in zip(shards, holders, strict=True)]
        sizes = self.wanted.sizes
        sources = max([n if own or not size else n + 1 for n, own, size in zip(shards, mine, sizes, strict=True)])
        return max(1, sources), max([size - own * whole for own, size in zip(mine, sizes, strict=True)])

    def _needed_by_groups(self, sharding: ClosedSharding, local: Sequence[int]) -> tuple[int, float]:
        """The same if a sum is still pending in the end: the devices that have parts of it must receive what they lack
        together."""
        group = axes_size(axis for axis, _ in self.target.partial)
        split = {a for axes in sharding.axes for a in axes}
        different = axes_size(axis for axis, _ in self.target.partial if axis in split)
        mine = math.prod(map(min, local, self.wanted.local))
        return -(-self.wanted.size // (mine * group)), max(0, self.wanted.size - different * mine) / group
