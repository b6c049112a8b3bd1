"""Internal custom calls of XLA's partitioner: rotations, and several slices, pads or rotations in one call, which
differ by one element each. Their `backend_config` has the parameters, `dimension=0,amount=2`."""

from __future__ import annotations

import re

from jaxlib.mlir import ir as mlir

from ir.ops.layout import slice_along
from ir.program import Value
from spmdc.frontends.stablehlo.attributes import text_of
from spmdc.frontends.stablehlo.meshes import frontend_attributes
from spmdc.frontends.stablehlo.ops.sharding import barrier, grouped
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts

_SETTING = re.compile(r"(\w+)=(\[[-\d,\s]*\]|-?\d+)")
_PREFIX = "custom_call @_SPMDInternalOp_"


def _operands(op: mlir.Operation, scope: Scope, count: int = 1) -> list[Value]:
    """The operands. Raises SpmdcError (E702) if there are not `count` of them."""
    operands = scope.operands(op)
    if len(operands) != count:
        raise scope.refuse(op, f"it has {len(operands)} operands", help=f"give it {count}")
    return operands


def _check_count(op: mlir.Operation, scope: Scope, amount: int) -> None:
    """Raises SpmdcError (E702) if the call does not have `amount` + 1 results."""
    results = len(scope.result_types(op))
    if results != amount + 1:
        raise scope.refuse(op, f"by its backend_config it gives {amount + 1} results, and not {results}",
                           help="give as many as it says")  # fmt: skip


def _settings(op: mlir.Operation, scope: Scope, *names: str) -> dict[str, tuple[int, ...]]:
    """The numbers, or lists of numbers, by name. Raises SpmdcError (E702) if one of `names` is missing, or a dim is not
    one of the operand."""
    config = op.attributes.get("backend_config", None)
    text = text_of(config) if isinstance(config, mlir.StringAttr) else ""
    found = {name: tuple(int(n) for n in re.findall(r"-?\d+", value)) for name, value in _SETTING.findall(text)}
    missing = [name for name in names if name not in found]
    if missing:
        raise scope.refuse(op, f"its backend_config {text!r} does not say {missing[0]}",
                           help="write it as XLA's partitioner does, dimension=0,amount=2")  # fmt: skip
    rank = scope.type(op.operands[0]).rank
    if not 0 <= found["dimension"][0] < rank:
        raise scope.refuse(op, f"its dimension is {found['dimension'][0]}", help=f"dims are 0 to {rank - 1}")
    return found


def _checked(op: mlir.Operation, scope: Scope, results: list[Value]) -> list[Bound]:
    """The results. Raises SpmdcError (E702) if they do not have the types of the call."""
    types = scope.result_types(op)
    if [v.type for v in results] != types:
        given, said = (", ".join(map(str, ts)) for ts in ([v.type for v in results], types))
        raise scope.refuse(op, f"by its backend_config it gives {given}, and not {said}", help="give these types")
    return list(results)


def _part(scope: Scope, value: Value, dim: int, start: int, limit: int) -> Value:
    return scope.emit("slice", value, **slice_along(value.shape, dim, start, limit))


def _rotated(scope: Scope, value: Value, dim: int, left: int) -> Value:
    """The elements rotated by that many positions towards the beginning of the dim."""
    size = value.shape[dim]
    by = left % size if size else 0
    if not by:
        return value
    return scope.emit("concatenate", _part(scope, value, dim, by, size), _part(scope, value, dim, 0, by), dim=dim)


@converts(f"{_PREFIX}RotateRight")
def _rotate_right(op: mlir.Operation, scope: Scope) -> list[Bound]:
    _operands(op, scope)
    said = _settings(op, scope, "dimension", "amount")
    (operand,) = scope.operands(op)
    return _checked(op, scope, [_rotated(scope, operand, said["dimension"][0], -said["amount"][0])])


@converts(f"{_PREFIX}MultiRotate")
def _multi_rotate(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """Rotations from that many positions to the left to that many to the right."""
    _operands(op, scope)
    said = _settings(op, scope, "dimension", "left_amount", "right_amount")
    (operand,), (left,), (right,) = scope.operands(op), said["left_amount"], said["right_amount"]
    _check_count(op, scope, left + right)
    return _checked(op, scope, [_rotated(scope, operand, said["dimension"][0], n) for n in range(left, -right - 1, -1)])


@converts(f"{_PREFIX}MultiSlice")
def _multi_slice(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """A slice, and those that begin and end 1, 2, … places later."""
    _operands(op, scope)
    said = _settings(op, scope, "dimension", "amount", "start_indices", "limit_indices", "strides")
    (operand,), (dim,), (amount,) = scope.operands(op), said["dimension"], said["amount"]
    _check_count(op, scope, amount)

    def moved(places: tuple[int, ...], by: int) -> tuple[int, ...]:
        return tuple(n + by if d == dim else n for d, n in enumerate(places))

    start, limit, stride = said["start_indices"], said["limit_indices"], said["strides"]
    return _checked(op, scope, [
        scope.emit("slice", operand, start=moved(start, i), limit=moved(limit, i), stride=stride)
        for i in range(amount + 1)
    ])  # fmt: skip


@converts(f"{_PREFIX}MultiPad")
def _multi_pad(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """Pads of the same total size, from those with everything in front to those with everything behind."""
    operands = _operands(op, scope, 2)
    said = _settings(op, scope, "dimension", "amt")
    (dim,), (amount,) = said["dimension"], said["amt"]
    _check_count(op, scope, amount)

    def by(n: int) -> tuple[int, ...]:
        return tuple(n if d == dim else 0 for d in range(operands[0].type.rank))

    return _checked(op, scope, [
        scope.emit("pad", *operands, low=by(amount - i), high=by(i)) for i in range(amount + 1)
    ])  # fmt: skip


@converts(f"{_PREFIX}Wrap")
def _wrap(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """The last elements in front of the first, and the first behind the last, as in a ring."""
    _operands(op, scope)
    said = _settings(op, scope, "dimension", "lhs", "rhs")
    (operand,), (dim,), (left,), (right,) = scope.operands(op), said["dimension"], said["lhs"], said["rhs"]
    size = operand.shape[dim]
    parts = [_part(scope, operand, dim, size - left, size), operand, _part(scope, operand, dim, 0, right)]
    return _checked(op, scope, [scope.emit("concatenate", *(v for v in parts if v.shape[dim]), dim=dim)])


def _number(op: mlir.Operation, scope: Scope, name: str) -> int:
    """A number in Shardy's attributes of a call in HLO. Raises SpmdcError (E702) if there is none."""
    text = frontend_attributes(op).get(name, "")
    found = re.match(r"(\d{1,9})\b", text)
    if found is None:
        raise scope.refuse(op, f"its frontend attributes lack {name}", help=f'add {name}="1 : i64"')
    return int(found[1])


@converts("custom_call @xla.sdy.ShardingGroup")
def _sharding_group(op: mlir.Operation, scope: Scope) -> Bound:
    (operand,) = _operands(op, scope)
    group = _number(op, scope, "xla.sdy.sharding_group_id")
    value = scope.values[op.operands[0]] = grouped(op, scope, operand, group)
    return () if not scope.result_types(op) else value


@converts("custom_call @xla.sdy.PropagationBarrier")
def _propagation_barrier(op: mlir.Operation, scope: Scope) -> Value:
    (operand,) = _operands(op, scope)
    return barrier(scope, operand, _number(op, scope, "xla.sdy.allowed_direction"))
