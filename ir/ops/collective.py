"""What devices say to one another: the communication ops of SPMD programs and manual regions (GShard, section 3.3.1).

Groups are mesh axes, never lists of device ids, so an op's size does not depend on the number of devices. The factor
rules are for manual regions, whose values may be split, or partial, along the axes that are free there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ir.mesh import AxisRef, axes_size
from ir.ops.boxes import Boxes
from ir.ops.declaration import (
    OPS,
    AttrDef,
    Attrs,
    Communication,
    Factor,
    FactorRule,
    InferRule,
    Linearity,
    OpDef,
    TypeRuleError,
    Types,
    declare,
)
from ir.ops.reduction import check_reducible
from ir.ops.rule_helpers import check_dim, int_attr, ints_attr
from ir.program import DeviceOrder, Op, Stage
from ir.sharding import REDUCTION_KINDS
from ir.types import TensorType, pred, s32


def axes_attr(attrs: Attrs, name: str = "axes") -> tuple[AxisRef, ...]:
    """The mesh axes a collective runs over, major first."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return tuple(a for a in value if isinstance(a, AxisRef))


def is_in_one_call(op: Op) -> bool:
    """Whether backends have that all_reduce or reduce_scatter as one collective, and need not put it together."""
    kind, dtype = op.attrs["kind"], op.operands[0].dtype
    if op.name == "reduce_scatter":
        return kind == "sum"
    return kind in ("sum", "max", "min") or (kind in ("and", "or") and dtype == pred)


def collective_axes(op: Op) -> tuple[AxisRef, ...]:
    """Every axis along which a collective communicates, or along which axis_index counts."""
    target, source = op.attrs.get("target"), op.attrs.get("source")
    if isinstance(target, DeviceOrder) and isinstance(source, DeviceOrder):
        return target.axes + source.axes
    return axes_attr(op.attrs)


def collective_group(op: Op) -> int:
    """How many devices take part in one group of a collective."""
    target = op.attrs.get("target")
    return axes_size(target.axes if isinstance(target, DeviceOrder) else axes_attr(op.attrs))


def communication_of(name: str) -> Communication:
    """What devices send in the collective of that name. Raises KeyError for any other op."""
    found = OPS[name].communication
    if found is None:
        raise KeyError(name)
    return found


def _resize(t: TensorType, dim: int, size: int) -> TensorType:
    return t.with_shape((*t.shape[:dim], size, *t.shape[dim + 1 :]))


