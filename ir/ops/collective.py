"""Collectives: the communication ops of SPMD programs and manual regions (GShard, section 3.3.1).

Groups are mesh axes, never lists of device ids, so an op's size does not depend on the number of devices. The factor
rules are for manual regions, whose values may be split, or partial, along axes that are free there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from ir.mesh import AxisRef, axes_size
from ir.ops.boxes import Boxes, Round, row_of_rounds
from ir.ops.declaration import (
    COLLECTIVES,
    OPS,
    AttrDef,
    Attrs,
    Communication,
    Factor,
    FactorRule,
    InKernels,
    Linearity,
    TypeRuleError,
    Types,
    declare,
    largest,
)
from ir.ops.reduction import check_reducible
from ir.ops.rule_helpers import check_dim, each_by_itself, int_attr, ints_attr
from ir.program import DeviceOrder, Op
from ir.sharding import REDUCTION_KINDS
from ir.types import TensorType, pred, s32

__all__ = [
    "COLLECTIVES",
    "axes_attr",
    "collective_axes",
    "collective_group",
    "communication_of",
    "is_in_one_call",
    "orders_attr",
    "replicates",
    "rounds_of",
]


def axes_attr(attrs: Attrs, name: str = "axes") -> tuple[AxisRef, ...]:
    """The mesh axes a collective runs over, major first."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return tuple(a for a in value if isinstance(a, AxisRef))


def orders_attr(attrs: Attrs) -> tuple[DeviceOrder, DeviceOrder] | None:
    """Target and source of a collective_permute; None for any other op."""
    target, source = attrs.get("target"), attrs.get("source")
    return (target, source) if isinstance(target, DeviceOrder) and isinstance(source, DeviceOrder) else None


def is_in_one_call(op: Op) -> bool:
    """Whether backends have this all_reduce or reduce_scatter as a single collective."""
    kind, dtype = op.attrs["kind"], op.operands[0].dtype
    if op.name == "reduce_scatter":
        return kind == "sum"
    return kind in ("sum", "max", "min") or (kind in ("and", "or") and dtype == pred)


def collective_axes(op: Op) -> tuple[AxisRef, ...]:
    """Every axis along which a collective communicates, or along which axis_index counts."""
    orders = orders_attr(op.attrs)
    return orders[0].axes + orders[1].axes if orders is not None else axes_attr(op.attrs)


def collective_group(op: Op) -> int:
    """The number of devices in one group of a collective."""
    orders = orders_attr(op.attrs)
    return axes_size(orders[0].axes if orders is not None else axes_attr(op.attrs))


def communication_of(name: str) -> Communication:
    """The communication of the collective of that name. Raises KeyError for any other op."""
    found = OPS[name].communication
    if found is None:
        raise KeyError(name)
    return found


def replicates(op: Op) -> bool:
    """Whether all devices of a group have the same result after a collective."""
    sends = OPS[op.name].communication
    return sends is not None and sends.replicates


def _resize(t: TensorType, dim: int, size: int) -> TensorType:
    return t.with_shape((*t.shape[:dim], size, *t.shape[dim + 1 :]))


