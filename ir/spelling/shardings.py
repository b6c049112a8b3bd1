"""The spellings of shardings from other systems: JAX's `PartitionSpec`, HLO's tile assignments, Shardy's attribute, and
GShard's `split` and `shard`.

The type notation of the language itself, `f32[8@x, 4]{partial: y}`, belongs to the grammar and to
`ir.spelling.printer`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ir.diagnostics import Span, SpmdcError, error
from ir.mesh import AxisRef, Mesh, mesh_problems
from ir.sharding import DimSharding, Partial, Sharding, sharding_faults
from ir.spelling.cursor import Cursor
from ir.spelling.device_assignment import tile_axes
from ir.spelling.hlo_shardings import parse_hlo, sums

NestedInts: TypeAlias = "int | Sequence[NestedInts]"

_FITTING = "an entry for each dim, and each axis, or part of one, once"
_SHARDY_SPELLING = 'write it as Shardy does: #sdy.sharding<@mesh, [{"x"}, {?}]>'
_UNCONSTRAINED = ("UNCONSTRAINED", "P.UNCONSTRAINED", "PartitionSpec.UNCONSTRAINED")


def parse_sharding(text: str, mesh: Mesh, rank: int, *, prefix: str = "assigned", span: Span | None = None) -> Sharding:
    """The sharding, of a tensor of that rank, that the text spells in any of the notations.

    HLO's device lists become axes of `mesh`, or, if it has no such axes, a new mesh named `prefix`. Raises SpmdcError
    (E301 to E305, E307, E309), at `span`.
    """
    start = text.lstrip()
    if start.startswith("{"):
        return parse_hlo(text, mesh, rank, prefix=prefix, span=span)
    if start.startswith("#sdy"):
        return parse_shardy(text, mesh, rank, span=span)
    if start.startswith("P"):
        return parse_partition_spec(text, mesh, rank, span=span)
    help = 'write P("x", None), {devices=[2,1]<=[2]} or #sdy.sharding<@mesh, [{"x"}, {}]>'
    raise error("E309", f"{start[:60]!r} is no sharding", span, help=help)


def _checked(sharding: Sharding, rank: int, span: Span | None) -> Sharding:
    faults = sharding_faults(sharding, (1,) * rank)
    if faults:
        code, message = faults[0]
        raise error(code, message, span, help=f"the mesh is ({sharding.mesh})" if code == "E301" else _FITTING)
    return sharding


def _axis(name: str, mesh: Mesh, span: Span | None) -> AxisRef:
    try:
        return mesh.axis(name)
    except KeyError:
        help_text = f"name some of {', '.join(mesh.names)}" if mesh.names else "declare a mesh with that axis"
        raise error("E301", f"axis {name!r} is not in the mesh ({mesh})", span, help=help_text) from None


# JAX


def parse_partition_spec(text: str, mesh: Mesh, rank: int, *, span: Span | None) -> Sharding:
    """`P("x", None, ("y", "z"), unreduced={"w"})`. Dims without an entry are unsplit; `P.UNCONSTRAINED` is an open dim.
    As extensions of JAX's notation, a tuple of axes may be closed, and a part of an axis is written `"x:(1)2"`."""
    scanner = Cursor(text, "a PartitionSpec", span, help='write it as JAX does: P("x", None, ("y", "z"))')
    if not scanner.accept("P"):
        scanner.expect("PartitionSpec")
    scanner.expect("(")
    dims: list[DimSharding] = []
    partial: Partial = ()
    for _ in scanner.until(")"):
        if scanner.accept("unreduced"):
            scanner.expect("=", "{")
            partial = sums(_partition_axes(scanner, mesh, "}").axes)
        elif scanner.accept("reduced"):
            scanner.expect("=", "{")
            _partition_axes(scanner, mesh, "}")
        else:
            dims.append(_partition_dim(scanner, mesh))
    scanner.end()
    if len(dims) > rank:
        raise error("E303", f"the PartitionSpec names {len(dims)} dims, and the tensor has {rank}", span,
                    help="give an entry for each dim, or for the first few")  # fmt: skip
    dims.extend([DimSharding()] * (rank - len(dims)))
    return _checked(Sharding(mesh, tuple(dims), partial), rank, span)


