"""Device assignments, GShard's appendix A.3: from an array of device ids to mesh axes.

An assignment is an array whose dims count the tiles of each tensor dim, and whose entries are the devices that have
them. If the array is a mixed-radix permutation of a mesh, it is expressed in (parts of) the mesh's axes; any other
array becomes a mesh of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ir.diagnostics import Span, error
from ir.mesh import AxisRef, Mesh, positions_along

Ids = NDArray[np.int64]


def tile_axes(
    mesh: Mesh, ids: Ids, *, prefix: str, span: Span | None = None
) -> tuple[Mesh, tuple[tuple[AxisRef, ...], ...]]:
    """The axes, major first, that split each dim into the tiles.

    `ids` has an additional last dim for the devices that have copies of one tile, in any order. Devices that are not
    listed have copies too. The mesh is `mesh` if its axes can express the tiles, else a new one named `prefix`, with an
    axis `prefix_d` for each dim d that is split, and a last one for the copies. Raises SpmdcError (E304, E305) if a
    device is unknown or listed twice, or devices cannot be distributed evenly.
    """
    _check_ids(mesh, ids, span)
    found = _on_mesh(mesh, ids)
    return (mesh, found) if found is not None else _own_mesh(mesh, ids, prefix)


def fibers(mesh: Mesh, axes: Sequence[AxisRef]) -> Ids:
    """The device ids along the axes, with one row for each position on the other axes."""
    sizes: list[int] = []
    places: list[int] = []
    for name, size in mesh.axes:
        cuts = sorted({1, size, *(c for a in axes if a.name == name for c in (a.pre, a.end))})
        for low, high in itertools.pairwise(cuts):
            inside = [i for i, a in enumerate(axes) if a.name == name and a.pre <= low < a.end]
            sizes.append(high // low)
            places.append(inside[0] if inside else -1)
    order = [i for i, p in enumerate(places) if p < 0]
    order += sorted((i for i, p in enumerate(places) if p >= 0), key=lambda i: (places[i], i))
    ids = np.array(mesh.device_ids).reshape(sizes).transpose(order)
    return ids.reshape(-1, int(np.prod([a.size for a in axes])))


def _check_ids(mesh: Mesh, ids: Ids, span: Span | None) -> None:
    listed = ids.ravel()
    if len(listed) > mesh.size:
        message = f"there are {len(listed)} partitions, and the mesh ({mesh}) has {mesh.size} devices"
        raise error("E305", message, span, help="split it into fewer partitions, or take a larger mesh")
    unknown = listed[_positions(mesh, listed) < 0]
    if len(unknown):
        message = f"the mesh ({mesh}) has no device {unknown.min()}"
        raise error("E304", message, span, help=f"its devices are 0 to {mesh.size - 1}")
    _, first = np.unique(listed, return_index=True)
    if len(first) < len(listed):
        twice = np.delete(listed, first)[0]
        raise error("E304", f"device {twice} is assigned two partitions", span, help="list each device once")
    if not len(listed) or mesh.size % len(listed):
        message = f"{len(listed)} partitions cannot share {mesh.size} devices evenly"
        raise error("E305", message, span, help=f"use a number of partitions that divides {mesh.size}")


def _devices(mesh: Mesh) -> Ids:
    """The device at each position."""
    return np.arange(mesh.size) if mesh.devices is None else np.array(mesh.devices, np.int64)


def _positions(mesh: Mesh, ids: Ids) -> Ids:
    """The position of each device; -1 for those that the mesh does not have."""
    if mesh.devices is None:
        return np.where((ids >= 0) & (ids < mesh.size), ids, -1)
    devices = _devices(mesh)
    order = np.argsort(devices)
    found = order[np.searchsorted(devices, ids, sorter=order).clip(max=mesh.size - 1)]
    return np.where(devices[found] == ids, found, -1)


def _on_mesh(mesh: Mesh, ids: Ids) -> tuple[tuple[AxisRef, ...], ...] | None:
    positions = _positions(mesh, ids)
    base = int(positions.reshape(-1, ids.shape[-1])[0].min())
    axes: list[tuple[AxisRef, ...]] = []
    for d, count in enumerate(ids.shape[:-1]):
        tile_at = np.full(mesh.size, -1)
        index = np.arange(count).reshape([-1 if i == d else 1 for i in range(ids.ndim)])
        tile_at[positions] = np.broadcast_to(index, ids.shape)
        found = _axes_of_dim(mesh, tile_at, base, count)
        if found is None:
            return None
        axes.append(found)
    return tuple(axes)


def _axes_of_dim(mesh: Mesh, tile_at: Ids, base: int, count: int) -> tuple[AxisRef, ...] | None:
    """The axes whose coordinates, as one mixed-radix number, equal the tile index at every listed position (those where
    it is not -1), or None."""
    weighted: list[tuple[int, AxisRef]] = []
    stride = mesh.size
    for name, size in mesh.axes:
        stride //= size
        parts = _weighted_parts(name, _line(tile_at, base, stride, size))
        if parts is None:
            return None
        weighted.extend(parts)
    weighted.sort(key=lambda part: -part[0])
    expected = count
    index = np.zeros(mesh.size, dtype=np.int64)
    for weight, axis in weighted:
        if weight * axis.size != expected:
            return None
        expected = weight
        index += weight * positions_along(mesh, (axis,))
    if expected != 1 or np.any((tile_at >= 0) & (tile_at != index)):
        return None
    return tuple(axis for _, axis in weighted)


def _line(tile_at: Ids, base: int, stride: int, size: int) -> Ids:
    """The tile indices at the positions after `base` along an axis; -1 beyond its end."""
    room = size - base // stride % size
    line = np.full(size, -1)
    line[:room] = tile_at[base : base + room * stride : stride]
    return line


def _weighted_parts(name: str, line: Ids) -> list[tuple[int, AxisRef]] | None:
    """The parts of an axis that contribute to a tile index, each with its weight, found from the minor end as runs of
    equal steps. None if the length of some run does not divide the rest of the axis."""
    size, parts, step = len(line), list[tuple[int, AxisRef]](), 1
    while step < size:
        indices = np.maximum(line[::step], 0)
        weight = int(indices[1])
        strays = np.flatnonzero(indices[1:] != weight * np.arange(1, len(indices)))
        run = 1 + int(strays[0]) if len(strays) else len(indices)
        if size // step % run:
            return None
        if weight:
            parts.append((weight, AxisRef(name, size // (step * run), run)))
        step *= run
    return parts


def _own_mesh(mesh: Mesh, ids: Ids, prefix: str) -> tuple[Mesh, tuple[tuple[AxisRef, ...], ...]]:
    tiles = ids.shape[:-1]
    copies = mesh.size // int(np.prod(tiles, dtype=np.int64))
    groups = np.sort(ids.reshape(-1, ids.shape[-1]), axis=1)
    rest = np.sort(np.delete(_devices(mesh), _positions(mesh, ids.ravel())))
    groups = np.concatenate([groups, rest.reshape(len(groups), -1)], axis=1)
    sizes = [(f"{prefix}_{d}", n) for d, n in enumerate(tiles) if n > 1]
    if copies > 1:
        sizes.append((f"{prefix}_{len(tiles)}", copies))
    own = Mesh(tuple(sizes), tuple(groups.ravel().tolist()), prefix)
    return own, tuple((own.axis(f"{prefix}_{d}"),) if n > 1 else () for d, n in enumerate(tiles))
