"""Dead code elimination."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ir.dataflow import uses_within
from ir.ops import OPS
from ir.ops.control import is_call, is_choice, is_loop
from ir.program import Function, Op, Program, Region, Value, callee_of, callees_first, walk
from passes.rewrite import map_program, with_parts


def eliminate_dead_code(program: Program, *, annotated: bool = False) -> Program:
    """The program without ops whose results nobody uses, and without what loops carry, choices and functions return and
    sorts take along for nobody. Every op is pure, so nothing else depends on them; one without results is there for
    what it awaits, and stays.

    With `annotated`, ops stay that annotate a result: before propagation, others may depend on that.
    """
    if annotated:
        bodies = {name: live_region(f.body, annotated=True) for name, f in program.functions.items()}
        return with_parts(program, functions={n: with_parts(f, body=bodies[n]) for n, f in program.functions.items()})
    functions: dict[str, Function] = {}
    used: dict[str, set[int]] = {}
    for function in reversed(callees_first(program)):
        some = used.get(function.name)
        if some is not None and function.name != program.entry:
            function = giving(function, sorted(some))
        body = live_region(function.body)
        functions[function.name] = with_parts(function, body=body)
        for op, some_used in used_results(body).items():
            used.setdefault(str(callee_of(op)), set()).update(some_used)

    def adjusted(op: Op) -> Iterable[Op]:
        """A call with the results that its function still has."""
        yield with_parts(op, results=_at(op.results, sorted(used[str(callee_of(op))]))) if is_call(op) else op

    live = with_parts(program, functions={name: functions[name] for name in program.functions})
    return map_program(live, adjusted) if used else live


def giving(function: Function, some: Sequence[int]) -> Function:
    """The function with these of its results."""
    body = with_parts(function.body, results=_at(function.body.results, some))
    return with_parts(function, body=body, results=tuple([function.results[i] for i in some]))


def used_results(body: Region) -> dict[Op, frozenset[int]]:
    """Which of its results are used in the body, of each op in it that runs a function; all, if it is no call."""

    def is_used(op: Op, result: Value) -> bool:
        return not is_call(op) or uses_within(body).count(result) > 0

    calls = [op for op in walk(body) if callee_of(op) is not None]
    return {op: frozenset(i for i, v in enumerate(op.results) if is_used(op, v)) for op in calls}


def live_region(region: Region, *, annotated: bool = False) -> Region:
    """The region without ops that none of its results depend on. Takes time linear in its ops, however deep loops are
    in one another, and whatever they pass around among what they carry."""
    return _Live(region, annotated).part_of(region)


class _Live:
    """What the results of a region depend on: `used` values, and `ops` that make them or end the program. Both are
    found backward from what is returned, each once."""

    def __init__(self, region: Region, annotated: bool) -> None:
        self.annotated = annotated
        self.used: set[Value] = set()
        self.ops: set[Op] = set()
        self.makers: dict[Value, Op] = {}
        self.divisible: set[Op] = set()
        """Ops of which results can be left out, with what only they need."""
        self.places: dict[Value, int] = {}
        self.pending: list[Value] = []
        self._find_makers(region)
        self.pending.extend(region.results)
        self._begin(region)
        while self.pending:
            value = self.pending.pop()
            if value not in self.used:
                self.used.add(value)
                self._need(value)

    def part_of(self, region: Region) -> Region:
        """What is live of a region."""
        return with_parts(region, ops=tuple([self._part(op) for op in region.ops if op in self.ops]))

    def _find_makers(self, region: Region) -> None:
        """The ops that values are results of, or of whose loop they are carried; and the values' places, where an op
        can be left out in part."""
        makers = self.makers
        for op in walk(region):
            for value in op.results:
                makers[value] = op
            if not self.annotated and _has_parts(op):
                self.divisible.add(op)
                for values in (op.results, *(inside.params for inside in op.regions)):
                    makers.update(dict.fromkeys(values, op))
                    self.places.update((value, place) for place, value in enumerate(values))

    def _begin(self, region: Region) -> None:
        """Runs a region: its ops that run whoever uses them."""
        for op in region.ops:
            if not op.results or (self.annotated and any(v.sharding is not None for v in op.results)):
                self._run(op)

    def _need(self, value: Value) -> None:
        op = self.makers.get(value)
        if op is None:
            return
        if op not in self.ops:
            self._run(op)
        if op in self.divisible:
            self.pending.extend(_needed_for_part(op, self.places[value]))

    def _run(self, op: Op) -> None:
        if op in self.ops:
            return
        self.ops.add(op)
        has_parts = op in self.divisible
        self.pending.extend(_always_needed(op) if has_parts else op.operands)
        for inside in op.regions:
            self.pending.extend(() if has_parts else inside.results)
            self._begin(inside)

    def _part(self, op: Op) -> Op:
        """What is live of an op."""
        regions = tuple([self.part_of(inside) for inside in op.regions]) if op.regions else ()
        if op not in self.divisible:
            return with_parts(op, regions=regions) if regions else op
        some = [i for i, result in enumerate(op.results) if result in self.used]
        results = _at(op.results, some)
        if is_choice(op):
            regions = tuple([with_parts(inside, results=_at(inside.results, some)) for inside in regions])
            return with_parts(op, results=results, regions=regions)
        if not is_loop(op):
            some = [*range(_taken_from(op)), *(i for i in some if i >= _taken_from(op))]
            return with_parts(op, operands=_at(op.operands, some), results=_at(op.results, some))
        test, step = (with_parts(inside, params=_at(inside.params, some)) for inside in regions)
        step = with_parts(step, results=_at(step.results, some))
        return with_parts(op, operands=_at(op.operands, some), results=results, regions=(test, step))


def _has_parts(op: Op) -> bool:
    """Whether results of an op can be left out, with what only they need."""
    return OPS[op.name].taken_along is not None or is_loop(op) or is_choice(op)


def _always_needed(op: Op) -> Sequence[Value]:
    """The values that an op needs which is left out in part, whichever part it is: what a loop's condition returns,
    what is chosen by, a sort's keys."""
    if is_loop(op):
        return op.regions[0].results
    return op.operands if is_choice(op) else op.operands[: _taken_from(op)]


def _needed_for_part(op: Op, place: int) -> Sequence[Value]:
    """The further values that an op needs for one of its results, or of what it carries."""
    if is_loop(op):
        return op.results[place], op.operands[place], op.regions[1].results[place]
    if is_choice(op):
        return [inside.results[place] for inside in op.regions]
    return op.operands[place : place + 1]


def _taken_from(op: Op) -> int:
    """From which operand on those of an op can be left out, with their results."""
    taken_along = OPS[op.name].taken_along
    return taken_along(op) if taken_along is not None else len(op.operands)


def _at(values: Sequence[Value], places: Sequence[int]) -> tuple[Value, ...]:
    return tuple(values[i] for i in places)
