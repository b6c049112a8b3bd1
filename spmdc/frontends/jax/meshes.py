"""A program over a mesh that JAX can have: axes that the program uses in parts are cut, and devices are in plain order.

Manual regions and their collectives name axes of JAX's mesh, which has no parts of axes, and list devices by position.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import replace

from ir.mesh import AxisRef, Mesh, merge_axes
from ir.program import Attr, DeviceOrder, Op, Program, Value
from ir.sharding import Sharding
from lowering.jax.axes import ProgramAxes
from passes.rewrite import map_program, map_values


def mesh_for_jax(program: Program) -> Mesh:
    """The default mesh in a form that JAX can have."""
    return Mesh(tuple(ProgramAxes(program).default.sizes.items()))


def is_cut_like(old: Mesh, new: Mesh) -> bool:
    """Whether parts of the axes of each mesh are axes, or parts of axes, of the other: (x=2, y=4) and (d=8) are cut
    alike, and (x=2, y=3) and (x=3, y=2) are not."""
    ends = sorted({end for mesh in (old, new) for end in itertools.accumulate(mesh.shape, operator.mul)})
    return old.size == new.size and all(end % before == 0 for before, end in itertools.pairwise(ends))


def on_mesh(sharding: Sharding, old: Mesh, new: Mesh) -> Sharding:
    """The same sharding in axes of a mesh with as many devices, whose axes cut the device order elsewhere."""
    return sharding if sharding.mesh != old else sharding.with_axes(lambda axes: _cut(axes, old, new), new)


def program_on_mesh(program: Program, old: Mesh, new: Mesh) -> Program:
    """The program with everything on one mesh expressed on another."""

    def placed(sharding: Sharding | None) -> Sharding | None:
        return on_mesh(sharding, old, new) if sharding is not None else None

    def value(v: Value) -> Value:
        return replace(v, sharding=placed(v.sharding))

    def op(o: Op) -> Sequence[Op]:
        return (replace(o, attrs={name: _attr(attr, old, new) for name, attr in o.attrs.items()}),)

    mapped = map_values(program, value, lambda f, i: replace(f.results[i], sharding=placed(f.results[i].sharding)))
    meshes = tuple(new if mesh == old else mesh for mesh in mapped.meshes)
    return replace(map_program(mapped, op), meshes=meshes)


def _attr(attr: Attr, old: Mesh, new: Mesh) -> Attr:
    if isinstance(attr, DeviceOrder):
        return DeviceOrder(new, _cut(attr.axes, old, new)) if attr.mesh == old else attr
    if isinstance(attr, tuple):
        axes = tuple(a for a in attr if isinstance(a, AxisRef) and a.name in old.names)
        return _cut(axes, old, new) if attr and len(axes) == len(attr) else attr
    return attr


def _cut(axes: tuple[AxisRef, ...], old: Mesh, new: Mesh) -> tuple[AxisRef, ...]:
    return merge_axes(tuple(part for axis in axes for part in _parts(axis, old, new)))


def _parts(axis: AxisRef, old: Mesh, new: Mesh) -> list[AxisRef]:
    """The axes of the new mesh that cover the axis: the same range of positions in the device order."""
    if axis.size == 1:
        return [new.axis(axis.name)] if axis.name in new.names else []
    low = math.prod(old.shape[: old.names.index(axis.name)]) * axis.pre
    high, start = low * axis.size, 1
    found: list[AxisRef] = []
    for name, size in new.axes:
        first, last = max(low, start), min(high, start * size)
        if first < last:
            found.append(AxisRef(name, first // start, last // first))
        start *= size
    return found
