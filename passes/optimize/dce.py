"""Dead code elimination."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ir.dataflow import uses_within
from ir.ops import OPS
from ir.ops.control import is_call, is_choice, is_loop
from ir.program import Function, Op, Program, Region, Value, callee_of, callees_first, walk
from passes.rewrite import map_ops


def eliminate_dead_code(program: Program, *, annotated: bool = False) -> Program:
    """The program without ops whose results nobody uses, and without what loops carry, choices and functions return and
    sorts take along for nobody. Every op is pure, so nothing else depends on them; one without results is there for
    what it awaits, and stays.

    With `annotated`, ops stay that annotate a result: before propagation, others may depend on that.
    """
    if annotated:
        bodies = {name: live_region(f.body, annotated=True) for name, f in program.functions.items()}
        return replace(program, functions={n: replace(f, body=bodies[n]) for n, f in program.functions.items()})
    functions: dict[str, Function] = {}
    used: dict[str, set[int]] = {}
    for function in reversed(callees_first(program)):
        some = used.get(function.name)
        if some is not None and function.name != program.entry:
            function = giving(function, sorted(some))
        body = live_region(function.body)
        functions[function.name] = replace(function, body=body)
        for op, some_used in used_results(body).items():
            used.setdefault(str(callee_of(op)), set()).update(some_used)

    def adjusted(op: Op) -> Iterable[Op]:
        """A call with the results that its function still has."""
        yield replace(op, results=_at(op.results, sorted(used[str(callee_of(op))]))) if is_call(op) else op

    if used:
        functions = {name: replace(f, body=map_ops(f.body, adjusted)) for name, f in functions.items()}
    return replace(program, functions={name: functions[name] for name in program.functions})


def giving(function: Function, some: Sequence[int]) -> Function:
    """The function with these of its results."""
    body = replace(function.body, results=_at(function.body.results, some))
    return replace(function, body=body, results=tuple(function.results[i] for i in some))


def used_results(body: Region) -> dict[Op, frozenset[int]]:
    """Which of its results are used in the body, of each op in it that runs a function; all, if it is no call."""

    def is_used(op: Op, result: Value) -> bool:
        return not is_call(op) or uses_within(body).count(result) > 0

    calls = [op for op in walk(body) if callee_of(op) is not None]
    return {op: frozenset(i for i, v in enumerate(op.results) if is_used(op, v)) for op in calls}


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
        if not annotated and is_loop(op):
            kept.append(_loop(op, used))
            continue
        if not annotated and is_choice(op):
            op = _choice(op, used)
        taken_along = OPS[op.name].taken_along
        if not annotated and taken_along is not None:
            op = _without_what_is_taken_along(op, taken_along(op), used)
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


def _without_what_is_taken_along(op: Op, first: int, used: set[Value]) -> Op:
    """A sort, say, with its keys and what is sorted along for someone."""
    some = [i for i, result in enumerate(op.results) if i < first or result in used]
    return replace(op, operands=_at(op.operands, some), results=_at(op.results, some))


def _at(values: Sequence[Value], places: Sequence[int]) -> tuple[Value, ...]:
    return tuple(values[i] for i in places)
