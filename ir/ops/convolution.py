"""convolution, with the attributes and the meaning of stablehlo.convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ir.ops.contraction import dtype_of_sums
from ir.ops.declaration import (
    AttrDef,
    Attrs,
    DimFactors,
    Factor,
    FactorKind,
    FactorRule,
    Groups,
    InKernels,
    Linearity,
    OwnPadding,
    TypeRuleError,
    Types,
    declare,
)
from ir.ops.rule_helpers import Factors, check_dim, check_dims, int_attr, ints_attr
from ir.ops.window import Window, windowed_sizes, windows
from ir.program import Op
from ir.types import TensorType, pred


@dataclass(frozen=True, slots=True)
class ConvolutionDims:
    """The role of each dim: batch and feature of lhs and result, input and output of rhs."""

    lhs_batch: int
    lhs_feature: int
    lhs_spatial: tuple[int, ...]
    rhs_input: int
    rhs_output: int
    rhs_spatial: tuple[int, ...]
    out_batch: int
    out_feature: int
    out_spatial: tuple[int, ...]

    @staticmethod
    def of(attrs: Attrs) -> ConvolutionDims:
        return ConvolutionDims(
            int_attr(attrs, "lhs_batch"),
            int_attr(attrs, "lhs_feature"),
            ints_attr(attrs, "lhs_spatial"),
            int_attr(attrs, "rhs_input"),
            int_attr(attrs, "rhs_output"),
            ints_attr(attrs, "rhs_spatial"),
            int_attr(attrs, "out_batch"),
            int_attr(attrs, "out_feature"),
            ints_attr(attrs, "out_spatial"),
        )

    @property
    def lhs(self) -> tuple[int, ...]:
        """The dims of lhs: batch, feature, spatial."""
        return (self.lhs_batch, self.lhs_feature, *self.lhs_spatial)

    @property
    def rhs(self) -> tuple[int, ...]:
        """The dims of rhs: output, input, spatial."""
        return (self.rhs_output, self.rhs_input, *self.rhs_spatial)

    @property
    def out(self) -> tuple[int, ...]:
        """The dims of the result: batch, feature, spatial."""
        return (self.out_batch, self.out_feature, *self.out_spatial)


def convolution_windows(attrs: Attrs, rhs: Sequence[int]) -> tuple[Window, ...]:
    """The window of each spatial dim, from the shape of rhs. Raises TypeRuleError if the attributes are wrong."""
    return windows(attrs, [rhs[d] for d in ints_attr(attrs, "rhs_spatial")], "lhs_dilation", "rhs_dilation")


def group_counts(attrs: Attrs) -> tuple[int, int]:
    """feature_group_count and batch_group_count."""
    return int_attr(attrs, "feature_group_count"), int_attr(attrs, "batch_group_count")


def _groups(op: Op) -> Groups | None:
    dims, (by_feature, by_batch) = ConvolutionDims.of(op.attrs), group_counts(op.attrs)
    if by_feature > 1:
        return Groups("feature_group_count", by_feature, (dims.lhs_feature, dims.rhs_output), GROUP_FACTOR)
    if by_batch > 1:
        return Groups("batch_group_count", by_batch, (dims.lhs_batch, dims.rhs_output), GROUP_FACTOR)
    return None


def _infer(types: Types, attrs: Attrs) -> Types:
    lhs, rhs = types
    if lhs.dtype != rhs.dtype or lhs.dtype == pred:
        raise TypeRuleError(
            f"the operands must be numbers of one element type, and are {lhs.dtype} and {rhs.dtype}",
            "convert one of them",
        )
    dims = _checked_dims(lhs, rhs, attrs)
    given = convolution_windows(attrs, rhs.shape)
    reversal = ints_attr(attrs, "window_reversal")
    if len(reversal) not in (0, len(given)) or not set(reversal) <= {0, 1}:
        raise TypeRuleError(f"window_reversal={list(reversal)} must have a 0 or 1 for each of the {len(given)} dims")
    features, batches = group_counts(attrs)
    _check_groups(lhs, rhs, dims, features, batches)
    sizes = (
        lhs.shape[dims.lhs_batch] // batches,
        rhs.shape[dims.rhs_output],
        *windowed_sizes([lhs.shape[d] for d in dims.lhs_spatial], given),
    )
    placed = dict(zip(dims.out, sizes, strict=True))
    return (TensorType(tuple(placed[d] for d in range(len(sizes))), dtype_of_sums(lhs.dtype, attrs)),)


def _checked_dims(lhs: TensorType, rhs: TensorType, attrs: Attrs) -> ConvolutionDims:
    dims = ConvolutionDims.of(attrs)
    for what, named, rank in (("lhs", dims.lhs, lhs.rank), ("rhs", dims.rhs, rhs.rank), ("out", dims.out, lhs.rank)):
        for d in named:
            check_dim(d, rank, f"{what} dim")
        check_dims(named, rank, f"{what} dim")
        if len(named) != rank:
            raise TypeRuleError(
                f"the {what} dims {list(named)} must name each of {rank} dims once",
                "lhs, rhs and result have two dims and as many spatial ones as one another",
            )
    return dims


def _check_groups(lhs: TensorType, rhs: TensorType, dims: ConvolutionDims, features: int, batches: int) -> None:
    if features < 1 or batches < 1 or (features > 1 and batches > 1):
        raise TypeRuleError(
            f"feature_group_count={features} and batch_group_count={batches} must be positive, and one of them 1"
        )
    groups, what = (features, "feature_group_count") if features > 1 else (batches, "batch_group_count")
    divided = dims.lhs_feature if features > 1 else dims.lhs_batch
    for name, type, d in (("lhs", lhs, divided), ("rhs", rhs, dims.rhs_output)):
        if type.shape[d] % groups:
            raise TypeRuleError(f"{what}={groups} must divide dim {d} of the {name}, {type}")
    given, needed = rhs.shape[dims.rhs_input], lhs.shape[dims.lhs_feature] // features
    if given != needed:
        raise TypeRuleError(
            f"input features differ: dim {dims.lhs_feature} of {lhs} in {features} group(s) gives {needed}, "
            f"dim {dims.rhs_input} of {rhs} has {given}"
        )


GROUP_FACTOR = 0
"""The groups, if there are several: the first factor of the rule."""


def _factors(op: Op) -> FactorRule:
    """Groups are the major factor of the dims that they divide: lhs feature (g i) or lhs batch (g b), rhs output and
    out feature (g o). A minor factor of size 1 is left out."""
    lhs, rhs = op.operands
    dims = ConvolutionDims.of(op.attrs)
    feature_groups, batch_groups = group_counts(op.attrs)
    groups = feature_groups * batch_groups
    factors = Factors()
    group = factors.new(groups) if groups > 1 else ()
    batch = factors.new(lhs.shape[dims.lhs_batch] // batch_groups)
    output = factors.new(rhs.shape[dims.rhs_output] // groups)
    inner = factors.new(rhs.shape[dims.rhs_input], FactorKind.REDUCTION, "sum")

    def part(dim: DimFactors) -> DimFactors:
        return dim if factors.all[dim[0]].size != 1 else ()

    left = {dims.lhs_batch: batch, dims.lhs_feature: inner}
    right = {dims.rhs_output: output, dims.rhs_input: inner}
    out = {dims.out_batch: batch, dims.out_feature: output}
    if groups > 1:
        right[dims.rhs_output] = out[dims.out_feature] = (*group, *part(output))
    if feature_groups > 1:
        left[dims.lhs_feature], right[dims.rhs_input] = (*group, *part(inner)), part(inner)
    if batch_groups > 1:
        left[dims.lhs_batch], out[dims.out_batch] = (*group, *part(batch)), part(batch)
    spatial = zip(
        dims.lhs_spatial, dims.rhs_spatial, dims.out_spatial, convolution_windows(op.attrs, rhs.shape), strict=True
    )
    for a, b, c, window in spatial:
        kind = FactorKind.PARALLEL if window.is_pointwise else FactorKind.WINDOW
        left[a] = out[c] = factors.new(lhs.shape[a], kind)
        right[b] = factors.new(rhs.shape[b], FactorKind.WINDOW)
    lhs_dims, rhs_dims, out_dims = (tuple(side[d] for d in range(len(side))) for side in (left, right, out))
    return factors.rule((lhs_dims, rhs_dims), (out_dims,))


def _large_kernel_rule(op: Op) -> FactorRule | None:
    """The rule by which kernel dims that are larger than those of the result are split, together with lhs: each part of
    the kernel contributes a part of each sum. None if there are no such dims.

    They occur in convolutions that compute the gradient of a kernel, whose own kernel is a gradient as large as an
    image.
    """
    dims, rhs = ConvolutionDims.of(op.attrs), op.operands[1].shape
    sizes = zip(dims.rhs_spatial, dims.out_spatial, strict=True)
    return _kernel_rule(op, [s for s, (b, c) in enumerate(sizes) if rhs[b] > max(1, op.result.shape[c])])


def _any_kernel_rule(op: Op) -> FactorRule | None:
    """The same for kernels of any size, for kernels that are split already; None if the spatial dims have one element
    each."""
    dims, rhs = ConvolutionDims.of(op.attrs), op.operands[1].shape
    return _kernel_rule(op, [s for s, b in enumerate(dims.rhs_spatial) if rhs[b] > 1])


def _kernel_rule(op: Op, split: Sequence[int]) -> FactorRule | None:
    """The rule by which these spatial dims of the kernel are split; None if there are none."""
    if not split:
        return None
    rule, dims = _factors(op), ConvolutionDims.of(op.attrs)
    factors, left = list(rule.factors), list(rule.operands[0])
    for s in split:
        a, b, c = dims.lhs_spatial[s], dims.rhs_spatial[s], dims.out_spatial[s]
        (part,), (window,) = rule.operands[1][b], left[a]
        factors[part] = Factor(factors[part].size, FactorKind.WINDOW, "sum")
        factors[window] = Factor(op.result.shape[c], FactorKind.NEED_REPLICATION)
        left[a] = (part,)
    return FactorRule(tuple(factors), (tuple(left), rule.operands[1]), rule.results)


def _flops(op: Op) -> int:
    rhs, dims = op.operands[1].shape, ConvolutionDims.of(op.attrs)
    return 2 * op.result.type.size * rhs[dims.rhs_input] * math.prod(rhs[d] for d in dims.rhs_spatial)


_DIMS = (
    ("lhs_batch", "int"), ("lhs_feature", "int"), ("lhs_spatial", "ints"),
    ("rhs_input", "int"), ("rhs_output", "int"), ("rhs_spatial", "ints"),
    ("out_batch", "int"), ("out_feature", "int"), ("out_spatial", "ints"),
)  # fmt: skip


def _terms(op: Op, bounds: Sequence[float]) -> float:
    kernel = op.operands[1].type
    return math.prod(bounds) * (kernel.size // max(1, kernel.shape[ConvolutionDims.of(op.attrs).rhs_output]))


_SETTINGS = ("stride", "padding_low", "padding_high", "lhs_dilation", "rhs_dilation", "window_reversal")

declare(
    "convolution",
    "convolution",
    2,
    _infer,
    _factors,
    (
        *(AttrDef(name, "ints" if kind == "ints" else "int") for name, kind in _DIMS),
        *(AttrDef(name, "ints", default=(), required=False) for name in _SETTINGS),
        AttrDef("feature_group_count", "int", default=1, required=False),
        AttrDef("batch_group_count", "int", default=1, required=False),
        AttrDef("dtype", "dtype", default=None, required=False),
    ),
    linear=(Linearity(("sum",), (0,)), Linearity(("sum",), (1,))),
    flops=_flops,
    terms=_terms,
    spreading=_large_kernel_rule,
    splitting=_any_kernel_rule,
    has_no_batch=True,  # A factor of all tensors is one of groups, along which the weights are split too.
    doc=(
        "Products of rhs and of each window of lhs, summed over the window and the input features. The settings of "
        "the spatial dims are lists; window_reversal is 1 where rhs is reversed. bf16 and f16 are summed in f32."
    ),
    padding=OwnPadding(lambda op: ConvolutionDims.of(op.attrs).lhs_spatial, lambda _: 0.0, "lhs_dilation"),
    groups=_groups,
    in_kernels=InKernels.PRODUCT,
)
