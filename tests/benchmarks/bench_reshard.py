"""Bytes of every reshard of a matrix on a 2 x 4 mesh, against the lower bound.

Run with `make bench`; prints every figure. The lower bound of a reshard is what the device that lacks most of its new
shard must receive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from ir.builder import RegionBuilder
from ir.mesh import Mesh
from ir.program import Program, Result
from ir.sharding import Sharding
from ir.types import TensorType, f32
from spmdc.api import partition

MESH = Mesh((("x", 2), ("y", 4)))
Place = tuple[tuple[str, ...], tuple[str, ...]]


def places() -> list[Place]:
    """Every way to split the two dims over none, one or both axes."""
    found: set[Place] = set()
    for count in range(3):
        for axes in itertools.permutations(MESH.names, count):
            for dims in itertools.product(range(2), repeat=count):
                rows, columns = (tuple(a for a, d in zip(axes, dims, strict=True) if d == k) for k in range(2))
                found.add((rows, columns))
    return sorted(found)


def boxes(shape: Sequence[int], place: Place) -> list[list[tuple[int, int]]]:
    """Each device's shard, as a range of each dim."""
    shards: list[list[tuple[int, int]]] = []
    for position in np.ndindex(*MESH.shape):
        at, sizes = dict(zip(MESH.names, position, strict=True)), dict(MESH.axes)
        shard: list[tuple[int, int]] = []
        for n, axes in zip(shape, place, strict=True):
            index = 0
            for a in axes:
                index = index * sizes[a] + at[a]
            chunk = -(-n // math.prod(sizes[a] for a in axes))
            shard.append((min(n, index * chunk), min(n, (index + 1) * chunk)))
        shards.append(shard)
    return shards


def lower_bound(shape: Sequence[int], source: Place, target: Place) -> int:
    worst = 0
    for have, want in zip(boxes(shape, source), boxes(shape, target), strict=True):
        needed = math.prod(high - low for low, high in want)
        held = math.prod(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in zip(have, want, strict=True))
        worst = max(worst, 4 * (needed - held))
    return worst


def ours(shape: tuple[int, ...], source: Place, target: Place) -> int:
    b = RegionBuilder()
    x = b.param("x", TensorType(shape, f32), Sharding.of(MESH, *source))
    program = Program((MESH,), {"main": b.function("main", (x,), (Result("y", x.type, Sharding.of(MESH, *target)),))})
    return partition(program, verify=False).received_bytes()


def test_all_reshards_of_a_matrix_against_the_lower_bound() -> None:
    for shape in ((64, 64), (1024, 1024), (1000, 1030)):
        pairs = list(itertools.permutations(places(), 2))
        bounds = [lower_bound(shape, s, t) for s, t in pairs]
        bytes_received = [ours(shape, s, t) for s, t in pairs]
        ratio = sum(bytes_received) / sum(bounds)
        worst = max(m / b for m, b in zip(bytes_received, bounds, strict=True) if b)
        print(f"\n{shape}: {len(pairs)} reshards receive {ratio:.3f} of the lower bound, worst {worst:.2f}", end="")
        assert ratio < 1.1
    print()
