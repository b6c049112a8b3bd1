"""Kernels of the collectives: reductions, transposes and lookups along the leading device dims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from ir.mesh import AxisRef, axes_size
from ir.ops.boxes import Round
from ir.ops.collective import axes_attr, orders_attr, rounds_of
from ir.ops.rule_helpers import int_attr
from ir.program import DeviceOrder, Op
from ir.sharding import ReductionKind
from ir.types import Array
from lowering.reference.arrays import combine
from lowering.reference.interpreter import Interpreter, kernel
from lowering.reference.mesh_dims import DeviceGrid, fetch

Along = Callable[[Op, Array, DeviceGrid, tuple[AxisRef, ...]], Array]


def _collective(name: str, function: Along) -> None:
    """Registers a collective that runs along the op's axes, of whichever mesh they are."""

    def run(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
        axes, grids = axes_attr(op.attrs), machine.grids
        grid = grids.of_axes(axes)
        result = function(op, grids.translate(arrays[0], grids.default, grid), grid, axes)
        return (grids.translate(result, grid, grids.default),)

    kernel(name)(run)


@kernel("axis_index")
def _axis_index(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    axes, grids = axes_attr(op.attrs), machine.grids
    grid = grids.of_axes(axes)
    return (grids.translate(grid.index(axes).astype(np.int32), grid, grids.default),)


def _all_reduce(op: Op, x: Array, grid: DeviceGrid, axes: tuple[AxisRef, ...]) -> Array:
    dims = grid.dims(axes)
    kind = cast(ReductionKind, op.attrs["kind"])
    return combine(kind, grid.spread(x, dims), dims, keepdims=True, from_identity=False)


def _all_to_all(op: Op, x: Array, grid: DeviceGrid, axes: tuple[AxisRef, ...]) -> Array:
    """A new first dim has the numbers of the parts while the data is gathered and scattered along the axes."""
    split, concat = int_attr(op.attrs, "split"), int_attr(op.attrs, "concat")
    lead, parts = grid.rank, int(np.prod([grid.sub_axes[d].size for d in grid.dims(axes)]))
    at = lead + split
    x = x.reshape((*x.shape[:at], parts, x.shape[at] // parts, *x.shape[at + 1 :]))
    x = grid.gather(np.moveaxis(x, at, lead), axes, concat + 1)
    return grid.scatter(x, axes, 0).squeeze(lead)


def _exchanged(x: Array, round: Round, grid: DeviceGrid, axes: tuple[AxisRef, ...]) -> Array:
    """Shards are permuted along a new first dim, into which they are gathered, and from which they are scattered
    again."""
    shards = np.moveaxis(grid.gather(np.expand_dims(x, grid.rank), axes, 0), grid.rank, 0)
    received = np.zeros_like(shards)
    sources = round.sources(np.arange(round.devices))
    received[sources >= 0] = shards[sources[sources >= 0]]
    return grid.scatter(np.moveaxis(received, 0, grid.rank), axes, 0).squeeze(grid.rank)


_collective("all_reduce", _all_reduce)
_collective("all_gather", lambda op, x, grid, axes: grid.gather(x, axes, int_attr(op.attrs, "dim")))
_collective(
    "reduce_scatter",
    lambda op, x, grid, axes: grid.scatter(_all_reduce(op, x, grid, axes), axes, int_attr(op.attrs, "dim")),
)
_collective("all_to_all", _all_to_all)


@kernel("box_permute", "box_permutes")
def _box_permutes(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    axes, grids = axes_attr(op.attrs), machine.grids
    grid = grids.of_axes(axes)
    there = (grids.translate(x, grids.default, grid) for x in arrays)
    sent = (_exchanged(x, round, grid, axes) for x, round in zip(there, rounds_of(op.attrs), strict=True))
    return tuple(grids.translate(x, grid, grids.default) for x in sent)


@kernel("collective_permute")
def _collective_permute(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    """Within one mesh, axes that only one of the orders names take their coordinates from those that only the other
    names."""
    orders, grids = orders_attr(op.attrs), machine.grids
    assert orders is not None
    (target, source), default = orders, grids.default
    receivers, senders = (
        _in_order(grids.of(target.mesh), target, source),
        _in_order(grids.of(source.mesh), source, target),
    )
    if shift := int_attr(op.attrs, "shift"):
        senders = np.roll(senders.reshape(axes_size(source.axes), -1), -shift, axis=0).reshape(-1)
    from_id = np.full(default.mesh.size, -1, np.int64)
    from_id[receivers] = senders
    position = np.empty(default.mesh.size, np.int64)
    position[np.array(default.mesh.device_ids)] = np.arange(default.mesh.size)
    sender = from_id[np.array(default.mesh.device_ids)]
    return (fetch(arrays[0], default, np.where(sender >= 0, position[sender], -1), default),)


def _in_order(grid: DeviceGrid, order: DeviceOrder, other: DeviceOrder) -> Array:
    """Device ids in the order's axes, then those that only the other order names, then the rest of the mesh."""
    named = grid.dims(order.axes)
    also = tuple(d for d in grid.dims(other.axes) if d not in named) if order.mesh == other.mesh else ()
    rest = tuple(d for d in range(grid.rank) if d not in (*named, *also))
    ids = np.array(grid.mesh.device_ids, np.int64).reshape(grid.shape)
    return ids.transpose(*named, *also, *rest).reshape(-1)
