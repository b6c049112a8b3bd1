"""Writes programs in the .spmd language: the form in which every program, before or after any pass, is shown.

The text is linear in the size of the program, and parsing it returns the same program. `# file:line reason` after an op
is its source location and why a pass put it there; both are optional, and the parser reads them back. The ops of a plan
have the reason as an attribute.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ir.diagnostics import Span
from ir.host import HostFunction
from ir.initializers import Initializer
from ir.mesh import AxisRef, Mesh
from ir.ops import OPS
from ir.ops.control import control_of
from ir.ops.declaration import CAUSE, STRATEGY, AttrKind, ControlKind
from ir.program import Attr, DeviceOrder, Function, Op, Program, Region, Result, Value
from ir.sharding import DimSharding, Sharding
from ir.types import TensorType

_COMMENT_COLUMN = 88
_INDENT = "  "


def print_program(program: Program, *, locations: bool = True, remarks: Mapping[Op, str] | None = None) -> str:
    """The program's text. Without `locations`, ops have neither source lines nor reasons. `remarks` are further texts
    to print after ops."""
    head: list[str] = [program.stage] if program.stage != "global" else []
    head.extend(print_mesh(mesh) for mesh in program.meshes)
    printer = _Printer(program.meshes, program.stage == "plan", locations, remarks or {})
    blocks = ["\n".join(head)] if head else []
    for name, function in program.functions.items():
        blocks.append(printer.function(function, program.weights if name == program.entry else {}))
    return "\n\n".join(blocks) + "\n"


def print_mesh(mesh: Mesh) -> str:
    """A mesh's declaration: `mesh m1 (a=2, b=4) devices=[0, 1, …]`."""
    name = f"{mesh.name} " if mesh.name else ""
    devices = f" devices={_nested(mesh.devices)}" if mesh.devices is not None else ""
    return f"mesh {name}({mesh}){devices}"


def print_type(type: TensorType, sharding: Sharding | None = None) -> str:
    """A type and its sharding: `f32[8@x, 4]{partial: y}`."""
    if sharding is None:
        return str(type)
    dims = ", ".join(f"{n}{_dim_suffix(sharding.mesh, dim)}" for n, dim in zip(type.shape, sharding.dims, strict=True))
    return f"{type.dtype.name}[{dims}]{print_sharding_suffix(sharding)}"


def print_sharding_suffix(sharding: Sharding) -> str:
    """The text after a type's brackets: `{partial: x, max y; replicated: z}`, or `{replicated}`, or nothing."""
    spell = sharding.mesh.spell
    parts: list[str] = []
    if sharding.partial:
        pending = (spell(a) if kind == "sum" else f"{kind} {spell(a)}" for a, kind in sharding.partial)
        parts.append(f"partial: {', '.join(pending)}")
    if sharding.replicated:
        parts.append(f"replicated: {', '.join(map(spell, sharding.replicated))}")
    if parts:
        return f"{{{'; '.join(parts)}}}"
    return "" if any(_is_visible(d) for d in sharding.dims) else "{replicated}"


def print_sharding(sharding: Sharding) -> str:
    """A sharding without a type: `[x, (y,z), ?]{partial: w}`, with a dash for an unsplit dim."""
    dims = (_dim_suffix(sharding.mesh, d).removeprefix("@") or "-" for d in sharding.dims)
    suffix = print_sharding_suffix(sharding)
    return f"[{', '.join(dims)}]{'' if suffix == '{replicated}' else suffix}"


def print_literal(value: object) -> str:
    """A number, or nested tuples of numbers as lists. Floats read back as the same floats."""
    if isinstance(value, tuple):
        return _nested(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, complex):
        return f"complex({float.__repr__(value.real)}, {float.__repr__(value.imag)})"
    return str(value)


def print_attrs(op: Op, meshes: Sequence[Mesh]) -> str:
    """An op's attributes as in a program, without its strategy and its cause."""
    return ", ".join(_Printer(tuple(meshes), is_plan=False, locations=False).own_attrs(op))


