"""Subscripts: `x[a:b:c, i, :]` slices a tensor as in numpy, and `sizes[0]` is an entry of a list."""

from __future__ import annotations

from collections.abc import Mapping

from ir.diagnostics import Span, error
from ir.program import Value
from ir.types import pred
from spmdc.frontends.spmd.expand.context import Expressions
from spmdc.frontends.spmd.items import Item, describe, expect_int, expect_value
from spmdc.frontends.spmd.syntax import nodes as s

_NEW_DIMS = ("None", "newaxis")
"""What makes a new dim in numpy."""


def subscript(given: Expressions, base: Item, node: s.Index) -> Item:
    """What the subscripts of a node select. Raises SpmdcError (E201, E203, E207)."""
    if isinstance(base, tuple):
        return _element(given, base, node)
    return _slice(given, expect_value(base, node.base.span, "what is sliced"), node)


def _element(given: Expressions, items: tuple[Item, ...], node: s.Index) -> Item:
    part = node.parts[0] if len(node.parts) == 1 else None
    if part is None or isinstance(part, s.Slice):
        raise error("E203", "a list is subscripted by one integer", node.span, help="sizes[0], or sizes[-1]")
    place = expect_int(given.expr(part), part.span, "a subscript")
    if not -len(items) <= place < len(items):
        message = f"{place} is out of range: the list has {len(items)} entries"
        raise error("E201", message, part.span, help=_valid_subscripts(len(items)))
    return items[place]


def _slice(given: Expressions, base: Value, node: s.Index) -> Value:
    """`x[a:b:c, i, :]`: slicing as in numpy. An integer drops its dim, and may be computed by the program."""
    for d, part in enumerate(node.parts):
        if isinstance(part, s.Name) and part.id.rpartition(".")[2] in _NEW_DIMS and given.scope.find(part.id) is None:
            help_text = f"expand_dims(x, {d}) has a new dim of size 1"
            raise error("E201", f"a subscript is an integer or a slice, and not {part.id}", part.span, help=help_text)
    if len(node.parts) > base.type.rank:
        message = f"{len(node.parts)} subscripts for the {base.type.rank} dims of {base.type}"
        raise error("E201", message, node.span, help="x[:, 0] has a subscript for each dim, or for the first ones")
    start, limit, stride = [0] * base.type.rank, list(base.shape), [1] * base.type.rank
    dropped: list[int] = []
    computed: dict[int, Value] = {}
    for d, part in enumerate(node.parts):
        if isinstance(part, s.Slice):
            start[d], limit[d], stride[d] = _bounds(given, part, base.shape[d])
            continue
        item = given.expr(part)
        if isinstance(item, Value):
            computed[d] = _subscript(item, part.span)
            continue
        place = _selected(item, d, part.span)
        if not -base.shape[d] <= place < base.shape[d]:
            message = f"{place} is out of range for dim {d} of {base.type}"
            raise error("E201", message, part.span, help=_valid_subscripts(base.shape[d]))
        start[d] = place % base.shape[d]
        limit[d] = start[d] + 1
        dropped.append(d)
    result = _at(given, base, computed) if computed else base
    for d in computed:
        limit[d] = 1
    if start != [0] * base.type.rank or limit != list(result.shape) or any(n != 1 for n in stride):
        strides = tuple(stride) if any(n != 1 for n in stride) else ()
        result = given.emitter.op("slice", result, start=tuple(start), limit=tuple(limit), stride=strides)
    kept = tuple(n for d, n in enumerate(result.shape) if d not in dropped and d not in computed)
    return given.emitter.reshape(result, kept)


def _selected(item: Item, dim: int, span: Span) -> int:
    if isinstance(item, tuple):
        help_text = f"take(x, i, {dim}) takes what x has at several indices, a tensor: i: s32[2] = [0, 2]"
        raise error("E207", f"a subscript must be an integer, and is {describe(item)}", span, help=help_text)
    return expect_int(item, span, "a subscript")


def _at(given: Expressions, x: Value, places: Mapping[int, Value]) -> Value:
    """One element along each of the dims with a place; an index out of range is clamped."""
    zero = given.emitter.constant(0, next(iter(places.values())).dtype)
    starts = [places.get(d, zero) for d in range(x.type.rank)]
    sizes = tuple(1 if d in places else n for d, n in enumerate(x.shape))
    return given.emitter.op("dynamic_slice", x, *starts, sizes=sizes)


def _bounds(given: Expressions, part: s.Slice, size: int) -> tuple[int, int, int]:
    def number(node: s.Expr | None, default: int) -> int:
        return default if node is None else expect_int(given.expr(node), node.span, "a bound of a slice")

    step = number(part.step, 1)
    if step < 1:
        help_text = "reverse(x, dims=[0]) turns a dim around"
        raise error("E201", f"the step of a slice is {step}: it must be at least 1", part.span, help=help_text)
    low, high = number(part.start, 0), number(part.stop, size)
    low, high = (n + size if n < 0 else n for n in (low, high))
    if not 0 <= low <= high <= size:
        message = f"slice {low}:{high} of a dim of size {size}: 0 <= start <= stop <= {size} must hold"
        raise error("E201", message, part.span, help=f"x[:{size}] is all of the dim, and so is x[:]")
    return low, high, step


def _subscript(item: Value, span: Span) -> Value:
    if item.type.rank or not item.dtype.is_integer:
        help_text = "take(x, indices, dim) takes what x has at several indices" if item.dtype.is_integer else ""
        if item.dtype == pred:
            help_text = "shapes are static: where(mask, x, 0) keeps the others as zeros"
        raise error("E207", f"a subscript must be an integer, and is {item.type}", span, help=help_text)
    return item


def _valid_subscripts(size: int) -> str:
    return f"valid subscripts are {-size} to {size - 1}" if size else "it has no element"
