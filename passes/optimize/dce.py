"""Dead code elimination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.program import Op, Program, Region, Value


def eliminate_dead_code(program: Program, *, annotated: bool = False) -> Program:
    """The program without ops whose results nobody uses, and without what loops carry and choices give for nobody.
    Every op is pure, so nothing else depends on them; one that gives nothing is there for what it awaits, and stays.

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
        if op.results and not any(v in used or (annotated and v.sharding is not None) for v in op.results):
            continue
        if op.name == "while" and not annotated:
            kept.append(_loop(op, used))
            continue
        if op.name == "case" and not annotated:
            op = _choice(op, used)
        used.update(op.operands)
        regions = tuple(_live(r, used, annotated=annotated) for r in op.regions)
        kept.append(replace(op, regions=regions) if regions else op)
    return Region(region.params, tuple(reversed(kept)), region.results)


def _loop(op: Op, used: set[Value]) -> Op:
    """The loop with those of its carried values on which its condition, or a result in use, depends."""
    condition, body = op.regions
    live = {i for i, result in enumerate(op.results) if result in used}
    while True:
        inside = set[Value]()
        some = [i for i in range(len(op.results)) if i in live]
        test = _live(condition, inside, annotated=False)
        step = _live(Region(body.params, body.ops, _at(body.results, some)), inside, annotated=False)
        needed = {i for i, pair in enumerate(zip(condition.params, body.params, strict=True)) if inside & set(pair)}
        if needed <= live:
            break
        live |= needed
    used |= inside
    used.update(_at(op.operands, some))
    regions = replace(test, params=_at(test.params, some)), replace(step, params=_at(step.params, some))
    return replace(op, operands=_at(op.operands, some), results=_at(op.results, some), regions=regions)


def _choice(op: Op, used: set[Value]) -> Op:
    some = [i for i, result in enumerate(op.results) if result in used]
    regions = tuple(Region(r.params, r.ops, _at(r.results, some)) for r in op.regions)
    return replace(op, results=_at(op.results, some), regions=regions)


def _at(values: Sequence[Value], places: Sequence[int]) -> tuple[Value, ...]:
    return tuple(values[i] for i in places)
