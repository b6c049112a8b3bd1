"""Bytes of reshards against the lower bound and against XLA's partitioner. Run with `make bench`; prints every figure.

The lower bound of a reshard is what the device that lacks most of its new shard must receive.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator

import pytest
from bounds import reshard_lower_bound
from reshards import every_place, reshard_program

from ir.mesh import AxisRef, Mesh, prime_parts
from ir.sharding import Sharding
from passes.cost.machine import TPU_V3
from passes.partition.closed_sharding import closed_sharding_of
from passes.partition.reshard.planner import Resharder
from passes.sub_axes import SubAxes
from spmdc.api import partition
from spmdc.comparison.compare import compare

MESH = Mesh((("x", 2), ("y", 4)))
Pair = tuple[Sharding, Sharding]


def random_pairs(mesh: Mesh, rank: int, count: int, *, parts: bool = False) -> Iterator[Pair]:
    """Shardings of which each splits any dims over any axes, or over `parts` of prime size."""
    rng = random.Random(0)

    def sharding() -> Sharding:
        axes = [p for a in mesh.whole_axes() for p in (prime_parts(a) if parts else (a,))]
        dims: list[list[str | AxisRef]] = [[] for _ in range(rank + 1)]
        for axis in rng.sample(axes, len(axes)):
            dims[rng.randrange(rank + 1)].append(axis)
        return Sharding.of(mesh, *dims[:rank])

    while count:
        pair = sharding(), sharding()
        if pair[0] != pair[1]:
            count -= 1
            yield pair


@pytest.mark.parametrize("shape", [(64, 64), (1024, 1024), (1000, 1030)])
def test_all_reshards_of_a_matrix_against_the_lower_bound(shape: tuple[int, int]) -> None:
    pairs = list(itertools.permutations(every_place(MESH, 2), 2))
    bounds = [reshard_lower_bound(shape, 4, *pair) for pair in pairs]
    received = [partition(reshard_program(shape, *pair), verify=False).received_bytes() for pair in pairs]
    ratio, worst = sum(received) / sum(bounds), max(m / b for m, b in zip(received, bounds, strict=True) if b)
    print(f"\n{shape}: {len(pairs)} reshards receive {ratio:.3f} of the lower bound, worst {worst:.2f}")
    assert ratio <= 1.05


@pytest.mark.parametrize(
    "sizes", [(2, 2, 2), (4, 2), (8, 8), (4, 4, 4), (16, 16), (6, 4), (6, 10, 15), (16, 12, 9)], ids=str
)
@pytest.mark.parametrize("parts", [False, True], ids=["axes", "parts"])
def test_random_reshards_against_the_lower_bound_and_the_clock(sizes: tuple[int, ...], parts: bool) -> None:
    mesh = Mesh(tuple(zip("xyz", sizes, strict=False)))
    shape = (24 * mesh.size,) * 2 if len(sizes) == 2 else (2 * mesh.size,) * 3
    uncut = {name: frozenset[int]() for name in mesh.names}
    primes = {a.name: frozenset(p.pre for p in prime_parts(a)) for a in mesh.whole_axes()}
    received = bound = 0.0
    times: list[float] = []
    worst = 1.0
    for pair in random_pairs(mesh, len(shape), 200 if mesh.size < 500 else 50, parts=parts):
        resharder = Resharder(SubAxes(mesh, primes if parts else uncut, {}), TPU_V3)
        layouts = [closed_sharding_of(s, resharder.sub_axes) for s in pair]
        start = time.perf_counter()
        plan = resharder.plan(shape, 4, layouts[0], layouts[1])
        times.append(time.perf_counter() - start)
        least = reshard_lower_bound(shape, 4, *pair)
        received, bound = received + plan.received, bound + least
        worst = max(worst, plan.received / least if least else 1.0)
    mean, longest = 1e3 * sum(times) / len(times), 1e3 * max(times)
    what = "parts of axes" if parts else "axes"
    print(f"\n{sizes}, {what}: {received / bound:.3f} of the lower bound, worst {worst:.2f}; ", end="")
    print(f"planned in {mean:.1f} ms each, at most {longest:.1f} ms")
    one_prime = len({p.size for a in mesh.whole_axes() for p in prime_parts(a)}) == 1
    assert received / bound <= (1.05 if one_prime else 2.0)


@pytest.mark.parametrize(
    ("mesh", "rank"), [(MESH, 2), (Mesh((("x", 4), ("y", 2))), 3), (Mesh(tuple(zip("xyz", (2,) * 3, strict=True))), 3)]
)
def test_reshards_against_those_of_xla(mesh: Mesh, rank: int) -> None:
    shape = (1024, 1024) if rank == 2 else (64, 64, 64)
    pairs = (
        list(itertools.permutations(every_place(mesh, rank), 2)) if rank == 2 else list(random_pairs(mesh, rank, 200))
    )
    bounds = [reshard_lower_bound(shape, 4, *pair) for pair in pairs]
    compared = [compare(reshard_program(shape, *pair)) for pair in pairs]
    print(f"\n{mesh}: {len(pairs)} reshards of {shape}")
    for name, received in (("spmdc", [c.bytes for c in compared]), ("XLA", [c.xla_bytes for c in compared])):
        worst = max(m / b for m, b in zip(received, bounds, strict=True) if b)
        print(f"  {name:<6} {sum(received) / sum(bounds):.3f} of the lower bound, worst {worst:.2f}")
    assert sum(c.bytes for c in compared) <= 1.05 * sum(bounds)
