"""Reads attributes of ops: there is a reader for each kind of attribute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any, cast

from ir.diagnostics import Diagnostic, Diagnostics, Span, error
from ir.host import HostFunction
from ir.ops.declaration import AttrDef, AttrKind, OpDef
from ir.program import Attr, DeviceOrder, Value
from ir.types import TensorType
from spmdc.frontends.spmd.expand.constants import WORDS, fold_prefix
from spmdc.frontends.spmd.expand.context import Expressions
from spmdc.frontends.spmd.expand.sharded_types import dtype_named
from spmdc.frontends.spmd.foreign_names import instead_of_argument
from spmdc.frontends.spmd.items import (
    Item,
    check_type,
    describe,
    expect_int,
    expect_ints,
    expect_size,
    normal_dim,
    suggest,
)
from spmdc.frontends.spmd.syntax import nodes as s

Reader = Callable[[Expressions, s.Expr, str], Attr]


def read_attr(given: Expressions, definition: AttrDef, node: s.Expr) -> Attr:
    """The attribute's value. Raises SpmdcError (E103, E201, E207, E301)."""
    return _READERS[definition.kind](given, node, definition.name)


def refuse_unknown(opdef: OpDef, keywords: Sequence[s.Keyword]) -> None:
    """Raises SpmdcError (E203) with all keywords that are no attributes of the op."""
    names = [a.name for a in opdef.attrs]
    found = Diagnostics()
    for keyword in keywords:
        if keyword.name not in names:
            help = instead_of_argument(keyword.name, names) or suggest(keyword.name, names) or str(opdef)
            found.add(Diagnostic("E203", f"{opdef.name} has no attribute {keyword.name!r}", keyword.span, help=help))
    found.raise_errors()


def count_from_the_end(attrs: dict[str, Attr], rank: int, span: Span) -> None:
    """Lets a negative `dim` or `dims` count from the last dim."""
    dim, dims = attrs.get("dim"), attrs.get("dims")
    if isinstance(dim, int) and dim < 0:
        attrs["dim"] = normal_dim(dim, rank, span)
    if isinstance(dims, tuple) and any(isinstance(d, int) and d < 0 for d in dims):
        attrs["dims"] = tuple(normal_dim(d, rank, span) for d in dims if isinstance(d, int))


def _number(given: Expressions, node: s.Expr) -> Item:
    """The value of an expression in an attribute. No attribute is a tensor, so `true` is that word even if a tensor has
    the name."""
    word = node.operand if isinstance(node, s.Unary) else node
    if not (isinstance(word, s.Name) and word.id in WORDS and isinstance(given.scope.find(word.id), Value)):
        return given.expr(node)
    return fold_prefix(node.op, WORDS[word.id], node.span) if isinstance(node, s.Unary) else WORDS[word.id]


def _int(given: Expressions, node: s.Expr, name: str) -> Attr:
    item = given.expr(node)
    if isinstance(item, tuple):
        raise error("E207", f"{name} must be one integer, and is {describe(item)}", node.span, help=f"{name}=1")
    return expect_int(item, node.span, name)


def _float(given: Expressions, node: s.Expr, name: str) -> Attr:
    item = _number(given, node)
    if isinstance(item, int | float) and not isinstance(item, bool):
        return float(item)
    raise error("E207", f"{name} must be a number, and is {describe(item)}", node.span, help=f"{name}=0.5")


def _bool(given: Expressions, node: s.Expr, name: str) -> Attr:
    item = _number(given, node)
    if isinstance(item, bool):
        return item
    raise error("E207", f"{name} must be true or false, and is {describe(item)}", node.span, help=f"{name}=true")


def _written(kinds: type | UnionType, make: Callable[[Any], Attr], what: str, example: str = "") -> Reader:
    """A reader of attributes that are not evaluated: nodes of one of these kinds. `example` is the text to write after
    the name."""

    def read(given: Expressions, node: s.Expr, name: str) -> Attr:
        if isinstance(node, kinds):
            return make(node)
        raise error("E203", f"{name} must be {what}", node.span, help=f"{name}={example}" if example else "")

    return read


def _types(given: Expressions, node: s.Expr, name: str) -> Attr:
    if not isinstance(node, s.Array):
        raise error("E203", f"{name} must be a list of types", node.span, help=f"{name}=[f32[2, 3], s32[]]")
    return tuple(read_type(given, item, name) for item in node.items)


def _dtype(given: Expressions, node: s.Expr, name: str) -> Attr:
    if isinstance(node, s.Name):
        return dtype_named(node.id, node.span, given.scope)
    raise error("E203", f"{name} must be an element type", node.span, help=f"{name}=f32")