def _divided(t: TensorType, dim: int, parts: int) -> TensorType:
    if t.shape[dim] % parts:
        raise TypeRuleError(f"dim {dim} of {t} does not divide into {parts} parts")
    return _resize(t, dim, t.shape[dim] // parts)


def _infer_all_reduce(types: Types, attrs: Attrs) -> Types:
    check_reducible(attrs["kind"], types[0])
    return (types[0],)


def _infer_all_gather(types: Types, attrs: Attrs) -> Types:
    dim = check_dim(int_attr(attrs, "dim"), types[0].rank)
    return (_resize(types[0], dim, types[0].shape[dim] * axes_size(axes_attr(attrs))),)


def _infer_reduce_scatter(types: Types, attrs: Attrs) -> Types:
    check_reducible(attrs["kind"], types[0])
    dim = check_dim(int_attr(attrs, "dim"), types[0].rank)
    return (_divided(types[0], dim, axes_size(axes_attr(attrs))),)


def _infer_all_to_all(types: Types, attrs: Attrs) -> Types:
    (t,) = types
    split, concat = check_dim(int_attr(attrs, "split"), t.rank), check_dim(int_attr(attrs, "concat"), t.rank)
    parts = axes_size(axes_attr(attrs))
    t = _divided(t, split, parts)
    return (_resize(t, concat, t.shape[concat] * parts),)


def _infer_collective_permute(types: Types, attrs: Attrs) -> Types:
    orders = orders_attr(attrs)
    assert orders is not None
    target, source = orders
    if axes_size(target.axes) != axes_size(source.axes):
        raise TypeRuleError(
            f"target has {axes_size(target.axes)} positions and source {axes_size(source.axes)}: they must pair up"
        )
    if target.mesh != source.mesh and axes_size(target.axes) != target.mesh.size:
        raise TypeRuleError("target and source are of different meshes, and must then name every axis of them")
    return types


_FURTHEST = 2**40
"""The limit on the distance between elements, and between devices."""


def _infer_box_permute(types: Types, attrs: Attrs) -> Types:
    _check_boxes(ints_attr(attrs, "boxes"))
    _check_round(int_attr(attrs, "round"))
    return types


def _infer_box_permutes(types: Types, attrs: Attrs) -> Types:
    boxes, rounds = attrs["boxes"], ints_attr(attrs, "round")
    assert isinstance(boxes, tuple)
    if not types or not len(types) == len(boxes) == len(rounds):
        raise TypeRuleError(f"{len(types)} operands have {len(boxes)} boxes and {len(rounds)} rounds")
    for other in types[1:]:
        if other.dtype != types[0].dtype:
            raise TypeRuleError(f"what is sent in one message is of one type, not {types[0].dtype} and {other.dtype}")
    for each in boxes:
        _check_boxes(tuple(v for v in each if isinstance(v, int)) if isinstance(each, tuple) else ())
    for number in rounds:
        _check_round(number)
    taking_part = rounds_of(attrs)
    chosen = row_of_rounds(taking_part).chosen
    for what, partners in (("sends", Round.receivers), ("receives", Round.sources)):
        twice = chosen[sum(partners(each, chosen) >= 0 for each in taking_part) > 1]
        if twice.size:
            raise TypeRuleError(f"the device at {twice[0]} {what} in two of the rounds", "write a permute for each")
    return types


def _check_round(number: int) -> None:
    if abs(number) > _FURTHEST:
        raise TypeRuleError(f"round={number} sends further than to any device")


def _check_boxes(boxes: Sequence[int]) -> None:
    if max(map(abs, boxes), default=0) > _FURTHEST:
        raise TypeRuleError(f"boxes={list(boxes)} reach further than any dim does")
    if len(boxes) not in (5, 8) or boxes[1] < 1 or not boxes[3]:
        raise TypeRuleError(
            f"boxes={list(boxes)} must be [n, chunk, start, step, size], chunk positive and step not zero",
            "[n, chunk, start, step, size, every, phase, receivers], where not all elements or devices take part",
        )
    if len(boxes) == 8 and not (0 <= boxes[6] < boxes[5] and boxes[7] >= 0):
        raise TypeRuleError(
            f"boxes={list(boxes)}: every={boxes[5]} must be positive, phase={boxes[6]} less than that, and "
            f"receivers={boxes[7]} not negative"
        )


def _factors(op: Op) -> FactorRule:
    """The dims that devices join or cut stay whole; the others may be split along other axes."""
    fixed = {op.attrs[name] for name in ("dim", "split", "concat") if name in op.attrs}
    dims = tuple(() if d in fixed else (d,) for d in range(op.result.type.rank))
    return FactorRule(tuple(Factor(n) for n in op.result.shape), (dims,) * len(op.operands), (dims,))


def _all_or_one(op: Op) -> tuple[Linearity, ...]:
    """The op commutes with reductions of all operands together. With an extreme it commutes also in one operand alone,
    because an extreme of equal values is that value."""
    count = len(op.operands)
    alone = [Linearity(("max", "min", "and", "or"), (k,)) for k in range(count) if count > 1]
    return (Linearity(REDUCTION_KINDS, tuple(range(count))), *alone)


def _same_kind(op: Op) -> tuple[Linearity, ...]:
    kind = next(k for k in REDUCTION_KINDS if k == op.attrs["kind"])
    return (Linearity((kind,), (0,)),)


_MOVES_DATA = (Linearity(REDUCTION_KINDS, (0,)),)

_axes = AttrDef("axes", "axes")
_kind = AttrDef("kind", "word", default="sum", required=False, choices=REDUCTION_KINDS)
_dim = AttrDef("dim", "int")

_collective = partial(declare, family="collective", operands=1, factors=_factors, stages=("spmd",))


def _terms(op: Op, bounds: Sequence[float]) -> float:
    return largest(op, bounds) * (axes_size(axes_attr(op.attrs)) if op.attrs["kind"] == "sum" else 1)


def _its_share(group: int, nbytes: int) -> float:
    """All bytes but those of the device itself."""
    return (group - 1) / group * nbytes


def rounds_of(attrs: Attrs) -> tuple[Round, ...]:
    """The round of a `box_permute`, or the rounds of a `box_permutes`."""
    devices, boxes, rounds = axes_size(axes_attr(attrs)), attrs["boxes"], attrs["round"]
    if isinstance(rounds, int):
        return (Round(Boxes.from_attr(boxes), rounds, devices),)
    assert isinstance(boxes, tuple)
    each = zip(boxes, ints_attr(attrs, "round"), strict=True)
    return tuple(Round(Boxes.from_attr(its), number, devices) for its, number in each)


_BY_ROUNDS = Communication(lambda group, n: n, lambda group: 1.0, rounds=rounds_of, kind="collective_permute")

_collective(
    "axis_index",
    infer=lambda types, attrs: (TensorType((), s32),),
    attrs=(_axes,),
    operands=0,
    doc="The device's position along the axes, major first, as s32[].",
    in_kernels=InKernels.ELEMENTS,
)


def is_place_of_device(op: Op) -> bool:
    """Whether the op is the position of a device along mesh axes."""
    return op.name == "axis_index"


_collective(
    "all_reduce",
    infer=_infer_all_reduce,
    attrs=(_axes, _kind),
    linear=_same_kind,
    doc="The reduction, over the axes, of what the devices hold.",
    communication=Communication(
        lambda group, n: 2 * _its_share(group, n), math.log2, replicates=True, joins_itself=True
    ),
    terms=_terms,
)
_collective(
    "all_gather",
    infer=_infer_all_gather,
    attrs=(_axes, _dim),
    linear=_MOVES_DATA,
    doc="The shards along dim, concatenated in the axes' order.",
    communication=Communication(lambda group, n: (group - 1) * n, math.log2, joined="dim", replicates=True),
)
_collective(
    "reduce_scatter",
    infer=_infer_reduce_scatter,
    attrs=(_axes, _dim, _kind),
    linear=_same_kind,
    doc="The device's part, along dim, of the all_reduce.",
    communication=Communication(_its_share, math.log2, cut="dim"),
    terms=_terms,
)
_collective(
    "all_to_all",
    infer=_infer_all_to_all,
    attrs=(_axes, AttrDef("split", "int"), AttrDef("concat", "int")),
    linear=_MOVES_DATA,
    doc="Part i of dim split goes to device i of the axes; the parts received are concatenated along dim concat.",
    communication=Communication(_its_share, math.log2, cut="split", joined="concat"),
)
_collective(
    "collective_permute",
    infer=_infer_collective_permute,
    attrs=(AttrDef("target", "order"), AttrDef("source", "order"), AttrDef("shift", "int", default=0, required=False)),
    linear=_MOVES_DATA,
    doc=(
        "The device at position p of order `target` receives from the device at position p + `shift`, counted around, "
        "of order `source`. Within one mesh, coordinates on axes that neither order names stay as they are."
    ),
    communication=Communication(lambda group, n: n, lambda group: 1.0),
)
_collective(
    "box_permute",
    infer=_infer_box_permute,
    attrs=(_axes, AttrDef("boxes", "ints"), AttrDef("round", "int")),
    linear=_MOVES_DATA,
    doc=(
        "One round of a box exchange (`ir.ops.boxes`): a collective_permute whose pairs follow from where shards and "
        "boxes are. A device that receives nothing in the round gets zeros."
    ),
    communication=_BY_ROUNDS,
    meaning=lambda attrs: (attrs["axes"], rounds_of(attrs)),
)
_collective(
    "box_permutes",
    infer=_infer_box_permutes,
    attrs=(_axes, AttrDef("boxes", "pairs"), AttrDef("round", "ints")),
    operands=None,
    factors=each_by_itself,
    linear=_all_or_one,
    doc=(
        "Rounds of box exchanges in one message: each operand is sent as by a `box_permute` with the boxes and the "
        "round of that number. No device sends two of them, or receives two."
    ),
    communication=_BY_ROUNDS,
    meaning=lambda attrs: (attrs["axes"], rounds_of(attrs)),
)
