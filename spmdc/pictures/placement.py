"""The part of a tensor that each device has: the blocks that it is cut into, and the devices with each."""

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
    """A part of a tensor: elements `start` to `stop` of each dim, without padding; empty if these are equal. `devices`
    has the ids of the devices that have it, in the order of the mesh."""

    index: Index
    start: Index
    stop: Index
    devices: tuple[int, ...]

    @property
    def is_padding(self) -> bool:
        """Whether it has no element of the tensor."""
        return any(start == stop for start, stop in zip(self.start, self.stop, strict=True))


class Placement:
    """The blocks of a tensor on the devices of a mesh: `parts` blocks along each dim, each of the `shard`'s shape,
    padding included."""

    def __init__(self, shape: Sequence[int], sharding: Sharding) -> None:
        self.shape, self.sharding = tuple(shape), sharding
        self.parts: Index = tuple(axes_size(axes) for axes in sharding.axes)
        self.shard: Index = local_shape(self.shape, sharding.axes)

    @staticmethod
    def of_shards(sharding: Sharding) -> Placement:
        """The placement of a tensor with one element in each shard, which shows the sharding by itself."""
        return Placement([axes_size(axes) for axes in sharding.axes], sharding)

    @property
    def is_uneven(self) -> bool:
        """Whether some shards have padding."""
        return any(n != parts * size for n, parts, size in zip(self.shape, self.parts, self.shard, strict=True))

    @property
    def padding(self) -> float:
        """The percentage of padding in the devices' elements."""
        held = math.prod(self.parts) * math.prod(self.shard)
        return 100 * (held - math.prod(self.shape)) / held if held else 0.0

    @property
    def idle(self) -> int:
        """The number of devices that have only padding."""
        used = math.prod(-(-n // size) if size else 1 for n, size in zip(self.shape, self.shard, strict=True))
        return self.replicas * (math.prod(self.parts) - used)

    @property
    def replicas(self) -> int:
        """The number of devices that have each block. If a reduction is pending these are not copies, but terms."""
        return self.sharding.mesh.size // math.prod(self.parts)

    def extent(self, dim: int, part: int) -> tuple[int, int]:
        """The elements of a part of a dim: the first, and the end."""
        n, size = self.shape[dim], self.shard[dim]
        return min(n, part * size), min(n, (part + 1) * size)

    def block(self, index: Sequence[int]) -> Block:
        """The block with that index along each dim."""
        extents = [self.extent(dim, part) for dim, part in enumerate(index)]
        start, stop = tuple(e[0] for e in extents), tuple(e[1] for e in extents)
        return Block(tuple(index), start, stop, self._holders(self.number_of(index)))

    def blocks(self) -> Iterator[Block]:
        """All blocks, the last dim fastest."""
        return map(self.block, np.ndindex(*self.parts))

    def index_at(self, position: int) -> Index:
        """The index of the block of the device at a position of the mesh."""
        return tuple(int(part) for part in np.unravel_index(self._numbers[position], self.parts or (1,)))[
            : len(self.parts)
        ]

    def number_of(self, index: Sequence[int]) -> int:
        """The number of the block with that index, the last dim fastest."""
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
