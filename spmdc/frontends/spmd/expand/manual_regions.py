"""Expands manual regions: their operands, their bodies, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ir.builder import RegionBuilder
from ir.diagnostics import Span, error
from ir.manual import Manual, inner_type
from ir.mesh import AxisRef
from ir.ops.collective import axes_attr
from ir.program import Op, Value
from ir.sharding import Sharding
from ir.spelling.printer import print_type
from ir.types import TensorType
from spmdc.frontends.spmd.expand.attributes import axis_nodes
from spmdc.frontends.spmd.expand.context import Statements
from spmdc.frontends.spmd.expand.sharded_types import tensor_type, to_become, type_sharding
from spmdc.frontends.spmd.items import Item, PoisonedError, Scope, one_or_several
from spmdc.frontends.spmd.syntax import nodes as s


@dataclass(frozen=True, slots=True)
class _Whole:
    """A tensor outside the region, and its sharding."""

    type: TensorType
    sharding: Sharding
    written: TensorType | None = None
    """The written type of a shard, if any."""


def expand_manual(block: Statements, node: s.Manual, targets: Sequence[s.Target]) -> Item:
    """A `manual` op. Its block sees no tensors except its parameters.

    Raises SpmdcError (E203, E405, E409, E410, and errors of types), or PoisonedError.
    """
    if block.context.stage == "spmd":
        raise error(
            "E406",
            "manual regions belong to global programs, and this is an SPMD one",
            node.span,
            help="all of an SPMD program is by hand already: write the ops of the region",
        )
    given = {p.name: p for p in node.passed if _is_axes(p)}
    axes = _axes(block, given["axes"].value if given else None, node.span)
    manual = frozenset(axis.name for axis in axes)
    builder = RegionBuilder(block.claims.names)
    inner = block.inner(Scope(block.scope, sealed=True), builder, node.span)
    operands: list[Value] = []
    for passed in node.passed:
        if _is_axes(passed):
            continue
        value, whole = _passed(block, passed)
        local = _shard(passed, whole, manual)
        param = Value(block.claims.claim(passed.name), local, whole.sharding, passed.span, whole.type)
        operands.append(value)
        builder.params.append(param)
        inner.scope.bind(passed.name, param, passed.span)
    wanted = [_placed(block, target.type) if target.type is not None else None for target in targets]
    hints = [t.name for t in targets] or ["out"]
    returned = inner.run(node.body, [f"{hint}.shard" for hint in hints], node.span, "the manual region")
    if returned is None:
        raise PoisonedError
    results: list[Value] = []
    wholes: list[_Whole] = []
    for i, (item, span) in enumerate(returned.items):
        result, whole = _returned(inner, item, span, wanted[i] if i < len(wanted) else None, manual)
        results.append(result)
        wholes.append(whole)
    shardings, types = [w.sharding for w in wholes], [w.type for w in wholes]
    region, append = builder.region(*results), block.evaluator.emitter.ops
    return one_or_several(
        append("manual", operands, {"axes": axes}, shardings=shardings, span=node.span, regions=(region,), types=types)
    )


def _is_axes(passed: s.Passed) -> bool:
    return passed.name == "axes" and passed.local is None and passed.of is None


def _axes(block: Statements, node: s.Expr | None, head: Span) -> tuple[AxisRef, ...]:
    """The axes that are named, or all of the default mesh."""
    meshes = block.context.meshes
    if node is None:
        if meshes.faulty:
            raise PoisonedError
        if not meshes.meshes:
            raise error("E306", "the program has a manual region and no mesh", head, help="write mesh (x=8)")
        return meshes.default.whole_axes()
    nodes = axis_nodes(node)
    if nodes is None:
        raise error("E203", "axes must be mesh axes", node.span, help="axes=(x, y)")
    return tuple(map(meshes.ref, nodes))


def _passed(block: Statements, passed: s.Passed) -> tuple[Value, _Whole]:
    """The operand, and the tensor that the region gets a shard of."""
    if passed.local is not None and passed.of is None:
        message = f"parameter {passed.name!r} of a manual region must say of what it is a shard"
        raise error("E410", message, passed.local.span, help=f"{passed.name} of f32[16@x, 8] = …")
    item = block.evaluator.expr(passed.value)
    emitter = block.evaluator.emitter
    if passed.of is None:
        value = emitter.tensor(item)
        return value, _unplaced(block, value.type)
    whole = _placed(block, passed.of)
    value = emitter.tensor(item, whole.type)
    if value.type != whole.type:
        message = f"{passed.name!r} is declared a shard of {whole.type}, and is given {value.type}"
        raise error("E202", message, passed.value.span, help=to_become(whole.type, value.type))
    if passed.local is None:
        return value, whole
    if passed.local.annotated:
        help_text = "f32[4, 64] of f32[16@x, 64]"
        raise error("E303", "the sharding comes after `of`, with the global type", passed.local.span, help=help_text)
    return value, _Whole(whole.type, whole.sharding, tensor_type(passed.local, block.evaluator.expr, block.scope))


def _placed(block: Statements, node: s.TypeExpr) -> _Whole:
    type = tensor_type(node, block.evaluator.expr, block.scope)
    sharding = type_sharding(node, type, block.context.meshes)
    return _Whole(type, sharding) if sharding is not None else _unplaced(block, type)


def _unplaced(block: Statements, type: TensorType) -> _Whole:
    """A tensor that is equal on all devices along the manual axes, with open dims along the free ones."""
    return _Whole(type, Sharding.unknown(block.context.meshes.default, type.rank))


def _shard(passed: s.Passed, whole: _Whole, manual: Manual) -> TensorType:
    """The type of the parameter. Raises SpmdcError (E409) if another type is written."""
    local = inner_type(whole.type, whole.sharding, manual)
    if whole.written not in (None, local):
        assert passed.local is not None
        shown = print_type(whole.type, whole.sharding)
        message = f"{passed.name!r} is declared {whole.written}, and a shard of {shown} is {local}"
        raise error("E409", message, passed.local.span, help=f"declare it {local}, or leave the type out")
    return local


def _returned(
    inner: Statements, item: Item, span: Span, declared: _Whole | None, manual: Manual
) -> tuple[Value, _Whole]:
    """A result of the region, and the tensor that it is a shard of. Raises SpmdcError (E405) if they do not match."""
    if declared is None:
        inner.evaluator.emitter.span = span
        value = inner.evaluator.emitter.tensor(item)
        return value, _unplaced(inner, value.type)
    local = inner_type(declared.type, declared.sharding, manual)
    value = inner.as_result(item, local, span)
    if value.type != local:
        shown = print_type(declared.type, declared.sharding)
        message = f"the manual region must return {local} here, a shard of {shown}, and returns {value.type}"
        help_text = "a region returns each device's shard of the tensor that its result is declared as"
        raise error("E405", message, span, help=help_text)
    return value, declared


def undeclared(value: Value, whole: TensorType, ops: Iterable[Op]) -> tuple[Span | None, str] | None:
    """Where a value is made that is used as a whole tensor and is a shard of one, with help for that error: the result
    of a manual region for which no type is written. None for other values."""
    op = next((op for op in ops if op.name == "manual" and value in op.results), None)
    if op is None or value.sharding is None:
        return None
    axes = axes_attr(op.attrs)
    for dim in range(whole.rank):
        split = Sharding.of(value.sharding.mesh, *(axes if d == dim else None for d in range(whole.rank)))
        if value.type != whole and inner_type(whole, split, frozenset(a.name for a in axes)) == value.type:
            shown = f"{value.name}: {print_type(whole, split)} = manual(…)"
            return op.span, f"a result of a manual region is declared as the tensor that it is a shard of: {shown}"
    return None
