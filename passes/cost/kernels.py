"""How the kernels of a machine's compiler run: what they reach, and what each takes besides its work."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a kernel, a pass over memory that ops are fused into, takes on a device.

    `bandwidth` are the bytes/s that it moves, and half of which it reads of one tensor; `vector` the elementwise
    operations a second. `launch` are the seconds that every kernel takes besides, `fill` those that one with a product
    takes further, and `lone` those of each block of `BLOCK` elements of an op that is fused with nothing, and so is
    not cut to fit the device's own memory. A product's dims count in whole tiles, (rows, columns). Products that
    `narrow` read f32 as bf16, and find on the chip what the program made of up to `near` bytes.
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
    """The size of a dim that is made of whole tiles."""
    return math.ceil(size / tile) * tile
