"""Ops that hold regions or name functions: while, call.

They have no factor rule: propagation and partitioning look through them (`ir.program.Region`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ir.ops.opdef import AttrDef, OpDef, declare
from ir.program import Attr
from ir.types import TensorType


def _infer_while(types: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Sequence[TensorType]:
    return types


declare(
    OpDef(
        "while",
        "control",
        None,
        _infer_while,
        None,
        (AttrDef("trip_count", "int", default=None, required=False),),
        regions=2,
        doc="Region 0 gives a pred[] from the carried values, region 1 the next carried values.",
    )
)


def _infer_call(types: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Sequence[TensorType]:
    raise AssertionError("the types of a call are those of its function's results")


declare(OpDef("call", "control", None, _infer_call, None, (AttrDef("function", "function"),)))
