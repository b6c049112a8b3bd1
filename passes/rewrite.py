"""Copies of programs in which values differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ir.program import Function, Op, Program, Region, Result, Value
from passes.factors import know_rules_of_copy


def map_values(
    program: Program,
    value: Callable[[Value], Value],
    result: Callable[[Function, int], Result],
) -> Program:
    """The same program with each value replaced by `value` of it, of the same type, and each declared result by
    `result`."""
    functions: dict[str, Function] = {}
    for function in program.functions.values():
        copies: dict[Value, Value] = {}
        body = _copy_region(function.body, value, copies)
        results = tuple(result(function, i) for i in range(len(function.results)))
        functions[function.name] = replace(function, body=body, results=results)
    return replace(program, functions=functions)


def copy_function(function: Function, name: str) -> Function:
    """The same function under another name, of values of its own."""
    return replace(function, name=name, body=_copy_region(function.body, lambda value: replace(value), {}))


def rename_callees(function: Function, names: Mapping[Op, str]) -> Function:
    """The function with these of its calls going to other functions."""
    return replace(function, body=_rename_in(function.body, names)) if names else function


def _rename_in(region: Region, names: Mapping[Op, str]) -> Region:
    def renamed(op: Op) -> Op:
        if op in names:
            return replace(op, attrs={**op.attrs, "function": names[op]})
        return replace(op, regions=tuple(_rename_in(r, names) for r in op.regions)) if op.regions else op

    return Region(region.params, tuple(renamed(op) for op in region.ops), region.results)


def _copy_region(region: Region, value: Callable[[Value], Value], copies: dict[Value, Value]) -> Region:
    for param in region.params:
        copies[param] = value(param)
    ops: list[Op] = []
    for op in region.ops:
        regions = tuple(_copy_region(r, value, copies) for r in op.regions)
        for v in op.results:
            copies[v] = value(v)
        operands, results = tuple([copies[v] for v in op.operands]), tuple([copies[v] for v in op.results])
        copy = Op(op.name, operands, results, op.attrs, regions, op.span, op.cause)
        know_rules_of_copy(op, copy)
        ops.append(copy)
    return Region(tuple(copies[p] for p in region.params), tuple(ops), tuple(copies[v] for v in region.results))
