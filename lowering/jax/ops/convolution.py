"""convolution."""

from __future__ import annotations

from ir.ops.convolution import ConvolutionDims, convolution_windows, group_counts
from ir.ops.rule_helpers import ints_attr
from ir.program import Op
from lowering.jax.names import tuple_text
from lowering.jax.ops.contraction import is_summed_wide, multiplied, multiplied_dtype, summing_dtype
from lowering.jax.ops.elementwise import converted
from lowering.jax.writer import FunctionWriter, dtype_text, emits


@emits("convolution")
def _convolution(w: FunctionWriter, op: Op) -> str:
    lhs, rhs = w.names(op.operands)
    source, target = op.operands[0].dtype, op.result.dtype
    lhs, rhs, source = multiplied(lhs, source), multiplied(rhs, source), multiplied_dtype(source)
    summed = source if is_summed_wide(source, target) else summing_dtype(source, target)
    if source.kind != summed.kind:
        lhs, rhs = converted(lhs, source, summed), converted(rhs, source, summed)
    dims = ConvolutionDims.of(op.attrs)
    turned = [d for d, flag in zip(dims.rhs_spatial, ints_attr(op.attrs, "window_reversal"), strict=False) if flag]
    if turned:
        rhs = f"lax.rev({rhs}, {tuple_text(turned)})"
    arguments = [lhs, rhs, *_settings(op, dims)]
    if summed != source and summed.kind == source.kind:
        arguments.append(f"preferred_element_type={dtype_text(summed)}")
    by_integers = summed.is_integer and w.module.runs_on_gpu
    function = w.module.helper("integer_convolution") if by_integers else "lax.conv_general_dilated"
    return converted(f"{function}({', '.join(arguments)})", summed, target)


def _settings(op: Op, dims: ConvolutionDims) -> list[str]:
    windows = convolution_windows(op.attrs, op.operands[1].shape)
    settings = [tuple_text(d.stride for d in windows), tuple_text((d.low, d.high) for d in windows)]
    if any(d.base_dilation != 1 for d in windows):
        settings.append(f"lhs_dilation={tuple_text(d.base_dilation for d in windows)}")
    if any(d.dilation != 1 for d in windows):
        settings.append(f"rhs_dilation={tuple_text(d.dilation for d in windows)}")
    numbers = ", ".join(tuple_text(side) for side in (dims.lhs, dims.rhs, dims.out))
    settings.append(f"dimension_numbers=lax.ConvDimensionNumbers({numbers})")
    for name, count in zip(("feature_group_count", "batch_group_count"), group_counts(op.attrs), strict=True):
        settings.extend([f"{name}={count}"] if count != 1 else [])
    return settings
