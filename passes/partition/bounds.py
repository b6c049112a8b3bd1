"""What no plan between two layouts can beat: the least time that one takes, and the least bytes that it receives.

A plan that takes no more need not be compared with others, and others that take more need not be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ir.mesh import AxisRef, axes_size
from ir.sharding import shard_size
from passes.cost import least_communication_seconds, memory_seconds
from passes.partition.local import Axes, Layout


@dataclass(frozen=True, slots=True)
class Least:
    """Seconds, and bytes that the worst device receives, those of box exchanges among them."""

    seconds: float
    received: float


_NOTHING = Least(0.0, 0.0)


class Bounds:
    """The least of all plans to `target`, from `source` and from all layouts on the way.

    What must be received is counted for a few devices, the witnesses: those at the beginning or end of each axis.
    """

    def __init__(self, shape: Sequence[int], itemsize: float, source: Layout, target: Layout) -> None:
        self.shape = shape
        self.itemsize = itemsize
        self.target = target
        self.local = target.local_shape(shape)
        self.size = math.prod(self.local)
        used = source.used | target.used
        self.devices = axes_size(used)
        self.are_doubling = all(a.size & (a.size - 1) == 0 for a in used)
        split = list(dict.fromkeys(a for layout in (source, target) for dim in layout.axes for a in dim))
        self.lasts = [*({a} for a in split), *(set(split) - {a} for a in split)] if target.used else [set[AxisRef]()]
        """For each witness the axes along which it is the last device; along the others it is the first."""
        self.wanted = [self._shards(dim, axes) for dim, axes in enumerate(target.axes)]
        self.sizes = [math.prod([high - low for low, high in box]) for box in self._boxes()]
        self._held: dict[tuple[int, Axes], list[tuple[int, int]]] = {}

    def _boxes(self) -> list[tuple[tuple[int, int], ...]]:
        """The box that each witness wants."""
        return [tuple(dim[i] for dim in self.wanted) for i in range(len(self.lasts))]

    def least(self, layout: Layout) -> Least:
        """The least from that layout on.

        The shards that there are must be read, and those that are wanted written. In a collective over n devices, which
        takes log2(n) messages, each device comes to have data of n times as many as before. Where all axes have sizes
        that are powers of 2, only whole numbers of messages do.
        """
        if layout == self.target:
            return _NOTHING
        local = layout.local_shape(self.shape)
        owed = math.prod([axis.size for axis, kind in layout.partial if (axis, kind) not in self.target.partial])
        sources, lacking = self._needed(layout, local, owed) if self.size else (1, 0.0)
        if self.are_doubling:
            sources = 1 << (sources - 1).bit_length()
        received = lacking * self.itemsize
        copied = memory_seconds((math.prod(local) + self.size) * self.itemsize)
        return Least(copied + least_communication_seconds(sources, received), received)

    def _needed(self, layout: Layout, local: Sequence[int], owed: int) -> tuple[int, float]:
        """From how many devices some device must have data in the end, and how many elements it must receive.

        Where a sum is owed, each of its elements is received once for each addition, and once by every further device
        that wants it: some device receives the mean of that over all devices, and one at least once what it wants.
        """
        if self.target.partial:
            return (owed, 0.0) if layout.partial else self._needed_by_groups(layout, local)
        sources, lacking = self._needed_by_witnesses(layout)
        if owed == 1:
            return sources, lacking
        copies = self.devices // math.prod([axes_size(axes) for axes in self.target.axes])
        received = math.prod(self.shape) * (owed + copies - 2) / self.devices
        return sources * owed, max(received, *self.sizes)

    def _needed_by_witnesses(self, layout: Layout) -> tuple[int, int]:
        held = [self._held_of(dim, axes) for dim, axes in enumerate(layout.axes)]
        sources, lacking = 1, 0
        for i, size in enumerate(self.sizes):
            mine, shards = 1, 1
            for dim in held:
                mine *= dim[i][0]
                shards *= dim[i][1]
            sources = max(sources, shards if mine or not size else shards + 1)
            lacking = max(lacking, size - mine)
        return sources, lacking

    def _needed_by_groups(self, layout: Layout, local: Sequence[int]) -> tuple[int, float]:
        """The same where a sum is owed in the end: the devices that owe it have to get what they lack all together."""
        group = axes_size(axis for axis, _ in self.target.partial)
        split = {a for axes in layout.axes for a in axes}
        different = axes_size(axis for axis, _ in self.target.partial if axis in split)
        mine = math.prod(map(min, local, self.local))
        return -(-self.size // (mine * group)), max(0, self.size - different * mine) / group

    def _held_of(self, dim: int, axes: Axes) -> list[tuple[int, int]]:
        """Of the indices that each witness wants of a dim, how many it holds if `axes` split the dim, and how many
        shards have some."""
        found = self._held.get((dim, axes))
        if found is None:
            chunk = max(1, shard_size(self.shape[dim], axes))
            found = [
                (max(0, min(end, high) - max(begin, low)), -(-high // chunk) - low // chunk)
                for (begin, end), (low, high) in zip(self._shards(dim, axes), self.wanted[dim], strict=True)
            ]
            self._held[dim, axes] = found
        return found

    def _shards(self, dim: int, axes: Axes) -> list[tuple[int, int]]:
        """Where each witness's shard of a dim begins and ends."""
        n, chunk = self.shape[dim], shard_size(self.shape[dim], axes)
        if not axes:
            return [(0, n)] * len(self.lasts)
        found: list[tuple[int, int]] = []
        for ends in self.lasts:
            index = 0
            for a in axes:
                index = index * a.size + (a.size - 1 if a in ends else 0)
            found.append((min(n, index * chunk), min(n, (index + 1) * chunk)))
        return found