def print_initializer(initializer: Initializer) -> str:
    """The text after the `=` of a weight: `normal(0.02)`, or a number."""
    numbers = ", ".join(map(print_literal, initializer.numbers))
    return f"{initializer.distribution}({numbers})" if initializer.distribution else numbers


def print_location(span: Span | None, *reasons: str) -> str:
    """An op's trailing comment, `# file:line reason`; empty if there is none."""
    place = f" {' '.join(span.source.name.split())}:{span.line}" if span is not None else ""
    words = "".join(f"  {' '.join(reason.split())}" for reason in reasons if reason.strip())
    return f"#{place}{words}" if place or words else ""


def _nested(values: Iterable[object]) -> str:
    return f"[{', '.join(map(print_literal, values))}]"


def _is_visible(dim: DimSharding) -> bool:
    return bool(dim.axes or dim.open or dim.priority)


def _dim_suffix(mesh: Mesh, dim: DimSharding) -> str:
    if not _is_visible(dim):
        return ""
    items = [mesh.spell(axis) for axis in dim.axes]
    if dim.open:
        items.append("?")
    axes = items[0] if len(items) == 1 else f"({','.join(items)})"
    return f"@{axes}!{dim.priority}" if dim.priority else f"@{axes}"


@dataclass
class _Printer:
    meshes: tuple[Mesh, ...]
    is_plan: bool
    locations: bool
    remarks: Mapping[Op, str] = field(default_factory=dict[Op, str])
    lines: list[str] = field(default_factory=list[str])
    axis_sizes: dict[str, int] = field(init=False)
    renamed: dict[Value, str] = field(default_factory=dict[Value, str])
    types: dict[tuple[TensorType, Sharding | None], str] = field(
        default_factory=dict[tuple[TensorType, Sharding | None], str]
    )

    def __post_init__(self) -> None:
        self.axis_sizes = {name: size for mesh in self.meshes for name, size in mesh.axes}

    def function(self, function: Function, weights: Mapping[str, Initializer]) -> str:
        self.lines = []
        begin = {name: f" = {print_initializer(initializer)}" for name, initializer in weights.items()}
        params = ", ".join(self.param(param) + begin.get(param.name, "") for param in function.params)
        results = ", ".join(map(self.declared, function.results))
        self.lines.append(f"def {function.name}({params}) -> ({results}) {{")
        self.block(function.body, _INDENT)
        self.lines.append("}")
        return "\n".join(self.lines)

    def param(self, value: Value) -> str:
        return f"{value.name}: {self.shard_type(value.type, value.sharding, value.of)}"

    def declared(self, result: Result) -> str:
        type_text = self.shard_type(result.type, result.sharding, result.of)
        return f"{result.name}: {type_text}" if result.name else type_text

    def shard_type(self, type: TensorType, sharding: Sharding | None, of: TensorType | None) -> str:
        if of is None:
            return self.type(type, sharding)
        return f"{self.type(type, None)} of {self.type(of, sharding)}"

    def type(self, type: TensorType, sharding: Sharding | None) -> str:
        key = (type, sharding)
        text = self.types.get(key)
        if text is None:
            text = self.types[key] = print_type(type, sharding)
        return text

    def block(self, region: Region, indent: str) -> None:
        for op in region.ops:
            self.op(op, indent)
        values = ", ".join(map(self.name, region.results))
        self.lines.append(f"{indent}return {values}".rstrip())

    def op(self, op: Op, indent: str) -> None:
        results = ", ".join([f"{v.name}: {self.type(v.type, v.sharding)}" for v in op.results])
        left = f"{results} = " if results else ""
        match control_of(op):
            case ControlKind.LOOP if len(op.regions) == 2:
                self.loop(op, f"{indent}{left}", indent)
            case ControlKind.CHOICE:
                self.case(op, f"{indent}{left}", indent)
            case ControlKind.MANUAL:
                self.manual(op, f"{indent}{left}", indent)
            case _:
                arguments = ", ".join([*map(self.name, op.operands), *self.attrs(op)])
                self.line(f"{indent}{left}{op.name}({arguments})", op)

    def loop(self, op: Op, left: str, indent: str) -> None:
        """A loop's carried values are named once, by the body's parameters; the condition uses the same names."""
        cond, body = op.regions
        for mine, shown in zip(cond.params, body.params, strict=False):
            if mine.name != shown.name:
                self.renamed[mine] = shown.name
        self.line(f"{left}while({self.bound(op, body)}) cond {{", op)
        self.block(cond, indent + _INDENT)
        self.lines.append(f"{indent}}} do {{")
        self.block(body, indent + _INDENT)
        self.lines.append(f"{indent}}}")

    def case(self, op: Op, left: str, indent: str) -> None:
        chooser = f"({', '.join(map(self.name, op.operands))})" if op.operands else ""
        head = f"{left}{op.name}{chooser} {{"
        for region in op.regions:
            if region is op.regions[0]:
                self.line(head, op)
            else:
                self.lines.append(f"{indent}}} or {{")
            self.block(region, indent + _INDENT)
        self.lines.append(f"{indent}}}")

    def manual(self, op: Op, left: str, indent: str) -> None:
        for region in op.regions:
            self.line(f"{left}manual({self.bound(op, region)}) {{", op)
            self.block(region, indent + _INDENT)
            self.lines.append(f"{indent}}}")

    def bound(self, op: Op, region: Region) -> str:
        """A region's parameters with what the op passes to them, and the op's attributes."""
        pairs = zip(region.params, op.operands, strict=False)
        given = [f"{self.param(param)} = {self.name(value)}" for param, value in pairs]
        return ", ".join([*given, *self.attrs(op)])

    def line(self, text: str, op: Op) -> None:
        comment = ""
        if self.locations:
            cause = str(op.cause) if op.cause is not None and not self.is_plan else ""
            comment = print_location(op.span, self.remarks.get(op, ""), cause)
        self.lines.append(f"{text:<{_COMMENT_COLUMN}}  {comment}" if comment else text)

    def name(self, value: Value) -> str:
        return self.renamed.get(value, value.name)

    def own_attrs(self, op: Op) -> list[str]:
        return [f"{name}={self.attr(kind, value)}" for name, kind, value in _shown_attrs(op.name, op.attrs)]

    def attrs(self, op: Op) -> list[str]:
        shown = self.own_attrs(op)
        if op.strategy:
            shown.append(f"{STRATEGY.name}={json.dumps(op.strategy)}")
        if op.cause is not None and self.is_plan and not op.regions:
            shown.append(f"{CAUSE.name}={json.dumps(str(op.cause), ensure_ascii=False)}")
        return shown

    def attr(self, kind: AttrKind | None, value: Attr) -> str:
        if isinstance(value, DeviceOrder):
            mesh = "" if self.meshes and value.mesh == self.meshes[0] else value.mesh.name
            return f"{mesh}({', '.join(map(self.axis, value.axes))})"
        if isinstance(value, AxisRef):
            return self.axis(value)
        if isinstance(value, HostFunction):
            return value.name
        if kind == "axes" and isinstance(value, tuple):
            return f"({', '.join(self.axis(a) for a in value if isinstance(a, AxisRef))})"
        if kind == "text":
            return json.dumps(value, ensure_ascii=False)
        return print_literal(value)

    def axis(self, axis: AxisRef) -> str:
        whole = axis.pre == 1 and axis.size == self.axis_sizes.get(axis.name)
        return axis.name if whole else f"{axis.name}:({axis.pre}){axis.size}"


def _shown_attrs(opname: str, attrs: Mapping[str, Attr]) -> list[tuple[str, AttrKind | None, Attr]]:
    """The attributes that differ from their defaults, in the order in which the op declares them."""
    if not attrs:
        return []
    opdef = OPS.get(opname)
    declared = opdef.attrs if opdef is not None else ()
    shown: list[tuple[str, AttrKind | None, Attr]] = [
        (a.name, a.kind, attrs[a.name])
        for a in declared
        if a.name in attrs and (a.required or attrs[a.name] != a.default)
    ]
    known = {a.name for a in declared}
    shown.extend((name, None, value) for name, value in attrs.items() if name not in known)
    return shown
