"""Named compositions: activations, normalisations, reductions, shapes, selection. Each expands to primitive ops.

Compositions of 16-bit floats that sum compute in f32 and convert back, as in jax.numpy and jax.nn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from ir.diagnostics import error
from ir.program import Attr, Value
from ir.types import DType, TensorType, f32, pred, s32
from spmdc.frontends.spmd.items import Item, Number, Several, check_type, expect_size, normal_dim
from spmdc.frontends.spmd.library.declare import Ints, composition, declare
from spmdc.frontends.spmd.library.emitter import Emitter, Operand


def _dims(e: Emitter, x: Value, dims: Sequence[int] | None, dim: int | None) -> tuple[int, ...]:
    """The specified dims, counted from 0; all dims if none are specified."""
    if dim is not None:
        dims = (dim,) if dims is None else (*dims, dim)
    if dims is None:
        return tuple(range(x.type.rank))
    normal = tuple(normal_dim(d, x.type.rank, e.span) for d in dims)
    if len(set(normal)) != len(normal):
        raise error("E201", f"dims {list(dims)} name a dim twice", e.span)
    return tuple(sorted(normal))


def _wide(e: Emitter, x: Value) -> Value:
    return e.convert(x, f32) if x.dtype.is_float and x.dtype.bits < f32.bits else x


def _floating(e: Emitter, x: Value, name: str) -> Value:
    if not x.dtype.is_float:
        message = f"{name} takes floats, and the elements are {x.dtype}"
        raise error("E201", message, e.span, help="convert(x, dtype=f32)")
    return x


def _keep(e: Emitter, x: Value, shape: tuple[int, ...], dims: Sequence[int], keepdims: bool) -> Value:
    """A reduced value, with dims of size 1 in place of the reduced ones if `keepdims`."""
    if not keepdims:
        return x
    return e.reshape(x, tuple(1 if d in dims else n for d, n in enumerate(shape)))


# Short names of ops.


def _op_of_one(e: Emitter, x: Value, *, opname: str) -> Value:
    return e.op(opname, x)


def _op_of_two(e: Emitter, a: Operand, b: Operand, *, opname: str) -> Value:
    return e.binary(opname, a, b)


_OF_ONE = {
    "exp": "exponential", "expm1": "exponential_minus_one", "log1p": "log_plus_one", "sin": "sine", "cos": "cosine",
    "neg": "negate", "logical_not": "not", "round": "round_nearest_even", "sigmoid": "logistic",
}  # fmt: skip
_OF_TWO = {
    "sub": "subtract", "mul": "multiply", "div": "divide", "pow": "power", "rem": "remainder", "logical_and": "and",
    "logical_or": "or", "logical_xor": "xor",
}  # fmt: skip
for _name, _opname in _OF_ONE.items():
    declare(_name, partial(_op_of_one, opname=_opname))
for _name, _opname in _OF_TWO.items():
    declare(_name, partial(_op_of_two, opname=_opname))


@composition()
def square(e: Emitter, x: Value) -> Value:
    """x · x."""
    return e.op("multiply", x, x)


@composition()
def reciprocal(e: Emitter, x: Value) -> Value:
    """1 / x."""
    return e.binary("divide", 1.0, x)


# Activations.


@composition()
def relu(e: Emitter, x: Value) -> Value:
    """max(x, 0)."""
    return e.binary("maximum", x, 0 if x.dtype.is_integer else 0.0)


@composition("swish")
def silu(e: Emitter, x: Value) -> Value:
    """x · sigmoid(x)."""
    return e.op("multiply", x, e.op("logistic", x))


@composition()
def softplus(e: Emitter, x: Value) -> Value:
    """log(1 + exp(x)), without overflow."""
    tail = e.op("log_plus_one", e.op("exponential", e.op("negate", e.op("abs", x))))
    return e.op("add", e.binary("maximum", x, 0.0), tail)


@composition()
def gelu(e: Emitter, x: Value, approximate: bool = True) -> Value:
    """The Gaussian error linear unit: by tanh, or by erf if not `approximate`."""
    _floating(e, x, "gelu")
    if approximate:
        cubed = e.op("multiply", e.op("multiply", x, x), x)
        inner = e.binary("multiply", e.op("add", x, e.binary("multiply", cubed, 0.044715)), math.sqrt(2 / math.pi))
        gate = e.binary("add", e.op("tanh", inner), 1.0)
    else:
        gate = e.binary("add", e.op("erf", e.binary("multiply", x, math.sqrt(0.5))), 1.0)
    return e.op("multiply", x, e.binary("multiply", gate, 0.5))


@composition()
def softmax(e: Emitter, x: Value, dim: int = -1) -> Value:
    """exp(x) / sum(exp(x)) along dim; the maximum is subtracted first, so nothing overflows."""
    place = normal_dim(dim, _floating(e, x, "softmax").type.rank, e.span)
    powers = e.op("exponential", _centred(e, x, place))
    total = e.convert(e.reduce(_wide(e, powers), (place,), "sum"), x.dtype)
    return e.op("divide", powers, e.expand(total, x, (place,)))


@composition()
def log_softmax(e: Emitter, x: Value, dim: int = -1) -> Value:
    """log(softmax(x)), computed without the quotient."""
    place = normal_dim(dim, _floating(e, x, "log_softmax").type.rank, e.span)
    centred = _centred(e, x, place)
    total = e.reduce(_wide(e, e.op("exponential", centred)), (place,), "sum")
    return e.op("subtract", centred, e.expand(e.convert(e.op("log", total), x.dtype), x, (place,)))


def _centred(e: Emitter, x: Value, dim: int) -> Value:
    """x less its maximum along dim. What it is used for does not depend on what is subtracted, so that the maximum
    needs no gradient."""
    top = e.op("stop_gradient", e.reduce(x, (dim,), "max"))
    return e.op("subtract", x, e.expand(top, x, (dim,)))


@composition()
def logsumexp(e: Emitter, x: Value, dim: int = -1) -> Value:
    """log(sum(exp(x))) along dim, without overflow."""
    place = normal_dim(dim, _floating(e, x, "logsumexp").type.rank, e.span)
    top = e.reduce(x, (place,), "max")
    finite = e.op("stop_gradient", e.select(e.op("is_finite", top), top, 0.0))
    powers = e.op("exponential", e.op("subtract", x, e.expand(finite, x, (place,))))
    total = e.op("log", e.reduce(_wide(e, powers), (place,), "sum"))
    return e.op("add", e.convert(total, x.dtype), finite)


# Normalisation, over the last dim.


@composition()
def layer_norm(e: Emitter, x: Value, scale: Value | None = None, bias: Value | None = None, eps: float = 1e-6) -> Value:
    """(x - mean) / sqrt(variance + eps) · scale + bias, over the last dim."""
    wide = _wide(e, _floating(e, x, "layer_norm"))
    centred = e.op("subtract", wide, e.expand(_mean(e, wide, (x.type.rank - 1,)), wide, (x.type.rank - 1,)))
    return _scaled(e, centred, x.dtype, scale, bias, eps)


@composition()
def rms_norm(e: Emitter, x: Value, scale: Value | None = None, eps: float = 1e-6) -> Value:
    """x / sqrt(mean(x²) + eps) · scale, over the last dim."""
    return _scaled(e, _wide(e, _floating(e, x, "rms_norm")), x.dtype, scale, None, eps)


def _scaled(e: Emitter, x: Value, dtype: DType, scale: Value | None, bias: Value | None, eps: float) -> Value:
    last = x.type.rank - 1
    power = _mean(e, e.op("multiply", x, x), (last,))
    factor = e.op("rsqrt", e.binary("add", power, eps))
    result = e.op("multiply", x, e.expand(factor, x, (last,)))
    if scale is not None:
        result = e.binary("multiply", result, e.convert(scale, x.dtype))
    if bias is not None:
        result = e.binary("add", result, e.convert(bias, x.dtype))
    return e.convert(result, dtype)


# Reductions.


def _mean(e: Emitter, x: Value, dims: Sequence[int]) -> Value:
    """The mean of floats over dims."""
    count = math.prod(x.shape[d] for d in dims)
    return e.binary("divide", e.reduce(x, dims, "sum"), float(count))


def _reduction(
    e: Emitter, x: Value, dims: Ints | None = None, dim: int | None = None, keepdims: bool = False, *, kind: str
) -> Value:
    """The reduction over dims, or over all."""
    places = _dims(e, x, dims, dim)
    wide = _wide(e, x) if kind in ("sum", "prod") else x
    result = e.convert(e.reduce(wide, places, kind), x.dtype)
    return _keep(e, result, x.shape, places, keepdims)


for _name, _kind in {"prod": "prod", "max": "max", "min": "min", "all": "and", "any": "or"}.items():
    declare(_name, partial(_reduction, kind=_kind))


@composition()
def sum_(e: Emitter, x: Value, dims: Ints | None = None, dim: int | None = None, keepdims: bool = False) -> Value:
    """The sum over dims, or over all. Truth values are counted, as s32."""
    counted = e.convert(x, s32) if x.dtype == pred else x
    return _reduction(e, counted, dims, dim, keepdims, kind="sum")


@composition()
def mean(e: Emitter, x: Value, dims: Ints | None = None, dim: int | None = None, keepdims: bool = False) -> Value:
    """The mean over dims, or over all; of integers and truth values as f32."""
    floats = x if x.dtype.is_float else e.convert(x, f32)
    places = _dims(e, floats, dims, dim)
    result = e.convert(_mean(e, _wide(e, floats), places), floats.dtype)
    return _keep(e, result, x.shape, places, keepdims)


@composition("var")
def variance(e: Emitter, x: Value, dims: Ints | None = None, dim: int | None = None, keepdims: bool = False) -> Value:
    """The mean squared distance from the mean."""
    wide = _wide(e, _floating(e, x, "variance"))
    places = _dims(e, wide, dims, dim)
    centred = e.op("subtract", wide, e.expand(_mean(e, wide, places), wide, places))
    result = e.convert(_mean(e, e.op("multiply", centred, centred), places), x.dtype)
    return _keep(e, result, x.shape, places, keepdims)


def _extreme(e: Emitter, x: Value, dim: int | None = None, *, kind: str) -> Value:
    """The index of the largest or smallest element along dim, the first of equals, as s32. Without dim, of all."""
    if dim is None:
        x, dim = e.reshape(x, (x.type.size,)), 0
    place = normal_dim(dim, x.type.rank, e.span)
    _, index = e.ops("reduce", (x, e.iota_like(x, place)), {"dims": (place,), "kind": kind})
    return index


for _name in ("argmax", "argmin"):
    declare(_name, partial(_extreme, kind=_name), computes=False)


@composition(computes=False)
def top_k(e: Emitter, x: Value, k: int, dim: int = -1) -> Several:
    """The k largest elements along dim and their indices (s32), largest first, the first of equals first."""
    place = normal_dim(dim, x.type.rank, e.span)
    size, last = x.shape[place], x.type.rank - 1
    if not 0 <= k <= size:
        raise error("E201", f"k is {k}: it must be from 0 to {size}, the size of dim {place} of {x.type}", e.span)
    if place == last:
        return Several(e.ops("top_k", (x,), {"k": k}))
    to_last = (*(d for d in range(last + 1) if d != place), place)
    back = (*range(place), last, *range(place, last))
    found = e.ops("top_k", (e.op("transpose", x, perm=to_last),), {"k": k})
    return Several(tuple(e.op("transpose", v, perm=back) for v in found))


@composition(computes=False)
def sort(e: Emitter, x: Value, dim: int = -1, descending: bool = False) -> Value:
    """The elements along dim, smallest first, or largest first if `descending`. A NaN is larger than any number."""
    return e.op("sort", x, dim=normal_dim(dim, x.type.rank, e.span), descending=descending)


@composition(computes=False)
def argsort(e: Emitter, x: Value, dim: int = -1, descending: bool = False) -> Value:
    """The indices along dim, s32, at which sort(x, dim, descending) finds its elements; of equals the first first."""
    place = normal_dim(dim, x.type.rank, e.span)
    attrs: dict[str, Attr] = {"dim": place, "descending": descending}
    _, index = e.ops("sort", (x, e.iota_like(x, place)), attrs)
    return index


@composition()
def cumsum(e: Emitter, x: Value, dim: int, reverse: bool = False, exclusive: bool = False) -> Value:
    """Prefix sums along dim, from the end if `reverse`; each without its own element if `exclusive`."""
    place = normal_dim(dim, x.type.rank, e.span)
    total = e.op("cumsum", x, dim=place, reverse=reverse)
    return e.op("subtract", total, x) if exclusive else total


# Making tensors.


def _type(e: Emitter, shape: Item, dtype: DType) -> TensorType:
    """A type, from one or from a shape."""
    if isinstance(shape, TensorType):
        return shape
    sizes = shape if isinstance(shape, tuple) else (shape,)
    return check_type(TensorType(tuple(expect_size(n, e.span) for n in sizes), dtype), e.span)


def _number(value: Number, dtype: DType) -> Number:
    return bool(value) if dtype == pred else value


def _of_type(e: Emitter, shape: Item, dtype: DType | None = None, *, number: int) -> Value:
    """A tensor of a type, or of a shape, filled with that number."""
    type = _type(e, shape, dtype or e.floats)
    return e.constant(_number(number, type.dtype), type.dtype, type.shape)


def _of_type_like(e: Emitter, x: Value, *, number: int) -> Value:
    """A tensor of the type of x, filled with that number."""
    return e.full_like(_number(number, x.dtype), x)


for _name, _filling in {"zeros": 0, "ones": 1}.items():
    declare(_name, partial(_of_type, number=_filling), computes=False)
    declare(f"{_name}_like", partial(_of_type_like, number=_filling), computes=False)


@composition(computes=False)
def full(e: Emitter, shape: Item, value: Operand, dtype: DType | None = None) -> Value:
    """A tensor of a type, or of a shape, filled with a number or a scalar."""
    type = _type(e, shape, dtype or e.floats)
    if isinstance(value, Value):
        return e.broadcast_to(value, type.shape)
    return e.constant(value, type.dtype, type.shape)


@composition(computes=False)
def full_like(e: Emitter, x: Value, value: Number) -> Value:
    """A number, repeated over the type of x."""
    return e.full_like(value, x)


@composition(computes=False)
def arange(e: Emitter, n: int, dtype: DType = s32) -> Value:
    """0, 1, …, n - 1."""
    return e.op("iota", type=_type(e, n, dtype), dim=0)


@composition(computes=False)
def one_hot(e: Emitter, i: Value, n: int, dtype: DType | None = None) -> Value:
    """A new last dim of size n that is 1 at index i and 0 elsewhere; all 0 where i is out of range."""
    shape = (*i.shape, n)
    check_type(i.type.with_shape(shape), e.span)
    count = e.op("iota", type=TensorType(shape, i.dtype), dim=len(shape) - 1)
    hot = e.compare(e.expand(i, count, (len(shape) - 1,)), count, "EQ")
    return e.convert(hot, dtype or e.floats)


@composition(computes=False)
def tril(e: Emitter, x: Value, k: int = 0) -> Value:
    """x with zeros above diagonal k of its last two dims: a causal mask, applied."""
    if x.type.rank < 2:
        raise error("E201", f"tril takes a tensor of two or more dims, and is given {x.type}", e.span)
    rows, columns = e.iota_like(x, x.type.rank - 2), e.iota_like(x, x.type.rank - 1)
    kept = e.compare(e.binary("add", rows, k) if k else rows, columns, "GE")
    return e.select(kept, x, _number(0, x.dtype))


# Selection.


@composition("select")
def where(e: Emitter, which: Value, on_true: Operand, on_false: Operand) -> Value:
    """on_true where `which` holds, else on_false; all three broadcast."""
    return e.select(which, on_true, on_false)


@composition()
def clamp(e: Emitter, low: Operand, x: Value, high: Operand) -> Value:
    """x, but at least low and at most high."""
    return e.op("clamp", e.scalar_like(low, x), x, e.scalar_like(high, x))


@composition()
def clip(e: Emitter, x: Value, low: Operand, high: Operand) -> Value:
    """x, but at least low and at most high."""
    return e.op("clamp", e.scalar_like(low, x), x, e.scalar_like(high, x))


@composition(computes=False)
def take(e: Emitter, x: Value, indices: Value, dim: int, fill: Number | None = None) -> Value:
    """The elements of x along dim at these indices, whose dims take the place of dim.

    An index below 0 is clamped to 0, one beyond the end to the last; with `fill`, the elements at such indices are
    `fill` instead.
    """
    place = normal_dim(dim, x.type.rank, e.span)
    if x.shape[place] == 0:
        raise error("E201", f"dim {place} of {x.type} has no element to take", e.span)
    count = indices.type.rank
    outside: dict[str, Attr] = {} if fill is None else {"mode": "fill", "fill_value": fill}
    return e.op(
        "gather",
        x,
        indices,
        offset_dims=tuple(d if d < place else d - 1 + count for d in range(x.type.rank) if d != place),
        collapsed_slice_dims=(place,),
        start_index_map=(place,),
        index_vector_dim=count,
        slice_sizes=tuple(1 if d == place else n for d, n in enumerate(x.shape)),
        **outside,
    )
