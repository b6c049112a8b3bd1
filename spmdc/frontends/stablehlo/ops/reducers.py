"""Analyses regions of scalars: the bodies of reduce, scatter and windows, and the comparators of sorts.

A region is read as expressions over its arguments, which are compared with the forms of supported reductions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from jaxlib.mlir import ir as mlir

from ir.sharding import ReductionKind
from ir.types import DType, pred
from spmdc.frontends.stablehlo.attributes import element_type, literal, tensor_type, text_of, word_of

Expr: TypeAlias = tuple[Any, ...]
"""`("arg", i)`, `("number", n)`, `(op, detail, operand, …)`, or `("unknown", what)` for anything else."""

_COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})
_TRANSPARENT = frozenset({"reshape", "broadcast_in_dim", "copy", "sharding_constraint"})
_KINDS: dict[str, ReductionKind] = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "and": "and", "or": "or",
}  # fmt: skip
_PRED_KINDS: dict[str, ReductionKind] = {
    "add": "or", "multiply": "and", "maximum": "or", "minimum": "and", "and": "and", "or": "or",
}  # fmt: skip
_MIRRORED = {"GT": "LT", "GE": "LE"}


def arg(i: int) -> Expr:
    return ("arg", i)


def expressions(region: mlir.Region) -> list[Expr]:
    """The results of the region. Constants may be in front of the region's op, where jax.export puts them."""
    block = region.blocks[0]
    known: dict[Any, Expr] = {a: arg(i) for i, a in enumerate(block.arguments)}
    for view in block.operations:
        op = view.operation
        operands = [known[v] if v in known else _outside(v) for v in op.operands]
        if op.name.endswith(".return"):
            return operands
        expression = _expression(op, operands)
        known.update((r, expression) for r in op.results)
    return []


def _outside(value: mlir.Value[Any]) -> Expr:
    maker = constant_of(value)
    return ("unknown", "a value from outside") if maker is None else _expression(maker, [])


def constant_of(value: mlir.Value[Any]) -> mlir.Operation | None:
    """The op that makes a value, if it is a constant."""
    owner = value.owner
    if isinstance(owner, mlir.Block):
        return None
    maker = owner.operation
    return maker if maker.name.endswith(".constant") else None


def _expression(op: mlir.Operation, operands: Sequence[Expr]) -> Expr:
    name = op.name.partition(".")[2]
    if len(op.results) != 1 or len(op.regions):
        return ("unknown", op.name)
    if name == "constant":
        array = literal(op, tensor_type(op.results[0].type, None))
        return _number(array.item()) if array.size == 1 else ("unknown", op.name)
    if name in _TRANSPARENT or (name == "custom_call" and text_of(op.attributes["call_target_name"]) == "Sharding"):
        return operands[0]
    if name in ("convert", "bitcast_convert"):
        return (name, element_type(op.results[0].type.element_type, None), *operands)
    if name == "compare":
        total = "compare_type" in op.attributes and word_of(op.attributes["compare_type"]) == "TOTALORDER"
        return compare(word_of(op.attributes["comparison_direction"]), *operands, total=total)
    if name in _COMMUTATIVE:
        operands = sorted(operands, key=repr)
    return (name, None, *operands)


_NAN = "nan"
"""Represents NaN in an expression, because a NaN equals nothing."""


def _number(value: Any) -> Expr:
    return ("number", value if value == value else _NAN)


def binary_kind(expression: Expr, first: int, second: int, dtype: DType) -> ReductionKind | None:
    """The reduction that combines two arguments in this way; sums may be computed in a wider type and rounded back."""
    kinds = _PRED_KINDS if dtype == pred else _KINDS
    if expression[0] == "convert" and expression[1] == dtype:
        inner = expression[2]
        assert isinstance(inner, tuple)
        if all(isinstance(o, tuple) and o[0] == "convert" for o in inner[2:]):
            return binary_kind((inner[0], inner[1], *(o[2] for o in inner[2:])), first, second, dtype)
    if expression[0] in kinds and set(expression[2:]) == {arg(first), arg(second)}:
        return kinds[str(expression[0])]
    return None


def compare(direction: str, a: Expr, b: Expr, *, total: bool = False) -> Expr:
    """A comparison in its canonical form: its direction is EQ, NE, LT or LE; `total` says whether it is by total
    order."""
    if direction in _MIRRORED:
        direction, a, b = _MIRRORED[direction], b, a
    elif direction in ("EQ", "NE"):
        a, b = sorted((a, b), key=repr)
    return ("compare", (direction, total), a, b)


def _logical(name: str, a: Expr, b: Expr) -> Expr:
    return (name, None, *sorted((a, b), key=repr))


