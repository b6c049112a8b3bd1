"""The mesh as leading dims of an array.

A mesh axis is cut wherever the program cuts it, and every piece, a *sub-axis*, is one leading dim. An array has size 1
there if its value is the same along the sub-axis, so that replicated values are stored and computed once. A collective
moves, reduces or broadcasts along these dims; no device is ever processed individually.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ir.axis_sets import cut_mesh
from ir.diagnostics import InternalError, error
from ir.mesh import AxisRef, Mesh
from ir.ops.control import is_manual
from ir.program import DeviceOrder, Program, all_ops
from ir.types import Array


@dataclass(frozen=True, slots=True)
class DeviceGrid:
    """A mesh and the sub-axes of its axes, in mesh order: the leading dims of an array on it."""

    mesh: Mesh
    sub_axes: tuple[AxisRef, ...]

    @property
    def rank(self) -> int:
        return len(self.sub_axes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.size for a in self.sub_axes)

    def dims(self, axes: Iterable[AxisRef]) -> tuple[int, ...]:
        """The leading dims that the axes consist of, major first."""
        return tuple(
            i
            for axis in axes
            for i, sub_axis in enumerate(self.sub_axes)
            if sub_axis.name == axis.name
            and axis.pre <= sub_axis.pre
            and sub_axis.end <= axis.end
            and sub_axis.size > 1
        )

    def spread(self, x: Array, dims: Sequence[int]) -> Array:
        """`x` with its value repeated along those leading dims where it has size 1. A view."""
        shape = list(x.shape)
        for d in dims:
            shape[d] = self.sub_axes[d].size
        return np.broadcast_to(x, shape)

    def index(self, axes: Sequence[AxisRef]) -> Array:
        """Each device's position along the axes, major first; only leading dims."""
        position = np.zeros((1,) * self.rank, np.int64)
        for d in self.dims(axes):
            size = self.sub_axes[d].size
            along = np.arange(size).reshape((1,) * d + (size,) + (1,) * (self.rank - d - 1))
            position = position * size + along
        return position

    def scatter(self, x: Array, axes: Sequence[AxisRef], dim: int) -> Array:
        """Cuts `dim`, of a value that is the same along the axes, into equal parts: part i to device i. A view."""
        dims, at = self.dims(axes), self.rank + dim
        if not dims:
            return x
        sizes = tuple(self.sub_axes[d].size for d in dims)
        x = x.reshape((*x.shape[:at], *sizes, x.shape[at] // math.prod(sizes), *x.shape[at + 1 :]))
        for i, d in enumerate(dims):
            x = x.swapaxes(d, at + i)
        return x.squeeze(tuple(range(at, at + len(dims))))

    def gather(self, x: Array, axes: Sequence[AxisRef], dim: int) -> Array:
        """Concatenates the arrays of the devices along the axes along `dim`, in the axes' order."""
        dims, at = self.dims(axes), self.rank + dim
        if not dims:
            return x
        x = np.expand_dims(self.spread(x, dims), tuple(range(at, at + len(dims))))
        for i, d in enumerate(dims):
            x = x.swapaxes(d, at + i)
        size = math.prod(x.shape[at : at + len(dims) + 1])
        return x.reshape((*x.shape[:at], size, *x.shape[at + len(dims) + 1 :]))


@dataclass(frozen=True, slots=True)
class DeviceGrids:
    """The grids of all meshes of a program. Arrays are on that of the default mesh."""

    default: DeviceGrid
    others: Mapping[Mesh, DeviceGrid]

    def of(self, mesh: Mesh) -> DeviceGrid:
        return self.default if mesh == self.default.mesh else self.others[mesh]

    def of_axes(self, axes: Sequence[AxisRef]) -> DeviceGrid:
        """The grid of the mesh that the axes belong to."""
        names = {a.name for a in axes}
        for grid in (self.default, *self.others.values()):
            if names <= set(grid.mesh.names):
                return grid
        raise InternalError(f"axes {', '.join(sorted(names))} are not of one mesh")

    def translate(self, x: Array, source: DeviceGrid, target: DeviceGrid) -> Array:
        """The same value on the same devices, in the order of another mesh."""
        if source == target:
            return x
        position = np.empty(source.mesh.size, np.int64)
        position[np.array(source.mesh.device_ids, np.int64)] = np.arange(source.mesh.size)
        return fetch(x, source, position[np.array(target.mesh.device_ids, np.int64)], target)


NO_DEVICES = DeviceGrids(DeviceGrid(Mesh(()), ()), {})
"""The grids for a global program."""


def fetch(x: Array, source: DeviceGrid, positions: Array, target: DeviceGrid) -> Array:
    """For the device at each position of `target`, the part of `x` on the device of `source` at the given position.

    Position -1 is no device, and reads zeros. Leading dims along which all devices receive the same have size 1.
    """
    lead, rest = x.shape[: source.rank], x.shape[source.rank :]
    stored = np.broadcast_to(np.arange(math.prod(lead)).reshape(lead), source.shape).reshape(-1)
    index = np.where(positions >= 0, stored[positions], -1).reshape(target.shape)
    for d in range(target.rank):
        first = index[(slice(None),) * d + (slice(0, 1),)]
        if (index == first).all():
            index = first
    flat = x.reshape(math.prod(lead), *rest)
    result: Array = flat[index]
    if (index < 0).any():
        result[index < 0] = 0
    return result


def grids_of(program: Program) -> DeviceGrids:
    """The grids of a program's meshes. Raises SpmdcError E304 or E307 if they have no common refinement."""
    used = set(_axis_refs(program))
    grids = {mesh: DeviceGrid(mesh, cut_mesh(mesh, used)) for mesh in program.meshes}
    if not program.meshes:
        return NO_DEVICES
    default, *others = program.meshes
    for mesh in others:
        if sorted(mesh.device_ids) != sorted(default.device_ids):
            message = f"mesh {mesh.name!r} ({mesh}) has other devices than the default mesh ({default})"
            raise error("E304", message, help="all meshes of a program order the same devices")
    return DeviceGrids(grids[default], {mesh: grids[mesh] for mesh in others})


def _axis_refs(program: Program) -> Iterable[AxisRef]:
    main = program.main
    for sharding in (*(p.sharding for p in main.params), *(r.sharding for r in main.results)):
        if sharding is not None:
            yield from sharding.used_axes()
    for op in all_ops(program):
        crossing = (*op.regions[0].params, *op.results) if is_manual(op) else ()
        for v in crossing:
            if v.sharding is not None:
                yield from v.sharding.used_axes()
        for value in op.attrs.values():
            found = value.axes if isinstance(value, DeviceOrder) else value if isinstance(value, tuple) else ()
            yield from (a for a in found if isinstance(a, AxisRef))
