"""Takes rows again that one loop moves out of a tensor and keeps for another.

A gradient is a loop that keeps what the loop on the way back needs of each iteration, in stacks of a row for each. What
the first loop only moves, by its counter, out of tensors that are there anyway is not kept, but moved again:

    loop i < n (…) { …  kept[i] = w[i][0]  … };  loop i < n (…) { …  kept[n - 1 - i]  … }
        ->  loop i < n (…) { … };  loop i < n (…) { …  w[n - 1 - i][0]  … }

Otherwise there would be a copy of all weights that loops take the rows of. Rows that devices would have to send again
stay: what moves them has the annotations of the tensors that they are of, and takes nothing out of dims that are split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ir.builder import Names
from ir.closure import reached
from ir.dataflow import Uses, uses_of
from ir.loops import Counter, Loop
from ir.mesh import DimAxes
from ir.ops import OPS, FactorKind
from ir.ops.control import is_loop
from ir.ops.creation import constant_value
from ir.ops.declaration import InKernels
from ir.ops.elementwise import is_conversion
from ir.ops.layout import is_annotation, is_repetition
from ir.ops.rule_helpers import ints_attr
from ir.program import Function, Op, Program, Region, Value, all_ops
from passes.factors import dims_of_factors, factor_rule, factors_of_dims
from passes.rewrite import with_parts

_MOVES = frozenset({InKernels.VIEW, InKernels.TRANSPOSITION, InKernels.SLICE, InKernels.ELEMENTS})


def take_rows_again(program: Program) -> Program:
    """The program in which no loop keeps rows that it only moves, if nothing but loops uses them, one in each
    iteration. The stacks are still there, unused."""
    uses = uses_of(program)
    loops = [(op, _loop(op, uses)) for op in all_ops(program) if is_loop(op)]
    stacks: dict[Value, _Stack] = {}
    for op, loop in reversed(loops):
        stacks.update(_stacks(op, loop, stacks))
    if any(mesh.size > 1 for mesh in program.meshes):
        stacks = {v: stack for v, stack in stacks.items() if _stays(stack.ops)}
    reads = _reads([loop for _, loop in loops], stacks, uses)
    if not reads:
        return program
    functions = {name: _Rewriter(f, reads).function() for name, f in program.functions.items()}
    return take_rows_again(with_parts(program, functions=functions))  # What makes a row may read other stacks.


@dataclass(frozen=True, slots=True)
class _Stack:
    """What a loop keeps of each of its iterations, or loops inside of one another of each of theirs. `ops` make the
    `update`, which is a row with a dim of size 1 in front, of the loops' `counters`, from the outermost inwards, and of
    values around the loops. If the last of them only adds that dim, `row` is what it is added to."""

    update: Value
    counters: tuple[Value, ...]
    ops: Sequence[Op]
    row: Value | None


@dataclass(frozen=True, slots=True)
class _Read:
    """A read of a stack, in the iterations at `places` of as many loops as these are."""

    kept: Value
    stack: _Stack
    places: tuple[Value, ...]

    @property
    def is_of_row(self) -> bool:
        return len(self.places) == len(self.stack.counters)


def _loop(op: Op, uses: Uses) -> Loop:
    condition, body = op.regions
    return Loop(op.operands, condition, body, lambda v: constant_value(uses.makers.get(v)))


def _stacks(op: Op, loop: Loop, inside: Mapping[Value, _Stack]) -> Iterator[tuple[Value, _Stack]]:
    """The results of a loop that have a row for each iteration, which the loop, or one inside of it, only moves."""
    iterations, body = loop.trip_count(), loop.body
    makers = {v: each for each in body.ops for v in each.results}
    for param, result, kept in zip(body.params, body.results, op.results, strict=True) if iterations else ():
        write = makers.get(result) if param.shape else None
        if write is None or write.name != "dynamic_update_slice" or write.operands[0] is not param:
            continue
        _, update, place, *_ = write.operands
        if param.shape[0] != iterations or update.shape != (1, *param.shape[1:]) or place not in body.params:
            continue
        row = _row(makers.get(update))
        inner = inside.get(row) if row is not None else None
        own = _Stack(update, (), (), row) if inner is None else inner
        first = [own.update, *(v for each in own.ops for v in each.operands)]
        needed = frozenset(reached(first, lambda v: makers[v].operands if v in makers and _moves(makers[v]) else ()))
        ops = [each for each in body.ops if not needed.isdisjoint(each.results)]
        is_counter = loop.counter(body.params.index(place)) == Counter(0, 1)
        if is_counter and needed.isdisjoint({*body.params} - {place}) and all(map(_moves, ops)):
            yield kept, replace(own, counters=(place, *own.counters), ops=(*ops, *own.ops))


def _moves(op: Op) -> bool:
    """Whether the op moves or converts elements, or computes a position."""
    if len(op.results) != 1:
        return False
    declared = OPS[op.name]
    if not op.result.shape and not op.result.dtype.is_continuous and declared.family in ("elementwise", "creation"):
        return True
    return is_conversion(op) or (declared.sources(op) == (0,) and declared.role in _MOVES)


def _row(update: Op | None) -> Value | None:
    """The operand of an op that only adds a dim of size 1 in front."""
    if update is None or not is_repetition(update):
        return None
    (row,) = update.operands
    is_added = ints_attr(update.attrs, "dims") == tuple(range(1, update.result.type.rank))
    return row if is_added and update.result.shape == (1, *row.shape) else None


def _stays(ops: Iterable[Op]) -> bool:
    """Whether devices move the elements without communication, as far as annotations say. A tensor without one gets
    that of its rows, or may be split along any dim that they have too. Transposes are left to the planner, which may
    split what is kept in a way that suits the products of the way back better."""
    made: dict[Value, DimAxes | None] = {}
    for op in ops:
        if not op.operands or not op.operands[0].shape:
            continue
        if OPS[op.name].role is InKernels.TRANSPOSITION or (op.result.sharding is not None and not is_annotation(op)):
            return False
        source = op.operands[0]
        split = made[source] if source in made else _annotated(source)
        if is_annotation(op):
            after = _annotated(op.result)
            is_kept = after is not None and split in (None, after)
        elif split is None:
            after, is_kept = None, _is_local(op)
        else:
            after = _moved(op, split)
            is_kept = after is not None
        if not is_kept:
            return False
        made[op.result] = after
    return True


def _annotated(value: Value) -> DimAxes | None:
    """The axes of each dim, if an annotation determines them."""
    found = value.sharding
    return None if found is None or found.partial or any(dim.open for dim in found.dims) else found.axes


def _is_local(op: Op) -> bool:
    """Whether the op sends nothing, however the operand is split along dims that the result has too."""
    rule = factor_rule(op)
    if rule is None or any(len(dim) > 1 for dim in (*rule.operands[0], *rule.results[0])):
        return False
    if OPS[op.name].role is InKernels.SLICE:
        return all(n in (1, size) for size, n in zip(op.operands[0].shape, op.result.shape, strict=True))
    return all(factor.kind is FactorKind.PARALLEL for factor in rule.factors)


def _moved(op: Op, split: DimAxes) -> DimAxes | None:
    """The axes of the result's dims, if an operand with these axes becomes it on each device by itself."""
    rule = factor_rule(op)
    if rule is None:
        return None
    axes = factors_of_dims(rule, rule.operands[0], split)
    after = dims_of_factors(rule, rule.results[0], axes)
    is_whole = after is not None and sum(map(len, after)) == sum(map(len, split))
    return after if is_whole and all(rule.factors[f].kind is FactorKind.PARALLEL for f in axes) else None