def _partition_dim(scanner: Cursor, mesh: Mesh) -> DimSharding:
    if scanner.accept("None"):
        return DimSharding()
    if scanner.accept("("):
        return _partition_axes(scanner, mesh, ")")
    if any(map(scanner.accept, _UNCONSTRAINED)):
        return DimSharding(open=True)
    return DimSharding((_partition_axis(scanner, mesh),))


def _partition_axes(scanner: Cursor, mesh: Mesh, close: str) -> DimSharding:
    """Axes separated by commas, up to the closing bracket."""
    axes: list[AxisRef] = []
    is_open = False
    for _ in scanner.until(close):
        if any(map(scanner.accept, _UNCONSTRAINED)):
            is_open = True
        else:
            axes.append(_partition_axis(scanner, mesh))
    return DimSharding(tuple(axes), open=is_open)


def _partition_axis(scanner: Cursor, mesh: Mesh) -> AxisRef:
    name = scanner.string()
    if name is None:
        raise scanner.fault("None, an axis in quotes, or a tuple of axes")
    whole, colon, part = name.partition(":")
    if not colon:
        return _axis(name, mesh, scanner.span)
    inner = Cursor(part, f"axis {name!r}", scanner.span)
    pre, size = inner.part()
    inner.end()
    return AxisRef(_axis(whole, mesh, scanner.span).name, pre, size)


# Shardy


def parse_shardy(text: str, mesh: Mesh, rank: int, *, span: Span | None) -> Sharding:
    """`#sdy.sharding<@mesh, [{"x"}, {?}, {"y":(1)2, ?}p1], replicated={"z"}, unreduced={"w"}>`.

    The mesh's name is not compared with `mesh`: `shardy_mesh_name` returns the name of the mesh to pass. A mesh that
    the text spells out is used instead.
    """
    scanner = Cursor(text, "a Shardy sharding", span, help=_SHARDY_SPELLING)
    name = _shardy_head(scanner)
    mesh = mesh if name else _inline_mesh(scanner, mesh)
    scanner.expect(",", "[")
    dims: list[DimSharding] = []
    for _ in scanner.until("]"):
        scanner.expect("{")
        dims.append(_shardy_dim(scanner, mesh))
    lists: dict[str, tuple[AxisRef, ...]] = {}
    while scanner.accept(","):
        word = scanner.word()
        if word not in ("replicated", "unreduced") or word in lists:
            raise scanner.fault("replicated= or unreduced=, once each")
        scanner.expect("=", "{")
        lists[word] = _shardy_dim(scanner, mesh).axes
    scanner.expect(">")
    scanner.end()
    sharding = Sharding(mesh, tuple(dims), sums(lists.get("unreduced", ())), lists.get("replicated", ()))
    return _checked(sharding, rank, span)


def shardy_mesh_name(text: str, *, span: Span | None = None) -> str:
    """The name of the mesh that a Shardy sharding is on, empty if the mesh is spelt out."""
    return _shardy_head(Cursor(text, "a Shardy sharding", span, help=_SHARDY_SPELLING))


def _shardy_head(scanner: Cursor) -> str:
    scanner.expect("#", "sdy.sharding", "<")
    if not scanner.accept("@"):
        return ""
    name = scanner.string() or scanner.word()
    if not name:
        raise scanner.fault("the name of a mesh")
    return name


def _inline_mesh(scanner: Cursor, mesh: Mesh) -> Mesh:
    """`mesh<["x"=4, "y"=2], device_ids=[…]>`; `mesh` itself if it is that."""
    scanner.expect("mesh", "<", "[")
    axes: list[tuple[str, int]] = []
    for _ in scanner.until("]"):
        name = scanner.string()
        if name is None:
            raise scanner.fault("an axis in quotes")
        scanner.expect("=")
        axes.append((name, scanner.integer()))
    devices: tuple[int, ...] | None = None
    if scanner.accept(","):
        scanner.expect("device_ids", "=", "[")
        devices = tuple(scanner.integers())
        scanner.expect("]")
    scanner.expect(">")
    inline = Mesh(tuple(axes), devices, mesh.name)
    for problem in mesh_problems(inline):
        raise error(
            "E304", problem, scanner.span, help='as in <["x"=2, "y"=4]>: every axis once, and every device once'
        )
    return mesh if inline == mesh else Mesh(inline.axes, inline.devices)


