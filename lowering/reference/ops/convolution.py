"""The kernel of convolution: a matrix product for each place of the window, with devices and groups as batch dims."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ir.ops.convolution import ConvolutionDims, convolution_windows, group_counts
from ir.ops.rule_helpers import ints_attr
from ir.program import Op
from ir.types import Array
from lowering.reference.interpreter import Interpreter, kernel
from lowering.reference.ops.contraction import matmul, summand, summing_dtype
from lowering.reference.ops.elementwise import convert
from lowering.reference.ops.window import padded, window_slices


@kernel("convolution")
def _convolution(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    """lhs is transposed to [device…, group, batch, spatial…, feature] and rhs to [device…, group, spatial…, input,
    output]; the sums are [device…, group, batch, spatial…, output]."""
    lead, dims = machine.lead, ConvolutionDims.of(op.attrs)
    work = summing_dtype(op.operands[0].dtype, op.result.dtype)
    lhs = _grouped_lhs(op, summand(arrays[0], work), lead, dims)
    rhs = _grouped_rhs(op, summand(arrays[1], work), lead, dims)
    sums = _sums(op, lhs, rhs, lead, dims)
    sums = np.moveaxis(sums, lead, -2)
    sums = sums.reshape((*sums.shape[:-2], sums.shape[-2] * sums.shape[-1]))
    placed = (dims.out_batch, *dims.out_spatial, dims.out_feature)
    result = np.moveaxis(sums, range(lead, lead + len(placed)), [lead + d for d in placed])
    return (convert(result, op.result.dtype),)


def _grouped_lhs(op: Op, x: Array, lead: int, dims: ConvolutionDims) -> Array:
    features, batches = group_counts(op.attrs)
    windows = convolution_windows(op.attrs, op.operands[1].shape)
    order = (dims.lhs_batch, *dims.lhs_spatial, dims.lhs_feature)
    x = x.transpose(*range(lead), *(lead + d for d in order))
    devices, (batch, *spatial, feature) = x.shape[:lead], x.shape[lead:]
    x = x.reshape((*devices, batches, batch // batches, *spatial, features, feature // features))
    x = np.moveaxis(x, -2, lead)
    x = x.reshape((*devices, features * batches, *x.shape[lead + 2 :]))
    x = np.moveaxis(x, -1, lead + 2)
    return np.moveaxis(padded(x, lead + 3, windows, np.zeros((), x.dtype)), lead + 2, -1)


def _grouped_rhs(op: Op, x: Array, lead: int, dims: ConvolutionDims) -> Array:
    groups = math.prod(group_counts(op.attrs))
    reversal = ints_attr(op.attrs, "window_reversal") or (0,) * len(dims.rhs_spatial)
    turned = tuple(lead + d for d, flag in zip(dims.rhs_spatial, reversal, strict=True) if flag)
    order = (dims.rhs_output, *dims.rhs_spatial, dims.rhs_input)
    x = np.flip(x, turned).transpose(*range(lead), *(lead + d for d in order))
    devices, (output, *rest) = x.shape[:lead], x.shape[lead:]
    x = x.reshape((*devices, groups, output // groups, *rest))
    return np.moveaxis(x, lead + 1, -1)


def _sums(op: Op, lhs: Array, rhs: Array, lead: int, dims: ConvolutionDims) -> Array:
    """[device…, group, batch, spatial…, output]."""
    windows = convolution_windows(op.attrs, op.operands[1].shape)
    counts = [op.result.shape[d] for d in dims.out_spatial]
    devices = np.broadcast_shapes(lhs.shape[:lead], rhs.shape[:lead])
    groups, batch, width = lhs.shape[lead], lhs.shape[lead + 1], rhs.shape[-1]
    rows = batch * math.prod(counts)
    sums = np.zeros((*devices, groups, rows, width), lhs.dtype)
    every = (slice(None),) * (lead + 2)
    places = np.ndindex(tuple(w.size for w in windows)) if sums.size and rhs.size else ()
    for at, place in zip(places, window_slices(windows, counts), strict=False):
        part = lhs[(*every, *place)]
        part = part.reshape((*part.shape[: lead + 1], rows, part.shape[-1]))
        sums += matmul(part, rhs[(*every[: lead + 1], *at)])
    return sums.reshape((*devices, groups, batch, *counts, width))
