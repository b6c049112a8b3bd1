"""How random programs (`spmdc.testing`) draw the ops that slide windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from ir.ops.window import Window, dilated
from ir.program import Value
from ir.types import TensorType, pred
from spmdc.verification.random_programs.writer import Write, Writer


def _window(draw: st.DrawFn, n: int) -> Window:
    """Any window that fits a dim of size n at least once."""
    base = draw(st.sampled_from([1, 1, 2, 3]))
    room = dilated(n, base)
    low = draw(st.integers(-min(2, room - 1), 2))
    high = draw(st.integers(-min(2, room - 1 + min(low, 0)), 2))
    window = Window(draw(st.integers(1, 3)), draw(st.integers(1, 3)), low, high, base, draw(st.sampled_from([1, 1, 2])))
    return window if window.count(n) else Window(1)


def _full_window(draw: st.DrawFn, n: int) -> Window:
    """A window that always contains an element that is not padding."""
    size = draw(st.integers(1, 3))
    low, high = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
    window = Window(size, draw(st.integers(1, 3)), low, high)
    return window if window.count(n) else Window(1)


def _windows(w: Writer, shape: Sequence[int], choose: Callable[[st.DrawFn, int], Window]) -> list[Window]:
    """A window for each dim; most dims have none."""
    return [choose(w.draw, n) if w.draw(st.integers(0, 2)) == 0 else Window(1) for n in shape]


def _settings(windows: Sequence[Window], base: str = "", dilation: str = "") -> dict[str, Any]:
    settings: dict[str, Any] = {
        "stride": tuple(d.stride for d in windows),
        "padding_low": tuple(d.low for d in windows),
        "padding_high": tuple(d.high for d in windows),
    }
    if base:
        settings |= {base: tuple(d.base_dilation for d in windows), dilation: tuple(d.dilation for d in windows)}
    return settings


def reduce_window(w: Writer) -> None:
    """Extremes of short floats use windows that contain an element, so that no infinity arises."""
    x = w.pick(filled=True)
    kinds = ["max", "min"]
    kinds += ["and", "or"] if not x.dtype.is_float else []
    kinds += ["sum"] * 3 if x.dtype != pred and w.adds(x) else []
    kind = w.draw(st.sampled_from(kinds))
    tame = x.dtype.is_float and kind != "sum" and not w.anything
    windows = _windows(w, x.shape, _full_window if tame else _window)
    sizes = tuple(d.size for d in windows)
    settings = _settings(windows, "base_dilation", "window_dilation")
    bound = w.bounds[x] * math.prod(sizes) if kind == "sum" else w.bounds[x]
    w.keep(w.b.op("reduce_window", x, window=sizes, kind=kind, **settings), bound)


def select_and_scatter(w: Writer) -> None:
    """The ops of max pooling and its gradient."""
    x = w.pick(lambda v: v.dtype.is_ordered and v.dtype != pred and w.adds(v), filled=True)
    windows = _windows(w, x.shape, _full_window)
    sizes, settings = tuple(d.size for d in windows), _settings(windows)
    source = w.b.op("reduce_window", x, window=sizes, kind=w.draw(st.sampled_from(["max", "min"])), **settings)
    select = w.draw(st.sampled_from(["GE", "GT", "LE", "LT"]))
    settings["padding_value"] = w.draw(st.sampled_from([None, None, 0, 1]))
    result = w.b.op("select_and_scatter", x, source, window=sizes, select=select, **settings)
    w.keep(result, w.bounds[x] * math.prod(sizes))


def convolution(w: Writer) -> None:
    """Convolutions with dims in any order, groups of either kind, and a kernel with an iota along one of its dims."""
    x = w.pick(lambda v: v.type.rank >= 2 and v.dtype != pred and v.dtype.is_ordered and w.adds(v), filled=True)
    rank = x.type.rank
    lhs, rhs, out = (w.draw(st.permutations(range(rank))) for _ in range(3))
    batch, feature = x.shape[lhs[0]], x.shape[lhs[1]]
    features = w.draw(st.sampled_from([g for g in (1, 1, 2, feature) if feature % g == 0]))
    batches = w.draw(st.sampled_from([g for g in (1, 1, 2, batch) if batch % g == 0])) if features == 1 else 1
    windows = _windows(w, [x.shape[d] for d in lhs[2:]], _window)
    output = w.draw(st.integers(1, 3)) * features * batches
    sizes = dict(zip(rhs, (feature // features, output, *(d.size for d in windows)), strict=True))
    kernel = _kernel(w, TensorType(tuple(sizes[d] for d in range(rank)), x.dtype))
    attrs: dict[str, Any] = {
        "lhs_batch": lhs[0], "lhs_feature": lhs[1], "lhs_spatial": tuple(lhs[2:]),
        "rhs_input": rhs[0], "rhs_output": rhs[1], "rhs_spatial": tuple(rhs[2:]),
        "out_batch": out[0], "out_feature": out[1], "out_spatial": tuple(out[2:]),
        "window_reversal": tuple(w.draw(st.integers(0, 1)) for _ in windows),
        "feature_group_count": features, "batch_group_count": batches,
    }  # fmt: skip
    attrs |= _settings(windows, "lhs_dilation", "rhs_dilation")
    terms = feature // features * math.prod(d.size for d in windows)
    w.keep(w.b.op("convolution", x, kernel, **attrs), w.bounds[x] * terms * max(kernel.shape))


def _kernel(w: Writer, type: TensorType) -> Value:
    kernel = w.b.op("iota", type=type, dim=w.draw(st.integers(0, type.rank - 1)))
    return w.b.op("shard", kernel, sharding=w.sharding(type)) if w.draw(st.booleans()) else kernel


WRITERS: tuple[Write, ...] = (reduce_window, select_and_scatter, convolution)
