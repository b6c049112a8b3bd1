"""Ops that hold regions or name functions: while, case, call, map, manual.

All but map have no factor rule: propagation and partitioning look through them (`ir.program.Region`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ir.ops.declaration import MONOTONE, AttrDef, OpDef, TypeRuleError, declare
from ir.ops.rule_helpers import pointwise
from ir.program import Attr
from ir.types import TensorType


def _infer_while(types: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Sequence[TensorType]:
    trips = attrs["trip_count"]
    if isinstance(trips, int) and trips < 0:
        raise TypeRuleError(f"trip_count={trips}: a loop cannot run less than 0 times")
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

TYPED_BY_CONTENTS = frozenset({"call", "case", "manual", "map"})
"""Ops whose results have the types of what their regions or functions return; `ir.verify.program` checks them."""


def _infer_nothing(types: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Sequence[TensorType]:
    raise AssertionError("the result types are those of what a region or a function returns")


declare(
    OpDef(
        "case",
        "control",
        1,
        _infer_nothing,
        None,
        regions=None,
        doc=(
            "What the region of that number returns; the index is s32[], and the last region stands for every index "
            "out of range. Regions have no parameters and see the values around them."
        ),
    )
)

declare(OpDef("call", "control", None, _infer_nothing, None, (AttrDef("function", "function"),)))


declare(
    OpDef(
        "map",
        "control",
        None,
        _infer_nothing,
        pointwise,
        (AttrDef("function", "function"),),
        unclaimed=(MONOTONE,),
        doc="A function of scalars, applied to the elements of tensors of one shape. It must not loop.",
    )
)


declare(
    OpDef(
        "manual",
        "control",
        None,
        _infer_nothing,
        None,
        (AttrDef("axes", "axes"),),
        stages=("global", "plan"),
        regions=1,
        doc=(
            "What the region computes on shards along the axes, which its parameters and the results' shardings "
            "describe (`ir.manual`). The region sees no values around it, and may communicate along the axes."
        ),
    )
)