def _divided(t: TensorType, dim: int, parts: int) -> TensorType:
    if t.shape[dim] % parts:
        raise TypeRuleError(f"dim {dim} of {t} does not divide into {parts} parts")
    return _resize(t, dim, t.shape[dim] // parts)


def _infer_axis_index(types: Types, attrs: Attrs) -> Types:
    return (TensorType((), s32),)


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
    target, source = attrs["target"], attrs["source"]
    assert isinstance(target, DeviceOrder)
    assert isinstance(source, DeviceOrder)
    if axes_size(target.axes) != axes_size(source.axes):
        raise TypeRuleError(
            f"target has {axes_size(target.axes)} positions and source {axes_size(source.axes)}: they must pair up"
        )
    if target.mesh != source.mesh and axes_size(target.axes) != target.mesh.size:
        raise TypeRuleError("target and source are of different meshes, and must then name every axis of them")
    return types


def _infer_box_permute(types: Types, attrs: Attrs) -> Types:
    boxes = ints_attr(attrs, "boxes")
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
    return types


def _factors(op: Op) -> FactorRule:
    """Dims that the devices put together or take apart stay whole, the others may be split along other axes."""
    fixed = {op.attrs[name] for name in ("dim", "split", "concat") if name in op.attrs}
    dims = tuple(() if d in fixed else (d,) for d in range(op.result.type.rank))
    return FactorRule(tuple(Factor(n) for n in op.result.shape), (dims,) * len(op.operands), (dims,))


def _same_kind(op: Op) -> tuple[Linearity, ...]:
    kind = next(k for k in REDUCTION_KINDS if k == op.attrs["kind"])
    return (Linearity((kind,), (0,)),)


_MOVES_DATA = (Linearity(REDUCTION_KINDS, (0,)),)

Linear = tuple[Linearity, ...] | Callable[[Op], tuple[Linearity, ...]]

_axes = AttrDef("axes", "axes")
_kind = AttrDef("kind", "word", default="sum", required=False, choices=REDUCTION_KINDS)
_dim = AttrDef("dim", "int")


def _collective(
    name: str,
    infer: InferRule,
    *attrs: AttrDef,
    operands: int = 1,
    doc: str = "",
    linear: Linear = (),
    sends: Communication | None = None,
    meaning: Callable[[Attrs], object] | None = None,
) -> None:
    stages: tuple[Stage, ...] = ("spmd",)
    family = "collective"
    declare(OpDef(name, family, operands, infer, _factors, attrs, linear, stages, 0, doc, None, sends, meaning))


def _its_share(group: int, nbytes: int) -> float:
    """All but what comes from the device itself."""
    return (group - 1) / group * nbytes


def _transfers(attrs: Attrs) -> tuple[tuple[int, int], ...]:
    """Source and receiver of each transfer in a round of boxes."""
    boxes = Boxes.from_attr(attrs["boxes"])
    return boxes.pairs(int_attr(attrs, "round"), axes_size(axes_attr(attrs)))


_collective(
    "axis_index",
    _infer_axis_index,
    _axes,
    operands=0,
    doc="The device's position along the axes, major first, as s32[].",
)
_collective(
    "all_reduce",
    _infer_all_reduce,
    _axes,
    _kind,
    linear=_same_kind,
    doc="The reduction, over the axes, of what the devices hold.",
    sends=Communication(lambda group, n: 2 * _its_share(group, n), math.log2, joins_itself=True),
)
_collective(
    "all_gather",
    _infer_all_gather,
    _axes,
    _dim,
    linear=_MOVES_DATA,
    doc="The shards along dim, concatenated in the axes' order.",
    sends=Communication(lambda group, n: (group - 1) * n, math.log2, joined="dim"),
)
_collective(
    "reduce_scatter",
    _infer_reduce_scatter,
    _axes,
    _dim,
    _kind,
    linear=_same_kind,
    doc="The device's part, along dim, of the all_reduce.",
    sends=Communication(_its_share, math.log2, cut="dim"),
)
_collective(
    "all_to_all",
    _infer_all_to_all,
    _axes,
    AttrDef("split", "int"),
    AttrDef("concat", "int"),
    linear=_MOVES_DATA,
    doc="Part i of dim split goes to device i of the axes; the parts received are concatenated along dim concat.",
    sends=Communication(_its_share, math.log2, cut="split", joined="concat"),
)
_collective(
    "collective_permute",
    _infer_collective_permute,
    AttrDef("target", "order"),
    AttrDef("source", "order"),
    AttrDef("shift", "int", default=0, required=False),
    linear=_MOVES_DATA,
    doc=(
        "The device at position p of order `target` receives from the device at position p + `shift`, counted around, "
        "of order `source`. Within one mesh, coordinates on axes that neither order names stay as they are."
    ),
    sends=Communication(lambda group, n: n, lambda group: 1.0),
)
_collective(
    "box_permute",
    _infer_box_permute,
    _axes,
    AttrDef("boxes", "ints"),
    AttrDef("round", "int"),
    linear=_MOVES_DATA,
    doc=(
        "One round of a box exchange (`ir.ops.boxes`): a collective_permute whose pairs follow from where shards and "
        "boxes lie. A device that receives nothing in the round gets zeros."
    ),
    sends=Communication(
        lambda group, n: n,
        lambda group: 1.0,
        receivers=lambda attrs: [receiver for _, receiver in _transfers(attrs)],
        kind="collective_permute",
    ),
    meaning=lambda attrs: (attrs["axes"], _transfers(attrs)),
)

COLLECTIVES = frozenset(name for name, opdef in OPS.items() if opdef.communication is not None)
"""The ops in which devices send something."""
