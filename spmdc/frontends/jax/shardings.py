"""Converts JAX's meshes and shardings to spmdc's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh
from jax.sharding import Sharding as JaxSharding

from ir.diagnostics import SpmdcError, error
from ir.mesh import Mesh
from ir.sharding import Sharding
from ir.spelling.shardings import assign_devices, parse_sharding
from lowering.jax.running import ensure_devices
from lowering.jax.untyped import spec_of
from lowering.jax.versions import abstract_mesh
from spmdc.frontends.jax.meshes import is_cut_like, on_mesh
from spmdc.frontends.stablehlo.names import identifier

_HELP = 'write sizes by name: {"x": 4, "y": 2}'

MeshLike = Mesh | JaxMesh | AbstractMesh | Mapping[str, int]


def mesh_of(given: MeshLike) -> Mesh:
    """spmdc's mesh: from JAX's, with devices numbered by position, or from sizes by name.

    Raises SpmdcError (E305) for sizes that are no positive integers.
    """
    if isinstance(given, Mesh):
        return given
    try:
        sizes = dict(given.shape) if isinstance(given, JaxMesh | AbstractMesh) else dict(given)
    except (TypeError, ValueError):
        raise error("E305", f"{given!r} is no mesh", help=_HELP) from None
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise error("E305", f"mesh axis {name!r} has size {size!r}", help=_HELP)
    axes = tuple((axis_name(str(name)), int(size)) for name, size in sizes.items())
    if len(dict(axes)) < len(axes):
        raise error("E304", f"the axes {', '.join(map(str, sizes))} are not told apart by letters, digits and _",
                    help="give them other names")  # fmt: skip
    return Mesh(axes)


def is_explicit(mesh: Any) -> bool:
    """Whether the types of JAX's values name axes of the mesh."""
    return isinstance(mesh, JaxMesh | AbstractMesh) and AxisType.Explicit in mesh.axis_types


def names_explicit(axes: Sequence[str], mesh: Any) -> bool:
    """Whether any of these axes is one that the types of JAX's values name."""
    return is_explicit(mesh) and any(
        kind is AxisType.Explicit and name in axes for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
    )


def left_to_the_partitioner(mesh: MeshLike) -> MeshLike:
    """The mesh without Explicit axes, so that no type of a value names any."""
    if isinstance(mesh, JaxMesh):
        return JaxMesh(mesh.devices, mesh.axis_names)
    return abstract_mesh(mesh.axis_sizes, mesh.axis_names) if isinstance(mesh, AbstractMesh) else mesh


def in_type(placement: Any, mesh: MeshLike, shape: tuple[int, ...]) -> NamedSharding | None:
    """The sharding of a value's JAX type: the placement, if it is over Explicit axes of the mesh.

    None if there are no such axes, or if a type cannot have the placement: dims must divide evenly.
    """
    if not isinstance(mesh, JaxMesh | AbstractMesh) or not is_explicit(mesh):
        return None
    is_named = isinstance(placement, NamedSharding)
    if is_named and dict(placement.mesh.shape) != dict(mesh.shape):
        return None
    spec = placement.spec if is_named else placement
    if not isinstance(spec, PartitionSpec) or len(spec.partitions) > len(shape):
        return None
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))

    def kept(entry: Any) -> Any:
        names = entry if isinstance(entry, tuple) else (entry,)
        found = tuple(n for n in names if isinstance(n, str) and types.get(n) is AxisType.Explicit)
        return found if len(found) > 1 else found[0] if found else None

    sharding = NamedSharding(
        mesh if isinstance(mesh, AbstractMesh) else mesh.abstract_mesh, spec_of(*map(kept, spec.partitions))
    )
    return sharding if divides(sharding, shape) else None


def divides(sharding: NamedSharding, shape: tuple[int, ...]) -> bool:
    """Whether the sharding divides every dim of the shape."""
    try:
        sharding.shard_shape(shape)
    except ValueError:
        return False
    return True


