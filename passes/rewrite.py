"""Rewrites programs op by op, and copies them with other values.

What is not rewritten is the same object before and after, so that it is not verified or examined again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ir.program import Function, Op, Program, Region, Result, Value
from passes.signatures import hand_on_signature

Whole = TypeVar("Whole", Program, Function, Region, Op)


def with_parts(whole: Whole, **parts: Any) -> Whole:
    """The program, function, region or op with these functions, body, ops, operands and so on; the same object if it
    has them already."""
    are_own = all(getattr(whole, name) == part for name, part in parts.items())
    return whole if are_own else replace(whole, **parts)


def map_ops(region: Region, each: Callable[[Op], Iterable[Op]]) -> Region:
    """The region with each op replaced by the ops that `each` returns for it. Regions inside an op are rewritten
    first."""
    ops: list[Op] = []
    for op in region.ops:
        inside = with_parts(op, regions=tuple([map_ops(r, each) for r in op.regions])) if op.regions else op
        ops.extend(each(inside))
    return with_parts(region, ops=tuple(ops))


def map_program(program: Program, each: Callable[[Op], Iterable[Op]]) -> Program:
    """The program with each op replaced by the ops that `each` returns for it, as in `map_ops`."""
    functions = {name: with_parts(f, body=map_ops(f.body, each)) for name, f in program.functions.items()}
    return with_parts(program, functions=functions)


def map_values(program: Program, value: Callable[[Value], Value], result: Callable[[Function, int], Result]) -> Program:
    """The program with each value replaced by what `value` returns for it, of the same type, and each declared result
    by what `result` returns. Ops without replaced values are kept."""
    functions: dict[str, Function] = {}
    for function in program.functions.values():
        copies: dict[Value, Value] = {}
        body = _copy_region(function.body, value, copies)
        results = tuple(result(function, i) for i in range(len(function.results)))
        functions[function.name] = replace(function, body=body, results=results)
    return replace(program, functions=functions)


def copy_function(function: Function, name: str) -> Function:
    """The function under another name, with new values."""
    return replace(function, name=name, body=_copy_region(function.body, lambda value: replace(value), {}))


def rename_callees(function: Function, names: Mapping[Op, str]) -> Function:
    """The function with some of its calls redirected to other functions."""

    def renamed(op: Op) -> Iterable[Op]:
        yield replace(op, attrs={**op.attrs, "function": names[op]}) if op in names else op

    return replace(function, body=map_ops(function.body, renamed)) if names else function


def _copy_region(region: Region, value: Callable[[Value], Value], copies: dict[Value, Value]) -> Region:
    for param in region.params:
        copies[param] = value(param)
    ops = tuple([_copy(op, value, copies) for op in region.ops])
    params, results = tuple([copies[p] for p in region.params]), tuple([copies[v] for v in region.results])
    is_own = ops == region.ops and params == region.params and results == region.results
    return region if is_own else Region(params, ops, results)


def _copy(op: Op, value: Callable[[Value], Value], copies: dict[Value, Value]) -> Op:
    regions = tuple([_copy_region(r, value, copies) for r in op.regions]) if op.regions else ()
    for v in op.results:
        copies[v] = value(v)
    operands, results = tuple([copies[v] for v in op.operands]), tuple([copies[v] for v in op.results])
    if results and operands == op.operands and results == op.results and regions == op.regions:
        return op
    copy = Op(op.name, operands, results, op.attrs, regions, op.span, op.cause)
    hand_on_signature(op, copy)
    return copy
