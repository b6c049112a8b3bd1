"""The meshes that a function itself uses.

They are those of the shardings and meshes in its code, and of the arrays that it closes over. For a call in which
nothing else names a mesh, it is the first of them. What the code places has to be on the devices of the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
from jax.sharding import AbstractMesh
from jax.sharding import Mesh as JaxMesh
from jax.sharding import Sharding as JaxSharding

from ir.diagnostics import Source, SpmdcError, error
from ir.mesh import Mesh
from lowering.jax.versions import captured, frames_of, live
from spmdc.frontends.jax.annotations import is_annotation
from spmdc.frontends.jax.jaxprs import uses
from spmdc.frontends.jax.lowering import leaves_of_shardings
from spmdc.frontends.jax.shardings import MeshLike, mesh_of, sharding_of, with_devices
from spmdc.frontends.jax.specialisation import is_on_a_mesh
from spmdc.frontends.stablehlo.locations import Locations

_ONE_DEVICE = Mesh((("x", 1),))
_MAX_LISTED = 16
"""The most devices that an error lists."""


def no_mesh(message: str, *notes: str) -> SpmdcError:
    """The error for a function that names axes, or is to be partitioned, without any mesh."""
    return error(
        "E306",
        message,
        notes=notes,
        help="name it: jax.set_mesh(mesh), spmdc.jit(f, mesh=mesh), or NamedShardings of arguments, in in_shardings "
        "or in out_shardings",
    )


def mesh_used(traced: jax.stages.Traced, leaves: Sequence[Any]) -> MeshLike | None:
    """The first mesh with devices, or else the first, that a function traced for these leaves uses. The types of leaves
    that JAX is tracing count too. Raises SpmdcError (E306) if the function uses axes or several devices, but no
    mesh."""
    private: Any = traced
    used = [*(x for x, _ in uses(private.jaxpr)), *captured(traced), *leaves]
    meshes = [mesh for mesh in map(_mesh, used) if mesh is not None]
    if meshes:
        return next((mesh for mesh in meshes if isinstance(mesh, JaxMesh)), meshes[0])
    if any(map(is_annotation, used)):
        raise no_mesh(f"{private.fun_name} has annotations, and there is no mesh")
    sharding = next((s for s in map(_sharding, used) if s is not None and s.num_devices > 1), None)
    if sharding is not None:
        kind, count = type(sharding).__name__, sharding.num_devices
        raise no_mesh(f"{private.fun_name} uses an array on {count} devices, whose {kind} has no mesh")
    return None


def require_one_device(shardings: Mapping[str, Any]) -> None:
    """Raises SpmdcError (E306) if one of the shardings, in a tree for each option, needs a mesh; E309 for what is
    none."""
    for option, tree in shardings.items():
        for given in leaves_of_shardings(tree):
            if given is None or (isinstance(given, JaxSharding) and given.num_devices == 1):
                continue
            if not isinstance(given, JaxSharding) and _is_no_sharding(given):
                message = f"{option} has {given!r}, which is no PartitionSpec, no NamedSharding and no text of one"
                raise error("E309", message, help='write jax.sharding.PartitionSpec("x", None)')
            raise no_mesh(f"{option} has {given!r}, and there is no mesh")


def require_devices(
    mesh: MeshLike, name: str, shardings: Mapping[str, Any], traced: jax.stages.Traced | None = None
) -> None:
    """Raises SpmdcError (E301) if the shardings, in a tree for each option, or the code of the function `name` are on
    other devices than `mesh`, on whose devices it runs, or on the same in another order. As under `jax.jit`, arrays may
    come from other devices, and what is not used may name any."""
    own = _devices(with_devices(mesh)) if not isinstance(mesh, AbstractMesh) else None
    if own is None:
        return
    given: list[_Placed] = [
        (f"{option} has a sharding", leaf, None)
        for option, tree in shardings.items()
        for leaf in leaves_of_shardings(tree)
    ]
    elsewhere = _elsewhere(given, own)
    if elsewhere is None and traced is not None:
        jaxpr = cast("Any", traced).jaxpr
        if _elsewhere(_placed(jaxpr), own) is not None:
            elsewhere = _elsewhere(_placed(live(jaxpr)), own)
    if elsewhere is not None:
        what, there, equation = elsewhere
        raise error(
            "E301",
            f"{what} on devices {_listed(there)}, and {name} runs on {_listed(own)}",
            equation and Locations(Source("<jax>"), reads_files=True).innermost(frames_of(equation)),
            help="place all on the devices of one mesh, in its order; spmdc.jit(…, mesh=…) names the one to run on",
        )


_Placed = tuple[str, Any, Any]
"""What has a mesh, in words; that; and the equation that it is a parameter of, or None."""


def _placed(jaxpr: Any) -> Iterator[_Placed]:
    return (("a value is", x, equation) for x, equation in uses(jaxpr) if not isinstance(x, jax.Array))


def _elsewhere(placed: Iterable[_Placed], own: list[Any]) -> tuple[str, list[Any], Any] | None:
    """The first of these that is on other devices, with its devices."""
    for what, used, equation in placed:
        mesh = _mesh(used)
        if isinstance(mesh, JaxMesh) and (there := _devices(mesh)) != own:
            return what, there, equation
    return None


def _devices(mesh: JaxMesh) -> list[Any]:
    found: list[Any] = mesh.devices.flatten().tolist()
    return found


def _listed(devices: Sequence[Any]) -> str:
    ids = [str(device.id) for device in devices]
    return ", ".join(ids if len(ids) <= _MAX_LISTED else [*ids[: _MAX_LISTED - 1], "…"])


def _is_no_sharding(given: Any) -> bool:
    try:
        sharding_of(given, _ONE_DEVICE, 1, "it")
    except SpmdcError as problem:
        return problem.diagnostics[0].code == "E309"
    return False


def _mesh(x: Any) -> MeshLike | None:
    """The mesh that a value is, is on, or has, such as a NamedSharding."""
    if isinstance(x, jax.core.Tracer):
        x = getattr(jax.typeof(x), "sharding", None)
    elif is_on_a_mesh(x):
        x = x.sharding
    found = x if isinstance(x, JaxMesh | AbstractMesh) else getattr(x, "mesh", None)
    return found if isinstance(found, Mesh | JaxMesh | AbstractMesh) and mesh_of(found).axes else None


def _sharding(x: Any) -> JaxSharding | None:
    """The sharding that a value is or has."""
    if isinstance(x, jax.core.Tracer):
        return None
    found = x if isinstance(x, JaxSharding) else getattr(x, "sharding", None)
    return found if isinstance(found, JaxSharding) else None
