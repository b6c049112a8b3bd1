"""How random programs (`spmdc.testing`) draw the ops that compute each element by itself."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from ir.ops.elementwise import DIRECTIONS
from ir.program import Value
from ir.types import DTYPES, DType, TensorType, pred
from spmdc.verification.random_programs.writer import Write, Writer, any_value, growth

_UNARY: dict[str, Callable[[DType], bool]] = {
    "negate": lambda t: t != pred,
    "stop_gradient": lambda t: True,
    "abs": lambda t: t.kind in ("signed", "float"),
    "sign": lambda t: t.kind in ("signed", "float"),
    "not": lambda t: t.is_integer or t == pred,
    "popcnt": lambda t: t.is_integer,
    "count_leading_zeros": lambda t: t.is_integer,
    "floor": lambda t: t.is_float,
    "ceil": lambda t: t.is_float,
    "round_nearest_even": lambda t: t.is_float,
    "round_nearest_afz": lambda t: t.is_float,
}
_ADDING: dict[str, Callable[[DType], bool]] = {
    "add": lambda t: t != pred,
    "subtract": lambda t: t != pred,
    "multiply": lambda t: t != pred,
}
_BINARY: dict[str, Callable[[DType], bool]] = {
    "maximum": lambda t: t.is_ordered,
    "minimum": lambda t: t.is_ordered,
    "and": lambda t: t.is_integer or t == pred,
    "or": lambda t: t.is_integer or t == pred,
    "xor": lambda t: t.is_integer or t == pred,
}
_OF_INTEGERS = (
    "divide", "power", "remainder", "shift_left", "shift_right_arithmetic", "shift_right_logical",
)  # fmt: skip
_FUNCTIONS = (
    "cbrt", "cosine", "erf", "exponential", "exponential_minus_one", "log", "log_plus_one", "logistic", "rsqrt", "sine",
    "sqrt", "tan", "tanh",
)  # fmt: skip
_FUNCTIONS_OF_TWO = ("atan2", "power", "remainder")


def unary(w: Writer) -> None:
    x = w.pick(any_value)
    names = [n for n, accepts in _UNARY.items() if accepts(x.dtype)]
    w.keep(w.b.op(w.draw(st.sampled_from(names)), x), w.bounds[x])


def binary(w: Writer) -> None:
    x = w.pick(lambda v: v.dtype.is_ordered or w.adds(v))
    y = w.pick(lambda v: v.type == x.type)
    table = {**_ADDING, **_BINARY} if w.adds(x) else _BINARY
    name = w.draw(st.sampled_from([n for n, accepts in table.items() if accepts(x.dtype)]))
    a, c = w.bounds[x], w.bounds[y]
    w.keep(w.b.op(name, x, y), growth(x.dtype) * a * c if name == "multiply" else a + c)


def integers(w: Writer) -> None:
    x = w.pick(lambda v: v.dtype.is_integer)
    y = w.pick(lambda v: v.type == x.type)
    w.keep(w.b.op(w.draw(st.sampled_from(_OF_INTEGERS)), x, y), 2**x.dtype.bits)


def compare_select(w: Writer) -> None:
    x = w.pick()
    y = w.pick(lambda v: v.type == x.type)
    which = w.b.op("compare", x, y, direction=w.draw(st.sampled_from(DIRECTIONS)))
    if w.draw(st.booleans()):
        w.keep(which, 1)
        return
    if w.has(_is_truth) and w.draw(st.booleans()):
        which = w.pick(_is_truth)
        x = w.pick(any_value)
    other = w.pick(lambda v: v.shape == x.shape)
    second = w.pick(lambda v: v.type == other.type)
    w.keep(w.b.op("select", which, other, second), max(w.bounds[other], w.bounds[second]))


def _is_truth(value: Value) -> bool:
    return value.type == TensorType((), pred)


def clamp(w: Writer) -> None:
    """Between two numbers, or between the elements of other tensors, whose lower bound may exceed the upper."""
    x = w.pick(lambda v: v.dtype.is_ordered and v.dtype != pred)
    if w.draw(st.booleans()):
        low, high = (w.constant(n, TensorType((), x.dtype)) for n in (1, 2))
        w.keep(w.b.op("clamp", low, x, high), 2)
        return
    low, high = (w.pick(lambda v: v.type in (x.type, TensorType((), x.dtype))) for _ in range(2))
    w.keep(w.b.op("clamp", low, x, high), max(w.bounds[v] for v in (low, x, high)))


def convert(w: Writer) -> None:
    x = w.pick(any_value)
    dtype = w.draw(st.sampled_from([t for t in DTYPES.values() if t in w.choices.dtypes]))
    if not x.dtype.is_integer and dtype.kind == "unsigned" and not w.anything:
        return
    bound = 1 if x.dtype == pred else 2**x.dtype.bits if x.dtype.is_integer else w.bounds[x]
    w.keep(w.b.op("convert", x, dtype=dtype), bound)


def is_finite(w: Writer) -> None:
    x = w.pick(lambda v: v.dtype.is_float)
    w.keep(w.b.op("is_finite", x), 1)


def function(w: Writer) -> None:
    """Functions of floats, whose results are not integers."""
    x = w.pick(lambda v: v.dtype.is_float)
    w.keep(w.b.op(w.draw(st.sampled_from(_FUNCTIONS)), x), 0)


def function_of_two(w: Writer) -> None:
    x = w.pick(lambda v: v.dtype.is_float)
    y = w.pick(lambda v: v.type == x.type)
    w.keep(w.b.op(w.draw(st.sampled_from(_FUNCTIONS_OF_TWO)), x, y), 0)


WRITERS: tuple[Write, ...] = (
    unary, unary, binary, binary, integers, compare_select, clamp, convert, is_finite,
)  # fmt: skip
FUNCTIONS: tuple[Write, ...] = (*(function,) * 6, *(function_of_two,) * 2)
"""For arbitrary numbers only, and not to be compared with other machines' results, because no two round equally."""