def _reads(loops: Iterable[Loop], stacks: Mapping[Value, _Stack], uses: Uses) -> dict[Op, _Read]:
    """The reads of rows of those stacks that nothing else uses. An outer loop comes before those inside of it."""
    parts = {v: _Read(v, stack, ()) for v, stack in stacks.items()}
    found: dict[Op, _Read] = {}
    for loop in loops:
        for op in loop.body.ops:
            part = parts.get(op.operands[0]) if op.name == "dynamic_slice" else None
            if part is None or not _is_read(op, part, loop):
                continue
            found[op] = read = replace(part, places=(*part.places, op.operands[1]))
            views = () if read.is_of_row else uses.users.get(op.result, ())
            for each in views:
                if OPS[each.name].role is InKernels.VIEW and each.result.shape == op.result.shape[1:]:
                    found[each] = parts[each.result] = read
    whole = {read.kept for op, read in found.items() if not read.is_of_row and _is_used(op.result, found, uses)}
    whole |= {v for v in stacks if _is_used(v, found, uses)}
    return {op: read for op, read in found.items() if read.is_of_row and read.kept not in whole}


def _is_used(value: Value, reads: Mapping[Op, _Read], uses: Uses) -> bool:
    return bool(uses.given.get(value)) or any(op not in reads for op in uses.users.get(value, ()))


def _is_read(op: Op, part: _Read, loop: Loop) -> bool:
    """Whether the op reads what a stack, or a part of it, has for an iteration, a known one in each of a loop's."""
    iterations, (kept, place, *_) = loop.trip_count() or 0, op.operands
    counter = part.stack.counters[len(part.places)]
    if op.result.shape != (1, *kept.shape[1:]) or place.type != counter.type or op.result.sharding is not None:
        return False
    found = loop.counted(place, iterations) if iterations else None
    return found is not None and all(0 <= found.at(i) < kept.shape[0] for i in (0, iterations - 1))


class _Rewriter:
    """Writes a function with reads of rows replaced by what makes the row."""

    def __init__(self, function: Function, reads: Mapping[Op, _Read]) -> None:
        self._whole, self._reads = function, reads
        self._same: dict[Value, Value] = {}
        self._rows: dict[Value, Value] = {}
        self._names = Names.beside(function)

    def function(self) -> Function:
        return with_parts(self._whole, body=self._region(self._whole.body))

    def _now(self, value: Value) -> Value:
        return self._same.get(value, value)

    def _region(self, region: Region) -> Region:
        ops: list[Op] = []
        for op in region.ops:
            row = self._rows.get(op.operands[0]) if OPS[op.name].role is InKernels.VIEW else None
            if op in self._reads:
                ops += self._again(op, self._reads[op])
            elif row is not None and row.type == op.result.type and op.result.sharding is None:
                self._same[op.result] = row
            else:
                regions = tuple([self._region(r) for r in op.regions])
                ops.append(with_parts(op, operands=tuple(map(self._now, op.operands)), regions=regions))
        return with_parts(region, ops=tuple(ops), results=tuple(map(self._now, region.results)))

    def _again(self, op: Op, read: _Read) -> Iterator[Op]:
        stack = read.stack
        now = dict(zip(stack.counters, map(self._now, read.places), strict=True))
        for each in stack.ops:
            results = tuple([replace(v, name=self._names.fresh(v.name)) for v in each.results])
            yield with_parts(each, operands=tuple([now.get(v, self._now(v)) for v in each.operands]), results=results)
            now.update(zip(each.results, results, strict=True))
        self._same[op.result] = now.get(stack.update, stack.update)
        if stack.row is not None:
            self._rows[op.result] = now.get(stack.row, stack.row)
