"""Ops with padding of their own absorb a pad of their operand.

So a split dim keeps its size, while a padded one would have other shard boundaries than the tensors around it. JAX pads
in front of the gradient of max pooling, and people do so in front of convolutions and pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ir.ops import OPS
from ir.ops.rule_helpers import ints_attr
from ir.ops.window import Window, padding_value, window_of, windows
from ir.program import Attr, Op, Value
from passes.optimize.fold.rewriter import Rewriter, Rule


def _padded_by_itself(r: Rewriter, op: Op) -> Value | None:
    """The operand before the pad, for an op that pads with the same number itself."""
    padded, own = r.maker(op.operands[0], "pad"), OPS[op.name].padding
    if padded is None or own is None or not r.is_number(padded.operands[1], own.value(op)):
        return None
    edges, dims = _edges(padded), own.dims(op)
    if any(edge != (0, 0, 0) for d, edge in enumerate(edges) if d not in dims):
        return None
    given = windows(op.attrs, (1,) * len(dims), own.dilation)
    joined = _with_edges(given, [edges[d] for d in dims])
    if joined is None:
        return None
    return r.write(op.name, padded.operands[0], *op.operands[1:], **{**op.attrs, **_settings(joined, own.dilation)})


RULES: dict[str, Rule] = {name: _padded_by_itself for name, opdef in OPS.items() if opdef.padding is not None}


def slice_of_scattered(r: Rewriter, op: Op, scattered: Op) -> Value | None:
    """The same scatter into the tensor before it was padded, if the slice keeps only elements that are not padding."""
    operand, source = scattered.operands
    padded = r.maker(operand, "pad")
    number = r.splat(padded.operands[1]) if padded is not None else None
    if padded is None or isinstance(number, bool | complex | None):
        return None
    x, edges, windows = padded.operands[0], _edges(padded), window_of(scattered)
    start, limit = ints_attr(op.attrs, "start"), ints_attr(op.attrs, "limit")
    places = zip(edges, start, limit, x.shape, strict=True)
    if any(gap or low < 0 or high < 0 or a < low or b > low + n for (low, high, gap), a, b, n in places):
        return None
    is_padded = any(w.low > 0 or w.high > 0 for w in windows)
    joined = _with_edges(windows, edges)
    if joined is None or (is_padded and padding_value(scattered) != number):
        return None
    padding = {name: n for name, n in _settings(joined, "").items() if name in scattered.attrs}
    whole = r.write(scattered.name, x, source, **{**scattered.attrs, **padding, "padding_value": number})
    first = tuple(a - low for a, (low, _, _) in zip(start, edges, strict=True))
    last = tuple(b - low for b, (low, _, _) in zip(limit, edges, strict=True))
    return r.write("slice", whole, **{**op.attrs, "start": first, "limit": last})


Edges = tuple[int, int, int]
"""Elements added before a dim, behind it, and between two of its elements."""


def _edges(padded: Op) -> Sequence[Edges]:
    """The edges that a pad adds to each dim."""
    low, high, interior = (ints_attr(padded.attrs, name) for name in ("low", "high", "interior"))
    return list(zip(low, high, interior or (0,) * len(low), strict=True))


def _with_edges(windows: Sequence[Window], edges: Sequence[Edges]) -> list[Window] | None:
    """The windows over the unpadded tensor; None if there are no such windows, because a pad that cuts elements away
    cannot be absorbed."""
    found: list[Window] = []
    for w, (low, high, gap) in zip(windows, edges, strict=True):
        come_back = (low < 0 < w.low) or (high < 0 < w.high)
        if come_back or (w.base_dilation > 1 and (low, high, gap) != (0, 0, 0)):
            return None
        dilation = w.base_dilation if w.base_dilation > 1 else gap + 1
        found.append(replace(w, low=w.low + low, high=w.high + high, base_dilation=dilation))
    return found


def _settings(windows: Sequence[Window], base: str) -> dict[str, Attr]:
    return {
        "padding_low": tuple(w.low for w in windows),
        "padding_high": tuple(w.high for w in windows),
        base: tuple(w.base_dilation for w in windows),
    }
