"""Compositions over windows: convolution by a spec of letters, and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.diagnostics import SpmdcError, error
from ir.ops.window import dilated
from ir.program import Attr, Value
from ir.types import DType, f32
from spmdc.frontends.spmd.items import Item, describe, expect_ints
from spmdc.frontends.spmd.library.declare import Ints, composition
from spmdc.frontends.spmd.library.emitter import Emitter

Pairs = tuple[tuple[int, int], ...]


def _each(e: Emitter, values: Ints | None, rank: int, what: str) -> Ints:
    """A number for each of `rank` spatial dims; a single one applies to all."""
    given = (1,) if values is None else values
    if min(given, default=1) < 1:
        raise error("E201", f"{what} is {list(given)}: the numbers must be positive", e.span)
    if len(given) not in (1, rank):
        raise error("E201", f"{what} is {list(given)}: write a number, or one for each of {rank} spatial dims", e.span)
    return given * rank if len(given) == 1 else given


def _paddings(e: Emitter, padding: Item, sizes: Sequence[int], extents: Sequence[int], stride: Sequence[int]) -> Pairs:
    """The padding before and after each spatial dim, of these sizes, for windows of these extents.

    `"valid"` adds nothing, `"same"` as much as makes a window for each stride-th element, a number adds as many
    elements on all sides, and a list has a number or a pair for each dim.
    """
    if isinstance(padding, str):
        if padding.lower() not in ("same", "valid"):
            raise error("E201", f'padding is "{padding}"', e.span, help='it is "same", "valid", or a list of pairs')
        if padding.lower() == "valid":
            return ((0, 0),) * len(sizes)
        return tuple(_same(*dim) for dim in zip(sizes, extents, stride, strict=True))
    dims = padding if isinstance(padding, tuple) else (padding,) * len(sizes)
    if len(dims) != len(sizes):
        raise error(
            "E201", f"padding has {len(dims)} entries, and there are {len(sizes)} spatial dims", e.span,
            help="write a pair [before, after] for each of them",
        )  # fmt: skip
    pairs: list[tuple[int, int]] = []
    for dim in dims:
        ints = expect_ints(dim, e.span, "the padding")
        if len(ints) not in (1, 2):
            raise error("E203", f"the padding of a dim is a pair [before, after], not {describe(dim)}", e.span)
        pairs.append((ints[0], ints[-1]))
    return tuple(pairs)


def _same(n: int, extent: int, stride: int) -> tuple[int, int]:
    count = -(-n // stride)
    total = max(0, (count - 1) * stride + extent - n)
    return total // 2, total - total // 2


# Pooling.


@composition()
def max_pool(e: Emitter, x: Value, window: Ints, stride: Ints | None = None, padding: Item = "valid") -> Value:
    """The largest element of each window over the dims between the first, batch, and the last, features."""
    return e.op("reduce_window", x, kind="max", **_pooling(e, x, window, stride, padding))


@composition()
def avg_pool(e: Emitter, x: Value, window: Ints, stride: Ints | None = None, padding: Item = "valid") -> Value:
    """The mean of each window's elements over the dims between batch and features; padding does not count."""
    if not x.dtype.is_float:
        raise error("E201", f"avg_pool takes floats, and the elements are {x.dtype}", e.span)
    settings = _pooling(e, x, window, stride, padding)
    wide = e.convert(x, f32) if x.dtype.bits < f32.bits else x
    sums = e.op("reduce_window", wide, kind="sum", **settings)
    if not any((*settings["padding_low"], *settings["padding_high"])):
        return e.convert(e.binary("divide", sums, float(math.prod(settings["window"]))), x.dtype)
    ones = e.constant(1.0, wide.dtype, (1, *x.shape[1:-1], 1))
    counts = e.op("reduce_window", ones, kind="sum", **settings)
    inner = e.reshape(counts, counts.shape[1:-1])
    mean = e.op("divide", sums, e.broadcast(inner, sums.shape, range(1, x.type.rank - 1)))
    return e.convert(mean, x.dtype)


def _pooling(e: Emitter, x: Value, window: Ints, stride: Ints | None, padding: Item) -> dict[str, Ints]:
    """The attributes of reduce_window. Without `stride`, windows are adjacent."""
    rank = x.type.rank - 2
    if rank < 1:
        raise error("E201", f"pooling takes a batch, spatial dims, and features, and is given {x.type}", e.span)
    sizes = _each(e, window, rank, "window")
    steps = _each(e, stride if stride is not None else sizes, rank, "stride")
    pairs = _paddings(e, padding, x.shape[1:-1], sizes, steps)
    return {
        "window": (1, *sizes, 1),
        "stride": (1, *steps, 1),
        "padding_low": (0, *(low for low, _ in pairs), 0),
        "padding_high": (0, *(high for _, high in pairs), 0),
    }


# Convolution.


