"""reduce, and the cumulative ops: cumsum, cumprod, cummax, cummin."""

from __future__ import annotations

from collections.abc import Sequence

from ir.ops.declaration import (
    MONOTONE,
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
    largest,
)
from ir.ops.rule_helpers import a_factor_a_dim, check_dim, check_dims, int_attr, ints_attr
from ir.program import Attr, Op
from ir.sharding import REDUCTION_KINDS, ReductionKind
from ir.types import DType, TensorType, pred

ARG_KINDS = ("argmax", "argmin")


def reduction_kind(attrs: Attrs) -> ReductionKind | None:
    """The kind of a reduction whose partial results combine elementwise: None for argmax and argmin, and where updates
    replace elements."""
    return next((k for k in REDUCTION_KINDS if k == attrs["kind"]), None)


def identity_of(kind: ReductionKind, dtype: DType) -> float | int | bool:
    """The identity of the reduction, except for the sign of a zero: 0, 1, an extreme, or all bits set."""
    match kind:
        case "sum":
            return 0.0 if dtype.is_continuous else 0
        case "prod":
            return 1.0 if dtype.is_continuous else 1
        case "max":
            return dtype.lowest
        case "min":
            return dtype.highest
        case "and":
            return True if dtype.kind == "pred" else (-1 if dtype.kind == "signed" else dtype.highest)
        case "or":
            return False if dtype.kind == "pred" else 0


def owner_reduction(dtype: DType) -> ReductionKind:
    """The reduction that combines the element of an index's owner with the other devices' elements: its identity, zero
    for most types."""
    if not dtype.has_zero:
        return "max"
    return "or" if dtype == pred else "sum"


def zero_of(dtype: DType) -> complex | float | int | bool:
    """The exact identity, to the bit, of a sum, or of the reduction in its place for types without one."""
    if dtype.is_complex:
        return complex(-0.0, -0.0)
    return -0.0 if dtype.is_float and dtype.has_zero else identity_of(owner_reduction(dtype), dtype)


def neutral_of(kind: ReductionKind, dtype: DType) -> complex | float | int | bool:
    """The exact identity of the reduction, to the bit."""
    return zero_of(dtype) if kind == "sum" else identity_of(kind, dtype)


def no_sums(dtype: DType) -> TypeRuleError:
    """The error for sums of a type that has none."""
    return TypeRuleError(
        f"{dtype} has no zero, from which a sum begins", "convert the operand: bf16 holds the same powers of two"
    )


def check_reducible(kind: Attr, dtype_type: TensorType) -> None:
    """Raises TypeRuleError if there is no such reduction of elements of that type."""
    dtype = dtype_type.dtype
    if kind == "sum" and not dtype.has_zero:
        raise no_sums(dtype)
    if kind in ("sum", "prod") and dtype == pred:
        raise TypeRuleError(f"pred has no {kind}", "convert to s32 first, or reduce with kind=or")
    if kind not in ("sum", "prod") and dtype.is_complex:
        raise TypeRuleError(f"complex numbers have no {kind}", "real(x), imag(x) and abs(x) have an order")
    if kind in ("and", "or") and dtype.is_float:
        raise TypeRuleError(f"kind={kind} needs booleans or integers, and the elements are {dtype}")


def _infer_reduce(types: Types, attrs: Attrs) -> Types:
    kind, operand = attrs["kind"], types[0]
    dims = check_dims(ints_attr(attrs, "dims"), operand.rank)
    shape = tuple(n for i, n in enumerate(operand.shape) if i not in dims)
    if kind in ARG_KINDS:
        if operand.dtype.is_complex:
            raise TypeRuleError(f"complex numbers have no {kind}", "real(x), imag(x) and abs(x) have an order")
        if len(types) != 2 or not types[1].dtype.is_integer or types[1].shape != operand.shape:
            raise TypeRuleError(
                f"kind={kind} reduces two operands, values and integer indices of the same shape",
                f"{kind}(x, dim) makes the indices for you",
            )
        return (operand.with_shape(shape), types[1].with_shape(shape))
    if len(types) != 1:
        raise TypeRuleError(f"kind={kind} reduces one operand, and there are {len(types)}")
    check_reducible(kind, operand)
    return (operand.with_shape(shape),)


def _reduce_factors(op: Op) -> FactorRule:
    shape = op.operands[0].shape
    dims = ints_attr(op.attrs, "dims")
    kind = reduction_kind(op.attrs)
    factors = tuple(Factor(n, FactorKind.REDUCTION, kind) if i in dims else Factor(n) for i, n in enumerate(shape))
    every = tuple((i,) for i in range(len(shape)))
    kept = tuple((i,) for i in range(len(shape)) if i not in dims)
    return FactorRule(factors, (every,) * len(op.operands), (kept,) * len(op.results))


def linear_in_its_kind(op: Op) -> tuple[Linearity, ...]:
    """A reduction commutes with reductions of its own kind."""
    kind = reduction_kind(op.attrs)
    return (Linearity((kind,), (0,)),) if kind is not None else ()


def _terms(op: Op, bounds: Sequence[float]) -> float:
    added = op.operands[0].type.size // max(1, op.results[0].type.size) if op.attrs["kind"] == "sum" else 1
    return largest(op, bounds) * added


declare(
    "reduce",
    "reduction",
    None,
    _infer_reduce,
    _reduce_factors,
    (AttrDef("dims", "ints"), AttrDef("kind", "word", choices=(*REDUCTION_KINDS, *ARG_KINDS))),
    linear=linear_in_its_kind,
    spreads_last=True,
    terms=_terms,
    unclaimed=(MONOTONE,),
    doc=(
        "Reduces dims away. argmax and argmin take values and indices and return, of each, that of the extreme "
        "value; a NaN wins, and the lower index wins a tie."
    ),
    in_kernels=InKernels.REDUCTION,
)

CUMULATIVE: dict[str, ReductionKind] = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}
"""The reduction whose prefixes each cumulative op computes."""

COMBINES: dict[ReductionKind, str] = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "and": "and",
    "or": "or",
}
"""The op that combines two partial results of each reduction."""


def _prefix_terms(op: Op, bounds: Sequence[float]) -> float:
    return largest(op, bounds) * op.result.shape[int_attr(op.attrs, "dim")]


def _cumulative(name: str, kind: ReductionKind, doc: str) -> None:
    def infer(types: Types, attrs: Attrs) -> Types:
        check_dim(int_attr(attrs, "dim"), types[0].rank)
        check_reducible(kind, types[0])
        return (types[0],)

    declare(
        name,
        "reduction",
        1,
        infer,
        lambda op: a_factor_a_dim(op, op.result.shape, {int_attr(op.attrs, "dim"): FactorKind.SCAN}),
        (AttrDef("dim", "int"), AttrDef("reverse", "bool", default=False, required=False)),
        linear=(Linearity((kind,), (0,)),),
        terms=_prefix_terms if kind == "sum" else None,
        doc=f"Inclusive prefix {doc} along dim, from the end if reverse.",
        in_kernels=InKernels.SCAN,
    )


_cumulative("cumsum", CUMULATIVE["cumsum"], "sums")
_cumulative("cumprod", CUMULATIVE["cumprod"], "products")
_cumulative("cummax", CUMULATIVE["cummax"], "maxima")
_cumulative("cummin", CUMULATIVE["cummin"], "minima")
