"""Integers that are looked up in tables by a device's number, as in the offsets of shards of XLA's partitioner.

A table with an entry for each device does not show along which axes the entries differ. It is rewritten as a table for
the fewest axes along which they do: results that are computed from it are the same along all others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ir.mesh import AxisRef, axes_size, merge_axes, prime_parts
from ir.program import Value
from ir.types import TensorType, pred, s32
from spmdc.frontends.stablehlo.scope import Scope


def looked_up(scope: Scope, axes: Sequence[AxisRef], table: Sequence[int | bool]) -> Value:
    """The entry of a table of s32, or of booleans, for a device's position along the axes."""
    type = TensorType((len(table),), pred if isinstance(table[0], bool) else s32)
    values = scope.emit("constant", value=tuple(table), type=type)
    index = scope.emit("axis_index", axes=tuple(axes))
    return scope.emit("reshape", scope.emit("dynamic_slice", values, index, sizes=(1,)), shape=())


def axes_by_hand(scope: Scope) -> tuple[AxisRef, ...]:
    """The axes of the default mesh that are manual here."""
    return tuple(axis for axis in scope.module.shardings.meshes[0].whole_axes() if axis.name in scope.manual)


def entry(scope: Scope, operand: Value, index: Value) -> Value | None:
    """The element of a list of integers at an index that is known for each device, as a list of one; None for any
    other."""
    numbers, places = scope.lists.get(operand), scope.by_device.get(index)
    if numbers is None or places is None:
        return None
    axes = axes_by_hand(scope)
    if len(places) != axes_size(axes):
        return None  # It was computed where fewer axes are manual.
    table = tuple(numbers[min(max(place, 0), len(numbers) - 1)] for place in places)
    if max(map(abs, table)) > s32.highest:
        return None
    axes, told_apart = _fewest(axes, table)
    type = operand.type.with_shape((1,))
    if not axes:
        return scope.full(told_apart[0], type)
    number = scope.emit("reshape", looked_up(scope, axes, told_apart), shape=(1,))
    result = number if type.dtype == s32 else scope.emit("convert", number, dtype=type.dtype)
    scope.by_device[result] = table
    return result


def _fewest(axes: Sequence[AxisRef], table: Sequence[int]) -> tuple[tuple[AxisRef, ...], tuple[int, ...]]:
    """The fewest parts of the axes along which the entries of a table differ, and the table for these."""
    parts = [part for axis in axes for part in refining_parts(axis)]
    entries = np.array(table).reshape([part.size for part in parts])
    first = [entries.take([0], dim) for dim in range(len(parts))]
    alike = [dim for dim in range(len(parts)) if (entries == first[dim]).all()]
    kept = entries[tuple(0 if dim in alike else slice(None) for dim in range(len(parts)))]
    return merge_axes([p for dim, p in enumerate(parts) if dim not in alike]), tuple(map(int, kept.ravel().tolist()))


def refining_parts(axis: AxisRef) -> tuple[AxisRef, ...]:
    """The smallest parts of an axis, if all cuts of it have a common refinement: if its size is a power of a prime.
    Otherwise the whole axis."""
    parts = prime_parts(axis)
    return parts if len({part.size for part in parts}) == 1 else (axis,)
