"""How the kernels of a machine's compiler perform: their bandwidth and rates, and the overhead of each."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kernels:
    """The performance of kernels, each a pass over memory that ops are fused into, on a device.

    `bandwidth` is the bytes/s that a kernel moves; `reads` is the fraction of it that it reads of one tensor, and
    `reorders` the one that it reaches if it only reorders elements. A kernel that moves no more than `cache` bytes
    finds them in a cache with the bandwidth `cached`; one that moves twice as much finds none. `vector` is the number
    of elementwise operations a second. `launch` is the seconds of overhead of every kernel, and `fill` the further ones
    of a kernel with a product. `lone` is those for each block of `BLOCK` elements of an op that is fused with nothing,
    and so is not cut to fit on-chip memory.

    Dims of a product are padded to whole tiles, (rows, columns). Products that `narrow` read f32 as bf16, and read
    values that the program made, of up to `near` bytes, from on-chip memory. `products` is the fraction of the device's
    rate of arithmetic that products reach, and `waits` the fraction of its time on memory that a product adds to that
    on arithmetic. Products by a `library` read operands that are stored, with batch dims first, and end in few ops:
    they scale, add a tensor, and apply relu. If their rows, columns and summed elements are all `NARROW` or more, they
    take `workspace` bytes besides.

    Kernels of `rows` reduce the rows of a tensor, and compute of them and of their reductions on the same pass. Kernels
    that `overwrite` write over what they read for the last time; others do so only with what the program returns.
    """

    bandwidth: float
    launch: float = 0.0
    fill: float = 0.0
    lone: float = 0.0
    vector: float = math.inf
    tile: tuple[int, int] = (1, 1)
    narrow: bool = False
    near: int = 0
    reads: float = 0.5
    reorders: float = 0.8
    products: float = 1.0
    waits: float = 0.35
    rows: bool = False
    library: bool = False
    overwrites: bool = True
    workspace: int = 0
    cache: int = 0
    cached: float = 0.0

    def seconds(self, nbytes: float) -> float:
        """The time in which a kernel moves that many bytes."""
        if not self.cache:
            return nbytes / self.bandwidth
        hits = min(max(2 - nbytes / self.cache, 0.0), 1.0)
        return nbytes * (hits / self.cached + (1 - hits) / self.bandwidth)


BLOCK = 128 * 1024
NARROW = 256
"""The least size of a product's rows, columns and summed dims from which a library multiplies it faster than a kernel
that the compiler makes for it, which needs no workspace."""


def in_tiles(size: int, tile: int) -> int:
    """The size of a dim, padded to whole tiles."""
    return math.ceil(size / tile) * tile
