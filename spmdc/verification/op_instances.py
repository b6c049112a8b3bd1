"""Instances of every op, on which its rules are checked: with dims of unequal sizes, most of them prime."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ir.host import HostFunction
from ir.mesh import AxisRef, Mesh
from ir.ops import OPS
from ir.program import Attr, DeviceOrder
from ir.types import DTYPES, TensorType, bf16, c64, f8e4m3fn, f32, pred, s4, s8, s32, u2, u16, u32, u64


@dataclass(frozen=True)
class Instance:
    """An op on operands of these types. `definite` operands are symmetric positive definite matrices."""

    op: str
    operands: tuple[TensorType, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict[str, Attr])
    definite: bool = False

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.operands))})"


def instances_of(op: str) -> tuple[Instance, ...]:
    """The instances of an op. Those of most elementwise ops follow from the number of operands."""
    listed = tuple(i for i in _INSTANCES if i.op == op)
    if listed or OPS[op].attrs or OPS[op].operands is None:
        return listed
    dtypes = _ELEMENTS.get(op, ("f32", "s32", "s4") if op in _NUMBERS else ("f32",))
    count = OPS[op].operands or 1
    return tuple(Instance(op, (_type(f"{t}[5, 7]"),) * count) for t in dtypes)


_NUMBERS = ("negate", "abs", "sign", "add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum")
_ELEMENTS: dict[str, Sequence[str]] = {
    **dict.fromkeys(("not", "and", "or", "xor"), ("s32", "pred", "u2")),
    **dict.fromkeys(("popcnt", "count_leading_zeros"), ("s32", "u8")),
    **dict.fromkeys(("shift_left", "shift_right_arithmetic", "shift_right_logical"), ("s32",)),
    **dict.fromkeys(("real", "imag"), ("c64",)),
    **dict.fromkeys(("maximum", "minimum", "negate", "sign"), ("f32", "s32", "f8e4m3fn", "s4")),
    "power": ("f32",),
}


def _type(text: str) -> TensorType:
    name, sizes = text.split("[")
    return TensorType(tuple(map(int, re.findall(r"\d+", sizes))), DTYPES[name])


def _on(op: str, operands: str, *, definite: bool = False, **attrs: Attr) -> Instance:
    types = tuple(_type(t) for t in operands.split(" ") if t)
    return Instance(op, types, attrs, definite)


_CONV_DIMS: dict[str, Attr] = {
    "lhs_batch": 0, "lhs_feature": 3, "lhs_spatial": (1, 2),
    "rhs_input": 2, "rhs_output": 3, "rhs_spatial": (0, 1),
    "out_batch": 0, "out_feature": 3, "out_spatial": (1, 2),
}  # fmt: skip
_CONV = {**_CONV_DIMS, "padding_low": (1, 1), "padding_high": (1, 1)}
_TAKE: dict[str, Attr] = {
    "offset_dims": (1,), "collapsed_slice_dims": (0,), "start_index_map": (0,), "index_vector_dim": 1,
    "slice_sizes": (1, 5),
}  # fmt: skip
_SPANS: dict[str, Attr] = {"offset_dims": (1, 2), "start_index_map": (0,), "index_vector_dim": 1}
_SPREADS: dict[str, Attr] = {
    "update_window_dims": (1, 2), "scatter_dims_to_operand_dims": (0,), "index_vector_dim": 1,
}  # fmt: skip
_PUT: dict[str, Attr] = {
    "update_window_dims": (1,), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 1,
}  # fmt: skip

MANUAL = ("g", 2)
"""The axis, and its size, along which collectives run."""
_GROUP = AxisRef(MANUAL[0], 1, MANUAL[1])
_ROW = DeviceOrder(Mesh((MANUAL,)), (_GROUP,))

_INSTANCES: tuple[Instance, ...] = (
    _on("all_reduce", "f32[6,7]", axes=(_GROUP,)), _on("all_reduce", "s32[6,7]", axes=(_GROUP,), kind="max"),
    _on("all_gather", "f32[6,5,7]", axes=(_GROUP,), dim=1), _on("all_gather", "s32[6,7]", axes=(_GROUP,), dim=1),
    _on("reduce_scatter", "f32[6,4,7]", axes=(_GROUP,), dim=1),
    _on("reduce_scatter", "s32[6,4]", axes=(_GROUP,), dim=1, kind="min"),
    _on("all_to_all", "f32[6,4,5,7]", axes=(_GROUP,), split=1, concat=2),
    _on("all_to_all", "s32[6,4,7]", axes=(_GROUP,), split=1, concat=1),
    _on("collective_permute", "f32[6,7]", target=_ROW, source=_ROW, shift=1),
    _on("collective_permute", "s32[6,7]", target=_ROW, source=_ROW, shift=0),
    _on("box_permute", "f32[6,7]", axes=(_GROUP,), boxes=(12, 6, 3, 6, 6), round=1),
    _on("box_permutes", "f32[6,7] f32[6,5]", axes=(_GROUP,), boxes=((4, 2, 2, 2, 2), (4, 2, -2, 2, 2)), round=(0, 0)),
    *(_on("reduce", "f32[5,7,3]", dims=(0, 2), kind=k) for k in ("sum", "prod", "max", "min")),
    *(_on("reduce", "s32[5,7,3]", dims=(1,), kind=k) for k in ("sum", "max", "and", "or")),
    *(_on("reduce", "f8e5m2[5,7,3]", dims=(0, 2), kind=k) for k in ("max", "min")),
    *(_on("reduce", "s4[5,7,3]", dims=(1,), kind=k) for k in ("sum", "max", "and")),
    *(_on("reduce", "f32[5,7] s32[5,7]", dims=(1,), kind=k) for k in ("argmax", "argmin")),
    *(_on(op, "s32[5,7]", dim=1, reverse=r) for op in ("cumsum", "cumprod", "cummax", "cummin") for r in (False, True)),
    *(_on(op, "f32[7,5]", dim=0) for op in ("cumsum", "cummax", "cummin")),
    _on("complex", "f32[5,7] f32[5,7]"),
    _on("abs", "f32[5,7]"), _on("abs", "s32[5,7]"), _on("abs", "c64[5,7]"),
    _on("bitcast_convert", "s32[5,7]", dtype=u32), _on("bitcast_convert", "u32[5,7]", dtype=u16),
    _on("bitcast_convert", "u16[5,7,2]", dtype=u32), _on("bitcast_convert", "f32[5,7]", dtype=s32),
    _on("reduce_precision", "f32[5,7]", exponent_bits=8, mantissa_bits=7),
    _on("dot_general", "f32[5,7] f32[7,3]", lhs_contract=(1,), rhs_contract=(0,)),
    _on("dot_general", "s32[3,5,7] s32[3,7,11]", lhs_batch=(0,), rhs_batch=(0,), lhs_contract=(2,), rhs_contract=(1,)),
    _on("dot_general", "s4[5,7] s4[7,3]", lhs_contract=(1,), rhs_contract=(0,)),
    _on("map", "f32[5,7] f32[5,7]", function="larger_and_sum"),
    _on("reduce_window", "f32[5,7]", window=(1, 3), padding_low=(0, 1), padding_high=(0, 1), kind="sum"),
    _on("reduce_window", "s32[7,11]", window=(2, 3), stride=(1, 2), kind="max"),
    _on("select_and_scatter", "f32[5,8] f32[5,4]", window=(1, 2), stride=(1, 2)),
    Instance("convolution", (_type("f32[3,7,5,2]"), _type("f32[3,3,2,5]")), _CONV),
    Instance("convolution", (_type("f32[3,7,5,6]"), _type("f32[3,3,3,4]")), {**_CONV, "feature_group_count": 2}),
    Instance("convolution", (_type("f32[6,7,5,3]"), _type("f32[3,3,3,4]")), {**_CONV, "batch_group_count": 2}),
    Instance("convolution", (_type("f32[3,11,5,2]"), _type("f32[7,3,2,5]")), {**_CONV_DIMS, "padding_low": (0, 1)}),
    _on("constant", "", value=3, type=_type("s32[5,7]")),
    _on("constant", "", value=((1, 2, 3), (5, 8, 13)), type=_type("s32[2,3]")),
    _on("iota", "", type=_type("s32[5,7]"), dim=0), _on("iota", "", type=_type("f32[5,7]"), dim=1),
    _on("random_bits", "u32[2]", type=_type("u32[5,7]")),
    *(_on("rng_bit_generator", "u64[2]", type=_type("u32[5,7]"), algorithm=a) for a in ("DEFAULT", "THREE_FRY")),
    *(_on("compare", f"{t}[5,7] {t}[5,7]", direction=d) for t in ("f32", "s32") for d in ("EQ", "LT", "GE")),
    _on("select", "pred[5,7] f32[5,7] f32[5,7]"), _on("select", "pred[5,7] s32[5,7] s32[5,7]"),
    _on("clamp", "s32[5,7] s32[5,7] s32[5,7]"), _on("clamp", "f32[] f32[5,7] f32[]"),
    _on("convert", "f32[5,7]", dtype=s32), _on("convert", "s32[5,7]", dtype=f32),
    _on("convert", "f32[5,7]", dtype=bf16), _on("convert", "s32[5,7]", dtype=s8),
    _on("convert", "s32[5,7]", dtype=pred), _on("convert", "f32[5,7]", dtype=c64),
    _on("convert", "u32[5,7]", dtype=u64),
    _on("convert", "f32[5,7]", dtype=f8e4m3fn), _on("convert", "f8e4m3fn[5,7]", dtype=s4),
    _on("convert", "s32[5,7]", dtype=u2),
    _on("dynamic_slice", "f32[7,5] s32[] s32[]", sizes=(1, 5)),
    _on("dynamic_slice", "s32[7,5] s32[] s32[]", sizes=(3, 1)),
    _on("dynamic_update_slice", "f32[7,5] f32[1,5] s32[] s32[]"),
    _on("dynamic_update_slice", "s32[7,5] s32[3,5] s32[] s32[]"),
    Instance("gather", (_type("f32[7,5]"), _type("s32[3,1]")), _TAKE),
    Instance("gather", (_type("f32[7,5]"), _type("s32[11,1]")), {**_TAKE, "slice_sizes": (1, 3)}),
    *(
        Instance("gather", (_type("f32[7,5]"), _type("s32[11,1]")), {**_SPANS, "slice_sizes": s, "mode": m})
        for s in ((1, 5), (3, 2)) for m in ("clip", "fill")
    ),
    *(
        Instance("scatter", (_type("s32[7,5]"), _type("s32[3,1]"), _type("s32[3,5]")), {**_PUT, "kind": k})
        for k in ("sum", "max", "min", "prod", "replace")
    ),
    *(
        Instance("scatter", (_type("s32[7,5]"), _type("s32[3,1]"), _type("s32[3,2,3]")), {**_SPREADS, "kind": k})
        for k in ("sum", "replace")
    ),
    _on("broadcast_in_dim", "f32[5]", shape=(3, 5, 7), dims=(1,)),
    _on("broadcast_in_dim", "f32[1,7]", shape=(5, 7), dims=(0, 1)),
    _on("reshape", "f32[6,5]", shape=(2, 3, 5)), _on("reshape", "f32[3,5,7]", shape=(15, 7)),
    _on("reshape", "f32[6,5]", shape=(10, 3)),
    _on("transpose", "f32[5,7,3]", perm=(2, 0, 1)),
    _on("slice", "f32[7,5]", start=(1, 0), limit=(6, 5)),
    _on("slice", "f32[11,5]", start=(1, 0), limit=(10, 5), stride=(3, 1)),
    _on("pad", "f32[5,7] f32[]", low=(1, 0), high=(2, 0)),
    _on("pad", "s32[5,7] s32[]", low=(-1, 0), high=(1, 0), interior=(1, 0)),
    _on("reverse", "f32[5,7]", dims=(1,)), _on("reverse", "u2[5,7]", dims=(1,)),
    _on("concatenate", "f32[5,7] f32[3,7]", dim=0),
    _on("optimization_barrier", "f32[5,7] s32[5,7]"),
    _on("shard", "f32[5,7]"),
    _on("fft", "c64[5,7]", kind="FFT", length=(7,)), _on("fft", "c64[5,7]", kind="IFFT", length=(7,)),
    _on("fft", "f32[5,7]", kind="RFFT", length=(7,)), _on("fft", "c64[5,4]", kind="IRFFT", length=(7,)),
    _on("cholesky", "f32[5,3,3]", definite=True), _on("cholesky", "f32[5,3,3]", definite=True, lower=False),
    _on("triangular_solve", "f32[5,3,3] f32[5,3,7]", definite=True),
    _on("triangular_solve", "f32[5,3,3] f32[5,7,3]", definite=True, left_side=False, transpose="T"),
    _on("opaque", "f32[5,3,3]", target="lapack_sgetrf_ffi", rule="b i j -> b k l, b m, b",
        types=(_type("f32[5,3,3]"), _type("s32[5,3]"), _type("s32[5]")),
        operand_layouts=((0, 2, 1),), result_layouts=((0, 2, 1), (0, 1), (0,))),
    _on("callback", "f32[5,7]", function=HostFunction("squares", lambda x: np.flip(x * x + 1)),
        types=(_type("f32[5,7]"),)),
    _on("callback", "f32[5,7] s32[3]", function=HostFunction("nothing", lambda *arrays: None), split=True),
    _on("inspect", "f32[5,7] u32[]", function=HostFunction("shown", lambda sharding: None)),
    _on("sort", "s32[5,7]", dim=1), _on("sort", "f32[5,7] s32[5,7]", dim=0, descending=True),
    _on("sort", "f8e4m3fnuz[5,7]", dim=1), _on("sort", "f32[5,7] s32[5,7]", dim=1, first=3),
    _on("top_k", "f32[5,7]", k=3), _on("top_k", "s32[5,7]", k=7),
)  # fmt: skip
