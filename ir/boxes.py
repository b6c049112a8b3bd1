"""Who sends what to whom in a box exchange along one dim.

A dim of size n lies in shards of `chunk` elements on a row of devices, and device i needs the elements
[start + step · i, start + step · i + size). Both are arithmetic progressions, so everything here is closed-form
arithmetic on a device's position, whatever the number of devices.

The transfers are grouped into rounds, each of which is a permutation. If boxes advance at least as fast as shards,
round r takes receiver i to the r-th shard that its box touches; otherwise source j to the r-th box that touches its
shard. Either way no device sends or receives twice in a round, and there are as few rounds as the busiest device needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ir.program import Attr


@dataclass(frozen=True, slots=True)
class Boxes:
    """The shards that devices hold and the boxes that they need. `step` may be negative, not zero."""

    n: int
    chunk: int
    start: int
    step: int
    size: int

    @property
    def by_receiver(self) -> bool:
        """Whether rounds are numbered by the shards a receiver takes from, not by the boxes a source sends to."""
        return abs(self.step) >= self.chunk

    def box(self, i: int) -> tuple[int, int]:
        """The elements of the tensor that device i needs, [low, high); empty if low >= high."""
        first = self.start + self.step * i
        return max(first, 0), min(first + self.size, self.n)

    def overlap(self, receiver: int, source: int) -> int:
        """How many elements the source holds that the receiver needs."""
        low, high = self.box(receiver)
        return max(0, min(high, self.chunk * (source + 1)) - max(low, self.chunk * source))

    def source_of(self, i: int, round: int) -> int:
        """Where receiver i takes from in a round numbered by receivers; may be outside the row."""
        return (self.start + self.step * i) // self.chunk + round

    def receiver_of(self, j: int, round: int) -> int:
        """Where source j sends to in a round numbered by sources; may be outside the row."""
        if self.step > 0:
            return (self.chunk * j - self.start - self.size) // self.step + 1 + round
        return (self.start - self.chunk * (j + 1)) // -self.step + 1 + round

    def pairs(self, round: int, devices: int) -> tuple[tuple[int, int], ...]:
        """(source, receiver) of each transfer between different devices in a round."""
        found: list[tuple[int, int]] = []
        for k in range(devices):
            j, i = (self.source_of(k, round), k) if self.by_receiver else (k, self.receiver_of(k, round))
            if i != j and 0 <= j < devices and 0 <= i < devices and self.overlap(i, j):
                found.append((j, i))
        return tuple(found)

    def rounds(self, devices: int) -> tuple[tuple[int, int], ...]:
        """(round, elements): each round in which anything moves, and the most that one of its transfers carries."""
        most: dict[int, int] = {}
        for i in self._receivers(devices):
            for j in self._touched(i, devices):
                if i != j and (moved := self.overlap(i, j)):
                    r = j - self.source_of(i, 0) if self.by_receiver else i - self.receiver_of(j, 0)
                    most[r] = max(most.get(r, 0), moved)
        return tuple(sorted(most.items()))

    def keeps_own(self, devices: int) -> bool:
        """Whether any device needs something of its own shard."""
        return any(self.overlap(i, i) for i in self._receivers(devices))

    def reaches_outside(self, devices: int) -> bool:
        """Whether any device's box has elements outside the tensor."""
        ends = [self.start, self.start + self.step * (devices - 1)]
        return min(ends) < 0 or max(ends) + self.size > self.n

    def received(self, devices: int) -> int:
        """Elements, along the dim, that the worst device receives."""
        totals = dict.fromkeys(range(devices), 0)
        for r, elements in self.rounds(devices):
            for _, i in self.pairs(r, devices):
                totals[i] += elements
        return max(totals.values(), default=0)

    def _receivers(self, devices: int) -> range:
        """The devices whose boxes may have elements of the tensor."""
        ends = sorted(((-self.start - self.size) // self.step, (self.n - self.start) // self.step))
        return range(max(0, ends[0]), min(devices, ends[1] + 2))

    def _touched(self, i: int, devices: int) -> Iterator[int]:
        low, high = self.box(i)
        if low < high:
            yield from range(low // self.chunk, min((high - 1) // self.chunk + 1, devices))

    def to_attr(self) -> tuple[int, ...]:
        """As the attribute `boxes` of an op: `[n, chunk, start, step, size]`."""
        return self.n, self.chunk, self.start, self.step, self.size

    @staticmethod
    def from_attr(value: Attr) -> Boxes:
        """From the attribute `boxes` of an op."""
        assert isinstance(value, tuple)
        n, chunk, start, step, size = (v for v in value if isinstance(v, int))
        return Boxes(n, chunk, start, step, size)
