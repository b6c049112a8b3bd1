"""Arithmetic at compile time: consts, dims, attributes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from ir.diagnostics import Span, error
from ir.types import DType
from spmdc.frontends.spmd.items import Item, Number, describe

_MAX_BITS = 256
_FLOATS = "a float reaches further: write 2.0 for 2"
_POSITIVE = "it takes a positive number, as max(1, n) is"
_DOMAINS = {
    "log2": _POSITIVE,
    "log": _POSITIVE,
    "rsqrt": _POSITIVE,
    "sqrt": "it takes a number that is not negative, as max(0, n) is",
    "cdiv": "the divisor must not be zero, as max(1, n) is not",
}

WORDS: dict[str, Number] = {"true": True, "false": False, "inf": math.inf, "nan": math.nan}
"""Names of numbers that are defined everywhere."""

_PLAIN: dict[str, Callable[[Number, Number], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_BITWISE: dict[str, Callable[[int, int], int]] = {"&": operator.and_, "|": operator.or_, "^": operator.xor}


def fold_infix(op: str, a: Number, b: Number, span: Span) -> Number:
    """`a op b`. Raises SpmdcError (E204) if integers do not divide evenly or numbers grow too large."""
    if op in _BITWISE:
        if isinstance(a, float) or isinstance(b, float):
            raise error("E204", f"{op!r} takes integers, not {a} and {b}", span, help="floor(x) makes an integer of x")
        return _BITWISE[op](a, b)
    if op in _PLAIN:
        return _checked(_PLAIN[op](a, b), span)
    if op == "**":
        return _power(a, b, span)
    if b == 0:
        help_text = "max(1, n) is a divisor that is never zero, if n can be 0"
        raise error("E204", f"{a} {op} 0 divides by zero", span, help=help_text)
    if op == "/":
        return _quotient(a, b, span)
    return _checked(a // b if op == "//" else a % b, span)


def _quotient(a: Number, b: Number, span: Span) -> Number:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    if a % b:
        raise error("E204", f"{b} does not divide {a}", span, help="`//` divides and rounds down")
    return a // b


def _power(a: Number, b: Number, span: Span) -> Number:
    if isinstance(a, int) and isinstance(b, int) and b >= 0:
        if a.bit_length() * b > _MAX_BITS:
            raise error("E204", f"{a} ** {b} has more than {_MAX_BITS} bits", span, help=_FLOATS)
        return int(a**b)
    try:
        return math.pow(a, b)
    except (OverflowError, ZeroDivisionError, ValueError):
        help_text = "the base must be positive, or the exponent an integer, and the result below 1.8e308"
        raise error("E204", f"{a} ** {b} is no finite real number", span, help=help_text) from None


def _checked(value: Number, span: Span) -> Number:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise error("E204", f"the number has more than {_MAX_BITS} bits", span, help=_FLOATS)
    return value


def fold_prefix(op: str, a: Number, span: Span) -> Number:
    """`-a` or `~a`; `~` negates a boolean."""
    if op == "-":
        return -a
    if isinstance(a, bool):
        return not a
    if isinstance(a, float):
        raise error("E204", f"'~' takes an integer, not {a}", span, help="floor(x) makes an integer of x")
    return ~a


def _log2(a: Number) -> Number:
    exact = int(a).bit_length() - 1
    return exact if isinstance(a, int) and a == 1 << exact else math.log2(a)


FUNCTIONS: dict[str, tuple[int | None, Callable[..., Number]]] = {
    "max": (None, lambda *a: max(a)),
    "min": (None, lambda *a: min(a)),
    "maximum": (2, max),
    "minimum": (2, min),
    "abs": (1, abs),
    "cdiv": (2, lambda a, b: -(-a // b)),
    "gcd": (2, lambda a, b: math.gcd(int(a), int(b))),
    "log2": (1, _log2),
    "sqrt": (1, math.sqrt),
    "exp": (1, math.exp),
    "log": (1, math.log),
    "rsqrt": (1, lambda a: 1 / math.sqrt(a)),
    "floor": (1, lambda a: math.floor(a)),
    "ceil": (1, lambda a: math.ceil(a)),
    "prod": (None, lambda *a: math.prod(a)),
    "sum": (None, lambda *a: sum(a)),
}
"""Functions of numbers, with the number of arguments; None for any number of them, or a list."""


def fold_call(name: str, items: Sequence[Item], span: Span) -> Number:
    """A function of numbers. Raises SpmdcError (E203, E204)."""
    count, function = FUNCTIONS[name]
    numbers = [i for item in items for i in (item if isinstance(item, tuple) else (item,))]
    if not numbers or (count is not None and len(numbers) != count):
        raise error(
            "E203",
            f"{name} takes {count or 'at least one'} numbers, and is given {len(numbers)}",
            span,
            help=f"of tensors, {name} takes tensors: those of the program",
        )
    for n in numbers:
        if not isinstance(n, int | float):
            raise error(
                "E207", f"{name} of numbers is given {describe(n)} too", span, help="give numbers only, or tensors only"
            )
    try:
        return function(*numbers)
    except (ValueError, ZeroDivisionError, OverflowError):
        help_text = _DOMAINS.get(name, "the result must be a finite number")
        message = f"{name}({', '.join(map(str, numbers))}) is no number"
        raise error("E204", message, span, help=help_text) from None


def is_known(item: Item) -> bool:
    """Whether an item is a number or an element type, or a list of some."""
    return all(map(is_known, item)) if isinstance(item, tuple) else isinstance(item, int | float | DType)


def fold_choice(items: Sequence[Item], spans: Sequence[Span]) -> Item:
    """`where(c, a, b)` of known items: a, or b if c is 0. Raises SpmdcError (E207)."""
    chooser, on_true, on_false = items
    if not isinstance(chooser, int | float):
        raise error(
            "E207",
            f"the condition must be a number, and is {describe(chooser)}",
            spans[0],
            help="give a number, true or false; or three tensors",
        )
    return on_true if chooser else on_false