def read_type(given: Expressions, node: s.Expr, name: str) -> TensorType:
    """A tensor type in the place of an expression: `f32[2, 3]`. Raises SpmdcError (E101, E203, E205)."""
    if not (isinstance(node, s.Index) and isinstance(node.base, s.Name)):
        raise error("E203", f"{name} must be a type", node.span, help=f"{name}=f32[2, 3]")
    dtype = dtype_named(node.base.id, node.base.span, given.scope)
    shape: list[int] = []
    for part in node.parts:
        if isinstance(part, s.Slice):
            raise error("E203", f"{name} must be a type", node.span, help=f"{name}=f32[2, 3]")
        shape.append(expect_size(given.expr(part), part.span))
    return check_type(TensorType(tuple(shape), dtype), node.span)


def axis_nodes(node: s.Expr) -> list[s.Axis] | None:
    """The mesh axes that an expression names, `x` or `(x, y:(1)2)`; None for any other expression."""
    if isinstance(node, s.Axis):
        return [node]
    if isinstance(node, s.Name):
        return [s.Axis(node.span, node.id)]
    if not isinstance(node, s.Tuple):
        return None
    axes = [axis_nodes(item) for item in node.items]
    return [a[0] for a in axes if a] if all(axes) else None


def _axes(given: Expressions, node: s.Expr, name: str) -> Attr:
    nodes = axis_nodes(node)
    if nodes is None:
        raise error("E203", f"{name} must be mesh axes", node.span, help=f"{name}=(x, y)")
    return tuple(given.context.meshes.ref(a) for a in nodes)


def _order(given: Expressions, node: s.Expr, name: str) -> Attr:
    """A mesh and its axes in an order. Without a name, it is the mesh of the first axis, because axes belong to one
    mesh."""
    meshes = given.context.meshes
    mesh, axes = None, node
    if isinstance(node, s.Call):
        named = meshes.named(node.name)
        if named is None:
            raise error(
                "E301", f"there is no mesh {node.name!r}", node.name_span, help="declare it: mesh NAME (x=4, y=2)"
            )
        mesh, axes = named, s.Tuple(node.span, node.args)
    nodes = axis_nodes(axes)
    if nodes is None:
        raise error("E203", f"{name} must be the axes of a mesh", node.span, help=f"{name}=(x, y) or {name}=m1(a, b)")
    refs = tuple(meshes.ref(a) for a in nodes)
    if mesh is None:
        mesh = meshes.owner[nodes[0].name] if nodes else meshes.default
    for axis in nodes:
        if meshes.owner[axis.name] != mesh:
            raise error("E301", f"axis {axis.name!r} is not of mesh ({mesh})", axis.span, help="name axes of one mesh")
    return DeviceOrder(mesh, refs)


def _value(given: Expressions, node: s.Expr, name: str) -> Attr:
    if isinstance(node, s.Literal):
        return cast("Attr", node.value)
    if isinstance(node, s.Array):
        return tuple(_value(given, item, name) for item in node.items)
    if isinstance(node, s.Call) and node.name == "complex":
        return _complex(given, node, name)
    return _numbers(_number(given, node), node, name)


def _numbers(item: Item, node: s.Expr, name: str) -> Attr:
    if isinstance(item, tuple):
        return tuple(i if isinstance(i, int | float) else _numbers(i, node, name) for i in item)
    if isinstance(item, int | float):
        return item
    raise error(
        "E207",
        f"{name} must be a number or a list of numbers, and is {describe(item)}",
        node.span,
        help=f"{name}=[1, 2]",
    )


def _complex(given: Expressions, node: s.Call, name: str) -> complex:
    """`complex(1.0, 2.0)`, as a literal for a number."""
    parts = [_number(given, argument) for argument in node.args]
    numbers = [p for p in parts if isinstance(p, int | float) and not isinstance(p, bool)]
    if len(numbers) != 2 or len(parts) != 2 or node.keywords:
        message = f"{name} must be a number, and complex takes two of them"
        raise error("E207", message, node.span, help="complex(1.0, 2.0)")
    return complex(*numbers)


_READERS: dict[AttrKind, Reader] = {
    "int": _int,
    "ints": lambda given, node, name: expect_ints(given.expr(node), node.span, name),
    "float": _float,
    "bool": _bool,
    "word": _written(s.Name | s.Text, lambda node: node.id if isinstance(node, s.Name) else node.value, "a word"),
    "text": _written(s.Text, lambda node: node.value, "a text in quotes", '"…"'),
    "dtype": _dtype,
    "type": read_type,
    "types": _types,
    "axes": _axes,
    "value": _value,
    "order": _order,
    "function": _written(s.Name, lambda node: node.id, "the name of a function"),
    "host": _written(s.Name, lambda node: HostFunction(node.id), "the name of a function on the host"),
    "pairs": _value,
}
