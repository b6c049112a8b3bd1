"""HLO's scan: a loop over the slices of tensors along one dim."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from ir.program import Value
from spmdc.frontends.stablehlo.attributes import int_of
from spmdc.frontends.stablehlo.ops.control import counted_loop, inlined
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts


@converts("scan")
def _scan(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """The body takes a slice of each input, then the carried values; it returns a slice of each output, and the next
    carried values."""
    a, block = op.attributes, op.regions[0].blocks[0]
    dim, is_reverse = int_of(a["dimension"]), "is_reverse" in a and bool(int_of(a["is_reverse"]))
    operands, types = scope.operands(op), scope.result_types(op)
    slices = [scope.type(argument) for argument in block.arguments]
    first = next((i for i, (v, t) in enumerate(zip(operands, slices, strict=True)) if v.type == t), len(operands))
    inputs, carried = operands[:first], operands[first:]
    made = types[: len(types) - len(carried)]
    trips = next(t.shape[dim] for t in (*(v.type for v in inputs), *made))
    begun = list(map(scope.zeros, made))

    def step(scope: Scope, i: Value, xs: list[Value]) -> list[Value]:
        outputs, state = xs[: len(made)], xs[len(made) :]
        place = scope.emit("subtract", scope.full(trips - 1, i.type), i) if is_reverse else i
        given = inlined(block, scope, [*(_slice(scope, v, place, dim) for v in inputs), *state])
        written = [_written(scope, v, g, place, dim) for v, g in zip(outputs, given[: len(made)], strict=True)]
        return [*written, *given[len(made) :]]

    return list(counted_loop(scope, trips, [*begun, *carried], step))


def _starts(scope: Scope, place: Value, rank: int, dim: int) -> list[Value]:
    zero = scope.full(0, place.type)
    return [place if d == dim else zero for d in range(rank)]


def _slice(scope: Scope, value: Value, place: Value, dim: int) -> Value:
    """The slice of the tensor at the place, without the dim."""
    sizes = tuple(1 if d == dim else n for d, n in enumerate(value.shape))
    found = scope.emit("dynamic_slice", value, *_starts(scope, place, value.type.rank, dim), sizes=sizes)
    return scope.emit("reshape", found, shape=tuple(n for d, n in enumerate(value.shape) if d != dim))


def _written(scope: Scope, value: Value, update: Value, place: Value, dim: int) -> Value:
    """The tensor with the slice at the position replaced."""
    row = scope.emit("reshape", update, shape=(*update.shape[:dim], 1, *update.shape[dim:]))
    return scope.emit("dynamic_update_slice", value, row, *_starts(scope, place, value.type.rank, dim))
