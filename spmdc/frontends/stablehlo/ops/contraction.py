"""dot_general and convolution."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import stablehlo

from ir.program import Attr, Value
from ir.types import f32, pred
from spmdc.frontends.stablehlo.attributes import int_of, ints, pairs, text_of
from spmdc.frontends.stablehlo.scope import Scope, converts


def _unified(op: mlir.Operation, scope: Scope) -> tuple[Value, Value, Attr]:
    """The operands converted to one element type of numbers, and the type of the sums if it is another."""
    (lhs, rhs), result = scope.operands(op), scope.type(op.results[0]).dtype
    result = f32 if result == pred else result
    if lhs.dtype != rhs.dtype or lhs.dtype == pred or not lhs.dtype.has_zero:
        common = result if result.bits >= 16 or not result.is_float else f32
        lhs, rhs = (scope.emit("convert", x, dtype=common) for x in (lhs, rhs))
    return lhs, rhs, result if result != lhs.dtype else None


def _product(name: str, op: mlir.Operation, scope: Scope, **attrs: Attr) -> Value:
    """The product. One of pred is whether any summand is not 0: no sum of ones in f32 becomes 0, however many."""
    lhs, rhs, dtype = _unified(op, scope)
    found = scope.emit(name, lhs, rhs, **attrs, dtype=dtype)
    return scope.emit("convert", found, dtype=pred) if scope.type(op.results[0]).dtype == pred else found


@converts("dot_general")
def _dot_general(op: mlir.Operation, scope: Scope) -> Value:
    dims = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    return _product(
        "dot_general",
        op,
        scope,
        lhs_batch=tuple(dims.lhs_batching_dimensions),
        rhs_batch=tuple(dims.rhs_batching_dimensions),
        lhs_contract=tuple(dims.lhs_contracting_dimensions),
        rhs_contract=tuple(dims.rhs_contracting_dimensions),
    )


@converts("dot")
def _dot(op: mlir.Operation, scope: Scope) -> Value:
    last = scope.operands(op)[0].type.rank - 1
    return _product("dot_general", op, scope, lhs_contract=(last,), rhs_contract=(0,))


@converts("einsum", "unary_einsum")
def _einsum(op: mlir.Operation, scope: Scope) -> Value:
    """Dims that only one operand has are summed first; the others are batch dims, contracted, or free."""
    config = text_of(op.attributes["einsum_config"]).replace(" ", "")
    inputs, arrow, result = config.partition("->")
    terms = inputs.split(",")
    if not arrow or not config.replace(",", "").replace("->", "").isalpha() or any(len(set(t)) < len(t) for t in terms):
        raise scope.refuse(op, f"einsum_config is {config!r}", help="name each dim by a letter, once in each operand")
    operands = scope.operands(op)
    for i, term in enumerate(terms):
        others = "".join(t for j, t in enumerate(terms) if j != i) + result
        alone = tuple(d for d, letter in enumerate(term) if letter not in others)
        if alone:
            operands[i] = scope.emit("reduce", operands[i], dims=alone, kind="sum")
            terms[i] = "".join(letter for letter in term if letter in others)
    value, found = operands[0], terms[0]
    if len(operands) == 2:
        left, right = terms
        shared = [letter for letter in left if letter in right]
        batch = [letter for letter in shared if letter in result]
        contracted = [letter for letter in shared if letter not in result]
        value = scope.emit(
            "dot_general",
            *operands,
            lhs_batch=tuple(map(left.index, batch)),
            rhs_batch=tuple(map(right.index, batch)),
            lhs_contract=tuple(map(left.index, contracted)),
            rhs_contract=tuple(map(right.index, contracted)),
        )
        free = [letter for letter in left + right if letter not in shared]
        found = "".join([*batch, *free])
    return scope.transposed(value, tuple(map(found.index, result)))


@converts("convolution")
def _convolution(op: mlir.Operation, scope: Scope) -> Value:
    a = op.attributes
    dims = stablehlo.ConvDimensionNumbers(a["dimension_numbers"])
    low, high = pairs(ints(a["padding"])) if "padding" in a else ((), ())

    def setting(name: str, default: int) -> tuple[int, ...]:
        given = ints(a[name]) if name in a else ()
        return given if set(given) - {default} else ()

    return _product(
        "convolution",
        op,
        scope,
        lhs_batch=dims.input_batch_dimension,
        lhs_feature=dims.input_feature_dimension,
        lhs_spatial=tuple(dims.input_spatial_dimensions),
        rhs_input=dims.kernel_input_feature_dimension,
        rhs_output=dims.kernel_output_feature_dimension,
        rhs_spatial=tuple(dims.kernel_spatial_dimensions),
        out_batch=dims.output_batch_dimension,
        out_feature=dims.output_feature_dimension,
        out_spatial=tuple(dims.output_spatial_dimensions),
        stride=setting("window_strides", 1),
        padding_low=low if any(low) else (),
        padding_high=high if any(high) else (),
        lhs_dilation=setting("lhs_dilation", 1),
        rhs_dilation=setting("rhs_dilation", 1),
        window_reversal=setting("window_reversal", 0),
        feature_group_count=int_of(a["feature_group_count"]),
        batch_group_count=int_of(a["batch_group_count"]),
    )
