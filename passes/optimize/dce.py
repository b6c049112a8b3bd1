"""Dead code elimination."""

from __future__ import annotations

from dataclasses import replace

from ir.program import Op, Program, Region, Value


def eliminate_dead_code(program: Program, *, annotated: bool = False) -> Program:
    """The program without ops whose results nobody uses. Every op is pure, so nothing else depends on them.

    With `annotated`, ops stay that say where a result should lie: before propagation, others may depend on that.
    """
    functions = {
        name: replace(function, body=live_region(function.body, annotated=annotated))
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions)


def live_region(region: Region, *, annotated: bool = False) -> Region:
    """The region without ops that none of its results depend on."""
    return _live(region, set(), annotated=annotated)


def _live(region: Region, used: set[Value], *, annotated: bool) -> Region:
    """The region without dead ops; adds to `used` what it uses, from outside too."""
    used.update(region.results)
    kept: list[Op] = []
    for op in reversed(region.ops):
        if not any(v in used or (annotated and v.sharding is not None) for v in op.results):
            continue
        used.update(op.operands)
        regions = tuple(_live(r, used, annotated=annotated) for r in op.regions)
        kept.append(replace(op, regions=regions) if regions else op)
    return Region(region.params, tuple(reversed(kept)), region.results)