def extreme_index_kind(values: Sequence[Expr]) -> str | None:
    """argmax or argmin, if the two expressions over (value, index, other value, other index) are in JAX's form, or in
    one of spmdc's, in which the first of several NaNs wins too: for indices that are counted, and for any."""
    if len(values) != 2:
        return None
    a, i, b, j = map(arg, range(4))
    for kind, direction in (("argmax", "GT"), ("argmin", "LT")):
        better = compare(direction, a, b)
        for first in (_logical("or", better, compare("NE", a, a)), better):
            tie = _logical("and", compare("EQ", a, b), compare("LT", i, j))
            wanted = [("select", None, first, a, b), ("select", None, _logical("or", first, tie), i, j)]
            if list(values) == wanted:
                return kind
        a_nan, b_nan = compare("NE", a, a), compare("NE", b, b)
        level = _logical("or", compare("EQ", a, b), _logical("and", a_nan, b_nan))
        ahead = ("select", None, _logical("or", better, a_nan), i, j)
        index = ("select", None, level, _logical("minimum", i, j), ahead)
        if list(values) == [("select", None, compare("EQ", index, i), a, b), index]:
            return kind
        ahead = _logical("or", better, _logical("and", a_nan, compare("EQ", b, b)))
        first = _logical("or", ahead, _logical("and", level, compare("LT", i, j)))
        if list(values) == [("select", None, first, a, b), ("select", None, first, i, j)]:
            return kind
    return None


@dataclass(frozen=True, slots=True)
class SortKey:
    """A key of a sort: an expression over one element, and how two are compared.

    `order` is "total" for floats that are compared by all their bits, else "".
    """

    expression: Expr
    descending: bool
    order: str


def sort_keys(comparator: Expr) -> list[SortKey] | None:
    """The keys of a comparator over (a0, b0, a1, b1, …), the first being the most significant. None if it is no order
    by keys."""
    strict = _strict_key(comparator)
    if strict is not None:
        return [strict]
    for first, equal, below in _by_first_key(comparator):
        key = _strict_key(first)
        if key is not None and _is_tie(equal, key):
            others = sort_keys(below)
            return None if others is None else [key, *others]
    return None


def _by_first_key(comparator: Expr) -> Iterator[tuple[Expr, Expr, Expr]]:
    """Candidates for the order by the first key, its ties, and the order of ties by the other keys: from `select(equal,
    below, first)`, and from `first or (equal and below)`, in all equivalent forms."""
    if comparator[0] == "select":
        which, below, above = comparator[2:]
        yield above, which, below
    if comparator[0] == "or":
        for first, rest in (comparator[2:], comparator[:1:-1]):
            if isinstance(rest, tuple) and rest[0] == "and":
                yield first, rest[2], rest[3]
                yield first, rest[3], rest[2]


def _strict_key(expression: object) -> SortKey | None:
    if not isinstance(expression, tuple) or expression[0] != "compare":
        return None
    (direction, total), left, right = expression[1:]
    if direction != "LT":
        return None
    order = "total" if total else ""
    if _shifted(left) == right and _parities(left) == {0}:
        return SortKey(left, False, order)
    if _shifted(right) == left and _parities(right) == {0}:
        return SortKey(right, True, order)
    return None


def _is_tie(expression: object, key: SortKey) -> bool:
    if not isinstance(expression, tuple) or expression[0] != "compare" or expression[1][0] != "EQ":
        return False
    return set(expression[2:]) == {key.expression, _shifted(key.expression)}


def _shifted(expression: object) -> object:
    """The same expression over the other of two compared elements."""
    if not isinstance(expression, tuple):
        return expression
    if expression[0] == "arg":
        return arg(int(expression[1]) + 1)
    shifted = (expression[0], expression[1], *(map(_shifted, expression[2:])))
    is_symmetric = expression[0] == "compare" and expression[1][0] in ("EQ", "NE")
    if is_symmetric or expression[0] in _COMMUTATIVE:
        return (*shifted[:2], *sorted(shifted[2:], key=repr))
    return shifted


def _parities(expression: object) -> set[int]:
    """0 if the first of two compared elements occurs, 1 if the second."""
    if not isinstance(expression, tuple):
        return set()
    if expression[0] == "arg":
        return {int(expression[1]) % 2}
    return set().union(*map(_parities, expression[2:]))


_ELEMENTWISE = frozenset(
    {
        "abs", "add", "and", "bitcast_convert", "ceil", "clamp", "compare", "convert", "divide", "exponential", "floor",
        "imag", "log", "maximum", "minimum", "multiply", "negate", "not", "or", "power", "real", "remainder", "select",
        "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sqrt", "subtract", "tanh", "xor",
    }
)  # fmt: skip


def is_elementwise(expression: Expr) -> bool:
    """Whether the expression, over one element, can be computed by ops on all elements at once."""
    if expression[0] == "arg":
        return True
    parts = [part for part in expression[2:] if part[0] != "number"]
    typed = [part for part in expression[3:] if part[0] != "number"] if expression[0] == "select" else parts
    return expression[0] in _ELEMENTWISE and bool(typed) and all(map(is_elementwise, parts))


def arguments(expression: object) -> set[int]:
    """The arguments that occur in an expression."""
    if not isinstance(expression, tuple):
        return set()
    if expression[0] == "arg":
        return {int(expression[1])}
    return set().union(*map(arguments, expression[2:]))


def canonical_operand(expression: Expr) -> int | None:
    """The argument of JAX's key of a float, in which -0.0 becomes 0.0, and every NaN the same NaN. None for any other
    expression."""
    found = arguments(expression)
    if len(found) != 1:
        return None
    (i,) = found
    x, zero = arg(i), ("number", 0.0)
    if expression[0] != "select" or expression[2] != compare("NE", x, x):
        return None
    nan = expression[3]
    is_nan = nan == ("number", _NAN)
    zeroed = ("select", None, compare("EQ", x, zero), zero, x)
    return i if is_nan and expression[4] == zeroed else None
