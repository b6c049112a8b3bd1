"""How the kernels of a machine's compiler perform: their bandwidth and rates, and the overhead of each."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kernels:
    """The performance of kernels, each a pass over memory that ops are fused into, on a device.

    `bandwidth` is the bytes/s that a kernel moves, half of which it can read of one tensor. `vector` is the number of
    elementwise operations a second. `launch` is the seconds of overhead of every kernel, and `fill` the further ones of
    a kernel with a product. `lone` is those for each block of `BLOCK` elements of an op that is fused with nothing, and
    so is not cut to fit on-chip memory. Dims of a product are padded to whole tiles, (rows, columns). Products that
    `narrow` read f32 as bf16, and read values that the program made, of up to `near` bytes, from on-chip memory.
    """

    bandwidth: float
    launch: float = 0.0
    fill: float = 0.0
    lone: float = 0.0
    vector: float = math.inf
    tile: tuple[int, int] = (1, 1)
    narrow: bool = False
    near: int = 0


BLOCK = 128 * 1024


def in_tiles(size: int, tile: int) -> int:
    """The size of a dim, padded to whole tiles."""
    return math.ceil(size / tile) * tile
