"""Rewrites a function op by op: known results are folded, rules replace ops by simpler ones, small functions are
inlined, and so is the region of a conditional that is known to run.

An op is written after its operands, so that one walk in program order is enough: a rule sees operands in their final
form, and the ops that it writes are rewritten in turn. Values keep their names, spans and annotations. A value with an
annotation is never looked through and never dropped, because propagation starts from it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ir.builder import Names, infer_types
from ir.dataflow import uses_within
from ir.diagnostics import Span
from ir.ops.control import is_call, is_choice, is_loop
from ir.ops.creation import constant_value, is_made_of_nothing
from ir.ops.layout import ANNOTATION, is_annotation, is_hint
from ir.program import Attr, Function, Op, Region, Value, callee_of
from ir.types import TensorType
from passes.optimize.fold.facts import AffineRange, bounded, is_counted, literal_of, numbers_of
from passes.optimize.fold.infer import FactMap

Bounds = tuple[int, int]

Rule = Callable[["Rewriter", Op], "Value | None"]
"""Returns a value that equals the only result of an op, an existing one or one that it writes; None if it finds
none."""


class Rewriter:
    """Rewrites one function. `inlined` has the functions, already rewritten, that are inlined at their calls; `devices`
    is the number of devices that the program is for, as far as it is known. Known values become constants if it
    `folds`."""

    def __init__(
        self,
        function: Function,
        rules: Mapping[str, Rule],
        inlined: Mapping[str, Function],
        devices: int = 1,
        *,
        folds: bool = True,
    ) -> None:
        self.folds = folds
        self.rewritten = False
        """Whether anything was rewritten."""
        self.rules = rules
        self.inlined = inlined
        self.devices = devices
        self.names = Names.beside(function)
        self.facts = FactMap()
        self._ops: list[Op] = []
        self._same: dict[Value, Value] = {}
        self._makers: dict[Value, Op] = {}
        self._uses = _uses_in(function.body)
        """How often each value is used, or more often: ops that turn out to be unused are counted."""
        self._span: Span | None = None
        self._fallback: Span | None = None
        """The span for ops of an inlined function that have none: that of the call."""
        self._copying = 0

    def region(self, region: Region, bounds: Mapping[int, Bounds] | None = None) -> Region:
        """The rewritten region. `bounds` has those of some of its parameters, by number."""
        params = tuple([self._copied(p) for p in region.params]) if self._copying else region.params
        for i, (low, high) in (bounds or {}).items():
            self.facts.put(params[i], bounded(params[i].type, low, high))
        outer, self._ops = self._ops, []
        for op in region.ops:
            self._op(op)
        ops, self._ops = self._ops, outer
        return Region(params, tuple(ops), tuple([self._now(v) for v in region.results]))

    # For rules.

    def maker(self, value: Value, name: str = "") -> Op | None:
        """The op that makes a value, if it has that name and its result is not annotated."""
        if value.sharding is not None:
            return None
        op = self._makers.get(value)
        return op if op is not None and (not name or op.name == name) else None

    def is_used_once(self, value: Value) -> bool:
        """Whether only one op that is written uses the value, once."""
        return self._uses[value] == 1

    def behind(self, value: Value, name: str) -> Op | None:
        """The op of that name that makes a value, whether or not it is annotated. A replacement must be `annotated`
        like the value. Sharding groups and propagation barriers are not looked through."""
        op = self._makers.get(value)
        while op is not None and is_annotation(op) and not is_hint(op):
            op = self._makers.get(op.operands[0])
        return op if op is not None and op.name == name else None

    def annotated(self, value: Value, like: Value) -> Value:
        """The value with the annotation of `like`, a value of the same rank."""
        if like.sharding is None:
            return value
        result = Value(self.names.fresh(value.name), value.type, like.sharding, self._span)
        self._append(Op("shard", (value,), (result,), ANNOTATION, span=self._span))
        return result

    def write(self, name: str, *operands: Value, **attrs: Attr) -> Value:
        """The result of a new op, or the value that the op is rewritten to."""
        (type,) = infer_types(name, [v.type for v in operands], attrs, self._span)
        result = Value(self.names.fresh(name), type, None, self._span)
        self._uses.update(operands)
        return self._settled(Op(name, operands, (result,), attrs, span=self._span))

    def full(self, number: complex | float | int | bool, type: TensorType) -> Value:
        """A tensor filled with one number."""
        return self.write("constant", value=number, type=type)

    def splat(self, value: Value) -> complex | float | int | bool | None:
        """The number that every element of a value equals, if known."""
        number = self.facts.number(value)
        if number is not None:
            return bool(number) if value.dtype.kind == "pred" else number
        found = constant_value(self.maker(value))
        return found if isinstance(found, bool | int | float | complex) else None

    def is_number(self, value: Value, number: complex | None) -> bool:
        """Whether every element of a value is known to be this number. Zeros of different signs are different."""
        known = self.splat(value)
        if known is None or number is None or known != number:
            return False
        parts = zip((known.real, known.imag), (number.real, number.imag), strict=True)
        return all(math.copysign(1, a) == math.copysign(1, b) for a, b in parts)

    # The walk.

    def _now(self, value: Value) -> Value:
        while (same := self._same.get(value)) is not None:
            value = same
        return value

    def _op(self, op: Op) -> None:
        self._span = op.span or self._fallback
        operands = tuple([self._now(v) for v in op.operands])
        callee = self._inlined(op)
        if callee is not None:
            self._inline(op, callee, operands)
            return
        if self.folds and is_loop(op) and op.attrs["trip_count"] in (0, 1):
            self._unroll(op, operands)
            return
        chosen = self._chosen(op, operands)
        if chosen is not None:
            self._write_out(op, chosen)
            return
        results = tuple(self._copied(v) for v in op.results) if self._copying else op.results
        regions = self._loop(op, operands, results) if is_loop(op) else tuple(map(self.region, op.regions))
        if operands != op.operands or results is not op.results or regions or op.span is None:
            op = Op(op.name, operands, results, op.attrs, regions, self._span, op.cause)
        self._replace(op)

    def _replace(self, op: Op) -> None:
        """Writes the op, or records the value that replaces its only result. A new op that makes this value takes over
        the result's name, unless that name was derived from the op's."""
        count = len(self._ops)
        if len(op.results) != 1:
            self._append(op)
            return
        found, result = self._settled(op), op.result
        if found is result:
            return
        last = self._ops[-1] if len(self._ops) > count else None
        named = result.sharding is not None or result.name.partition(".")[0] != op.name
        if named and last is not None and last.results == (found,) and found.sharding is None:
            self._ops[-1] = self._makers[result] = replace(last, results=(result,))
            self.facts.copy(found, result)
        else:
            self._stand_in(op, result, found)

    def _stand_in(self, op: Op, result: Value, by: Value) -> None:
        """Replaces a result by a value, annotated as the result was."""
        if result.sharding is None:
            self._put_in_place(result, by, is_used_there=by in op.operands or bool(op.regions) or is_call(op))
        else:
            self._append(Op("shard", (by,), (result,), ANNOTATION, span=op.span, cause=op.cause))

    def _put_in_place(self, value: Value, by: Value, *, is_used_there: bool) -> None:
        """Takes another value in place of one. If the other one was used to make it, it no longer is."""
        self._same[value] = by
        self._uses[by] += self._uses[value] - is_used_there

    def _stand_in_each(self, op: Op, values: Sequence[Value]) -> None:
        """Replaces the results of an op that is not written itself."""
        for result, value in zip(op.results, values, strict=True):
            is_copied = self._copying and result.sharding is not None
            self._stand_in(op, self._copied(result) if is_copied else result, value)

    def _settled(self, op: Op) -> Value:
        """The value of the op's only result. The op is written if nothing simpler is found."""
        self.facts.learn(op)
        found = self._folded(op)
        if found is None:
            rule = self.rules.get(op.name)
            found = rule(self, op) if rule is not None else None
        if found is not None:
            self.rewritten = True
            return found
        self._append(op)
        return op.result

    def _append(self, op: Op) -> None:
        if len(op.results) > 1:
            self.facts.learn(op)
        self._ops.append(op)
        for value in op.results:
            self._makers[value] = op

    def _folded(self, op: Op) -> Value | None:
        """A constant or an iota for a known result. Other affine ranges are left as they are."""
        if not self.folds or is_made_of_nothing(op) or is_annotation(op) or op.regions:
            return None
        if not is_counted(op.result.type):
            return None
        type, known = op.result.type, self.facts.of(op.result)
        assert known is not None
        if known.is_number:
            return self.full(bool(known.low) if type.dtype.kind == "pred" else known.low, type)
        if known.grid is not None:
            return self._counted(type, known.grid)
        numbers = numbers_of(known, type)
        if numbers is None:
            return None
        value = literal_of(numbers.tolist(), bool if type.dtype.kind == "pred" else int)
        return self.write("constant", value=value, type=type)

    def _counted(self, type: TensorType, grid: AffineRange) -> Value | None:
        dims = [d for d, step in enumerate(grid.steps) if step]
        if grid.start or len(dims) != 1 or grid.steps[dims[0]] != 1 or type.dtype.kind == "pred":
            return None
        return self.write("iota", type=type, dim=dims[0])

    # Loops.

    def _counters(self, op: Op, operands: Sequence[Value]) -> dict[int, tuple[Bounds, Bounds]]:
        """The carried values, by number, that a loop of known trip count changes by a known step from a known start,
        with the bounds of what the condition sees, the last of which is the result, and the bounds of what the body
        sees."""
        trips, body = op.attrs["trip_count"], op.regions[1]
        if not isinstance(trips, int):
            return {}
        found: dict[int, tuple[Bounds, Bounds]] = {}
        for i, start in enumerate(operands):
            first, step = self.facts.number(start), self._step(body, i)
            if first is not None and step is not None:
                last = first + step * trips
                found[i] = (first, last), (first, last - step if trips else last)
        return found

    def _loop(self, op: Op, operands: Sequence[Value], results: Sequence[Value]) -> tuple[Region, ...]:
        counters = self._counters(op, operands)
        condition, body = op.regions
        for i, ((_, last), _) in counters.items():
            self.facts.put(results[i], bounded(results[i].type, last, last))
        return (
            self.region(condition, {i: bounds for i, (bounds, _) in counters.items()}),
            self.region(body, {i: bounds for i, (_, bounds) in counters.items()}),
        )

    def _unroll(self, op: Op, operands: Sequence[Value]) -> None:
        """Writes what a loop of one iteration or none computes. With its counter known, other compilers would no longer
        find that it has one iteration."""
        if op.attrs["trip_count"]:
            body = op.regions[1]
            for param, operand in zip(body.params, operands, strict=True):
                self._put_in_place(param, self.annotated(operand, param), is_used_there=True)
            self._write_out(op, body)
            return
        self._stand_in_each(op, operands)

    def _write_out(self, op: Op, region: Region) -> None:
        """Writes what a region computes in place of the op that has it."""
        self.rewritten = True
        for inner in region.ops:
            self._op(inner)
        self._stand_in_each(op, [self._now(v) for v in region.results])

    def _step(self, body: Region, i: int) -> int | None:
        """The step by which a loop's body, not rewritten yet, increments a value that it carries."""
        makers = {v: op for op in body.ops for v in op.results}
        made, given = body.results[i], dict[Value, Value]()
        while (op := makers.get(made)) is not None and (callee := self._inlined(op)) is not None:
            inside = callee.body.results[op.results.index(made)]
            given.update(zip(callee.params, [given.get(v, v) for v in op.operands], strict=True))
            makers.update((v, inner) for inner in callee.body.ops for v in inner.results)
            made = given.get(inside, inside)
        if op is None or op.name != "add":
            return None
        terms = [given.get(v, v) for v in op.operands]
        if body.params[i] not in terms:
            return None
        other = terms[1 - terms.index(body.params[i])]
        constant = makers.get(other)
        if constant is None:
            return self.facts.number(self._now(other))
        value = constant_value(constant)
        return value if isinstance(value, int) else None

    # Conditionals.

    def _chosen(self, op: Op, operands: Sequence[Value]) -> Region | None:
        """The region of a conditional that runs, if that is known."""
        if not self.folds or not is_choice(op):
            return None
        *others, last = op.regions
        if not others:
            return last
        index = self.facts.number(operands[0])
        if index is None:
            return None
        return others[index] if 0 <= index < len(others) else last

    # Calls.

    def _inlined(self, op: Op) -> Function | None:
        """The callee, if it is inlined at this call."""
        return self.inlined.get(callee_of(op) or "") if is_call(op) else None

    def _inline(self, op: Op, callee: Function, operands: Sequence[Value]) -> None:
        before, self._fallback = self._fallback, op.span
        self._copying += 1
        self._uses.update(_uses_in(callee.body))
        for param, operand in zip(callee.params, operands, strict=True):
            self._put_in_place(param, operand, is_used_there=True)
        for inner in callee.body.ops:
            self._op(inner)
        self._copying -= 1
        self._fallback = before
        self._stand_in_each(op, [self._now(v) for v in callee.body.results])

    def _copied(self, value: Value) -> Value:
        """A value of an inlined function under a new name."""
        copy = Value(self.names.fresh(value.name), value.type, value.sharding, value.span, value.of)
        self._same[value], self._uses[copy] = copy, self._uses[value]
        return copy


def _uses_in(region: Region) -> Counter[Value]:
    """How often each value is used in a region, and in those inside it."""
    known = uses_within(region)
    return Counter({value: known.count(value) for value in (*known.users, *known.given)})
