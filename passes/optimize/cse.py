"""Common subexpression elimination."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import MutableMapping
from dataclasses import replace

from ir.ops import OPS
from ir.ops.control import is_manual
from ir.program import Op, Program, Region, Value

Known = MutableMapping[object, tuple[Value, ...]]


def eliminate_common_subexpressions(program: Program) -> Program:
    """The program with each op computed once in a region and those inside it, but for manual ones, which see nothing
    of what is around them; collectives too.

    Numbers are compared as they are written: 0.0 and -0.0 are equal, and are not the same constant.
    """
    functions = {}
    for name, function in program.functions.items():
        known: Known = {}
        functions[name] = replace(function, body=_region(function.body, known, {}))
    return replace(program, functions=functions)


def _region(region: Region, known: Known, same: dict[Value, Value]) -> Region:
    ops: list[Op] = []
    for op in region.ops:
        operands = tuple([same.get(v, v) for v in op.operands])
        if op.regions:
            around: Known = {} if is_manual(op) else known
            regions = tuple(_region(r, ChainMap({}, around), same) for r in op.regions)
            ops.append(replace(op, operands=operands, regions=regions))
            continue
        key = (op.name, operands, OPS[op.name].means(op.attrs), tuple([(v.type, v.sharding) for v in op.results]))
        earlier = known.get(key)
        if earlier is not None:
            same.update(zip(op.results, earlier, strict=True))
            continue
        known[key] = op.results
        ops.append(op if operands == op.operands else replace(op, operands=operands))
    return Region(region.params, tuple(ops), tuple([same.get(v, v) for v in region.results]))
