"""Writes shardings in the notations of JAX, Shardy and HLO, which `ir.spelling` must read back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ir.diagnostics import error
from ir.mesh import AxisRef, Mesh, split_axis
from ir.sharding import DimSharding, Sharding


def _pending_sums(sharding: Sharding, spelling: str) -> list[AxisRef]:
    """The partial axes. Raises SpmdcError (E308) if another reduction than a sum is pending."""
    for _, kind in sharding.partial:
        if kind != "sum":
            raise error("E308", f"{spelling} can say that a sum is pending, and not that a {kind} is")
    return [axis for axis, _ in sharding.partial]


def to_partition_spec(sharding: Sharding) -> str:
    """The sharding as a `PartitionSpec`, without priorities and explicitly replicated axes, which it cannot express.
    Raises SpmdcError (E308) for partial values that are not sums."""

    def quoted(axis: AxisRef) -> str:
        return f'"{sharding.mesh.spell(axis)}"'

    def dim(d: DimSharding) -> str:
        items = [quoted(axis) for axis in d.axes] + (["P.UNCONSTRAINED"] if d.open else [])
        return "None" if not items else items[0] if len(items) == 1 else f"({', '.join(items)})"

    pending = _pending_sums(sharding, "a PartitionSpec")
    unreduced = [f"unreduced={{{', '.join(map(quoted, pending))}}}"] if pending else []
    return f"P({', '.join([*map(dim, sharding.dims), *unreduced])})"


def to_shardy(sharding: Sharding, mesh_name: str) -> str:
    """The sharding as Shardy's attribute, on a mesh of that name. Raises SpmdcError (E308) for partial values that are
    not sums."""

    def quoted(axis: AxisRef) -> str:
        part = "" if sharding.mesh.is_whole(axis) else f":({axis.pre}){axis.size}"
        return f'"{axis.name}"{part}'

    def braces(axes: Sequence[AxisRef], is_open: bool = False) -> str:
        return f"{{{', '.join([*map(quoted, axes), *(['?'] if is_open else [])])}}}"

    pending = _pending_sums(sharding, "Shardy")
    dims = (braces(d.axes, d.open) + (f"p{d.priority}" if d.priority else "") for d in sharding.dims)
    replicated = f", replicated={braces(sharding.replicated)}" if sharding.replicated else ""
    unreduced = f", unreduced={braces(pending)}" if pending else ""
    return f"#sdy.sharding<@{mesh_name}, [{', '.join(dims)}]{replicated}{unreduced}>"


def to_hlo(sharding: Sharding) -> str:
    """The HLO spelling of where the data is. HLO cannot express which dims are open, or their priorities, or which
    axes must stay replicated. Raises SpmdcError (E307, E308) for axes without a common refinement, and for partial
    values that are not sums."""
    mesh = sharding.mesh
    wrong = next((kind for _, kind in sharding.partial if kind != "sum"), None)
    if wrong is not None:
        raise error("E308", f"HLO can express a pending sum, and no pending {wrong}")
    pending = [axis for axis, _ in sharding.partial]
    dims = [list(d.axes) for d in sharding.dims]
    sub_axes = _sub_axes(sharding)
    order = _in_order(sub_axes, [*dims, pending])
    if not order:
        return "{replicated}"
    copies = mesh.size // math.prod(part.size for part in order)
    order += [part for part in sub_axes if part not in order]
    sizes = [math.prod(axis.size for axis in axes) for axes in dims]
    return _spell(mesh, sub_axes, order, sizes, math.prod(a.size for a in pending), copies)


def _sub_axes(sharding: Sharding) -> list[AxisRef]:
    """The mesh's axes, cut wherever the sharding cuts them."""
    used = [*(a for d in sharding.dims for a in d.axes), *(a for a, _ in sharding.partial)]
    sub_axes: list[AxisRef] = []
    for axis in sharding.mesh.whole_axes():
        cuts = [place for a in used if a.name == axis.name for place in (a.pre, a.end)]
        try:
            sub_axes.extend(part for part in split_axis(axis, cuts) if part.size > 1)
        except ValueError as e:
            raise error("E307", str(e)) from None
    return sub_axes


def _in_order(sub_axes: Sequence[AxisRef], groups: Sequence[Sequence[AxisRef]]) -> list[AxisRef]:
    return [part for axes in groups for axis in axes for part in sub_axes if axis.overlaps(part)]


def _spell(
    mesh: Mesh, sub_axes: Sequence[AxisRef], order: Sequence[AxisRef], sizes: Sequence[int], pending: int, copies: int
) -> str:
    tiles = [*sizes]
    subgroups: list[str] = []
    if pending > 1:
        tiles.append(pending)
        subgroups.append("unreduced")
    if copies > 1:
        tiles.append(copies)
        subgroups.append("replicated")
    suffix = f" last_tile_dims={{{', '.join(subgroups)}}}" if subgroups else ""
    if subgroups == ["replicated"]:
        suffix = " last_tile_dim_replicate"
    shape, perm = _simplified([a.size for a in sub_axes], [sub_axes.index(a) for a in order])
    if mesh.devices is None:
        transpose = f"T({','.join(map(str, perm))})" if len(perm) > 1 else ""
        devices = f"<=[{','.join(map(str, shape))}]{transpose}"
    else:
        ids = np.array(mesh.devices).reshape(shape).transpose(perm).ravel().tolist()
        devices = ",".join(map(str, ids))
    return f"{{devices=[{','.join(map(str, tiles))}]{devices}{suffix}}}"


def _simplified(shape: Sequence[int], perm: Sequence[int]) -> tuple[list[int], list[int]]:
    """The same transpose with adjacent dims merged that stay adjacent."""
    runs: list[list[int]] = []
    for d in perm:
        if runs and runs[-1][-1] + 1 == d:
            runs[-1].append(d)
        else:
            runs.append([d])
    first = sorted(run[0] for run in runs)
    sizes = {run[0]: math.prod(shape[d] for d in run) for run in runs}
    return [sizes[d] for d in first], [first.index(run[0]) for run in runs]
