"""What each device holds of a tensor: the blocks that it is cut into, and who has each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ir.mesh import axes_size, positions_along
from ir.sharding import Sharding, local_shape

Index = tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """A part of a tensor: elements `start` to `stop` of each dim, without padding; none where they are equal. `devices`
    are the ids of those that hold it, in the order of the mesh."""

    index: Index
    start: Index
    stop: Index
    devices: tuple[int, ...]

    @property
    def is_padding(self) -> bool:
        """Whether there is no element of the tensor in it."""
        return any(start == stop for start, stop in zip(self.start, self.stop, strict=True))


class Placement:
    """How a tensor of a shape lies on the devices of a mesh: in `parts` blocks along each dim, each of the `shard`'s
    shape, padding included."""

    def __init__(self, shape: Sequence[int], sharding: Sharding) -> None:
        self.shape, self.sharding = tuple(shape), sharding
        self.parts: Index = tuple(axes_size(axes) for axes in sharding.axes)
        self.shard: Index = local_shape(self.shape, sharding.axes)

    @staticmethod
    def of_shards(sharding: Sharding) -> Placement:
        """That of a tensor which has one element in each shard: what there is to see of a sharding by itself."""
        return Placement([axes_size(axes) for axes in sharding.axes], sharding)

    @property
    def is_uneven(self) -> bool:
        """Whether some shards hold padding."""
        return any(n != parts * size for n, parts, size in zip(self.shape, self.parts, self.shard, strict=True))

    @property
    def padding(self) -> float:
        """The share of what devices hold that is padding, in percent."""
        held = math.prod(self.parts) * math.prod(self.shard)
        return 100 * (held - math.prod(self.shape)) / held if held else 0.0

    @property
    def idle(self) -> int:
        """How many devices hold padding alone."""
        used = math.prod(-(-n // size) if size else 1 for n, size in zip(self.shape, self.shard, strict=True))
        return self.replicas * (math.prod(self.parts) - used)

    @property
    def replicas(self) -> int:
        """How many devices hold each block. Where a reduction is pending these are not copies, but terms."""
        return self.sharding.mesh.size // math.prod(self.parts)

    def extent(self, dim: int, part: int) -> tuple[int, int]:
        """The elements of a dim that a part of it has: from the first to behind the last."""
        n, size = self.shape[dim], self.shard[dim]
        return min(n, part * size), min(n, (part + 1) * size)

    def block(self, index: Sequence[int]) -> Block:
        """The block at that place among those along each dim."""
        extents = [self.extent(dim, part) for dim, part in enumerate(index)]
        start, stop = tuple(e[0] for e in extents), tuple(e[1] for e in extents)
        return Block(tuple(index), start, stop, self._holders(self.number_of(index)))

    def blocks(self) -> Iterator[Block]:
        """All of them, the last dim fastest."""
        return map(self.block, np.ndindex(*self.parts))

    def index_at(self, position: int) -> Index:
        """The block that the device at a position of the mesh holds."""
        return tuple(int(part) for part in np.unravel_index(self._numbers[position], self.parts or (1,)))[
            : len(self.parts)
        ]

    def number_of(self, index: Sequence[int]) -> int:
        """The number of the block at that place, the last dim fastest."""
        number = 0
        for part, parts in zip(index, self.parts, strict=True):
            number = number * parts + part
        return number

    def _holders(self, number: int) -> tuple[int, ...]:
        first, last = np.searchsorted(self._in_order, (number, number + 1))
        ids = self.sharding.mesh.devices
        positions = self._by_block[first:last].tolist()
        return tuple(positions if ids is None else (ids[p] for p in positions))

    @cached_property
    def _numbers(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The block of the device at each position of the mesh."""
        axes = [axis for dim in self.sharding.axes for axis in dim]
        return positions_along(self.sharding.mesh, axes)

    @cached_property
    def _by_block(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.argsort(self._numbers, kind="stable")

    @cached_property
    def _in_order(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self._numbers[self._by_block]
