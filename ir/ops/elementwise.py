"""Ops that compute each element from the elements at the same position."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ir.ops.declaration import (
    BITWISE,
    MONOTONE,
    PRODUCTS,
    AttrDef,
    Attrs,
    InKernels,
    Linearity,
    Terms,
    TypeRuleError,
    Types,
    Unclaimed,
    declare,
    largest,
)
from ir.ops.rule_helpers import pointwise, same_types
from ir.program import Op
from ir.sharding import REDUCTION_KINDS, ReductionKind
from ir.types import DType, pred

_DTYPE_CLASSES: dict[str, tuple[Callable[[DType], bool], str]] = {
    "ordered": (lambda t: t.is_ordered, "of a type with an order"),
    "number": (lambda t: t.kind != "pred", "numbers"),
    "real": (lambda t: t.is_integer or t.is_float, "integers or floats"),
    "signed": (lambda t: t.kind in ("signed", "float", "complex"), "signed integers, floats or complex numbers"),
    "float": (lambda t: t.is_float, "floats"),
    "continuous": (lambda t: t.is_continuous, "floats or complex numbers"),
    "integer": (lambda t: t.is_integer, "integers"),
    "logical": (lambda t: t.is_integer or t.kind == "pred", "booleans or integers"),
}


def _check_dtype(dtype: DType, dtypes: str) -> None:
    accepts, words = _DTYPE_CLASSES[dtypes]
    if not accepts(dtype):
        floats = dtypes in ("float", "continuous") and dtype.is_integer
        raise TypeRuleError(
            f"the elements must be {words}, and are {dtype}",
            "convert the operand: convert(x, dtype=f32)" if floats else "",
        )


def _same(dtypes: str) -> Callable[[Types, Attrs], Types]:
    def infer(types: Types, attrs: Attrs) -> Types:
        result = same_types(types)
        _check_dtype(result.dtype, dtypes)
        return (result,)

    return infer


def _linear(*groups: tuple[int, ...], kinds: tuple[ReductionKind, ...] = ("sum",)) -> tuple[Linearity, ...]:
    return tuple(Linearity(kinds, g) for g in groups)


LinearRule = tuple[Linearity, ...] | Callable[[Op], tuple[Linearity, ...]]


def _declare(
    operands: int,
    name: str,
    dtypes: str,
    linear: LinearRule = (),
    terms: Terms | None = None,
    unclaimed: tuple[Unclaimed, ...] = (),
    *,
    is_dear: bool = False,
    is_symmetric: bool = False,
) -> None:
    declare(
        name, "elementwise", operands, _same(dtypes), pointwise, linear=linear, terms=terms, unclaimed=unclaimed,
        is_dear=is_dear, is_symmetric=is_symmetric,
    )  # fmt: skip


_unary, _binary = partial(_declare, 1), partial(_declare, 2)
_symmetric = partial(_binary, is_symmetric=True)

for _name in ("cosine", "rsqrt", "sine", "tan"):
    _unary(_name, "continuous", is_dear=True)
for _name in ("exponential", "exponential_minus_one", "log", "log_plus_one", "logistic", "sqrt", "tanh"):
    _unary(_name, "continuous", unclaimed=(MONOTONE,), is_dear=True)
_unary("erf", "float", unclaimed=(MONOTONE,), is_dear=True)
for _name in ("ceil", "floor", "round_nearest_afz", "round_nearest_even"):
    _unary(_name, "float", unclaimed=(MONOTONE,))
_unary("cbrt", "float", unclaimed=(MONOTONE, PRODUCTS), is_dear=True)
_unary("sign", "signed", unclaimed=(MONOTONE, BITWISE, PRODUCTS))
_unary("negate", "number", _linear((0,)))
_unary("not", "logical")
_unary("popcnt", "integer")
_unary("count_leading_zeros", "integer")

_symmetric("add", "number", _linear((0, 1)), lambda op, bounds: math.fsum(bounds), (MONOTONE,))
_binary("subtract", "number", _linear((0, 1)), lambda op, bounds: math.fsum(bounds), (MONOTONE,))
_symmetric("multiply", "number", _linear((0,), (1,)), lambda op, bounds: math.prod(bounds), (PRODUCTS,))
_binary("divide", "number", lambda op: _linear((0,)) if not op.result.dtype.is_integer else (), is_dear=True)
_binary("remainder", "real")
_binary("power", "number", unclaimed=(MONOTONE,), is_dear=True)
_binary("atan2", "float")
_binary("maximum", "ordered", _linear((0, 1), kinds=("max",)), unclaimed=(MONOTONE,))
_binary("minimum", "ordered", _linear((0, 1), kinds=("min",)), unclaimed=(MONOTONE,))
_symmetric("and", "logical", _linear((0, 1), kinds=("and",)), unclaimed=(BITWISE,))
_symmetric("or", "logical", _linear((0, 1), kinds=("or",)), unclaimed=(BITWISE,))
_symmetric("xor", "logical")
_SUMS = Unclaimed(("sum",), "sums are hardly ever shifted; multiply is linear")
_binary("shift_left", "integer", unclaimed=(MONOTONE, BITWISE, _SUMS))
_binary("shift_right_arithmetic", "integer", unclaimed=(MONOTONE, BITWISE))
_binary("shift_right_logical", "integer", unclaimed=(BITWISE,))

COMPARES: Mapping[str, Callable[[Any, Any], Any]] = {
    "EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge,
}  # fmt: skip
"""The comparison of each direction, for numbers and for arrays."""

DIRECTIONS = tuple(COMPARES)


def _infer_compare(types: Types, attrs: Attrs) -> Types:
    operand = same_types(types)
    if not operand.dtype.is_ordered and attrs["direction"] not in ("EQ", "NE"):
        raise TypeRuleError("complex numbers have no order", "compare with EQ or NE, or compare their abs")
    return (operand.with_dtype(pred),)


declare("compare", "elementwise", 2, _infer_compare, pointwise, (AttrDef("direction", "word", choices=DIRECTIONS),))


def _infer_is_finite(types: Types, attrs: Attrs) -> Types:
    _check_dtype(types[0].dtype, "float")
    return (types[0].with_dtype(pred),)


declare("is_finite", "elementwise", 1, _infer_is_finite, pointwise)


def _infer_select(types: Types, attrs: Attrs) -> Types:
    which, on_true, on_false = types
    if which.dtype != pred:
        raise TypeRuleError(f"the first operand must be pred, and is {which}", "compare returns a pred")
    result = same_types((on_true, on_false))
    if which.rank and which.shape != result.shape:
        raise TypeRuleError(
            f"the first operand must be a scalar or have the shape of the branches, {result}, and is {which}"
        )
    return (result,)


_either = _linear((1, 2), kinds=REDUCTION_KINDS)
declare("select", "elementwise", 3, _infer_select, pointwise, linear=_either, unclaimed=(MONOTONE, BITWISE))


def _infer_clamp(types: Types, attrs: Attrs) -> Types:
    low, operand, high = types
    _check_dtype(operand.dtype, "real")
    for bound in (low, high):
        if bound.dtype != operand.dtype or (bound.rank and bound.shape != operand.shape):
            raise TypeRuleError(
                f"a bound must be a scalar or have the operand's type {operand}, and is {bound}", "clamp(low, x, high)"
            )
    return (operand,)


declare(
    "stop_gradient",
    "elementwise",
    1,
    lambda types, attrs: tuple(types),
    pointwise,
    linear=_linear((0,), kinds=REDUCTION_KINDS),
    doc="The operand, taken for a constant where the program is differentiated.",
    in_kernels=InKernels.VIEW,
)

declare("clamp", "elementwise", 3, _infer_clamp, pointwise, unclaimed=(MONOTONE,))


def is_conversion(op: Op) -> bool:
    """Whether the op returns the elements of its operand in another type."""
    return op.name == "convert"


def _infer_convert(types: Types, attrs: Attrs) -> Types:
    dtype = attrs["dtype"]
    assert isinstance(dtype, DType)
    return (types[0].with_dtype(dtype),)


declare(
    "convert",
    "elementwise",
    1,
    _infer_convert,
    pointwise,
    (AttrDef("dtype", "dtype"),),
    terms=largest,
    unclaimed=(MONOTONE, BITWISE),
    doc=(
        "Floats become integers towards zero and saturate, integers wrap, nonzero is true; complex numbers lose "
        "their imaginary part unless the result is complex."
    ),
)
