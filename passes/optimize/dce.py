"""Dead code elimination."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ir.dataflow import uses_within
from ir.ops import OPS
from ir.ops.control import is_call, is_choice, is_loop
from ir.program import Function, Op, Program, Region, Value, callee_of, callees_first, functions_with, walk
from passes.rewrite import map_program, with_parts


def eliminate_dead_code(program: Program, *, annotated: bool = False) -> Program:
    """The program without unused ops, and without unused values that loops carry, choices and functions return, and
    sorts reorder along with their keys. Every op is pure, so nothing else depends on them. An op without results is
    kept if it awaits something itself, or has a region or runs a function that does.

    With `annotated`, ops with an annotated result are kept: before propagation, other values may depend on it.
    """
    awaiting = functions_with(program, _awaits)
    if annotated:
        bodies = {n: live_region(f.body, annotated=True, awaiting=awaiting) for n, f in program.functions.items()}
        return with_parts(program, functions={n: with_parts(f, body=bodies[n]) for n, f in program.functions.items()})
    functions: dict[str, Function] = {}
    used: dict[str, set[int]] = {}
    for function in reversed(callees_first(program)):
        some = used.get(function.name)
        if some is not None and function.name != program.entry:
            function = giving(function, sorted(some))
        body = live_region(function.body, awaiting=awaiting)
        functions[function.name] = with_parts(function, body=body)
        for op, some_used in used_results(body).items():
            used.setdefault(str(callee_of(op)), set()).update(some_used)

    def adjusted(op: Op) -> Iterable[Op]:
        """A call with those results that its function still has."""
        yield with_parts(op, results=_at(op.results, sorted(used[str(callee_of(op))]))) if is_call(op) else op

    live = with_parts(program, functions={name: functions[name] for name in program.functions})
    return map_program(live, adjusted) if used else live


def giving(function: Function, some: Sequence[int]) -> Function:
    """The function with only these results, by number."""
    body = with_parts(function.body, results=_at(function.body.results, some))
    return with_parts(function, body=body, results=tuple([function.results[i] for i in some]))


def used_results(body: Region) -> dict[Op, frozenset[int]]:
    """For each op in the body that runs a function, the numbers of its results that are used; all of them if it is no
    call."""

    def is_used(op: Op, result: Value) -> bool:
        return not is_call(op) or uses_within(body).count(result) > 0

    calls = [op for op in walk(body) if callee_of(op) is not None]
    return {op: frozenset(i for i, v in enumerate(op.results) if is_used(op, v)) for op in calls}


def live_region(region: Region, *, annotated: bool = False, awaiting: Collection[str] | None = None) -> Region:
    """The region without ops that none of its results depend on. Of the functions that ops run, only `awaiting` await
    something; if that is None, any may. Takes time linear in its ops, however deep loops are nested, and however they
    permute the values that they carry."""
    return _Live(region, annotated, awaiting).part_of(region)


def _awaits(op: Op, awaiting: Collection[str] | None) -> bool:
    """Whether the op awaits something, apart from what its regions do."""
    if callee_of(op) is None:
        return not op.results and not op.regions
    return awaiting is None or callee_of(op) in awaiting


class _Live:
    """What the results of a region depend on: `used` values, and the `ops` that make them or that end the program. Both
    are found backward from the results, each once."""

    def __init__(self, region: Region, annotated: bool, awaiting: Collection[str] | None) -> None:
        self.annotated = annotated
        self.awaiting: set[Op] = set()
        self.used: set[Value] = set()
        self.ops: set[Op] = set()
        self.makers: dict[Value, Op] = {}
        self.divisible: set[Op] = set()
        """Ops whose results can be dropped separately, along with what only they need."""
        self.places: dict[Value, int] = {}
        self.pending: list[Value] = []
        self._find_makers(region)
        self._find_awaiting(region, awaiting)
        self.pending.extend(region.results)
        self._begin(region)
        while self.pending:
            value = self.pending.pop()
            if value not in self.used:
                self.used.add(value)
                self._need(value)

    def part_of(self, region: Region) -> Region:
        """The live part of a region."""
        return with_parts(region, ops=tuple([self._part(op) for op in region.ops if op in self.ops]))

    def _find_makers(self, region: Region) -> None:
        """Finds the ops that make values, as results or as parameters of regions, and for ops that can be dropped in
        part the numbers of their values."""
        makers = self.makers
        for op in walk(region):
            for value in op.results:
                makers[value] = op
            if not self.annotated and _has_parts(op):
                self.divisible.add(op)
                for values in (op.results, *(inside.params for inside in op.regions)):
                    makers.update(dict.fromkeys(values, op))
                    self.places.update((value, place) for place, value in enumerate(values))

    def _find_awaiting(self, region: Region, awaiting: Collection[str] | None) -> None:
        """Finds the ops that await something, or in whose regions there are such ops."""
        for op in reversed(walk(region)):
            if _awaits(op, awaiting) or any(one in self.awaiting for inside in op.regions for one in inside.ops):
                self.awaiting.add(op)

    def _begin(self, region: Region) -> None:
        """Marks the ops of a region that run whether or not they are used."""
        for op in region.ops:
            is_kept = self.annotated and any(v.sharding is not None for v in op.results)
            if is_kept or (not op.results and op in self.awaiting):
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
        self.ops.add(op)
        has_parts = op in self.divisible
        self.pending.extend(_always_needed(op) if has_parts else op.operands)
        for inside in op.regions:
            self.pending.extend(() if has_parts else inside.results)
            self._begin(inside)

    def _part(self, op: Op) -> Op:
        """The live part of an op."""
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
    """Whether some results of an op can be dropped, along with what only they need."""
    return OPS[op.name].taken_along is not None or is_loop(op) or is_choice(op)


def _always_needed(op: Op) -> Sequence[Value]:
    """The operands and region results that an op needs whichever of its results are used: what a loop's condition
    returns, what a choice is made by, the keys of a sort."""
    if is_loop(op):
        return op.regions[0].results
    return op.operands if is_choice(op) else op.operands[: _taken_from(op)]


def _needed_for_part(op: Op, place: int) -> Sequence[Value]:
    """The further values that an op needs for one of its results, or for one of the values that it carries."""
    if is_loop(op):
        return op.results[place], op.operands[place], op.regions[1].results[place]
    if is_choice(op):
        return [inside.results[place] for inside in op.regions]
    return op.operands[place : place + 1]


def _taken_from(op: Op) -> int:
    """The number of the first operand that can be dropped, along with its result."""
    taken_along = OPS[op.name].taken_along
    return taken_along(op) if taken_along is not None else len(op.operands)


def _at(values: Sequence[Value], places: Sequence[int]) -> tuple[Value, ...]:
    return tuple(values[i] for i in places)
