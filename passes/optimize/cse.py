"""Common subexpression elimination."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import MutableMapping

from ir.ops import OPS
from ir.ops.control import is_manual
from ir.program import Op, Program, Region, Value
from passes.rewrite import with_parts

Known = MutableMapping[object, tuple[Value, ...]]


def eliminate_common_subexpressions(program: Program) -> Program:
    """The program with equal ops, collectives included, computed once in a region and the regions inside it. Manual
    regions are separate, because they do not see the values around them.

    Constants are compared as they are written: 0.0 and -0.0 are equal numbers, but different constants.
    """
    functions = {}
    for name, function in program.functions.items():
        known: Known = {}
        functions[name] = with_parts(function, body=_region(function.body, known, {}))
    return with_parts(program, functions=functions)


def _region(region: Region, known: Known, same: dict[Value, Value]) -> Region:
    ops: list[Op] = []
    for op in region.ops:
        operands = tuple([same.get(v, v) for v in op.operands])
        if op.regions:
            around: Known = {} if is_manual(op) else known
            regions = tuple([_region(r, ChainMap({}, around), same) for r in op.regions])
            ops.append(with_parts(op, operands=operands, regions=regions))
            continue
        declared = OPS[op.name]
        is_symmetric = declared.is_symmetric and not op.result.dtype.is_complex  # Products of these round otherwise.
        taken = frozenset(operands) if is_symmetric else operands
        key = (op.name, taken, declared.means(op.attrs), tuple([(v.type, v.sharding) for v in op.results]))
        earlier = known.get(key)
        if earlier is not None:
            same.update(zip(op.results, earlier, strict=True))
            continue
        known[key] = op.results
        ops.append(with_parts(op, operands=operands))
    return with_parts(region, ops=tuple(ops), results=tuple([same.get(v, v) for v in region.results]))
