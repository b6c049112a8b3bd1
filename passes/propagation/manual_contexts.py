"""Copies functions so that each is called with a single set of manual axes.

A function's values may not be split over the axes that are manual where it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ir.builder import Names
from ir.manual import Manual, contexts, region_axes
from ir.ops.control import is_manual
from ir.program import Function, Op, Program, Region, callee_of
from passes.rewrite import copy_function

Copies = Mapping[tuple[str, Manual], str]


def one_context_each(program: Program) -> Program:
    """The program with each function called under one set of manual axes only. The first copy keeps its name."""
    around = contexts(program)
    if all(len(found) == 1 for found in around.values()):
        return program
    names = Names(set(program.functions))
    copies: dict[tuple[str, Manual], str] = {}
    for name, found in around.items():
        for i, manual in enumerate(sorted(found, key=sorted)):
            copies[name, manual] = names.fresh(name) if i else name
    functions: dict[str, Function] = {}
    for (name, manual), copy in copies.items():
        function = program.functions[name] if copy == name else copy_function(program.functions[name], copy)
        functions[copy] = replace(function, body=_redirected(function.body, manual, copies))
    return replace(program, functions=functions)


def _redirected(region: Region, manual: Manual, copies: Copies) -> Region:
    """The region with its calls redirected to the functions for its manual axes."""
    return replace(region, ops=tuple(_redirect(op, manual, copies) for op in region.ops))


def _redirect(op: Op, manual: Manual, copies: Copies) -> Op:
    inside = manual | region_axes(op) if is_manual(op) else manual
    regions = tuple(_redirected(r, inside, copies) for r in op.regions)
    callee = callee_of(op)
    attrs = op.attrs if callee is None else {**op.attrs, "function": copies[callee, manual]}
    return replace(op, regions=regions, attrs=attrs)
