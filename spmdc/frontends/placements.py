"""Meshes and shardings as users of JAX write them, as ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from ir.diagnostics import error
from ir.mesh import Mesh
from ir.sharding import Sharding
from ir.text.shardings import assign_devices, parse_sharding

MeshLike = Mesh | JaxMesh | AbstractMesh | Mapping[str, int]


def mesh_of(given: MeshLike) -> Mesh:
    """Our mesh: from JAX's, whose devices stand for their positions, or from sizes by name.

    Raises SpmdcError (E305) for sizes that are no positive integers.
    """
    if isinstance(given, Mesh):
        return given
    sizes = dict(given.shape) if isinstance(given, JaxMesh | AbstractMesh) else dict(given)
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise error("E305", f"mesh axis {name!r} has size {size!r}", help='write sizes by name: {"x": 4, "y": 2}')
    return Mesh(tuple((str(name), int(size)) for name, size in sizes.items()))


def sharding_of(given: Any, mesh: Mesh, rank: int, what: str) -> Sharding:
    """The sharding of a value of that rank which a user's way of saying it means.

    That is a `PartitionSpec`, a `NamedSharding` on the same mesh, None (replicated, as an empty PartitionSpec is), a
    string in HLO's or Shardy's spelling, GShard's device assignment in nested lists, or our own Sharding. Raises
    SpmdcError (E301 to E309); `what` names the value.
    """
    if given is None:
        return Sharding.replicate(mesh, rank)
    if isinstance(given, Sharding):
        return given
    if isinstance(given, NamedSharding):
        own = mesh_of(given.mesh)
        if own.axes != mesh.axes:
            raise error(
                "E301",
                f"{what} is placed on a mesh ({own}), and the function is partitioned over ({mesh})",
                help="place all values on one mesh",
            )
        given = given.spec
    if isinstance(given, PartitionSpec):
        return parse_sharding(repr(given), mesh, rank)
    if isinstance(given, str):
        return parse_sharding(given, mesh, rank)
    if isinstance(given, list | tuple):
        return assign_devices(mesh, given, "assigned")
    raise error("E309", f"{what} cannot be placed by {given!r}", help='write jax.sharding.PartitionSpec("x", None)')
