"""reduce_window and select_and_scatter. Windows that grow from one end of a dim are cumulative ops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from jaxlib.mlir import ir as mlir

from ir.ops.declaration import TypeRuleError
from ir.ops.indexing import SCATTER_KINDS
from ir.ops.reduction import CUMULATIVE
from ir.ops.window import windows as checked_windows
from ir.program import Attr, Value
from ir.sharding import ReductionKind
from ir.types import TensorType, pred, s32, s64
from spmdc.frontends.stablehlo.attributes import ints, pairs
from spmdc.frontends.stablehlo.ops.reducers import arg, compare, expressions
from spmdc.frontends.stablehlo.ops.reduction import body_function, component_kinds, is_identity, mapped, with_init
from spmdc.frontends.stablehlo.ops.updates import one_by_one
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts

_CUMULATIVE = {kind: name for name, kind in CUMULATIVE.items()}
_MOST_OFFSETS = 256
"""The largest window to which an unsupported body is applied, position by position."""

_ELEMENTS: Mapping[str, Attr] = MappingProxyType(
    {
        "update_window_dims": (),
        "inserted_window_dims": (0,),
        "input_batching_dims": (),
        "scatter_indices_batching_dims": (),
        "scatter_dims_to_operand_dims": (0,),
        "index_vector_dim": 1,
        "unique_indices": False,
    }
)
"""The attributes of a scatter of elements into a row."""


@dataclass(frozen=True)
class _Windows:
    """The settings of each dim."""

    sizes: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    base: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def is_padded(self) -> bool:
        return any(self.low) or any(self.high) or set(self.base) > {1}

    def attrs(self) -> dict[str, Attr]:
        """The attributes of the program's op."""
        given = (
            ("stride", self.stride, 1),
            ("padding_low", self.low, 0),
            ("padding_high", self.high, 0),
            ("base_dilation", self.base, 1),
            ("window_dilation", self.dilation, 1),
        )
        return {"window": self.sizes, **{name: v for name, v, default in given if set(v) - {default}}}

    def running_dim(self, shape: Sequence[int]) -> tuple[int, bool] | None:
        """The dim along which each window has everything before an element, or (reverse) everything after it; None if
        there is none."""
        if {*self.stride, *self.base, *self.dilation} - {1}:
            return None
        wide = [d for d, n in enumerate(self.sizes) if n != 1 or self.low[d] or self.high[d]]
        if len(wide) != 1:
            return None
        (d,) = wide
        n = shape[d]
        if self.sizes[d] != n or {self.low[d], self.high[d]} != {0, n - 1}:
            return None
        return d, self.high[d] != 0


def _windows(op: mlir.Operation, scope: Scope) -> _Windows:
    a = op.attributes
    sizes = ints(a["window_dimensions"])
    ones, zeros = (1,) * len(sizes), (0,) * len(sizes)
    low, high = pairs(ints(a["padding"])) if "padding" in a else (zeros, zeros)

    def setting(name: str) -> tuple[int, ...]:
        return ints(a[name]) if name in a else ones

    found = _Windows(
        sizes, setting("window_strides"), low, high, setting("base_dilations"), setting("window_dilations")
    )
    try:
        checked_windows(found.attrs(), sizes)
    except TypeRuleError as e:
        raise scope.refuse(op, str(e), code="E201") from None
    return found


