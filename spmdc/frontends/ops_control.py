"""Calls, loops and choices."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir as mlir

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
    trips = trip_count(scope, initial, *regions)
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


def trip_count(scope: Scope, initial: Sequence[Value], condition: Region, body: Region) -> int | None:
    """How often the loop runs, where a counter goes in constant steps from one known number to another."""
    test = next((o for o in condition.ops if condition.results[0] in o.results), None)
    if test is None or test.name != "compare" or test.operands[0] not in condition.params:
        return None
    i = condition.params.index(test.operands[0])
    step = next((o for o in body.ops if body.results[i] in o.results), None)
    if step is None or step.name != "add" or body.params[i] not in step.operands:
        return None
    (by,) = [v for v in step.operands if v is not body.params[i]] or [body.params[i]]
    start, limit, each = scope.number(initial[i]), scope.number(test.operands[1]), scope.number(by)
    if not (isinstance(start, int) and isinstance(limit, int) and isinstance(each, int)):
        return None
    end = limit + 1 if test.attrs["direction"] == "LE" else limit
    if test.attrs["direction"] not in ("LT", "LE") or each < 1:
        return None
    return max(0, -(-(end - start) // each))


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
