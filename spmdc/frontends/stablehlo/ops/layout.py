"""Ops that create tensors or rearrange elements: constants, iota, broadcasts, reshapes, slices, pads, concatenation."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir as mlir

from ir.program import Value
from ir.types import TensorType
from spmdc.frontends.stablehlo.attributes import constant_value, int_of, ints, literal
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts


@converts("constant")
def _constant(op: mlir.Operation, scope: Scope) -> Value:
    (type,) = scope.result_types(op)
    array = literal(op, type)
    value = constant_value(array)
    if not isinstance(value, tuple):
        assert isinstance(value, bool | int | float | complex), value
        return scope.full(value, type)
    if type.size == 0:
        return scope.zeros(type)
    constant = scope.emit("constant", value=value, type=type)
    if scope.manual and type.dtype.is_integer and type.rank == 1:
        scope.lists[constant] = tuple(map(int, array.tolist()))
    return constant


@converts("iota")
def _iota(op: mlir.Operation, scope: Scope) -> Value:
    (type,) = scope.result_types(op)
    return scope.emit("iota", type=type, dim=int_of(op.attributes["iota_dimension"]))


@converts("broadcast_in_dim")
def _broadcast_in_dim(op: mlir.Operation, scope: Scope) -> Value:
    return place(scope, op, ints(op.attributes["broadcast_dimensions"]))


def place(scope: Scope, op: mlir.Operation, dims: Sequence[int]) -> Value:
    """The first operand, with its dims at `dims` of the result."""
    operand, (type,) = scope.operand(op.operands[0]), scope.result_types(op)
    if operand.type == type and tuple(dims) == tuple(range(type.rank)):
        return operand
    number = scope.number(operand)
    result = scope.emit("broadcast_in_dim", operand, shape=type.shape, dims=tuple(dims))
    if number is not None:
        scope.numbers[result] = number
    return result


@converts("broadcast")
def _broadcast(op: mlir.Operation, scope: Scope) -> Value:
    new = len(ints(op.attributes["broadcast_sizes"]))
    return place(scope, op, range(new, new + scope.type(op.operands[0]).rank))


@converts("reshape")
def _reshape(op: mlir.Operation, scope: Scope) -> Value:
    (operand,), (type,) = scope.operands(op), scope.result_types(op)
    number = scope.number(operand)
    if operand.type == type:
        return operand
    if number is not None:
        return scope.full(number, type)
    result = scope.emit("reshape", operand, shape=type.shape)
    if operand in scope.by_device:
        scope.by_device[result] = scope.by_device[operand]
    return result


@converts("bitcast")
def _bitcast(op: mlir.Operation, scope: Scope) -> Value:
    """The same memory with another shape, another order of dims, or another type of the same size."""
    (operand,), (type,) = scope.operands(op), scope.result_types(op)
    if type.dtype.bits != operand.dtype.bits:
        raise scope.refuse(op, "it reads memory as elements of another size", help="write a bitcast-convert")
    orders = (("source_layout", operand.type), ("result_layout", type))
    given, made = (_major_first(op, scope, name, t) for name, t in orders)
    value = scope.emit("reshape", scope.transposed(operand, given), shape=tuple(type.shape[d] for d in made))
    value = scope.transposed(value, tuple(made.index(d) for d in range(len(made))))
    return value if value.dtype == type.dtype else scope.emit("bitcast_convert", value, dtype=type.dtype)


def _major_first(op: mlir.Operation, scope: Scope, name: str, type: TensorType) -> tuple[int, ...]:
    """The dims in memory order, major first, from a list with the minor ones first."""
    if name not in op.attributes:
        return tuple(range(type.rank))
    order = op.attributes[name]
    is_one = isinstance(order, mlir.DenseIntElementsAttr) and len(order) == type.rank
    dims = ints(order)[::-1] if is_one else ()
    if sorted(dims) != list(range(type.rank)):
        raise scope.refuse(op, f"{name} is no order of the dims of {type}", code="E701", help="minor dims first")
    return dims


@converts("transpose")
def _transpose(op: mlir.Operation, scope: Scope) -> Value:
    return scope.transposed(scope.operands(op)[0], ints(op.attributes["permutation"]))


@converts("slice")
def _slice(op: mlir.Operation, scope: Scope) -> Value:
    a = op.attributes
    return _cut(scope, op, ints(a["start_indices"]), ints(a["limit_indices"]), ints(a["strides"]))


def _cut(scope: Scope, op: mlir.Operation, start: Sequence[int], limit: Sequence[int], stride: Sequence[int]) -> Value:
    operand = scope.operand(op.operands[0])
    if operand.type == scope.type(op.results[0]) and not any(start) and set(stride) <= {1}:
        return operand
    steps = tuple(stride) if set(stride) - {1} else ()
    return scope.emit("slice", operand, start=tuple(start), limit=tuple(limit), stride=steps)


@converts("pad")
def _pad(op: mlir.Operation, scope: Scope) -> Value:
    a = op.attributes
    low, high = ints(a["edge_padding_low"]), ints(a["edge_padding_high"])
    interior = ints(a["interior_padding"])
    operand, value = scope.operands(op)
    if not (any(low) or any(high) or any(interior)):
        return operand
    return scope.emit("pad", operand, value, low=low, high=high, interior=interior if any(interior) else ())


@converts("reverse")
def _reverse(op: mlir.Operation, scope: Scope) -> Value:
    return scope.emit("reverse", *scope.operands(op), dims=ints(op.attributes["dimensions"]))


@converts("concatenate")
def _concatenate(op: mlir.Operation, scope: Scope) -> Value:
    operands = scope.operands(op)
    if len(operands) == 1:
        return operands[0]
    return scope.emit("concatenate", *operands, dim=int_of(op.attributes["dimension"]))


@converts("optimization_barrier")
def _barrier(op: mlir.Operation, scope: Scope) -> list[Bound]:
    return scope.emit_all("optimization_barrier", *scope.operands(op))


@converts("copy", "add_dependency", "domain", "cross-replica-sum", "sdy.data_flow_edge", "sdy.func_data_flow_edge")
def unchanged(op: mlir.Operation, scope: Scope) -> Bound:
    """The operand itself. Shardy's data-flow edges mark values that loops carry and functions take, through which
    propagation passes anyway."""
    return scope.bound(op.operands[0])


@converts("tuple")
def _tuple(op: mlir.Operation, scope: Scope) -> Bound:
    return tuple(scope.bound(v) for v in op.operands)


@converts("get_tuple_element")
def _element(op: mlir.Operation, scope: Scope) -> Bound:
    whole = scope.bound(op.operands[0])
    assert isinstance(whole, tuple), op
    return whole[int_of(op.attributes["index"])]