def axis_name(name: str) -> str:
    """The name in the .spmd language of a JAX axis, which may be any text."""
    return identifier(name, "axis").replace(".", "_")


def _in_our_names(spec: PartitionSpec) -> str:
    """The spec as text, with axes named as in the .spmd language."""

    def renamed(entry: Any) -> Any:
        if isinstance(entry, tuple):
            return tuple(map(renamed, entry))
        return axis_name(entry) if isinstance(entry, str) else entry

    entries = [repr(renamed(entry)) for entry in spec.partitions]
    pending = ", ".join(sorted(repr(renamed(name)) for name in spec.unreduced))
    return f"P({', '.join([*entries, f'unreduced={{{pending}}}'] if pending else entries)})"


def _is_device_assignment(given: Any) -> bool:
    """Whether it consists of integers in nested lists only."""
    return type(given) is int or (isinstance(given, list | tuple) and all(map(_is_device_assignment, given)))


def sharding_of(given: Any, mesh: Mesh, rank: int, what: str) -> Sharding:
    """The sharding that a user's placement specifies for a value of that rank.

    The placement is a `PartitionSpec`, a `NamedSharding` on this mesh or on one whose axes cut the same devices in the
    same places, None (replicated, like an empty PartitionSpec), a string in HLO's or Shardy's spelling, GShard's device
    assignment in nested lists, an spmdc Sharding, or any of JAX's that replicates over as many devices as the mesh has,
    as that of a single one does. Raises SpmdcError (E301 to E309); `what` names the value.
    """
    if given is None:
        return Sharding.replicate(mesh, rank)
    if isinstance(given, Sharding):
        return given
    if isinstance(given, NamedSharding):
        own = mesh_of(given.mesh)
        if own.axes != mesh.axes:
            if is_cut_like(own, mesh):
                return on_mesh(sharding_of(given.spec, own, rank, what), own, mesh)
            if given.is_fully_replicated and own.size == mesh.size and not given.spec.unreduced:
                return Sharding.replicate(mesh, rank)
            message = f"{what} is placed on a mesh ({own}), and the function is partitioned over ({mesh})"
            help = "place all values on one mesh, or on meshes whose axes cut the devices in the same places"
            raise error("E301", message, help=help)
        given = given.spec
    if isinstance(given, PartitionSpec | str):
        text = given if isinstance(given, str) else _in_our_names(given)
        try:
            return parse_sharding(text, mesh, rank)
        except SpmdcError as problem:
            raise SpmdcError([replace(d, message=f"{what}: {d.message}") for d in problem.diagnostics]) from None
    if isinstance(given, list | tuple) and _is_device_assignment(given):
        return assign_devices(mesh, given, "assigned")
    message = f"{what} cannot be placed by {given!r}"
    if isinstance(given, JaxSharding):
        if given.is_fully_replicated and given.num_devices == mesh.size:
            return Sharding.replicate(mesh, rank)
        message += f", over {given.num_devices} of the {mesh.size} devices of the mesh ({mesh})"
    raise error("E309", message, help='write jax.sharding.PartitionSpec("x", None)')


def with_devices(mesh: MeshLike) -> JaxMesh:
    """A mesh of JAX's with the available devices, unless it has devices already."""
    if isinstance(mesh, JaxMesh):
        return mesh
    own = mesh_of(mesh)
    devices = np.array(ensure_devices(own.size), dtype=object)[np.array(own.device_ids)].reshape(own.shape)
    return JaxMesh(devices, mesh.axis_names if isinstance(mesh, AbstractMesh) else own.names)


def named_sharding(sharding: Sharding, mesh: JaxMesh) -> NamedSharding:
    """The sharding, of whole axes, as JAX's, without unsplit dims at the end."""
    names = dict(zip(mesh_of(mesh).names, mesh.axis_names, strict=True))
    dims = [tuple(names[axis.name] for axis in dim.axes) for dim in sharding.dims]
    while dims and not dims[-1]:
        dims.pop()
    return NamedSharding(mesh, spec_of(*(d if len(d) > 1 else d[0] if d else None for d in dims)))
