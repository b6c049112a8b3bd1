"""What devices exchange to split an op along a dim in which its elements depend on their neighbours.

`Halo` generalises GShard's halo: the box of an operand that a device needs to compute its shard of the result. Each op
registers its halos in the file of its family (`passes/partition/ops`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ir.mesh import Axes
from ir.ops.window import Window, dilated
from ir.sharding import shard_size
from passes.partition.exchange.box_exchange import Box

GATHER_FANOUT = 8
"""How many devices' totals, or candidates, are gathered at a time."""


@dataclass(frozen=True, slots=True)
class Halo:
    """The box that each device needs of dim `dim` of operand `operand`, dilated by `dilation`.

    If only some of the box is needed, `parts` has boxes with wanted elements at equal distances, of which the whole box
    is made.
    """

    operand: int
    dim: int
    box: Box
    dilation: int = 1
    parts: tuple[Box, ...] = ()
    dims: range | None = None
    """The dims, in row-major order from `dim` on, whose elements the box counts; None for the elements of `dim`."""

    @property
    def exchanges(self) -> tuple[Box, ...]:
        """The boxes that are exchanged."""
        return self.parts or (self.box,)

    @property
    def is_a_run(self) -> bool:
        """Whether the box is a contiguous run of the dim's elements, all of which are needed."""
        return (self.dilation, self.box.every, self.parts, self.dims) == (1, 1, (), None)

    def length(self, shape: Sequence[int]) -> int:
        """The number of elements that the boxes count in an operand, or a shard, of that shape, before dilation."""
        return math.prod(shape[d] for d in self.dims or (self.dim,))

    def extent(self, shape: Sequence[int]) -> int:
        """The number of elements of an operand of that shape that the boxes are taken from, after dilation."""
        return dilated(self.length(shape), self.dilation)


def receivers_of(n: int, axes: Axes) -> int:
    """The number of devices whose shards of a dim of size n are not all padding."""
    return -(-n // max(1, shard_size(n, axes)))


@dataclass(frozen=True, slots=True)
class HaloWindow:
    """A need, and the holes and padding that the op itself adds to the box."""

    need: Halo
    low: int = 0
    high: int = 0
    base_dilation: int = 1

    def local(self, window: Window) -> Window:
        """The window that slides over the box. If its stride and dilation skip all holes, the op adds none."""
        every, gaps = self.base_dilation, (window.stride, window.dilation if window.size > 1 else 0)
        if every > 1 and self.low == 0 and all(gap % every == 0 for gap in gaps):
            stride, dilation = (max(1, gap // every) for gap in gaps)
            return replace(window, stride=stride, dilation=dilation, low=0, high=0, base_dilation=1)
        return replace(window, low=self.low, high=self.high, base_dilation=every)


def ends(box: Box) -> tuple[int, int, int]:
    return box.start, box.step, box.size


def whole_or_spread(operand: int, dim: int, box: Box, parts: Sequence[Box], dilation: int) -> Halo:
    """The need of all of a box, or of some parts of it."""
    plain = len(parts) == 1 and parts[0].every == 1 and ends(parts[0]) == ends(box)
    return Halo(operand, dim, parts[0] if plain else box, dilation, () if plain else tuple(parts))


@dataclass(frozen=True, slots=True)
class WindowReads:
    """The elements that a device's part of a window op reads: `count` runs of `length` elements.

    A run's elements are `stride` apart. The runs begin `between` apart, the first of them on device i at
    start + step · i, where `step` is a multiple of `stride`. Runs may overlap.
    """

    start: int
    step: int
    stride: int
    length: int
    between: int
    count: int

    @property
    def size(self) -> int:
        """The extent from the first element to the last."""
        return self.stride * (self.length - 1) + self.between * (self.count - 1) + 1 if self.length else 0

    def parts(self, dilation: int, end: int, receivers: int) -> tuple[Box, ...]:
        """Boxes with the real elements among these at equal distances, if only every `dilation`-th element is real.

        A single box if that has no others, or if there are too many runs to examine.
        """
        if not self.size:
            return (Box(self.start, self.step, 0),)
        hull = Box(self.start, self.step, self.size, dilation, 0, end, receivers)
        solid = self.stride <= self.count if self.between == 1 else self.stride == 1 and self.between <= self.length
        if solid or self.count > MAX_RUNS:
            return (_aligned(hull),)
        classes: dict[int, list[tuple[int, int]]] = {}
        for k in range(self.count):
            first = self.between * k
            classes.setdefault(first % self.stride, []).append((first, first + self.stride * self.length))
        merged = [run for runs in classes.values() for run in _merged(runs)]
        if sum((b - a) // self.stride for a, b in merged) == self.size:
            return (_aligned(hull),)
        parts = [self._part(a, b - a - self.stride + 1, dilation, end, receivers) for a, b in merged]
        return tuple(part for part in parts if part is not None and part.size) or (Box(self.start, self.step, 0),)

    def _part(self, offset: int, size: int, dilation: int, end: int, receivers: int) -> Box | None:
        """The real elements of a run from `offset` on: the common multiples, by the Chinese remainder theorem."""
        start, both = self.start + offset, math.gcd(self.stride, dilation)
        if start % both:
            return None
        stride = self.stride // both
        phase = dilation * (start // both * pow(dilation // both, -1, stride) % stride)
        return _aligned(Box(start, self.step, size, dilation * stride, phase, end, receivers))


MAX_RUNS = 64


def _aligned(box: Box) -> Box:
    """The box cut to begin at its first wanted element, if that is at the same position on all devices."""
    if box.step % box.every:
        return box
    before = (box.phase - box.start) % box.every
    return replace(box, start=box.start + before, size=max(0, box.size - before))


def _merged(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs of one length in ascending order, with overlapping ones merged."""
    merged: list[tuple[int, int]] = []
    for first, end in runs:
        if merged and first <= merged[-1][1]:
            first, _ = merged.pop()
        merged.append((first, end))
    return merged


def halo_of_reads(dim: int, seen: WindowReads, dilation: int, end: int, receivers: int) -> HaloWindow:
    """How a device gets the elements of a dim, of the first operand, that are `dilation` apart (GShard, section A.4,
    Figure 13).

    If all boxes begin at the same distance from a wanted element, the op itself adds the holes, after a padding that is
    the same on all devices. Otherwise the holes are added before the op.
    """
    box = Box(seen.start, seen.step, seen.size, end=end, receivers=receivers)
    parts = seen.parts(dilation, end, receivers)
    part = parts[0]
    if len(parts) > 1 or part.size == 0 or part.step % part.every:
        return HaloWindow(whole_or_spread(0, dim, box, parts, dilation))
    low, count = part.start - box.start, -(-part.size // part.every)
    return HaloWindow(Halo(0, dim, part, dilation), low, box.size - low - dilated(count, part.every), part.every)


def window_halo(dim: int, window: Window, n: int, axes: Axes) -> HaloWindow:
    """The elements of the first operand that a device's part of n windows reads."""
    size = shard_size(n, axes)
    seen = WindowReads(-window.low, window.stride * size, window.stride, size, window.dilation, window.size)
    end = window.stride * (n - 1) - window.low + window.extent
    return halo_of_reads(dim, seen, window.base_dilation, end, receivers_of(n, axes))
