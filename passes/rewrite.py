"""Copies of programs in which values differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ir.program import Function, Op, Program, Region, Result, Value


def map_values(
    program: Program,
    value: Callable[[Value], Value],
    result: Callable[[Function, int], Result],
) -> Program:
    """The same program with each value replaced by `value` of it and each declared result by `result`."""
    functions: dict[str, Function] = {}
    for function in program.functions.values():
        copies: dict[Value, Value] = {}
        body = _copy_region(function.body, value, copies)
        results = tuple(result(function, i) for i in range(len(function.results)))
        functions[function.name] = replace(function, body=body, results=results)
    return replace(program, functions=functions)


def _copy_region(region: Region, value: Callable[[Value], Value], copies: dict[Value, Value]) -> Region:
    for param in region.params:
        copies[param] = value(param)
    ops: list[Op] = []
    for op in region.ops:
        regions = tuple(_copy_region(r, value, copies) for r in op.regions)
        for v in op.results:
            copies[v] = value(v)
        ops.append(
            Op(
                op.name,
                tuple([copies[v] for v in op.operands]),
                tuple([copies[v] for v in op.results]),
                op.attrs,
                regions,
                op.span,
                op.note,
            )
        )
    return Region(tuple(copies[p] for p in region.params), tuple(ops), tuple(copies[v] for v in region.results))
