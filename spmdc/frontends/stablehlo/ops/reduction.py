"""reduce, with any body, and functions made of bodies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxlib.mlir import ir as mlir

from ir.builder import RegionBuilder
from ir.diagnostics import Span
from ir.ops.reduction import COMBINES, identity_of
from ir.program import Function, Result, Value
from ir.sharding import ReductionKind
from ir.types import DType, TensorType
from spmdc.frontends.stablehlo.attributes import ints
from spmdc.frontends.stablehlo.ops.reducers import binary_kind, constant_of, expressions, extreme_index_kind
from spmdc.frontends.stablehlo.scope import AnyValue, Bound, Scope, converts


def is_identity(scope: Scope, init: Value, kind: ReductionKind) -> bool:
    number = scope.number(init)
    return number is not None and number == identity_of(kind, init.dtype)


def with_init(scope: Scope, reduced: Value, init: Value, kind: ReductionKind) -> Value:
    """A reduction that starts from `init`, which is dropped if it is the identity."""
    if is_identity(scope, init, kind):
        return reduced
    return scope.emit(COMBINES[kind], reduced, scope.broadcast(init, reduced.type))


def component_kinds(region: mlir.Region, types: Sequence[TensorType]) -> list[ReductionKind] | None:
    """The reduction of each operand, if the body combines each only with itself, by a supported reduction."""
    values, n = expressions(region), len(types)
    kinds = [binary_kind(e, i, n + i, t.dtype) for i, (e, t) in enumerate(zip(values, types, strict=False))]
    known = [kind for kind in kinds if kind is not None]
    return known if len(known) == len(values) == n else None


@converts("reduce")
def _reduce(op: mlir.Operation, scope: Scope) -> list[Bound]:
    values = scope.operands(op)
    operands, inits = values[: len(values) // 2], values[len(values) // 2 :]
    dims = ints(op.attributes["dimensions"])
    kinds = component_kinds(op.regions[0], [v.type for v in operands])
    if kinds is not None:
        reduced = [scope.emit("reduce", v, dims=dims, kind=k) for v, k in zip(operands, kinds, strict=True)]
        return [with_init(scope, r, i, k) for r, i, k in zip(reduced, inits, kinds, strict=True)]
    kind = extreme_index_kind(expressions(op.regions[0]))
    if kind is not None and _starts_below(scope, inits, kind) and operands[1].dtype.is_integer:
        return scope.emit_all("reduce", *operands, dims=dims, kind=kind)
    function = body_function(op, scope, op.regions[0], "reducer", [v.dtype for v in (*operands, *inits)])
    return list(tree_reduce(scope, function, operands, inits, dims))


def _starts_below(scope: Scope, inits: Sequence[Value], kind: str) -> bool:
    """Whether no element loses against the initial values of an argmax or argmin."""
    number, dtype = scope.number(inits[0]), inits[0].dtype
    return number is not None and number == (dtype.lowest if kind == "argmax" else dtype.highest)


def body_function(op: mlir.Operation, scope: Scope, region: mlir.Region, hint: str, dtypes: Sequence[DType]) -> str:
    """The name of a function of scalars that computes the region. Raises SpmdcError (E708) if there can be none."""
    block = region.blocks[0]
    makers = [constant_of(value) for value in _captured(block)]
    if any(maker is None for maker in makers):
        raise scope.refuse(op, "its body uses values from outside", code="E708", help="pass them as operands")
    inner = Scope(scope.module, RegionBuilder(), fallback=scope.builder.span, repeats=True)
    inner.builder.span = scope.builder.span
    for i, (argument, dtype) in enumerate(zip(block.arguments, dtypes, strict=True)):
        inner.values[argument] = inner.builder.param("ab"[i] if len(dtypes) == 2 else f"x{i}", TensorType((), dtype))
    for maker in makers:
        if maker is not None:
            scope.module.convert(maker, inner)
    return add_function(inner, hint, scope.module.block(block, inner), scope.builder.span)


def add_function(inner: Scope, hint: str, returned: Sequence[Value], span: Span | None) -> str:
    """Adds the function of scalars with the contents of a scope to the program, and returns its name."""
    name = inner.module.fresh_function(hint)
    results = [Result(f"out{i}" if len(returned) > 1 else "out", v.type) for i, v in enumerate(returned)]
    inner.module.functions[name] = Function(name, inner.builder.region(*returned), tuple(results), span)
    return name


def _captured(block: mlir.Block) -> list[AnyValue]:
    """The values from outside that ops in the block use, including those in nested regions."""
    inside: set[AnyValue] = set(block.arguments)
    used: dict[AnyValue, None] = {}
    for view in block.operations:
        op = view.operation
        used.update((v, None) for v in op.operands if v not in inside)
        used.update((v, None) for r in op.regions for b in r.blocks for v in _captured(b) if v not in inside)
        inside.update(op.results)
    return list(used)


def mapped(scope: Scope, function: str, operands: Sequence[Value]) -> list[Value]:
    """The function of scalars, applied to the elements of tensors of one shape."""
    shape = operands[0].shape
    types = [r.type.with_shape(shape) for r in scope.module.functions[function].results]
    return list(scope.append("map", operands, {"function": function}, types))


def tree_reduce(
    scope: Scope, function: str, operands: Sequence[Value], inits: Sequence[Value], dims: Sequence[int]
) -> list[Value]:
    """Reduces by an associative function of scalars, from `inits`; without any, there must be at least one element.
    Neighbours are combined until one is left."""
    shape = operands[0].shape
    kept = [d for d in range(len(shape)) if d not in dims]
    rest = tuple(shape[d] for d in kept)
    count = math.prod(shape[d] for d in dims)
    rows = [_rows(scope, v, (*dims, *kept), (count, *rest)) for v in operands]
    starts = [scope.broadcast(init, init.type.with_shape(rest)) for init in inits]
    if not count:
        return starts
    while rows[0].shape[0] > 1:
        rows = _halved(scope, function, rows)
    lasts = [scope.emit("reshape", v, shape=rest) for v in rows]
    return lasts if not inits else mapped(scope, function, [*starts, *lasts])


def _rows(scope: Scope, value: Value, perm: tuple[int, ...], shape: tuple[int, ...]) -> Value:
    value = scope.transposed(value, perm)
    return value if value.shape == shape else scope.emit("reshape", value, shape=shape)


def _halved(scope: Scope, function: str, rows: Sequence[Value]) -> list[Value]:
    """Each row combined with the next; a last row without a partner is kept."""
    n, rank = rows[0].shape[0], rows[0].type.rank
    stride = (2, *(1,) * (rank - 1))

    def part(value: Value, start: int, limit: int, step: tuple[int, ...]) -> Value:
        first = (start, *(0,) * (rank - 1))
        return scope.emit("slice", value, start=first, limit=(limit, *value.shape[1:]), stride=step)

    even = n - n % 2
    pairs = [*(part(v, 0, even, stride) for v in rows), *(part(v, 1, even, stride) for v in rows)]
    combined = mapped(scope, function, pairs)
    if n == even:
        return combined
    single = [part(v, even, n, ()) for v in rows]
    return [scope.emit("concatenate", c, s, dim=0) for c, s in zip(combined, single, strict=True)]


@converts("map")
def _map(op: mlir.Operation, scope: Scope) -> list[Bound]:
    operands = scope.operands(op)
    function = body_function(op, scope, op.regions[0], "mapped", [v.dtype for v in operands])
    return list(mapped(scope, function, operands))
