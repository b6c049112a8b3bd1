"""Reshards as programs, and all possible shardings of a tensor over a mesh."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ir.builder import RegionBuilder
from ir.mesh import Mesh
from ir.program import Program, Result
from ir.sharding import Sharding
from ir.types import TensorType, f32


def every_place(mesh: Mesh, rank: int) -> list[Sharding]:
    """Every way to split dims over axes of a mesh."""
    found: dict[Sharding, None] = {}
    for count in range(len(mesh.axes) + 1):
        for axes in itertools.permutations(mesh.names, count):
            for dims in itertools.product(range(rank), repeat=count):
                split = [[a for a, d in zip(axes, dims, strict=True) if d == k] for k in range(rank)]
                found[Sharding.of(mesh, *split)] = None
    return list(found)


def reshard_program(shape: Sequence[int], source: Sharding, target: Sharding) -> Program:
    """A program that only reshards an f32 tensor."""
    b = RegionBuilder()
    x = b.param("x", TensorType(tuple(shape), f32), source)
    return Program((source.mesh,), {"main": b.function("main", (x,), (Result("y", x.type, target),))})
