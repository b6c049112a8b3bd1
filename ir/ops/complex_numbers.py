"""Complex numbers and the bits of numbers: complex, real, imag, abs, bitcast_convert, reduce_precision."""

from __future__ import annotations

from ir.ops.declaration import (
    BITWISE,
    MONOTONE,
    PRODUCTS,
    AttrDef,
    Attrs,
    Factor,
    FactorKind,
    FactorRule,
    InKernels,
    Linearity,
    TypeRuleError,
    Types,
    declare,
)
from ir.ops.rule_helpers import int_attr, pointwise, same_types
from ir.program import Op
from ir.types import DType, TensorType, c64, c128, f32, f64


def _infer_complex(types: Types, attrs: Attrs) -> Types:
    part = same_types(types)
    if part.dtype not in (f32, f64):
        raise TypeRuleError(f"the parts of a complex number are f32 or f64, and not {part.dtype}")
    return (part.with_dtype(c64 if part.dtype == f32 else c128),)


declare(
    "complex",
    "elementwise",
    2,
    _infer_complex,
    pointwise,
    linear=(Linearity(("sum",), (0, 1)),),
    doc="The complex numbers with these real and imaginary parts.",
)


def _infer_part(types: Types, attrs: Attrs) -> Types:
    (operand,) = types
    if not operand.dtype.is_complex and not operand.dtype.is_float:
        raise TypeRuleError(f"the elements must be complex numbers or floats, and are {operand.dtype}")
    return (operand.with_dtype(operand.dtype.component),)


for _name, _doc in (("real", "The real parts."), ("imag", "The imaginary parts; 0 of floats.")):
    declare(_name, "elementwise", 1, _infer_part, pointwise, linear=(Linearity(("sum",), (0,)),), doc=_doc)


def _infer_abs(types: Types, attrs: Attrs) -> Types:
    (operand,) = types
    if operand.dtype.kind not in ("signed", "float", "complex"):
        raise TypeRuleError(f"the elements must be signed integers, floats or complex numbers, and are {operand.dtype}")
    return (operand.with_dtype(operand.dtype.component),)


declare(
    "abs",
    "elementwise",
    1,
    _infer_abs,
    pointwise,
    unclaimed=(PRODUCTS,),
    doc="The magnitude; of a complex number a real one.",
)


def _infer_bitcast(types: Types, attrs: Attrs) -> Types:
    (operand,) = types
    target = attrs["dtype"]
    assert isinstance(target, DType)
    source = operand.dtype
    for dtype in (source, target):
        if (dtype.kind == "pred" or dtype.is_complex) and source != target:
            raise TypeRuleError(
                f"the bits of {dtype} are not those of another type",
                "real(x) and imag(x) are floats" if dtype.is_complex else "convert(x, dtype=u8)",
            )
    if target.bits == source.bits:
        return (operand.with_dtype(target),)
    if target.bits < source.bits:
        return (TensorType((*operand.shape, source.bits // target.bits), target),)
    ratio = target.bits // source.bits
    if not operand.rank or operand.shape[-1] != ratio:
        raise TypeRuleError(
            f"{target} has {target.bits} bits and {source} has {source.bits}: the last dim of {operand} must be of "
            f"size {ratio}"
        )
    return (TensorType(operand.shape[:-1], target),)


def _bitcast_factors(op: Op) -> FactorRule:
    """The dim that holds the pieces of one element stays whole."""
    (operand,) = op.operands
    longer = max(operand.shape, op.result.shape, key=len)
    shared = min(operand.type.rank, op.result.type.rank)
    kinds = [FactorKind.PARALLEL if d < shared else FactorKind.NEED_REPLICATION for d in range(len(longer))]
    factors = tuple(Factor(n, kind) for n, kind in zip(longer, kinds, strict=True))
    left, right = (tuple((d,) for d in range(v.type.rank)) for v in (operand, op.result))
    return FactorRule(factors, (left,), (right,))


declare(
    "bitcast_convert",
    "elementwise",
    1,
    _infer_bitcast,
    _bitcast_factors,
    (AttrDef("dtype", "dtype"),),
    unclaimed=(BITWISE,),
    doc=(
        "The same bits as another type. A wider element becomes several, along a new last dim, the least "
        "significant first; several become a wider one along the last dim."
    ),
    in_kernels=InKernels.VIEW,
)


def _infer_reduce_precision(types: Types, attrs: Attrs) -> Types:
    (operand,) = types
    if not operand.dtype.is_float:
        raise TypeRuleError(f"the elements must be floats, and are {operand.dtype}")
    if int_attr(attrs, "exponent_bits") < 1 or int_attr(attrs, "mantissa_bits") < 0:
        raise TypeRuleError("a float has at least 1 exponent bit and 0 mantissa bits")
    return types


declare(
    "reduce_precision",
    "elementwise",
    1,
    _infer_reduce_precision,
    pointwise,
    (AttrDef("exponent_bits", "int"), AttrDef("mantissa_bits", "int")),
    unclaimed=(MONOTONE,),
    doc="Rounded to that many exponent and mantissa bits, and back: subnormals become 0, what overflows inf.",
)
