"""Checks one op by itself: that it exists, is allowed here, and has its attributes and the types of its rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ir.diagnostics import Diagnostic
from ir.host import HostFunction
from ir.mesh import AxisRef, Mesh
from ir.ops import OPS, AttrDef, OpDef, TypeRuleError
from ir.ops.declaration import OF_MESHES
from ir.program import DeviceOrder, Op, Stage
from ir.sharding import Sharding, sharding_faults
from ir.types import DType, TensorType


def op_diagnostics(op: Op, stage: Stage, meshes: Sequence[Mesh], *, has_manual: bool = False) -> list[Diagnostic]:
    """The errors in the op, apart from its regions and callees (E103, E201 to E203, E301 to E303, E406).

    With `has_manual`, collectives may be in a global program; `ir.verify.manual` checks where.
    """
    opdef = OPS.get(op.name)
    if opdef is None:
        return [Diagnostic("E103", f"there is no op {op.name!r}", op.span, help="docs/ops.md lists the ops")]
    if stage not in opdef.stages and not (has_manual and opdef.family == "collective"):
        return [_wrong_stage(opdef, op, stage)]
    found = [*_shape_of_op(opdef, op), *_attr_diagnostics(opdef, op)]
    if not found and opdef.names_axes:
        found = _axes_diagnostics(opdef, op, meshes)
    if not found and not opdef.is_typed_by_contents:
        found = _type_diagnostics(opdef, op)
    return found


def _wrong_stage(opdef: OpDef, op: Op, stage: Stage) -> Diagnostic:
    if stage == "global" and "spmd" in opdef.stages:
        message = f"{opdef.name} belongs to SPMD programs, and this is a global one"
        help = "annotate how tensors are sharded, and the partitioner adds the communication"
        return Diagnostic("E406", message, op.span, help=help)
    where = {"global": "a global one", "plan": "a plan", "spmd": "an SPMD one"}[stage]
    return Diagnostic(
        "E406",
        f"{opdef.name} belongs to {opdef.stages[0]} programs, and this is {where}",
        op.span,
        help="leave it out: passes add it where it belongs",
    )


def _shape_of_op(opdef: OpDef, op: Op) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    if opdef.operands is not None and len(op.operands) != opdef.operands:
        message = f"{op.name} takes {opdef.operands} operands, and is given {len(op.operands)}"
        found.append(Diagnostic("E203", message, op.span, help=str(opdef)))
    if len(op.regions) != opdef.regions and not (opdef.regions is None and op.regions):
        wanted = "at least one region" if opdef.regions is None else f"{opdef.regions} regions"
        message = f"{op.name} holds {wanted}, and is given {len(op.regions)}"
        found.append(Diagnostic("E203", message, op.span, help=str(opdef)))
    return found


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_ints(value: object) -> bool:
    return isinstance(value, tuple) and (set(map(type, value)) <= {int} or all(map(_is_int, value)))


def _is_tuple_of(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and all(map(accepts, value))


_ATTR_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "int": (_is_int, "an integer"),
    "ints": (_are_ints, "a list of integers"),
    "float": (lambda v: isinstance(v, float) or _is_int(v), "a number"),
    "bool": (lambda v: isinstance(v, bool), "true or false"),
    "word": (lambda v: isinstance(v, str), "a word"),
    "text": (lambda v: isinstance(v, str), "a text in quotes"),
    "dtype": (lambda v: isinstance(v, DType), "an element type"),
    "type": (lambda v: isinstance(v, TensorType), "a tensor type"),
    "types": (_is_tuple_of(lambda v: isinstance(v, TensorType)), "a list of tensor types"),
    "axes": (_is_tuple_of(lambda v: isinstance(v, AxisRef)), "a list of mesh axes"),
    "value": (lambda v: isinstance(v, int | float | complex | tuple), "a number or nested lists of numbers"),
    "order": (lambda v: isinstance(v, DeviceOrder), "an order of devices"),
    "function": (lambda v: isinstance(v, str), "the name of a function"),
    "host": (lambda v: isinstance(v, HostFunction), "the name of a function on the host"),
    "pairs": (_is_tuple_of(_are_ints), "a list of lists of integers"),
}

_ABSENT = object()


def _attr_diagnostics(opdef: OpDef, op: Op) -> list[Diagnostic]:
    messages: list[tuple[str, str]] = []
    for attr in opdef.attrs:
        value = op.attrs.get(attr.name, _ABSENT)
        if value is _ABSENT:
            messages.append((f"{op.name} needs the attribute {attr.name!r}", opdef.doc))
        elif not _is_one_of(attr, value):
            messages.append(_attr_fault(op, attr, value))
    if len(op.attrs) > len(opdef.attrs):
        known = ", ".join(a.name for a in opdef.attrs) or "none"
        extra = [name for name in op.attrs if opdef.attr(name) is None]
        messages.extend((f"{op.name} has no attribute {name!r}", f"its attributes: {known}") for name in extra)
    return [Diagnostic("E203", message, op.span, help=help) for message, help in messages]


def _is_one_of(attr: AttrDef, value: object) -> bool:
    """Whether the attribute accepts the value."""
    if not attr.required and value == attr.default:
        return True
    accepts, _ = _ATTR_KINDS[attr.kind]
    return accepts(value) and (not attr.choices or value in attr.choices)


def _attr_fault(op: Op, attr: AttrDef, value: object) -> tuple[str, str]:
    accepts, words = _ATTR_KINDS[attr.kind]
    if not accepts(value):
        return f"{op.name}: {attr.name} must be {words}, and is {value!r}", attr.doc
    return f"{op.name}: {attr.name} is {value!r}", f"it is one of {', '.join(attr.choices)}"


def _axes_diagnostics(opdef: OpDef, op: Op, meshes: Sequence[Mesh]) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    for attr in opdef.attrs:
        if attr.kind not in OF_MESHES:
            continue
        value = op.attrs[attr.name]
        if isinstance(value, DeviceOrder):
            if value.mesh not in meshes:
                message = f"{op.name}: the mesh ({value.mesh}) of {attr.name} is not declared"
                found.append(Diagnostic("E301", message, op.span, help=f"declare it: mesh m ({value.mesh})"))
            found.extend(_axes_faults(op, value.mesh, value.axes))
        elif isinstance(value, tuple):
            axes = tuple(a for a in value if isinstance(a, AxisRef))
            found.extend(_axes_faults(op, _mesh_of(axes, meshes), axes))
    return found


def _mesh_of(axes: Sequence[AxisRef], meshes: Sequence[Mesh]) -> Mesh:
    """The mesh that has the first of the axes, or else the default mesh."""
    return next((m for m in meshes if axes and axes[0].name in m.names), meshes[0] if meshes else Mesh(()))


def _axes_faults(op: Op, mesh: Mesh, axes: tuple[AxisRef, ...]) -> list[Diagnostic]:
    faults = sharding_faults(Sharding(mesh, (), replicated=axes), ())
    return [
        Diagnostic(code, f"{op.name}: {message}", op.span, help=f"the mesh is ({mesh})") for code, message in faults
    ]


def _type_diagnostics(opdef: OpDef, op: Op) -> list[Diagnostic]:
    try:
        inferred = opdef.infer([v.type for v in op.operands], op.attrs)
    except TypeRuleError as e:
        return [Diagnostic("E201", f"{op.name}: {e.message}", op.span, help=e.help)]
    if list(inferred) == [value.type for value in op.results]:
        return []
    if len(inferred) != len(op.results):
        message = f"{op.name} has {len(inferred)} results, and {len(op.results)} are named"
        return [Diagnostic("E203", message, op.span, help=f"name {len(inferred)}")]
    return [
        Diagnostic(
            "E202",
            f"{value.name!r} is written as {value.type}, and {op.name} returns {type}",
            op.span,
            help=f"write {type}, or leave the type out",
        )
        for value, type in zip(op.results, inferred, strict=True)
        if value.type != type
    ]
