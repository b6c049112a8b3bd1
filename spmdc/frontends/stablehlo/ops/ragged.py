"""ragged_all_to_all: each device sends slices of its rows, of data-dependent lengths, to the devices of its group.

The number of rows for each device is known only at run time, so every device gets the rows of all, and takes its own.
The lengths are exchanged as they are: a few numbers for each pair of devices.
"""

from __future__ import annotations

import math

from jaxlib.mlir import ir as mlir

from ir.program import Value
from ir.types import TensorType, s32
from spmdc.frontends.stablehlo.attributes import typed_options
from spmdc.frontends.stablehlo.device_groups import listed_groups
from spmdc.frontends.stablehlo.scope import Scope, converts


@converts("custom_call @ragged_all_to_all")
def _ragged_all_to_all(op: mlir.Operation, scope: Scope) -> Value:
    """Raises SpmdcError (E702, E709)."""
    operands = scope.operands(op)
    if len(operands) != 6:
        raise scope.refuse(op, f"@ragged_all_to_all has {len(operands)} operands", help="it takes 6")
    operand, output, *told = operands
    given = typed_options(op)
    groups = listed_groups(op, scope, given.get("replica_groups"), has_channel="channel_id" in given)
    count, updates = (1 if groups is None else groups.size), math.prod(told[0].shape)
    if any(v.shape != (updates,) for v in told) or updates % count or operand.shape[1:] != output.shape[1:]:
        help = "rows of one shape, and as many offsets and sizes of each kind for each device"
        raise scope.refuse(op, f"its operands do not fit one another, nor groups of {count} devices", help=help)
    if not operand.type.size or not output.type.size or not updates:
        return output
    inputs, sizes, outputs, _ = (scope.emit("convert", v, dtype=s32) for v in told)
    if groups is not None:
        operand = groups.gathered(scope, operand, 0)
        inputs, sizes, outputs = (groups.each_to_all(scope, v, 0, 0) for v in (inputs, sizes, outputs))
    return _taken(scope, operand, output, (inputs, sizes, outputs), count)


def _taken(scope: Scope, rows: Value, output: Value, told: tuple[Value, Value, Value], count: int) -> Value:
    """The output with the rows that `count` devices send written into it: `told` has where they begin in their rows,
    how many they are, and where they go."""
    updates, length = told[0].shape[0], output.shape[0]
    grid = TensorType((length, updates), s32)

    def of_update(value: Value) -> Value:
        return scope.emit("broadcast_in_dim", value, shape=grid.shape, dims=(1,))

    inputs, sizes, outputs = map(of_update, told)
    senders = scope.emit("iota", type=TensorType((count, updates // count), s32), dim=0)
    before = scope.emit("multiply", senders, scope.full(rows.shape[0] // count, senders.type))
    begins = scope.emit("add", inputs, of_update(scope.emit("reshape", before, shape=(updates,))))
    within = scope.emit("subtract", scope.emit("iota", type=grid, dim=0), outputs)
    zeros = scope.full(0, grid)
    brings = scope.emit(
        "and",
        scope.emit("compare", within, zeros, direction="GE"),
        scope.emit("compare", within, sizes, direction="LT"),
    )
    places = scope.emit("select", brings, scope.emit("add", begins, within), zeros)
    place = scope.emit("reshape", scope.emit("reduce", places, dims=(1,), kind="max"), shape=(length, 1))
    found = scope.emit(
        "gather",
        rows,
        place,
        offset_dims=tuple(range(1, output.type.rank)),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
        index_vector_dim=1,
        slice_sizes=(1, *output.shape[1:]),
    )
    is_brought = scope.emit("reduce", brings, dims=(1,), kind="or")
    chosen = scope.emit("broadcast_in_dim", is_brought, shape=output.shape, dims=(0,))
    return scope.emit("select", chosen, found, output)