@composition()
def conv(
    e: Emitter,
    x: Value,
    w: Value,
    spec: str = "NHWC,HWIO->NHWC",
    stride: Ints | None = None,
    padding: Item = "valid",
    lhs_dilation: Ints | None = None,
    rhs_dilation: Ints | None = None,
    groups: int = 1,
    batch_groups: int = 1,
    reverse: bool = False,
    dtype: DType | None = None,
) -> Value:
    """The convolution of x with the kernel w. The spec names the dims of x, w and the result.

    Either as jax.lax does, with N and C for batch and features, I and O for the kernel's inputs and outputs; or as an
    einsum, with the input features named alike in x and w, and the kernel's spatial dims in the other case of those of
    x: "BIXY,xyIO->BOXY".
    """
    dims = _conv_dims(e, spec, x, w)
    rank = len(dims["lhs_spatial"])
    sizes = [x.shape[d] for d in dims["lhs_spatial"]]
    steps, holes = _each(e, stride, rank, "stride"), _each(e, lhs_dilation, rank, "lhs_dilation")
    spread = _each(e, rhs_dilation, rank, "rhs_dilation")
    extents = [dilated(w.shape[d], gap) for d, gap in zip(dims["rhs_spatial"], spread, strict=True)]
    room = [dilated(n, gap) for n, gap in zip(sizes, holes, strict=True)]
    pairs = _paddings(e, padding, room, extents, steps)
    attrs: dict[str, Attr] = {name: value if name.endswith("spatial") else value[0] for name, value in dims.items()}
    settings: dict[str, Ints] = {
        "stride": steps,
        "padding_low": tuple(low for low, _ in pairs),
        "padding_high": tuple(high for _, high in pairs),
        "lhs_dilation": holes,
        "rhs_dilation": spread,
        "window_reversal": (int(reverse),) * rank,
    }
    attrs |= {name: values for name, values in settings.items() if any(v != _NEUTRAL.get(name, 1) for v in values)}
    attrs |= {"feature_group_count": groups, "batch_group_count": batch_groups, "dtype": dtype}
    return e.op("convolution", x, w, **attrs)


_NEUTRAL = {"padding_low": 0, "padding_high": 0, "window_reversal": 0}
"""The default of a setting, if it is not 1."""

_ROLES = ("lhs_batch", "lhs_feature", "rhs_input", "rhs_output", "out_batch", "out_feature")


def _conv_dims(e: Emitter, spec: str, x: Value, w: Value) -> dict[str, Ints]:
    """The dims of each role; those of a single dim as a list of one. Raises SpmdcError (E206)."""
    left, comma, rest = spec.replace(" ", "").partition(",")
    right, arrow, out = rest.partition("->")
    sides = (left, right, out)
    if not comma or not arrow or not all(s.isalpha() and len(set(s)) == len(s) for s in sides):
        raise _bad_spec(e, spec, "it has no two operands and a result, each of different letters")
    for name, side, rank in (("x", left, x.type.rank), ("w", right, w.type.rank), ("the result", out, x.type.rank)):
        if len(side) != rank:
            raise _bad_spec(e, spec, f"it names {len(side)} dims of {name}, which has {rank}")
    kernel = {c: c if c in right else c.swapcase() for c in left if c in out}
    spatial = [c for c, inner in kernel.items() if inner in right]
    rest_of = (
        [c for c in left if c not in spatial],
        [c for c in right if c not in {kernel[s] for s in spatial}],
        [c for c in out if c not in spatial],
    )
    if any(len(r) != 2 for r in rest_of):
        raise _bad_spec(e, spec, "apart from spatial dims, each tensor has two")
    letters = _roles(e, spec, *rest_of)
    places = (left, left, right, right, out, out)
    dims: dict[str, Ints] = {role: (place.index(c),) for role, place, c in zip(_ROLES, places, letters, strict=True)}
    dims["lhs_spatial"] = tuple(left.index(c) for c in spatial)
    dims["rhs_spatial"] = tuple(right.index(kernel[c]) for c in spatial)
    dims["out_spatial"] = tuple(out.index(c) for c in spatial)
    return dims


def _roles(e: Emitter, spec: str, left: list[str], right: list[str], out: list[str]) -> str:
    """The letters of the roles, in order."""
    if (set(left), set(right), set(out)) == (set("NC"), set("IO"), set("NC")):
        return "NCIONC"
    batch, inner, output = (set(a) & set(b) for a, b in ((left, out), (left, right), (right, out)))
    if not len(batch) == len(inner) == len(output) == 1:
        raise _bad_spec(e, spec, "batch, input features and output features are not to be told apart")
    b, i, o = (next(iter(s)) for s in (batch, inner, output))
    return b + i + i + o + b + o


def _bad_spec(e: Emitter, spec: str, why: str) -> SpmdcError:
    help = 'write "NHWC,HWIO->NHWC", or as an einsum "BIXY,xyIO->BOXY"'
    return error("E206", f'"{spec}" is no spec of a convolution: {why}', e.span, help=help)
