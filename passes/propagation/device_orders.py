"""Chooses the device order that a program is partitioned in.

A value in the device order of another mesh is reordered by one permute of all of it. Any mesh can be the default: the
one on which most bytes are annotated is chosen, so that only other values move.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ir.builder import Names
from ir.manual import has_manual
from ir.mesh import Mesh
from ir.program import Function, Program, Result, Value, values_within
from ir.sharding import Sharding
from passes.rewrite import map_values


def in_the_order_of_most(program: Program) -> Program:
    """The program with the mesh on which most bytes are annotated as its default, and without unused meshes. A program
    with manual regions, whose shards are those of its default mesh, is not changed."""
    if len(program.meshes) < 2 or has_manual(program):
        return program
    annotated: Counter[Mesh] = Counter()
    for function in program.functions.values():
        tensors: list[Value | Result] = [*values_within(function.body), *function.results]
        for tensor in tensors:
            if tensor.sharding is not None and not tensor.sharding.is_replicated:
                annotated[tensor.sharding.mesh] += max(1, tensor.type.nbytes)
    home = max(program.meshes, key=lambda mesh: annotated[mesh])
    if home == program.mesh:
        return program
    others = [mesh for mesh in program.meshes if mesh != home and annotated[mesh]]
    title = Names({mesh.name for mesh in others}).fresh("first")
    now = {home: replace(home, name=""), program.mesh: replace(program.mesh, name=title)}

    def moved(sharding: Sharding | None) -> Sharding | None:
        if sharding is None or sharding.mesh not in now:
            return sharding
        if not annotated[sharding.mesh]:
            return Sharding.replicate(now[home], len(sharding.dims))
        return replace(sharding, mesh=now[sharding.mesh])

    def value(old: Value) -> Value:
        return replace(old, sharding=moved(old.sharding))

    def result(function: Function, i: int) -> Result:
        return replace(function.results[i], sharding=moved(function.results[i].sharding))

    meshes = tuple(now.get(mesh, mesh) for mesh in (home, *others))
    return map_values(replace(program, meshes=meshes), value, result)
