"""The trip count of a loop whose counter goes in equal steps from one number to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ir.ops.creation import constant_value
from ir.program import Op, Region, Value
from ir.registry import Registry


@dataclass(frozen=True, slots=True)
class Counter:
    """An integer in a loop: its first value, and its increment in each iteration."""

    start: int
    step: int

    def at(self, iteration: int) -> int:
        return self.start + iteration * self.step


@dataclass(frozen=True, slots=True)
class Loop:
    """The parts of a `while`. `number` returns the number that every element of a value around the loop equals, or, if
    that is not known, any other object."""

    initial: Sequence[Value]
    condition: Region
    body: Region
    number: Callable[[Value], object]

    def counter(self, i: int) -> Counter | None:
        """The counter that carried value i is; None if it is none."""
        op, own = _maker(self.body, self.body.results[i]), self.body.params[i]
        start = self._outside(self.initial[i])
        if start is None or op is None or op.name not in ("add", "subtract"):
            return None
        others = [v for v in op.operands if v is not own]
        if len(others) != 1 or (op.name == "subtract" and op.operands[0] is not own):
            return None
        step = self._number(self.body, others[0])
        return Counter(start, -step if op.name == "subtract" else step) if step else None

    def counted(self, value: Value, iterations: int) -> Counter | None:
        """The counter that an integer of the body is: one that is carried, or computed from such without overflow in
        that many iterations. None if it is none."""
        found = self._counted(value, iterations)
        ends = (found.at(0), found.at(max(0, iterations - 1))) if found is not None else ()
        return found if all(value.dtype.lowest <= n <= value.dtype.highest for n in ends) else None

    def _counted(self, value: Value, iterations: int) -> Counter | None:
        if value.type.shape or not value.dtype.is_integer:
            return None
        number = self._number(self.body, value)
        if number is not None:
            return Counter(number, 0)
        if value in self.body.params:
            return self.counter(self.body.params.index(value))
        op = _maker(self.body, value)
        rule = _COUNTERS.get(op.name) if op is not None else None
        operands = [self.counted(v, iterations) for v in op.operands] if op is not None and rule is not None else []
        known = [x for x in operands if x is not None]
        return rule(known) if rule is not None and len(known) == len(operands) else None

    def trip_count(self) -> int | None:
        """How often the body runs; None if that is unknown or infinite."""
        test, params = _maker(self.condition, self.condition.results[0]), self.condition.params
        if test is None or test.name != "compare":
            return None
        direction, (counted, limit) = str(test.attrs["direction"]), test.operands
        if counted not in params or self._number(self.condition, counted) is not None:
            direction, counted, limit = _OTHER_WAY[direction], limit, counted
        end = self._number(self.condition, limit)
        counter = self.counter(params.index(counted)) if counted in params else None
        if counter is None or end is None:
            return None
        trip_count = _trip_count(counter, direction, end)
        low, high = counted.dtype.lowest, counted.dtype.highest
        return (
            trip_count if trip_count is not None and low <= counter.start + trip_count * counter.step <= high else None
        )

    def _number(self, region: Region, value: Value) -> int | None:
        """The number that a value of one of the regions equals in every iteration."""
        if value in region.params:
            i = region.params.index(value)
            return self._outside(self.initial[i]) if self.body.results[i] is self.body.params[i] else None
        maker = _maker(region, value)
        literal = constant_value(maker)
        return _integer(literal) if literal is not None else self._outside(value)

    def _outside(self, value: Value) -> int | None:
        return _integer(self.number(value)) if value.dtype.is_integer else None


def _product(of: Sequence[Counter]) -> Counter | None:
    x, y = of if of[1].step == 0 else of[::-1]
    return Counter(x.start * y.start, x.step * y.start) if y.step == 0 else None


_COUNTERS: Registry[Callable[[Sequence[Counter]], Counter | None]] = Registry(
    {
        "convert": lambda of: of[0],
        "reshape": lambda of: of[0],
        "add": lambda of: Counter(of[0].start + of[1].start, of[0].step + of[1].step),
        "subtract": lambda of: Counter(of[0].start - of[1].start, of[0].step - of[1].step),
        "multiply": _product,
    }
)

_OTHER_WAY = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "EQ": "EQ", "NE": "NE"}


def _trip_count(counter: Counter, direction: str, end: int) -> int | None:
    start, step = counter.start, counter.step
    if direction == "EQ":
        return 1 if start == end else 0
    if direction == "NE":
        trip_count, rest = divmod(end - start, step)
        return trip_count if not rest and trip_count >= 0 else None
    if direction in ("GT", "GE"):
        start, step, end = -start, -step, -end
    room = end - start + (direction in ("LE", "GE"))
    if room <= 0:
        return 0
    return -(-room // step) if step > 0 else None


def _maker(region: Region, value: Value) -> Op | None:
    return next((op for op in region.ops if value in op.results), None)


def _integer(x: object) -> int | None:
    return x if isinstance(x, int) and not isinstance(x, bool) else None
