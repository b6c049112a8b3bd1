"""What follows about the results of ops from the facts about their operands.

For a small tensor whose operands are known, every number is computed. For others an affine range may follow, or bounds.
Each rule is a small function of its op, on exact integers; a number that does not fit the result's type has wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ir.ops.creation import constant_value
from ir.program import Op, Value
from ir.registry import Registry
from passes.optimize.fold.affine import grid_of_op
from passes.optimize.fold.constants import numbers_of_op
from passes.optimize.fold.facts import IntegerFact, bounded, is_counted, limits, of_literal
from passes.optimize.fold.ranges import range_of_op


class FactMap:
    """The facts about the values of a function."""

    def __init__(self) -> None:
        self._known: dict[Value, IntegerFact] = {}

    def of(self, value: Value) -> IntegerFact | None:
        """The fact about a value, at least the bounds of its type; None for values without facts."""
        found = self._known.get(value)
        if found is not None:
            return found
        return IntegerFact(*limits(value.dtype)) if is_counted(value.type) else None

    def number(self, value: Value) -> int | None:
        """The number that every element equals, if known."""
        known = self._known.get(value)
        return known.low if known is not None and known.is_number else None

    def put(self, value: Value, known: IntegerFact | None) -> None:
        if known is not None:
            self._known[value] = known

    def copy(self, value: Value, copy: Value) -> None:
        """Gives a copy the fact about a value."""
        self.put(copy, self._known.get(value))

    def learn(self, op: Op) -> None:
        """Infers the facts about the results of an op."""
        results = op.results
        if is_counted(results[0].type) if len(results) == 1 else any(is_counted(v.type) for v in results):
            operands = [self.of(v) for v in op.operands]
            for value, known in zip(op.results, _infer(op, operands), strict=True):
                self.put(value, known)


def _infer(op: Op, operands: Sequence[IntegerFact | None]) -> Sequence[IntegerFact | None]:
    if len(op.results) > 1:
        several = _SEVERAL.get(op.name)
        return several(op, operands) if several is not None else (None,) * len(op.results)
    literal = constant_value(op)
    if literal is not None:
        return (of_literal(op.result.type, literal),)
    return (numbers_of_op(op, operands) or grid_of_op(op, operands) or range_of_op(op, operands),)


# Ops with several results.


_SEVERAL: Registry[Callable[[Op, Sequence[IntegerFact | None]], Sequence[IntegerFact | None]]] = Registry()


@_SEVERAL.of("reduce", "sort")
def _same_elements(op: Op, operands: Sequence[IntegerFact | None]) -> Sequence[IntegerFact | None]:
    """The elements of each result are elements of one operand."""
    return [_elements_of(known, v) for v, known in zip(op.results, operands, strict=True)]


@_SEVERAL.of("top_k")
def _top_k(op: Op, operands: Sequence[IntegerFact | None]) -> Sequence[IntegerFact | None]:
    values, places = op.results
    last = op.operands[0].shape[-1] - 1
    where = bounded(places.type, 0, last) if is_counted(places.type) and last >= 0 else None
    return _elements_of(operands[0], values), where


def _elements_of(known: IntegerFact | None, value: Value) -> IntegerFact | None:
    return bounded(value.type, known.low, known.high) if known is not None and is_counted(value.type) else None
