"""Results that become arrays with even shards only, such as JAX's, are resharded at the end of the program.

So this communication is a part of the SPMD program, and is counted with the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.builder import Names, RegionBuilder
from ir.causes import Cause
from ir.diagnostics import InternalError
from ir.mesh import AxisRef, Mesh, axes_size
from ir.program import Program, Region, Result, Value
from ir.sharding import DimSharding, Sharding, local_shape
from passes.cost.machine import Machine
from passes.partition.closed_sharding import closed_sharding_of
from passes.partition.reshard.planner import Resharder
from passes.partition.reshard.steps import emit_steps
from passes.sub_axes import find_sub_axes


def with_even_results(program: Program, machine: Machine) -> Program:
    """The SPMD program with results in even shards on its default mesh, and not partial."""
    main = program.main
    even = [_with_even_shards(r, program.mesh) for r in main.results]
    if all(new is old for new, old in zip(even, main.results, strict=True)):
        return program
    resharder = Resharder(find_sub_axes(program), machine)
    b = RegionBuilder(Names.beside(main))
    values = [
        value if new is old else _resharded(b, resharder, value, old, new)
        for value, old, new in zip(main.body.results, main.results, even, strict=True)
    ]
    body = Region(main.params, (*main.body.ops, *b.ops), tuple(values))
    written = replace(main, body=body, results=tuple(even))
    return replace(program, functions={**program.functions, main.name: written})


def even_sharding(sharding: Sharding, mesh: Mesh, shape: Sequence[int]) -> Sharding:
    """The sharding without partial values and without axes that do not divide their dim. `shape` has the first dims;
    later dims become unsplit, and so do all dims if the sharding is on another mesh."""
    if mesh.size > 1 and sharding.mesh != mesh and not sharding.is_replicated:
        return Sharding.replicate(mesh, sharding.rank)
    divides = [n % axes_size(axes) == 0 for n, axes in zip(shape, sharding.axes, strict=False)]
    dims = [dim if even else DimSharding() for dim, even in zip(sharding.dims, divides, strict=False)]
    return replace(sharding, dims=(*dims, *[DimSharding()] * (sharding.rank - len(dims))), partial=())


def in_whole_axes(sharding: Sharding, shape: Sequence[int]) -> Sharding:
    """The sharding with whole axes only: an axis that is used in parts moves to the first of its dims that the whole
    axis divides, and leaves the others."""
    mesh = sharding.mesh
    if all(mesh.is_whole(axis) for dim in sharding.dims for axis in dim.axes):
        return sharding
    used = {axis.name for dim in sharding.dims for axis in dim.axes if mesh.is_whole(axis)}
    dims: list[DimSharding] = []
    for n, dim in zip(shape, sharding.dims, strict=True):
        axes: list[AxisRef] = []
        for axis in dim.axes:
            whole = mesh.axis(axis.name)
            if axis == whole or (axis.name not in used and n % (axes_size(axes) * whole.size) == 0):
                axes.append(whole)
                used.add(axis.name)
        dims.append(replace(dim, axes=tuple(axes)))
    return replace(sharding, dims=tuple(dims))


def _with_even_shards(result: Result, mesh: Mesh) -> Result:
    whole, sharding = result.of, result.sharding
    if whole is None or sharding is None or sharding.is_replicated:
        return result
    even = even_sharding(sharding, mesh, whole.shape)
    if even == sharding:
        return result
    return replace(result, type=whole.with_shape(local_shape(whole.shape, even.axes)), sharding=even)


def _resharded(b: RegionBuilder, resharder: Resharder, value: Value, old: Result, new: Result) -> Value:
    assert old.of is not None
    assert old.sharding is not None
    assert new.sharding is not None
    shape, sub_axes = old.of.shape, resharder.sub_axes
    source, target = closed_sharding_of(old.sharding, sub_axes), closed_sharding_of(new.sharding, sub_axes)
    steps = resharder.plan(shape, old.of.dtype.nbytes, source, target).steps
    if (steps[-1][1] if steps else source) != target:
        raise InternalError(f"the result {old.name} ended in {steps}, not in {target}")
    cause = Cause("even_result", name=old.name, values=(value.name,))
    with b.at(old.span or value.span, None):
        return emit_steps(b, value, shape, source, steps, sub_axes, old.name, cause)