@converts("reduce_window")
def _reduce_window(op: mlir.Operation, scope: Scope) -> list[Bound]:
    values = scope.operands(op)
    operands, inits = values[: len(values) // 2], values[len(values) // 2 :]
    windows = _windows(op, scope)
    kinds = component_kinds(op.regions[0], [v.type for v in operands])
    if kinds is not None:
        return [_reduced(scope, v, i, k, windows) for v, i, k in zip(operands, inits, kinds, strict=True)]
    running = windows.running_dim(operands[0].shape)
    if running is None and math.prod(windows.sizes) > _MOST_OFFSETS:
        message = f"its body is no known reduction, and its window has {math.prod(windows.sizes)} elements"
        raise scope.refuse(op, message, code="E708", help="reduce by sum, prod, max, min, and or or")
    function = body_function(op, scope, op.regions[0], "window_body", [v.dtype for v in values])
    if running is not None:
        return list(_scanned(scope, function, operands, inits, *running))
    return list(_applied(scope, function, operands, inits, windows))


def _reduced(scope: Scope, value: Value, init: Value, kind: ReductionKind, windows: _Windows) -> Value:
    """XLA skips padding; if a window starts from `init`, it does so once."""
    running = windows.running_dim(value.shape)
    if running is not None and kind in _CUMULATIVE and is_identity(scope, init, kind):
        dim, reverse = running
        return scope.emit(_CUMULATIVE[kind], value, dim=dim, reverse=reverse)
    return with_init(scope, scope.emit("reduce_window", value, **windows.attrs(), kind=kind), init, kind)


def _padded(scope: Scope, value: Value, init: Value, windows: _Windows) -> Value:
    if not windows.is_padded:
        return value
    holes = tuple(n - 1 for n in windows.base)
    return scope.emit("pad", value, init, low=windows.low, high=windows.high, interior=holes if any(holes) else ())


def _applied(
    scope: Scope, function: str, operands: Sequence[Value], inits: Sequence[Value], windows: _Windows
) -> list[Value]:
    """Any body: the elements at each position of the windows are sliced out, and neighbours are combined."""
    padded = [_padded(scope, v, i, windows) for v, i in zip(operands, inits, strict=True)]
    extents = [(n - 1) * d + 1 for n, d in zip(windows.sizes, windows.dilation, strict=True)]
    counts = [
        max(0, (n - extent) // stride + 1)
        for n, extent, stride in zip(padded[0].shape, extents, windows.stride, strict=True)
    ]
    starts = [scope.broadcast(i, v.type.with_shape(tuple(counts))) for i, v in zip(inits, operands, strict=True)]
    if 0 in counts:
        return starts
    places = [
        [_place(scope, v, offset, counts, windows) for v in padded]
        for offset in itertools.product(*map(range, windows.sizes))
    ]
    while len(places) > 1:
        joined = [mapped(scope, function, [*a, *b]) for a, b in zip(places[::2], places[1::2], strict=False)]
        places = joined + places[len(joined) * 2 :]
    return mapped(scope, function, [*starts, *places[0]])


def _place(scope: Scope, value: Value, offset: Sequence[int], counts: Sequence[int], windows: _Windows) -> Value:
    start = tuple(o * d for o, d in zip(offset, windows.dilation, strict=True))
    limit = tuple(s + (c - 1) * by + 1 for s, c, by in zip(start, counts, windows.stride, strict=True))
    return scope.emit("slice", value, start=start, limit=limit, stride=windows.stride)


def _scanned(
    scope: Scope, function: str, operands: Sequence[Value], inits: Sequence[Value], dim: int, reverse: bool
) -> list[Value]:
    """Prefixes with any associative body: each element is combined with those 1, 2, 4, … positions before it."""
    shape = operands[0].shape
    values, shift = list(operands), 1
    while shift < shape[dim]:
        by = tuple(shift if d == dim else 0 for d in range(len(shape)))
        back = tuple(-n for n in by)
        low, high = (back, by) if reverse else (by, back)
        shifted = [scope.emit("pad", v, i, low=low, high=high) for v, i in zip(values, inits, strict=True)]
        values = mapped(scope, function, [*values, *shifted] if reverse else [*shifted, *values])
        shift *= 2
    return values


@converts("select_and_scatter")
def _select_and_scatter(op: mlir.Operation, scope: Scope) -> Value:
    operand, source, init = scope.operands(op)
    select, scatter = op.regions
    (chosen,) = expressions(select)
    directions = ("GE", "GT", "LE", "LT")
    direction = next((d for d in directions if chosen == compare(d, arg(0), arg(1))), None)
    windows, kinds = _windows(op, scope), component_kinds(scatter, [source.type])
    if direction is not None and kinds == ["sum"]:
        attrs = {**windows.attrs(), "select": direction}
        return with_init(scope, scope.emit("select_and_scatter", operand, source, **attrs), init, "sum")
    if math.prod(windows.sizes) > _MOST_OFFSETS:
        message = f"it selects or scatters by another function, in windows of {math.prod(windows.sizes)} elements"
        help = f"select by GE, GT, LE or LT and scatter by add, or in windows of up to {_MOST_OFFSETS} elements"
        raise scope.refuse(op, message, code="E708", help=help)
    selected = _selected(op, scope, operand, windows)
    indices = scope.emit("reshape", selected, shape=(source.type.size, 1))
    updates = scope.emit("reshape", source, shape=(source.type.size,))
    start = scope.broadcast(init, operand.type.with_shape((operand.type.size,)))
    if kinds is not None and kinds[0] in SCATTER_KINDS and operand.dtype != pred:
        made = scope.emit("scatter", start, indices, updates, **_ELEMENTS, kind=kinds[0])
    else:
        function = body_function(op, scope, scatter, "scatter_body", [operand.dtype, source.dtype])
        (made,) = one_by_one(scope, function, [start], indices, [updates], _ELEMENTS)
    return scope.emit("reshape", made, shape=operand.shape)


def _selected(op: mlir.Operation, scope: Scope, operand: Value, windows: _Windows) -> Value:
    """The number of the element that each window selects, with any function, or -1 if it has only padding. The selected
    element stays selected while the function returns true for it and later ones."""
    function = body_function(op, scope, op.regions[0], "select_body", [operand.dtype] * 2)
    size = operand.type.size
    counted = scope.emit("iota", type=TensorType((size,), s32 if size < 2**31 else s64), dim=0)
    numbers = scope.emit("reshape", counted, shape=operand.shape)
    nowhere = scope.full(-1, numbers.type.with_shape(()))
    padded = _padded(scope, operand, scope.full(operand.dtype != pred and 0, operand.type.with_shape(())), windows)
    numbered = _padded(scope, numbers, nowhere, windows)
    counts = scope.type(op.operands[1]).shape
    best: tuple[Value, Value] | None = None
    for offset in itertools.product(*map(range, windows.sizes)):
        value, number = (_place(scope, v, offset, counts, windows) for v in (padded, numbered))
        if best is None:
            best = value, number
            continue
        zero = scope.full(0, number.type)
        (stays,) = mapped(scope, function, [best[0], value])
        is_padding = scope.emit("compare", number, zero, direction="LT")
        was_element = scope.emit("compare", best[1], zero, direction="GE")
        stays = scope.emit("and", scope.emit("or", stays, is_padding), was_element)
        best = scope.emit("select", stays, best[0], value), scope.emit("select", stays, best[1], number)
    assert best is not None
    return best[1]
