"""Dead code elimination."""

from __future__ import annotations

from dataclasses import replace

from ir.program import Op, Program, Region, Value


def eliminate_dead_code(program: Program) -> Program:
    """The program without ops whose results nobody uses. Every op is pure, so nothing else depends on them."""
    functions = {
        name: replace(function, body=live_region(function.body)) for name, function in program.functions.items()
    }
    return replace(program, functions=functions)


def live_region(region: Region) -> Region:
    """The region without ops that none of its results depend on."""
    return _live(region, set())


def _live(region: Region, used: set[Value]) -> Region:
    """The region without dead ops; adds to `used` what it uses, from outside too."""
    used.update(region.results)
    kept: list[Op] = []
    for op in reversed(region.ops):
        if not any(v in used for v in op.results):
            continue
        used.update(op.operands)
        regions = tuple(_live(r, used) for r in op.regions)
        kept.append(replace(op, regions=regions) if regions else op)
    return Region(region.params, tuple(reversed(kept)), region.results)
