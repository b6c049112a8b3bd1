"""The axes of the JAX mesh: each mesh axis, or its sub-axes if the program uses parts of axes.

An axis covers a range of positions in the row-major order of devices: from the product of the sizes before it to that
product times its own size. A part of it covers a part of that range. Sub-axes are the parts between the ends of all
ranges that a program uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ir.axis_sets import cut_axis
from ir.diagnostics import error
from ir.mesh import AxisRef, Mesh
from ir.program import DeviceOrder, Op, Program, all_ops
from ir.sharding import Sharding
from lowering.jax.names import Identifiers


class MeshAxes:
    """A mesh whose axes are cut into sub-axes, each with its own name: `x`, or `x_0`, `x_1`, … if x is cut."""

    def __init__(self, mesh: Mesh, cuts: Iterable[int] = ()) -> None:
        self.mesh = mesh
        self._starts: dict[str, int] = {}
        start = 1
        for name, size in mesh.axes:
            self._starts[name] = start
            start *= size
        self._ranges: dict[str, tuple[int, int]] = {}
        self._name_axes(sorted(set(cuts)))
        self.sizes: Mapping[str, int] = {name: high // low for name, (low, high) in self._ranges.items()}

    def _name_axes(self, cuts: list[int]) -> None:
        names = Identifiers(self._starts)
        for axis in self.mesh.whole_axes():
            start = self._starts[axis.name]
            places = [c for c in cuts if start < c < start * axis.size]
            stray = next((c for c in places if c % start), None)
            if stray is not None:
                message = f"a mesh axis begins at place {start} of the order of devices, and another is cut at {stray}"
                help = "cut an axis only at places of which one divides the other"
                raise error("E307", message, help=help)
            parts = cut_axis(axis, [c // start for c in places])
            for i, part in enumerate(parts):
                name = axis.name if len(parts) == 1 else names.fresh(f"{axis.name}_{i}")
                self._ranges[name] = (start * part.pre, start * part.end)

    @property
    def names(self) -> tuple[str, ...]:
        """Every sub-axis, major first."""
        return tuple(self.sizes)

    def range_of(self, ref: AxisRef) -> tuple[int, int]:
        """Where in the order of devices the axis begins and ends."""
        start = self._starts[ref.name]
        return start * ref.pre, start * ref.end

    def within(self, low: int, high: int) -> tuple[str, ...]:
        """The names of the sub-axes of a range, major first. Sub-axes of size 1 are left out: they split nothing."""
        return tuple(name for name, (a, z) in self._ranges.items() if low <= a < z <= high)

    def axis_names(self, refs: Iterable[AxisRef]) -> tuple[str, ...]:
        """The names of the sub-axes of these axes of this mesh, in the order of the axes, major first."""
        return tuple(name for ref in refs for name in self.within(*self.range_of(ref)))


class ProgramAxes:
    """The axes of all meshes of an SPMD program. JAX knows only those of the default mesh."""

    def __init__(self, program: Program) -> None:
        meshes = program.meshes
        self._mesh_of = {name: mesh for mesh in meshes for name in mesh.names}
        whole = {mesh: MeshAxes(mesh) for mesh in meshes}
        cuts: dict[Mesh, set[int]] = {mesh: set() for mesh in meshes}
        for mesh, ref in _references(program):
            cuts[mesh].update(whole[mesh].range_of(ref))
        for op in all_ops(program):
            # Collectives along the axes of another mesh run along the same ranges of the default one.
            for ref in _collective_axes(op):
                cuts[program.mesh].update(whole[self._mesh_of[ref.name]].range_of(ref))
        self._axes = {mesh: MeshAxes(mesh, cuts[mesh]) for mesh in meshes}
        self.default = self._axes[program.mesh]

    def of(self, mesh: Mesh) -> MeshAxes:
        return self._axes[mesh]

    def mesh_of(self, refs: tuple[AxisRef, ...]) -> Mesh:
        """The mesh that the axes of one collective belong to."""
        return self._mesh_of[refs[0].name] if refs else self.default.mesh

    def axis_names(self, refs: tuple[AxisRef, ...]) -> tuple[str, ...]:
        """The names of the default mesh's sub-axes in the ranges of these axes, which may be of another mesh."""
        axes = self._axes[self.mesh_of(refs)]
        return tuple(name for ref in refs for name in self.default.within(*axes.range_of(ref)))

    def in_place(self, refs: tuple[AxisRef, ...]) -> bool:
        """Whether the mesh of these axes has its devices in the order of the default mesh."""
        return self.mesh_of(refs).devices == self.default.mesh.devices


def is_elsewhere(sharding: Sharding, mesh: Mesh) -> bool:
    """Whether `sharding` has shards in the device order of another mesh. A single device has only one order."""
    return mesh.size > 1 and sharding.mesh != mesh and not sharding.is_replicated


def _references(program: Program) -> Iterable[tuple[Mesh, AxisRef]]:
    main = program.main
    for sharding in (*(p.sharding for p in main.params), *(r.sharding for r in main.results)):
        if sharding is not None:
            used = (*(a for axes in sharding.axes for a in axes), *(a for a, _ in sharding.partial))
            yield from ((sharding.mesh, axis) for axis in used)
    for op in all_ops(program):
        for attr in op.attrs.values():
            if isinstance(attr, DeviceOrder):
                yield from ((attr.mesh, axis) for axis in attr.axes)
    mesh_of = {name: mesh for mesh in program.meshes for name in mesh.names}
    for op in all_ops(program):
        yield from ((mesh_of[axis.name], axis) for axis in _collective_axes(op))


def _collective_axes(op: Op) -> tuple[AxisRef, ...]:
    axes = op.attrs.get("axes")
    return tuple(a for a in axes if isinstance(a, AxisRef)) if isinstance(axes, tuple) else ()


def permuted_axis_names(axes: ProgramAxes, target: DeviceOrder, source: DeviceOrder) -> tuple[str, ...]:
    """The axes of JAX's mesh along which shards move, in its order; all axes if another mesh takes part."""
    if not target.mesh == source.mesh == axes.default.mesh:
        return axes.default.within(1, target.mesh.size)
    named = {*axes.axis_names(target.axes), *axes.axis_names(source.axes)}
    return tuple(name for name in axes.default.names if name in named)
