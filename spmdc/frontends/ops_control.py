"""Calls, loops and choices."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir as mlir

from ir.loops import Loop
from ir.program import Region, Value
from ir.types import s32
from spmdc.frontends.attributes import text_of
from spmdc.frontends.scope import Bound, Scope, converts


@converts("call")
def _call(op: mlir.Operation, scope: Scope) -> list[Bound]:
    return list(call(op, scope, text_of(op.attributes["callee"])))


@converts("composite")
def _composite(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """A composite is what its decomposition computes."""
    return list(call(op, scope, text_of(op.attributes["decomposition"])))


def call(op: mlir.Operation, scope: Scope, callee: str) -> Sequence[Value]:
    """A call of a function of the module."""
    name = scope.module.called(callee, scope.manual, scope.builder.span)
    return scope.append("call", scope.operands(op), {"function": name}, scope.result_types(op))


@converts("while")
def _while(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """What the body returns as it got it is not carried: the regions see it outside."""
    outer = scope.operands(op)
    condition, body = op.regions
    returned = list(body.blocks[0].operations)[-1].operation.operands
    arguments = list(body.blocks[0].arguments)
    carried = [i for i, (a, r) in enumerate(zip(arguments, returned, strict=True)) if a != r] or [0]
    regions = [_loop_region(region, scope, outer, carried) for region in (condition, body)]
    keep = tuple(regions[1].results[i] for i in carried)
    regions[1] = Region(regions[1].params, regions[1].ops, keep)
    initial = [outer[i] for i in carried]
    trips = Loop(initial, regions[0], regions[1], scope.number).turns()
    types = [v.type for v in initial]
    results = scope.append("while", initial, {"trip_count": trips}, types, tuple(regions))
    found: list[Bound] = list(outer)
    for i, result in zip(carried, results, strict=True):
        found[i] = result
    return found


def _loop_region(region: mlir.Region, scope: Scope, outer: Sequence[Value], carried: Sequence[int]) -> Region:
    inner = scope.inner()
    bound = list[Bound](outer)
    for i in carried:
        name = outer[i].name.partition(".")[0] if not outer[i].name.startswith("constant") else "carried"
        bound[i] = inner.builder.param(name, outer[i].type)
    return scope.module.region(region, inner, bound)


@converts("case")
def _case(op: mlir.Operation, scope: Scope) -> list[Bound]:
    index = scope.operand(op.operands[0])
    if index.dtype != s32:
        index = scope.emit("convert", index, dtype=s32)
    return choose(op, scope, index, list(op.regions))


@converts("if")
def _if(op: mlir.Operation, scope: Scope) -> list[Bound]:
    index = scope.emit("convert", scope.operand(op.operands[0]), dtype=s32)
    return choose(op, scope, index, list(op.regions)[::-1])


def choose(op: mlir.Operation, scope: Scope, index: Value, branches: Sequence[mlir.Region]) -> list[Bound]:
    """A case over these regions."""
    regions = tuple(scope.module.region(branch, scope.inner(), ()) for branch in branches)
    return list(scope.append("case", [index], {}, scope.result_types(op), regions))