def _shardy_dim(scanner: Cursor, mesh: Mesh) -> DimSharding:
    """The contents of braces: axes, then `?`; a priority may follow."""
    axes: list[AxisRef] = []
    is_open = False
    for _ in scanner.until("}"):
        if scanner.accept("?"):
            is_open = True
            scanner.expect("}")
            break
        axes.append(_shardy_axis(scanner, mesh))
    return DimSharding(tuple(axes), is_open, _priority(scanner))


def _shardy_axis(scanner: Cursor, mesh: Mesh) -> AxisRef:
    name = scanner.string()
    if name is None:
        raise scanner.fault("an axis in quotes or ?")
    axis = _axis(name, mesh, scanner.span)
    return AxisRef(axis.name, *scanner.part()) if scanner.accept(":") else axis


def _priority(scanner: Cursor) -> int:
    word = scanner.word()
    if word is None:
        return 0
    if word[0] != "p" or not word[1:].isdecimal() or len(word) > 10:
        raise scanner.fault("a priority, p0, p1, …, before it")
    return int(word[1:])


# GShard


def assign_devices(mesh: Mesh, ids: NestedInts, prefix: str, *, span: Span | None = None) -> Sharding:
    """GShard's `shard(t, device_assignment)` (appendix A.3).

    `ids` are device ids in nested lists, as deep as the tensor has dims; an id's position is that of the partition that
    the device has. With fewer partitions than devices, the other devices have copies. The result is on a new mesh named
    `prefix` if the axes of `mesh` cannot express it. Raises SpmdcError (E303, E304, E305).
    """
    shape = _nested_shape(ids)
    if shape is None:
        raise error(
            "E303",
            "the rows of the device assignment have different lengths",
            span,
            help="write rows of one length: [[0, 1], [2, 3]]",
        )
    own, axes = tile_axes(mesh, np.array(ids, dtype=np.int64).reshape((*shape, 1)), prefix=prefix, span=span)
    return Sharding(own, tuple(map(DimSharding, axes)))


def _nested_shape(ids: NestedInts) -> tuple[int, ...] | None:
    if isinstance(ids, int):
        return ()
    shapes = {_nested_shape(row) for row in ids}
    if len(shapes) != 1:
        return (0,) if not ids else None
    inner = shapes.pop()
    return None if inner is None else (len(ids), *inner)


def split_sharding(mesh: Mesh, rank: int, dim: int, partitions: int, *, span: Span | None = None) -> Sharding:
    """GShard's `split(t, dim, n)` (section 3.2): the dim over axes that make n partitions together.

    These are the only axis of size n; else all axes, or the first few, if their sizes multiply to n; else the major
    part of the only axis whose size n divides. Raises SpmdcError (E303, E305) if there is no such dim, or no such axes.
    """
    if not 0 <= dim < rank:
        raise error("E303", f"dim {dim} is out of range for a tensor of {rank} dims", span, help="dims count from 0")
    if not 1 <= partitions <= mesh.size:
        message = f"there are {partitions} partitions, and the mesh ({mesh}) has {mesh.size} devices"
        raise error("E305", message, span, help="split it into fewer partitions, or take a larger mesh")
    axes = _axes_of_product(mesh, partitions)
    if axes is None:
        raise _no_such_axes(mesh, partitions, span)
    return Sharding(mesh, tuple(DimSharding(axes if d == dim else ()) for d in range(rank)))


def _axes_of_product(mesh: Mesh, n: int) -> tuple[AxisRef, ...] | None:
    whole = [axis for axis in mesh.whole_axes() if axis.size > 1]
    same = [axis for axis in whole if axis.size == n]
    if len(same) == 1:
        return (same[0],)
    for end in (len(whole), *range(len(whole))):
        if math.prod(axis.size for axis in whole[:end]) == n:
            return tuple(whole[:end])
    divided = [axis for axis in whole if axis.size % n == 0]
    return (AxisRef(divided[0].name, 1, n),) if len(divided) == 1 else None


def _no_such_axes(mesh: Mesh, n: int, span: Span | None) -> SpmdcError:
    help_text = f"name the axes in the type instead: the dim's size, then @ and some of {', '.join(mesh.names)}"
    return error("E305", f"no axes of the mesh ({mesh}) make {n} partitions together", span, help=help_text)
