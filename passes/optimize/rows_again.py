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
from ir.program import Function, Op, Program, Region, Value, all_ops, values_within
from passes.factors import dims_of_factors, factor_rule, factors_of_dims
from passes.rewrite import with_parts

_MOVES = frozenset({InKernels.VIEW, InKernels.TRANSPOSITION, InKernels.SLICE, InKernels.ELEMENTS})


def take_rows_again(program: Program) -> Program:
    """The program in which no loop keeps rows that it only moves, if nothing but loops uses them, one in each
    iteration. The stacks are still there, unused."""
    uses = uses_of(program)
    loops = [(op, _loop(op, uses)) for op in all_ops(program) if is_loop(op)]
    on_devices = any(mesh.size > 1 for mesh in program.meshes)
    stacks = {v: s for op, loop in loops for v, s in _stacks(op, loop) if not on_devices or _stays(s.ops)}
    if not stacks:
        return program
    reads = {op: stack for _, loop in loops for op, stack in _reads(loop, stacks)}
    kept = {v for v in stacks if uses.given.get(v) or any(op not in reads for op in uses.users.get(v, ()))}
    reads = {op: stack for op, stack in reads.items() if op.operands[0] not in kept}
    functions = {name: _Rewriter(f, reads).function() for name, f in program.functions.items()}
    return with_parts(program, functions=functions)


@dataclass(frozen=True, slots=True)
class _Stack:
    """What a loop keeps of each of its iterations. `ops` make the `update`, which is a row with a dim of size 1 in
    front, of the loop's `counter` and of values around the loop. If the last of them only adds that dim, `row` is what
    it is added to."""

    update: Value
    counter: Value
    ops: Sequence[Op]
    row: Value | None


def _loop(op: Op, uses: Uses) -> Loop:
    condition, body = op.regions
    return Loop(op.operands, condition, body, lambda v: constant_value(uses.makers.get(v)))


def _stacks(op: Op, loop: Loop) -> Iterator[tuple[Value, _Stack]]:
    """The results of a loop that have a row for each iteration, which the loop only moves."""
    iterations, body = loop.trip_count(), loop.body
    makers = {v: each for each in body.ops for v in each.results}
    for param, result, kept in zip(body.params, body.results, op.results, strict=True) if iterations else ():
        write = makers.get(result) if param.shape else None
        if write is None or write.name != "dynamic_update_slice" or write.operands[0] is not param:
            continue
        _, update, place, *_ = write.operands
        if param.shape[0] != iterations or update.shape != (1, *param.shape[1:]) or place not in body.params:
            continue
        needed = frozenset(reached([update], lambda v: makers[v].operands if v in makers and _moves(makers[v]) else ()))
        ops = [each for each in body.ops if not needed.isdisjoint(each.results)]
        is_counter = loop.counter(body.params.index(place)) == Counter(0, 1)
        if is_counter and needed.isdisjoint({*body.params} - {place}) and all(map(_moves, ops)):
            row = next((each.operands[0] for each in ops[-1:] if _adds_a_dim(each)), None)
            yield kept, _Stack(update, place, ops, row)


def _moves(op: Op) -> bool:
    """Whether the op moves or converts elements, or computes a position."""
    if len(op.results) != 1:
        return False
    declared = OPS[op.name]
    if not op.result.shape and not op.result.dtype.is_continuous and declared.family in ("elementwise", "creation"):
        return True
    return is_conversion(op) or (declared.sources(op) == (0,) and declared.role in _MOVES)


def _adds_a_dim(op: Op) -> bool:
    """Whether the op only adds a dim of size 1 in front."""
    is_of_row = is_repetition(op) and op.result.shape == (1, *op.operands[0].shape)
    return is_of_row and ints_attr(op.attrs, "dims") == tuple(range(1, op.result.type.rank))


def _stays(ops: Iterable[Op]) -> bool:
    """Whether devices move the elements without communication, as far as annotations say. A tensor without one gets
    that of its rows, or may be split along any dim that they have too. Transposes are left to the planner, which may
    split what is kept in a way that suits the products of the way back better."""
    made: dict[Value, DimAxes | None] = {}
    for op in ops:
        if not op.operands or not op.operands[0].shape:
            continue
        if OPS[op.name].role is InKernels.TRANSPOSITION:
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


def _reads(loop: Loop, stacks: Mapping[Value, _Stack]) -> Iterator[tuple[Op, _Stack]]:
    """The ops of a loop that read the row of an iteration."""
    iterations = loop.trip_count() or 0
    for op in loop.body.ops if iterations else ():
        stack = stacks.get(op.operands[0]) if op.name == "dynamic_slice" else None
        if stack is None or op.result.type != stack.update.type or op.operands[1].type != stack.counter.type:
            continue
        place = loop.counted(op.operands[1], iterations)
        ends = (place.at(0), place.at(iterations - 1)) if place is not None else (-1,)
        if all(0 <= n < op.operands[0].shape[0] for n in ends):
            yield op, stack


class _Rewriter:
    """Writes a function with reads of rows replaced by what makes the row."""

    def __init__(self, function: Function, reads: Mapping[Op, _Stack]) -> None:
        self._whole, self._reads = function, reads
        self._same: dict[Value, Value] = {}
        self._rows: dict[Value, Value] = {}
        self._names = Names({v.name for v in values_within(function.body)})

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
            elif row is not None and row.type == op.result.type:
                self._same[op.result] = row
            else:
                regions = tuple([self._region(r) for r in op.regions])
                ops.append(with_parts(op, operands=tuple(map(self._now, op.operands)), regions=regions))
        return with_parts(region, ops=tuple(ops), results=tuple(map(self._now, region.results)))

    def _again(self, read: Op, stack: _Stack) -> Iterator[Op]:
        now = {stack.counter: self._now(read.operands[1])}
        for op in stack.ops:
            results = tuple([replace(v, name=self._names.fresh(v.name)) for v in op.results])
            yield with_parts(op, operands=tuple([now.get(v, self._now(v)) for v in op.operands]), results=results)
            now.update(zip(op.results, results, strict=True))
        self._same[read.result] = now.get(stack.update, stack.update)
        if stack.row is not None:
            self._rows[read.result] = now.get(stack.row, stack.row)
