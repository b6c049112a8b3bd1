"""Types with their shardings, meshes, and GShard's annotations `replicate`, `split` and `shard`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ir.diagnostics import Diagnostic, Span, SpmdcError, error
from ir.mesh import MAX_AXES, MAX_DEVICES, AxisRef, Mesh
from ir.ops.declaration import TypeRuleError
from ir.ops.reduction import check_reducible
from ir.sharding import REDUCTION_KINDS, DimSharding, ReductionKind, Sharding, sharding_faults
from ir.types import DTYPES, DType, TensorType
from spmdc.frontends.spmd.items import (
    Item,
    PoisonedError,
    Scope,
    check_type,
    describe,
    expect_int,
    expect_size,
    suggest,
)
from spmdc.frontends.spmd.syntax import nodes as s

Evaluate = Callable[[s.Expr], Item]


@dataclass
class Meshes:
    """The meshes of a program; axis names are unique over all of them."""

    meshes: list[Mesh] = field(default_factory=list[Mesh])
    owner: dict[str, Mesh] = field(default_factory=dict[str, Mesh])
    faulty: bool = False
    """Whether a mesh item has errors, so that unknown axes may be its."""
    in_plan: bool = False
    """Whether all element types can have pending sums, as in plans: of one device's element and nothing on the
    others."""

    @property
    def default(self) -> Mesh:
        return self.meshes[0] if self.meshes else Mesh(())

    def add(self, mesh: Mesh) -> Mesh:
        """The mesh, added if it is new."""
        if mesh in self.meshes:
            return mesh
        self.meshes.append(mesh)
        for name, _ in mesh.axes:
            self.owner[name] = mesh
        return mesh

    def named(self, name: str) -> Mesh | None:
        return next((m for m in self.meshes if m.name == name), None)

    def missing(self, axis: str, span: Span) -> Exception:
        """The error for an axis that no mesh has."""
        if self.faulty:
            return PoisonedError()
        if not self.meshes:
            message = f"axis {axis!r} is used and the program has no mesh"
            return error("E306", message, span, help=f"write mesh ({axis}=8)")
        known = "; ".join(str(m) for m in self.meshes)
        hint = suggest(axis, self.owner)
        return error("E301", f"no mesh has an axis {axis!r}", span, help=hint or f"the axes are {known}")

    def ref(self, axis: s.Axis) -> AxisRef:
        """The axis that a node names. Raises SpmdcError (E301, E303, E306)."""
        mesh = self.owner.get(axis.name)
        if mesh is None:
            raise self.missing(axis.name, axis.span)
        whole = mesh.axis(axis.name)
        if axis.part is None:
            return whole
        pre, size = axis.part
        if pre < 1 or size < 1 or whole.size % (pre * size):
            message = f"{axis.name}:({pre}){size} is no part of axis {axis.name!r} of size {whole.size}"
            raise error("E303", message, axis.span, help=f"{axis.name}:(p)s needs p * s to divide {whole.size}")
        return AxisRef(axis.name, pre, size)


def declare_mesh(meshes: Meshes, item: s.MeshItem, evaluate: Evaluate) -> None:
    """Adds the mesh of a mesh item. Raises SpmdcError (E304, E207)."""
    if len(item.axes) > MAX_AXES:
        message = f"the mesh has {len(item.axes):,} axes, and no more than {MAX_AXES} are possible"
        raise error("E304", message, item.span, help="join axes that are always used together")
    axes: list[tuple[str, int]] = []
    for axis in item.axes:
        assert axis.value is not None
        size = expect_int(evaluate(axis.value), axis.value.span, f"the size of axis {axis.name!r}")
        if size < 1:
            help_text = f"an axis of size 1 splits nothing: {axis.name}=1"
            raise error("E304", f"axis {axis.name!r} has size {size}: it must be at least 1", axis.span, help=help_text)
        if axis.name in meshes.owner or any(axis.name == name for name, _ in axes):
            help_text = "the names of axes are unique over all meshes"
            raise error("E304", f"axis {axis.name!r} is declared twice", axis.span, help=help_text)
        axes.append((axis.name, size))
    if item.name and meshes.named(item.name) is not None:
        raise error("E304", f"mesh {item.name!r} is declared twice", item.span, help="give one of them another name")
    if not item.name and any(not m.name for m in meshes.meshes):
        raise error("E304", "there is a mesh without a name already", item.span, help="mesh other (a=2, b=4)")
    mesh = Mesh(tuple(axes), None, item.name)
    _check_size(mesh, meshes, item.span)
    if item.devices is not None:
        mesh = Mesh(mesh.axes, _devices(mesh, item.devices, evaluate), item.name)
    meshes.add(mesh)


def _check_size(mesh: Mesh, meshes: Meshes, span: Span) -> None:
    if mesh.size > MAX_DEVICES:
        help_text = f"no more than {MAX_DEVICES:,} are possible"
        raise error("E304", f"the mesh has {mesh.size:,} devices", span, help=help_text)
    wanted = meshes.default.size if meshes.meshes else mesh.size
    if mesh.size != wanted:
        help_text = f"every mesh is of the same devices: its axes must multiply to {wanted}"
        raise error("E304", f"the mesh has {mesh.size} devices, and the first has {wanted}", span, help=help_text)


def _devices(mesh: Mesh, node: s.Expr, evaluate: Evaluate) -> tuple[int, ...]:
    items = evaluate(node)
    ids = items if isinstance(items, tuple) else (items,)
    devices = tuple(expect_int(i, node.span, "a device id") for i in ids)
    last = mesh.size - 1
    wanted = f"devices=[…] lists the ids 0 to {last}, each once, in any order" if last else "devices=[0]"
    if len(devices) != mesh.size:
        message = f"the mesh has {mesh.size} devices, and {len(devices)} ids are listed"
        raise error("E304", message, node.span, help=wanted)
    listed: set[int] = set(devices)
    if len(listed) == mesh.size and (min(listed), max(listed)) == (0, last):
        return devices
    listed.clear()
    for device in devices:
        if not 0 <= device <= last or device in listed:
            what = f"is no number from 0 to {last}" if device not in listed else "is listed twice"
            raise error("E304", f"device id {device} {what}", node.span, help=wanted)
        listed.add(device)
    return devices


def tensor_type(node: s.TypeExpr, evaluate: Evaluate, scope: Scope) -> TensorType:
    """The type without its sharding. Raises SpmdcError (E101, E205, E207), or PoisonedError."""
    shape = tuple([expect_size(evaluate(d.size), d.span) for d in node.dims])
    return check_type(TensorType(shape, dtype_named(node.dtype, node.span, scope)), node.span)


_OTHER_NAMES = {"float": "f", "int": "s", "i": "s", "uint": "u", "ui": "u", "complex": "c", "fp": "f"}
"""The beginnings of element type names in numpy, MLIR and others."""


def dtype_named(name: str, span: Span, scope: Scope) -> DType:
    """The element type with that name, or that a const with that name equals. Raises SpmdcError (E101), or
    PoisonedError."""
    dtype = DTYPES.get(name) or scope.lookup(name)
    if dtype is None and scope.may_lack():
        raise PoisonedError
    if isinstance(dtype, DType):
        return dtype
    if dtype is not None:
        help_text = f"const {name} = bf16 is one"
        raise error("E101", f"{name!r} is no element type, and is {describe(dtype)}", span, help=help_text)
    own = _OTHER_NAMES.get(re.sub(r"\d+$", "", name), "") + re.sub(r"^\D+", "", name)
    own = "pred" if name in ("bool", "i1") else "bf16" if name == "bfloat16" else own
    hint = f"did you mean {own}" if own in DTYPES else suggest(name, DTYPES)
    hint = hint or f"the element types are {', '.join(DTYPES)}"
    raise error("E101", f"there is no element type {name!r}", span, help=hint)


def type_sharding(node: s.TypeExpr, type: TensorType, meshes: Meshes) -> Sharding | None:
    """The sharding that a type is annotated with. None if there is none, or if an axis may be one of a mesh with
    errors.

    Raises SpmdcError (E301, E302, E303, E306, E307, E308).
    """
    if not node.annotated or (meshes.faulty and any(a.name not in meshes.owner for a in _named_axes(node))):
        return None
    dims = tuple(
        DimSharding(tuple(meshes.ref(a) for a in d.axes or ()), d.open, d.priority if d.axes is not None else 0)
        for d in node.dims
    )
    partial = tuple((meshes.ref(a), _reduction(kind, type, a.span, meshes)) for a, kind in node.partial)
    replicated = tuple(meshes.ref(a) for a in node.replicated)
    sharding = Sharding(_mesh_of(node, meshes), dims, partial, replicated)
    check_sharding(sharding, type.shape, node.span, [a.span for a in _named_axes(node)])
    return sharding


def _named_axes(node: s.TypeExpr) -> list[s.Axis]:
    """The axes that a type names, in the order of Sharding.used_axes."""
    return [a for d in node.dims for a in d.axes or ()] + [a for a, _ in node.partial] + list(node.replicated)


def _mesh_of(node: s.TypeExpr, meshes: Meshes) -> Mesh:
    """The mesh whose axes the type names."""
    owners = {meshes.owner[a.name]: a for a in _named_axes(node)}
    if len(owners) > 1:
        shown = " and ".join(repr(a.name) for a in owners.values())
        raise error(
            "E303",
            f"the axes {shown} belong to different meshes",
            node.span,
            help="use axes of one mesh in a type; a value may be annotated on another one later",
        )
    return next(iter(owners), meshes.default)


def _reduction(kind: str, type: TensorType, span: Span, meshes: Meshes) -> ReductionKind:
    known = next((k for k in REDUCTION_KINDS if k == kind), None)
    if known is None:
        raise error("E308", f"there is no reduction {kind!r}", span, help=f"it is one of {', '.join(REDUCTION_KINDS)}")
    if meshes.in_plan and known == "sum":
        return known
    try:
        check_reducible(known, type)
    except TypeRuleError as e:
        raise error("E308", e.message, span, help=e.help) from None
    return known


_FAULT_HELP = {
    "E302": "each axis splits one dim, or is partial, once: leave it out here, or name another axis",
    "E307": "split over parts of the axis whose boundaries divide one another",
    "E308": "one kind of reduction is pending at a time: reduce over the axes of the other kind first",
}


def check_sharding(sharding: Sharding, shape: Sequence[int], span: Span, axis_spans: Sequence[Span] = ()) -> None:
    """Raises SpmdcError (E301, E302, E303, E307, E308) if the sharding does not fit the shape.

    `axis_spans` has the spans of its axes, if the text names each of them.
    """
    faults = sharding_faults(sharding, shape)
    if not faults:
        return
    spans = iter(_clashing(sharding, axis_spans) if all(c in ("E302", "E307") for c, _ in faults) else ())
    raise SpmdcError([Diagnostic(c, text, next(spans, span), help=_FAULT_HELP.get(c, "")) for c, text in faults])


def _clashing(sharding: Sharding, spans: Sequence[Span]) -> list[Span]:
    """The spans of the axes that conflict with an earlier one, once for each fault."""
    found: list[Span] = []
    axes = list(sharding.used_axes())
    for i, (axis, span) in enumerate(zip(axes, spans, strict=False)):
        found.extend([span] * any(axis.overlaps(other) for other in axes[:i]))
        found.extend([span] * any(not axis.refines_with(other) for other in axes[:i]))
    return found


def to_become(wanted: TensorType, given: TensorType) -> str:
    """How to convert a tensor of one type to another, as help for an error."""
    if wanted.shape == given.shape:
        return f"{wanted.dtype}(x) converts it, or declare it {given}"
    sizes = f"[{', '.join(map(str, wanted.shape))}]"
    if wanted.rank == 2 and wanted.shape == given.shape[::-1]:
        return f"transpose(x) turns it around, or declare it {given}"
    if sorted(wanted.shape) == sorted(given.shape):
        return f"transpose(x, perm=[…]) rearranges its dims, or declare it {given}"
    if wanted.size == given.size:
        return f"reshape(x, shape={sizes}) has as many elements, or declare it {given}"
    return f"declare it {given}"
