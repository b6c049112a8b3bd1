"""Algebraic simplification of elementwise ops that are identities or select a known operand. Exact to the bit, NaN,
both zeros and overflow included."""

from __future__ import annotations

import numpy as np

from ir.ops.elementwise import COMPARES
from ir.ops.rule_helpers import ints_attr
from ir.program import Op, Value
from ir.registry import Registry
from ir.types import DType, s32
from passes.optimize.fold.facts import limits
from passes.optimize.fold.rewriter import Rewriter, Rule
from passes.optimize.fold.sums_of_pads import sum_in_a_row

RULES: Registry[Rule] = Registry()


@RULES.of("add")
def _add(r: Rewriter, op: Op) -> Value | None:
    """For floats, only -0.0 is an identity: 0.0 added to -0.0 is 0.0."""
    x, y = op.operands
    return x if _is_zero(r, y, -0.0) else y if _is_zero(r, x, -0.0) else sum_in_a_row(r, op)


@RULES.of("subtract")
def _subtract(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    return x if _is_zero(r, y, 0.0) else None


def _is_zero(r: Rewriter, value: Value, zero: float) -> bool:
    """Whether all elements are zero, for floats with the sign of `zero`."""
    return not value.dtype.is_complex and r.is_number(value, zero if value.dtype.is_float else 0)


@RULES.of("reduce")
def _sum_of_negated(r: Rewriter, op: Op) -> Value | None:
    """The sum of negated numbers is the sum of the numbers, taken from 0.0: no sum that begins with 0.0 is -0.0, nor is
    what is taken from it. One along no dims does not begin with 0.0, and along dims of size 1 nothing is gained. JAX's
    derivative of a difference is negated, and then often summed. If the sum is one over devices, backends fuse what is
    behind it with its uses, and a negation before it with nothing."""
    dtype = op.result.dtype
    if op.attrs["kind"] != "sum" or len(op.operands) != 1 or not dtype.is_float or dtype.bits < 16:
        return None
    if all(op.operands[0].shape[dim] == 1 for dim in ints_attr(op.attrs, "dims")):
        return None
    negation = r.maker(op.operands[0], "negate")
    if negation is None:
        return None
    total = r.write("reduce", *negation.operands, **op.attrs)
    return r.write("subtract", r.full(0.0, op.result.type), total)


@RULES.of("multiply")
def _multiply(r: Rewriter, op: Op) -> Value | None:
    """Multiplication by 1 is no identity for complex numbers: the other products of the parts may be NaN."""
    x, y = op.operands
    if op.result.dtype.is_complex:
        return None
    return x if r.splat(y) == 1 else y if r.splat(x) == 1 else None


@RULES.of("divide")
def _divide(r: Rewriter, op: Op) -> Value | None:
    x, y = op.operands
    return x if r.splat(y) == 1 and not op.result.dtype.is_complex else _share_of_an_extreme(r, op)


def _share_of_an_extreme(r: Rewriter, op: Op) -> Value | None:
    """JAX's derivative of the maximum or minimum of `x` and `y`: 1 where `x` is selected, 1/2 where both are equal, and
    0 elsewhere and for NaN. JAX selects numbers by two masks; here it is half the count of two comparisons.

    The TPU compiler keeps masks that are used only to select in a backward pass in packed bits along a dim of 32 or
    less, which takes longer than a product of the layer (docs/tpu.md). It does not do so where they are counted.
    """
    dtype = op.result.dtype
    chosen, shared = _where_equal(r, op.operands[0], (1, 0)), _where_equal(r, op.operands[1], (2, 1))
    if chosen is None or shared is None or chosen[1] is not shared[1] or not dtype.is_float or dtype.bits < 16:
        return None
    (x, extreme), (y, _) = chosen, shared
    for name, directions in (("maximum", ("GE", "GT")), ("minimum", ("LE", "LT"))):
        maker = r.maker(extreme, name)
        if maker is not None and maker.operands in ((x, y), (y, x)):
            masks = [r.write("compare", x, y, direction=direction) for direction in directions]
            count = r.write("add", *[r.write("convert", mask, dtype=s32) for mask in masks])
            half = r.full(0.5, op.result.type)
            return r.write("multiply", r.write("convert", count, dtype=dtype), half)
    return None


def _where_equal(r: Rewriter, value: Value, numbers: tuple[int, int]) -> tuple[Value, Value] | None:
    """The two compared values, if `value` selects the first of these numbers where they are equal, and the second
    elsewhere."""
    select = r.maker(value, "select")
    if select is None or tuple(map(r.splat, select.operands[1:])) != numbers or _is_zero(r, select.operands[2], -0.0):
        return None
    compare = r.maker(select.operands[0], "compare")
    if compare is None or compare.attrs["direction"] != "EQ":
        return None
    first, second = compare.operands
    return first, second


@RULES.of("remainder")
def _remainder(r: Rewriter, op: Op) -> Value | None:
    """The remainder is the dividend itself if that is smaller than the divisor."""
    x, y = map(r.facts.of, op.operands)
    if x is None or y is None:
        return None
    return op.operands[0] if -y.low < x.low and x.high < y.low else None


@RULES.of("maximum")
def _maximum(r: Rewriter, op: Op) -> Value | None:
    return _extreme(r, op, op.result.dtype.lowest, sign=1)


@RULES.of("minimum")
def _minimum(r: Rewriter, op: Op) -> Value | None:
    return _extreme(r, op, op.result.dtype.highest, sign=-1)


def _extreme(r: Rewriter, op: Op, identity: float, *, sign: int) -> Value | None:
    """JAX takes the maximum of a softmax and -inf. For integers and booleans, bounds may say which operand is
    larger."""
    x, y = op.operands
    if op.result.dtype.is_float:
        return x if r.splat(y) == identity else y if r.splat(x) == identity else None
    first, second = r.facts.of(x), r.facts.of(y)
    if first is None or second is None:
        return None
    if sign < 0:
        x, y = y, x
    return x if first.low >= second.high else y if second.low >= first.high else None


@RULES.of("clamp")
def _clamp(r: Rewriter, op: Op) -> Value | None:
    low, x, high = op.operands
    if op.result.dtype.is_float:
        return None
    least, known, most = r.facts.of(low), r.facts.of(x), r.facts.of(high)
    if least is None or known is None or most is None:
        return None
    return x if least.high <= known.low and known.high <= most.low else None


@RULES.of("compare")
def _compare(r: Rewriter, op: Op) -> Value | None:
    """Comparisons of two constants and, for integers, of values whose bounds decide."""
    dtype = op.operands[0].dtype
    numbers = [r.splat(v) for v in op.operands]
    if not dtype.is_float or None in numbers:
        return None
    x, y = (float(v) for v in np.array(numbers, np.float64).astype(dtype.numpy))
    return r.full(bool(COMPARES[str(op.attrs["direction"])](x, y)), op.result.type)


@RULES.of("select")
def _select(r: Rewriter, op: Op) -> Value | None:
    which, on_true, on_false = op.operands
    number = r.facts.number(which)
    if number is not None:
        return on_true if number else on_false
    return on_true if on_true is on_false else None


@RULES.of("and")
def _and(r: Rewriter, op: Op) -> Value | None:
    return _neutral(r, op, all_ones=True)


@RULES.of("or")
def _or(r: Rewriter, op: Op) -> Value | None:
    return _neutral(r, op, all_ones=False)


def _neutral(r: Rewriter, op: Op, *, all_ones: bool) -> Value | None:
    x, y = op.operands
    if x is y:
        return x
    low, high = limits(op.result.dtype)
    neutral = (-1 if low < 0 else high) if all_ones else 0
    return x if r.facts.number(y) == neutral else y if r.facts.number(x) == neutral else None


@RULES.of("negate", "not")
def _undone(r: Rewriter, op: Op) -> Value | None:
    """An op that is its own inverse, applied twice."""
    inner = r.maker(op.operands[0], op.name)
    return inner.operands[0] if inner is not None else None


@RULES.of("convert")
def _convert(r: Rewriter, op: Op) -> Value | None:
    """A conversion to the operand's own type, and one back from a type that holds all of its numbers."""
    (x,) = op.operands
    if x.dtype == op.result.dtype:
        return x
    inner = r.maker(x, "convert")
    if inner is not None and inner.operands[0].dtype == op.result.dtype and _holds(x.dtype, op.result.dtype):
        return inner.operands[0]
    number = r.splat(x)
    whole = number is not None and x.dtype.is_integer and op.result.dtype.is_float
    if whole and isinstance(number, int) and _is_exact(number, op.result.dtype):
        return r.full(float(number), op.result.type)
    return None


def _is_exact(number: int, dtype: DType) -> bool:
    return abs(number) <= dtype.format.exact_integers and dtype.format.holds(number)


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether each number of the narrow type is one of the wide type, and converts back to itself."""
    if narrow.is_complex or wide.is_complex or wide.kind == "pred":
        return False
    if narrow.kind == "pred":
        return wide.has_zero
    if narrow.is_float:
        return wide.is_float and wide.format.contains(narrow.format)
    if wide.is_float:
        return all(_is_exact(n, wide) for n in (0, *limits(narrow)))
    (low, high), (least, most) = limits(narrow), limits(wide)
    return least <= low and high <= most
