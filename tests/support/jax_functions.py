"""Random functions in the style of user code with jax.numpy: programs that the importer simplifies.

A function is a sequence of steps, each of which takes existing values and returns another. A step draws with its own
seed, once it sees the shapes. All numbers are small integers, so that equality is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

import spmdc

Array = Any
Rng = np.random.Generator
Step = Callable[[Rng, Array, Array], Array]
"""From a value, and another of any shape, to the next one; None if it does not apply."""

STEPS: dict[str, Step] = {}
_behind_barrier: Any = lax.optimization_barrier
MESH = {"x": 3, "y": 2}
_SHARDINGS = ("P('x')", "P('y')", "P(None, 'x')", "P('x', 'y')", "P(None, ('y', 'x'))", "P()")
SHAPES = ((7, 6), (12,), (2, 4, 3), ())
_MOST = 400
"""The most elements of a value: a step that returns more is skipped."""


def step(f: Step) -> Step:
    STEPS[f.__name__] = f
    return f


def _one_of(rng: Rng, forms: Sequence[Any]) -> Any:
    return forms[int(rng.integers(len(forms)))]


def _dim(rng: Rng, x: Array) -> int:
    return int(rng.integers(x.ndim))


def _range(rng: Rng, n: int) -> tuple[int, int]:
    a, b = sorted(rng.integers(0, n + 1, 2).tolist())
    return (a, b) if a < b else (0, n)


def _slice(rng: Rng, n: int) -> Any:
    a, b = _range(rng, n)
    forms = [slice(a, b), slice(a, b, 2), slice(None, b), slice(a, None), slice(None, None, -1), slice(None)]
    forms.append(slice(b - 1, a - 1 if a else None, -1))
    return _one_of(rng, forms)


def _numbers(rng: Rng, shape: Sequence[int]) -> Array:
    return rng.integers(-4, 5, tuple(shape)).astype(np.float32)


def _small(x: Array) -> Array:
    """Reduces numbers that have grown to small ones."""
    return x if x.dtype == bool else jnp.where(jnp.abs(x) > 60, lax.rem(x, jnp.asarray(31, x.dtype)), x)


def _numeric(x: Array) -> Array:
    return x.astype(jnp.int32) if x.dtype == bool else x


@step
def elementwise(rng: Rng, x: Array, other: Array) -> Array:
    x = _numeric(x)
    forms: list[Callable[[], Array]] = [
        lambda: x + 1,
        lambda: -x,
        lambda: jnp.abs(x),
        lambda: x * 2,
        lambda: jnp.sign(x),
        lambda: x * x,
        lambda: jnp.maximum(x, 0),
        lambda: jnp.clip(x, -3, 4),
        lambda: x % 3,
        lambda: jax.nn.relu(x),
        lambda: x > 0,
        lambda: x != x,
        lambda: jnp.floor_divide(x, 2),
        lambda: x + 0,
        lambda: x * 1,
        lambda: 0 - x,
    ]
    return _one_of(rng, forms)()


@step
def binary(rng: Rng, x: Array, other: Array) -> Array:
    try:
        np.broadcast_shapes(x.shape, other.shape)
    except ValueError:
        other = other.sum()
    x, other = _numeric(x), _numeric(other)
    forms = [jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, jnp.minimum, jnp.less, jnp.equal]
    return _one_of(rng, forms)(x, other)


@step
def where_chain(rng: Rng, x: Array, other: Array) -> Array:
    i = lax.broadcasted_iota(jnp.int32, x.shape, _dim(rng, x))
    a, b = rng.integers(-1, 9, 2)
    forms = [i < a, i % 2 == 0, (i >= a) & (i < b), i == b, ~(i > a), (i - a) * 2 > i]
    first, second = _one_of(rng, forms), _one_of(rng, forms)
    x = _numeric(x)
    return jnp.where(first, x, jnp.where(second, -x, jnp.zeros_like(x)))


@step
def sorted_(rng: Rng, x: Array, other: Array) -> Array:
    d = _dim(rng, x)
    k = int(rng.integers(1, x.shape[d] + 1))
    down = bool(rng.integers(2))
    forms: list[Callable[[], Array]] = [
        lambda: jnp.sort(x, axis=d, descending=down),
        lambda: jnp.argsort(x, axis=d, descending=down),
        lambda: lax.slice_in_dim(jnp.sort(x, axis=d, descending=down), 0, k, axis=d),
        lambda: lax.slice_in_dim(jnp.argsort(x, axis=d, descending=down), 0, k, axis=d),
        lambda: lax.slice_in_dim(jnp.argsort(x, axis=d), x.shape[d] - k, x.shape[d], axis=d),
        lambda: jnp.take_along_axis(x, jnp.argsort(x, axis=d), d),
        lambda: jnp.take_along_axis(
            x, jnp.argsort(x, axis=d)[tuple(slice(k) if e == d else slice(None) for e in range(x.ndim))], d
        ),
        lambda: sum(
            _numeric(lax.slice_in_dim(y, 0, k, axis=d))
            for y in lax.sort((x, lax.rev(x, (d,))), dimension=d, num_keys=1)
        ),
        lambda: lax.sort((x, lax.broadcasted_iota(jnp.int32, x.shape, d)), dimension=d, num_keys=2)[1],
        lambda: _numeric(jnp.sort(x, axis=d))[(slice(None),) * d + (slice(0, k, 2),)] * 2 + 1,
        lambda: jnp.median(_numeric(x), axis=d) * 2,
    ]
    return _one_of(rng, forms)()


@step
def extremes(rng: Rng, x: Array, other: Array) -> Array:
    d = _dim(rng, x)
    y = _numeric(x)
    k = int(rng.integers(1, x.shape[-1] + 1))
    forms: list[Callable[[], Array]] = [
        lambda: lax.top_k(y, k)[0],
        lambda: lax.top_k(y, k)[1],
        lambda: sum(lax.top_k(y, k)),
        lambda: lax.top_k(y, k)[1][..., :1],
        lambda: jnp.argmax(y, d),
        lambda: jnp.argmin(y, d),
        lambda: jnp.max(y, d),
        lambda: lax.top_k(-y, k)[0][..., ::-1],
        lambda: jnp.argmax(y),
        lambda: jnp.any(y > 1, d),
        lambda: jnp.where(y >= lax.top_k(y, k)[0][..., -1:], y, 0),
        lambda: jax.nn.one_hot(jnp.argmax(y, d), y.shape[d], dtype=jnp.int32),
    ]
    return _one_of(rng, forms)()


@step
def sliced(rng: Rng, x: Array, other: Array) -> Array:
    return x[tuple(_slice(rng, n) for n in x.shape[: int(rng.integers(1, x.ndim + 1))])]


@step
def joined(rng: Rng, x: Array, other: Array) -> Array:
    d = _dim(rng, x)
    (a, b), (e, f) = _range(rng, x.shape[d]), _range(rng, x.shape[d])
    y = _numeric(x)
    one, two = lax.slice_in_dim(y, a, b, axis=d), lax.slice_in_dim(y, e, f, axis=d)
    forms: list[Callable[[], Array]] = [
        lambda: jnp.concatenate([one, two], d),
        lambda: jnp.concatenate([two, y, one * 2], d),
        lambda: jnp.roll(y, a - 2, d),
        lambda: jnp.stack([y, -y], d),
        lambda: jnp.stack([y, y], -1).reshape(-1),
        lambda: jnp.repeat(y, 2, d),
        lambda: jnp.tile(y, 2),
        lambda: jnp.concatenate(jnp.split(y, [a, b], d)[::-1], d),
        lambda: jnp.concatenate([one, jnp.zeros_like(two), two], d),
        lambda: jnp.concatenate([y, two], d)[(slice(None),) * d + (slice(a, y.shape[d] + (f - e) - 1),)],
        lambda: jnp.roll(y, (1, -2), (d, 0)),
        lambda: jnp.append(one, two),
    ]
    return _one_of(rng, forms)()


@step
def padded(rng: Rng, x: Array, other: Array) -> Array:
    d = _dim(rng, x)
    n = x.shape[d]
    y = _numeric(x)
    (a, b), (e, f) = _range(rng, n), _range(rng, n)

    def pad(v: Array, low: int, high: int, interior: int = 0) -> Array:
        edges = [(low, high, interior) if k == d else (0, 0, 0) for k in range(v.ndim)]
        return lax.pad(v, jnp.zeros((), v.dtype), edges)

    one, two = lax.slice_in_dim(y, a, b, axis=d), lax.slice_in_dim(y, e, f, axis=d)
    cut = int(rng.integers(0, n))
    forms: list[Callable[[], Array]] = [
        lambda: pad(one, a, n - b) + pad(two, e, n - f),
        lambda: pad(lax.slice_in_dim(y, 0, a, axis=d), 0, n - a) + pad(lax.slice_in_dim(y, a, n, axis=d), a, 0),
        lambda: pad(one, e, 0) + jnp.zeros((), y.dtype),
        lambda: pad(y, 1, 2)[(slice(None),) * d + (slice(0, n),)],
        lambda: pad(y, -cut, cut),
        lambda: pad(y, cut, -cut) + pad(y, -cut, cut),
        lambda: pad(y, 1, 1, 1)[(slice(None),) * d + (slice(1, None, 2),)],
        lambda: pad(one, a, n - b) + pad(two, e, n - f) + pad(one, 0, n - (b - a)),
        lambda: jnp.pad(y, 1, mode="edge"),
        lambda: jnp.pad(y, 1, mode="wrap"),
        lambda: jnp.pad(y, 1, constant_values=3),
        lambda: pad(pad(y, 0, 1, 2), -1, 0),
    ]
    return _one_of(rng, forms)()


@step
def gathered(rng: Rng, x: Array, other: Array) -> Array:
    d = _dim(rng, x)
    n = x.shape[d]
    steps = jnp.arange(int(rng.integers(1, 6)))
    a, b = (int(v) for v in rng.integers(-4, 5, 2))
    constants = rng.integers(-n, n, 4)
    i = _numeric(other).astype(jnp.int32).ravel()
    i = i[: min(4, i.size)]
    forms: list[Callable[[], Array]] = [
        lambda: jnp.take(x, steps + a, axis=d, mode="clip"),
        lambda: jnp.take(x, steps * b + a, axis=d, mode="wrap"),
        lambda: jnp.take(x, steps * b + a, axis=d, mode="fill", fill_value=0),
        lambda: jnp.take(x, constants, axis=d),
        lambda: jnp.take(x, i, axis=d, mode="clip"),
        lambda: x[jnp.arange(x.shape[0])[::-1]],
        lambda: x[jnp.arange(n - 1, -1, -1) % x.shape[0]],
        lambda: jnp.take(x, (steps + 1) // 2, axis=d, mode="clip"),
        lambda: x[np.minimum(np.arange(3), x.shape[0] - 1)[:, None], ...],
        lambda: jnp.take(x, n - 1 - steps, axis=d, mode="clip"),
        lambda: x.at[steps].get(mode="fill", fill_value=0),
        lambda: jnp.take(x, jnp.where(steps < 2, steps, 0), axis=d, mode="clip"),
        lambda: jax.vmap(lambda k: lax.dynamic_index_in_dim(x, k, d))(steps + a),
        lambda: jnp.diagonal(x) if x.ndim > 1 else jnp.diag(x),
        lambda: jnp.tril(x, a) if x.ndim > 1 else x,
        lambda: jnp.take_along_axis(x, lax.broadcasted_iota(jnp.int32, x.shape, d)[::-1], d, mode="clip"),
        lambda: x.ravel()[jnp.arange(x.size) ^ 1] if x.size % 2 == 0 else x,
    ]
    return _one_of(rng, forms)()


@step
def at_starts(rng: Rng, x: Array, other: Array) -> Array:
    d = _dim(rng, x)
    n = x.shape[d]
    y = _numeric(x)
    size = int(rng.integers(1, n + 1))
    start = [int(rng.integers(-9, 10)), other.ravel()[0].astype(jnp.int32) if other.size else 0][int(rng.integers(2))]
    update = lax.slice_in_dim(y, 0, size, axis=d) * 2
    forms: list[Callable[[], Array]] = [
        lambda: lax.dynamic_slice_in_dim(y, start, size, d),
        lambda: lax.dynamic_update_slice_in_dim(y, update, start, d),
        lambda: lax.dynamic_slice_in_dim(lax.dynamic_slice_in_dim(y, start, size, d), 1, max(1, size - 1), d),
        lambda: lax.dynamic_update_slice_in_dim(jnp.zeros_like(y), update, start, d) + y,
        lambda: lax.dynamic_slice_in_dim(lax.dynamic_update_slice_in_dim(y, update, start, d), start, size, d),
        lambda: lax.dynamic_slice_in_dim(jnp.concatenate([y, -y], d), start, size, d),
        lambda: lax.dynamic_slice_in_dim(
            lax.pad(y, jnp.zeros((), y.dtype), [(2, 2, 0) if e == d else (0, 0, 0) for e in range(y.ndim)]), start, n, d
        ),
    ]
    return _one_of(rng, forms)()


@step
def updated(rng: Rng, x: Array, other: Array) -> Array:
    y = _numeric(x)
    index = tuple(_slice(rng, n) for n in x.shape[: int(rng.integers(1, x.ndim + 1))])
    rows = jnp.arange(3) * int(rng.integers(-2, 3)) + int(rng.integers(-2, 4))
    i = _numeric(other).astype(jnp.int32).ravel()
    i = i[: min(4, i.size)]
    mode = str(rng.choice(["drop", "clip"]))
    how = str(rng.choice(["set", "add", "min", "max"]))
    forms: list[Callable[[], Array]] = [
        lambda: y.at[index].set(7),
        lambda: y.at[index].add(y[index]),
        lambda: y.at[index].multiply(-1),
        lambda: getattr(y.at[rows], how if how != "set" else "add")(2, mode=mode),
        lambda: y.at[i].add(1, mode=mode),
        lambda: jnp.zeros_like(y).at[rows].add(1, mode=mode),
        lambda: y.at[:, 0].set(y[:, -1]) if y.ndim > 1 else y.at[0].add(y[-1]),
        lambda: jnp.zeros((10,), y.dtype).at[y.ravel().astype(jnp.int32)].add(1, mode="drop"),
        lambda: jax.ops.segment_sum(y, jnp.arange(y.shape[0]) // 2, 5),
    ]
    return _one_of(rng, forms)()


@step
def scanned(rng: Rng, x: Array, other: Array) -> Array:
    d = _dim(rng, x)
    y = jnp.clip(_numeric(x), -9, 9)
    w = (int(rng.integers(1, 4)),) + (1,) * (y.ndim - 1)
    by = (int(rng.integers(1, 3)),) * y.ndim
    edges = [(int(rng.integers(0, 2)), int(rng.integers(0, 2))) for _ in range(y.ndim)]
    dilated = (1,) * (y.ndim - 1) + (2,)
    low = -100
    forms: list[Callable[[], Array]] = [
        lambda: jnp.cumsum(y, d),
        lambda: lax.cumsum(y, d, reverse=True),
        lambda: lax.cummax(y, d),
        lambda: lax.cummin(y, d, reverse=True),
        lambda: jnp.diff(y, axis=d, prepend=0),
        lambda: jnp.sum(y, d),
        lambda: jnp.sum(y, d, keepdims=True) + y,
        lambda: jnp.cumsum(y > 0, d) - 1,
        lambda: lax.associative_scan(jnp.maximum, y, axis=d),
        lambda: lax.reduce_window(y, jnp.asarray(low, y.dtype), lax.max, w, by, edges),
        lambda: lax.reduce_window(y, jnp.asarray(0, y.dtype), lax.add, w, by, "VALID"),
        lambda: lax.reduce_window(
            lax.pad(y, jnp.asarray(0, y.dtype), [(1, 1, 0)] * y.ndim),
            jnp.asarray(0, y.dtype),
            lax.add,
            w,
            by,
            edges,
            window_dilation=dilated,
        ),
        lambda: jnp.cumsum(lax.rev(y, (d,)), d),
        lambda: jnp.searchsorted(jnp.sort(y.ravel()), y),
        lambda: jnp.prod(jnp.sign(y), d),
        lambda: jnp.bincount(jnp.abs(y).ravel().astype(jnp.int32), length=8),
    ]
    return _one_of(rng, forms)()


@step
def contracted(rng: Rng, x: Array, other: Array) -> Array:
    y = jnp.clip(_numeric(x), -5, 5)
    k = y.shape[-1]
    w = jnp.asarray(_numbers(rng, (k, 3)), y.dtype)
    forms: list[Callable[[], Array]] = [
        lambda: y @ w,
        lambda: y @ jnp.eye(k, dtype=y.dtype)[::-1],
        lambda: jnp.einsum("...i,...i->...", y, y),
        lambda: jnp.tensordot(y, y, ((0,), (0,))),
        lambda: jnp.outer(y[:3].ravel(), w[:, 0]),
        lambda: jnp.vdot(y, y),
        lambda: jnp.convolve(y.ravel(), w.ravel()[:3], mode="same") if y.dtype != jnp.int32 else y,
        lambda: y[..., :, None] * w,
        lambda: jax.nn.one_hot(y.astype(jnp.int32), 4, dtype=y.dtype) @ w[:1].repeat(4, 0),
    ]
    return _one_of(rng, forms)()


@step
def numbered(rng: Rng, x: Array, other: Array) -> Array:
    """Values that are computed from positions only, most of which are known."""
    y, d = _numeric(x), _dim(rng, x)
    n = x.shape[d]
    a, b = (int(v) for v in rng.integers(1, 4, 2))
    i = lax.iota(jnp.int32, n)
    forms: list[Callable[[], Array]] = [
        lambda: jnp.arange(n)[::-1],
        lambda: (i & a) | b,
        lambda: (i << 1) >> a,
        lambda: i // a * b,
        lambda: (i * a - b) % n,
        lambda: jnp.broadcast_to(i[:, None], (n, 3)).T,
        lambda: i[a % n :].astype(jnp.float32),
        lambda: jnp.cumsum(jnp.ones(n, int)) - 1,
        lambda: jnp.arange(2 * n).reshape(n, 2)[:, 1],
        lambda: jnp.minimum(i + a, n - 1),
        lambda: jnp.max(i) + jnp.min(i * a) + i,
        lambda: jnp.where(i < a, i + n, i - a),
        lambda: jnp.concatenate([i, i]),
        lambda: jnp.eye(n, dtype=jnp.int32)[b % n],
        lambda: jnp.tri(n, k=b, dtype=jnp.int32)[0],
        lambda: i.astype(jnp.int8) * 2,
        lambda: jnp.meshgrid(i, jnp.arange(2))[0],
        lambda: jnp.linspace(0, 6, 7),
        lambda: lax.population_count(i.astype(jnp.uint32)).astype(jnp.int32),
        lambda: jnp.indices((2, n))[1],
    ]
    known = _one_of(rng, forms)()
    uses: list[Callable[[], Array]] = [
        lambda: known,
        lambda: jnp.take(y, known.ravel()[:5].astype(jnp.int32), axis=d, mode="clip"),
        lambda: y.sum() * known,
        lambda: jnp.where(known.ravel()[:n].sum() > b, y, -y),
        lambda: lax.dynamic_slice_in_dim(y, known.ravel()[-1].astype(jnp.int32), 1, d),
        lambda: jnp.zeros((9,), y.dtype).at[known.ravel()[:4].astype(jnp.int32)].add(y.ravel()[0], mode="drop"),
    ]
    return _one_of(rng, uses)()


@step
def filtered(rng: Rng, x: Array, other: Array) -> Array:
    """Filters and pools on images, padded before or by the op, and their gradients."""
    y = jnp.clip(_numeric(x), -5, 5).astype(jnp.float32)
    image = y.reshape(1, 1, y.shape[0], -1)
    image = jnp.concatenate([image, -image], 1)
    kernel = jnp.asarray(_numbers(rng, (2, 2, 2, 1)))
    low, high, gap, stride = (int(v) for v in rng.integers(0, 3, 4))
    wide = ((low, high), (high, low))
    around = [(0, 0, 0), (0, 0, 0), (low, high - 1, gap), (high, low, 0)]
    window, by = (1, 1, 2, 2), (1, 1, 1 + stride % 2, 1)

    def filters(v: Array, k: Array) -> Array:
        v = lax.pad(v, jnp.float32(0), around) if stride else v
        return lax.conv_general_dilated(v, k, (1 + stride % 2, 1), wide, rhs_dilation=(1, 1 + gap % 2))

    def pools(v: Array) -> Array:
        v = lax.pad(v, jnp.float32(-jnp.inf), around) if stride else v
        found = lax.reduce_window(v, -jnp.inf, lax.max, window, by, ((0, 0), (0, 0), *wide))
        return jnp.maximum(found, -9)

    def adds(v: Array) -> Array:
        v = lax.pad(v, jnp.float32(0), around)
        return lax.reduce_window(v, 0.0, lax.add, window, by, ((0, 0), (0, 0), *wide))

    forms: list[Callable[[], Array]] = [
        lambda: filters(image, kernel),
        lambda: pools(image),
        lambda: adds(image),
        lambda: jax.grad(lambda v: filters(v, kernel).sum())(image),
        lambda: jax.grad(lambda k: filters(image, k).sum())(kernel),
        lambda: jax.grad(lambda v: (pools(v) * 2).sum())(image),
        lambda: jax.grad(lambda v: adds(v)[..., 1:, :].sum())(image),
    ]
    return _one_of(rng, forms)()


@step
def folded(rng: Rng, x: Array, other: Array) -> Array:
    """Reductions by user-defined functions, and choices among several."""
    d, y = _dim(rng, x), _numeric(x)
    i = lax.broadcasted_iota(jnp.int32, y.shape, d)
    zero = jnp.zeros((), y.dtype)

    def larger(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return jnp.where(first, a[0], b[0]), jnp.where(first, a[1], b[1])

    forms: list[Callable[[], Array]] = [
        lambda: lax.reduce((y, i), (jnp.asarray(-99, y.dtype), jnp.int32(99)), larger, (d,))[1],
        lambda: lax.reduce(y, zero, lambda a, b: jnp.maximum(a, b), (d,)),
        lambda: lax.reduce(y, zero, lambda a, b: b + a, (d,)),
        lambda: jnp.select([y > 1, y < -1], [y * 2, i.astype(y.dtype)], 7),
        lambda: lax.select_n(y > 0, y, -y),
        lambda: jnp.nonzero(y.ravel(), size=4, fill_value=0)[0],
        lambda: jnp.unique(y.ravel(), size=5, fill_value=0),
        lambda: jnp.all(y > -2, d),
        lambda: jnp.count_nonzero(y, d),
        lambda: jnp.ptp(y, d),
        lambda: jnp.argmax(jnp.sort(y, d), d),
        lambda: lax.approx_max_k(y.astype(jnp.float32), 1)[0],
        lambda: jnp.cumprod(jnp.sign(y), d),
        lambda: jnp.lexsort((y.ravel(), i.ravel())),
        lambda: lax.clamp(jnp.asarray(-1, y.dtype), y, jnp.asarray(2, y.dtype)),
        lambda: lax.real(lax.complex(y.astype(jnp.float32), 1.0 - y.astype(jnp.float32))),
        lambda: lax.reduce_precision(y.astype(jnp.float32), 5, 10),
        lambda: jnp.minimum(y, jnp.inf),
        lambda: jnp.maximum(y, -2) - y,
    ]
    return _one_of(rng, forms)()


@step
def reshaped(rng: Rng, x: Array, other: Array) -> Array:
    d = _dim(rng, x)
    forms: list[Callable[[], Array]] = [
        lambda: x.ravel(),
        lambda: x.T,
        lambda: x[..., None],
        lambda: jnp.moveaxis(x, d, 0),
        lambda: x.reshape(x.shape[0], -1),
        lambda: x.reshape(-1, 2) if x.size % 2 == 0 else x,
        lambda: x.reshape(2, -1) if x.size % 2 == 0 else x,
        lambda: jnp.flip(x, d),
        lambda: jnp.broadcast_to(x, (2, *x.shape)),
        lambda: x.reshape(3, -1) if x.size % 3 == 0 else x,
        lambda: jnp.rot90(x) if x.ndim > 1 else x[::-1],
        lambda: jnp.squeeze(x[None]),
        lambda: _behind_barrier(x),
        lambda: x.T.reshape(x.shape),
    ]
    return _one_of(rng, forms)()


@step
def converted(rng: Rng, x: Array, other: Array) -> Array:
    x = jnp.clip(_numeric(x), -60, 60)
    forms = [jnp.int32, jnp.float32, jnp.bfloat16, jnp.int8, jnp.bool_]
    return x.astype(_one_of(rng, forms))


@step
def looped(rng: Rng, x: Array, other: Array) -> Array:
    y = _numeric(x)
    d = _dim(rng, y)
    n = int(rng.integers(1, 5))
    data = other.ravel()[0].astype(jnp.int32) % 4 if other.size else 0

    def turn(c: Array, row: Array) -> tuple[Array, Array]:
        return _small(c + row), _small(c * 2 - row)

    def shifted(i: Array, v: Array) -> Array:
        return _small(jnp.roll(v, 1, d) + i.astype(v.dtype))

    def at_turn(i: Array, v: Array) -> Array:
        return v.at[i % v.shape[0]].set(_small(v[(i + 1) % v.shape[0]] * 2))

    def two(i: Array, c: tuple[Array, Array]) -> tuple[Array, Array]:
        return c[1], _small(c[0] + c[1])

    def sums(i: Array, c: tuple[Array, Array]) -> tuple[Array, Array]:
        return _small(c[0] + y.sum(d, keepdims=True)), _small(c[1] + jnp.sort(y, d))

    forms: list[Callable[[], Array]] = [
        lambda: lax.scan(turn, jnp.zeros(y.shape[1:], y.dtype), y)[0],
        lambda: lax.scan(turn, jnp.zeros(y.shape[1:], y.dtype), y)[1],
        lambda: lax.scan(turn, jnp.zeros(y.shape[1:], y.dtype), y, reverse=True)[1],
        lambda: lax.fori_loop(0, n, shifted, y),
        lambda: lax.fori_loop(1, n + 1, at_turn, y),
        lambda: lax.fori_loop(0, data, shifted, y),
        lambda: lax.fori_loop(0, n, two, (y, -y))[0],
        lambda: lax.fori_loop(0, n, sums, (y, y))[1],
        lambda: lax.map(lambda row: jnp.sort(row.ravel()).sum(), y),
        lambda: lax.cond(data > 1, lambda v: jnp.flip(v, d), lambda v: v * 2, y),
        lambda: lax.switch(data, [lambda v: v, lambda v: -v, lambda v: v + 1], y),
        lambda: lax.while_loop(lambda c: (c[0] < n) & (c[1].sum() < 99), lambda c: (c[0] + 1, c[1] + 1), (0, y))[1],
        lambda: jax.vmap(lambda row: jnp.sort(row.ravel())[:2].sum())(y),
        lambda: lax.scan(lambda c, i: (c, lax.dynamic_index_in_dim(y, i, 0)), 0, jnp.arange(y.shape[0]))[1],
        lambda: lax.scan(lambda c, row: (_small(c + row.sum()), c), jnp.zeros((), y.dtype), y, unroll=2)[1],
    ]
    return _one_of(rng, forms)()


@step
def differentiated(rng: Rng, x: Array, other: Array) -> Array:
    y = jnp.clip(_numeric(x), -9, 9).astype(jnp.float32)
    d = _dim(rng, y)
    a, b = _range(rng, y.shape[d])
    index = (slice(None),) * d + (slice(a, b),)
    w = (2,) * y.ndim
    forms: list[Callable[[Array], Array]] = [
        lambda v: v[index] * v[index] + 1,
        lambda v: jnp.sort(v, d) * jnp.arange(v.shape[d]).reshape((-1,) + (1,) * (v.ndim - 1 - d)),
        lambda v: jnp.concatenate([v[index] * 2, v], d) ** 2,
        lambda v: jnp.max(v, d),
        lambda v: jnp.cumsum(v, d) * v,
        lambda v: jnp.roll(v, 1, d) * v,
        lambda v: jnp.take(v, jnp.array([0, 1, 0]), axis=d, mode="clip") * 3,
        lambda v: lax.reduce_window(jnp.pad(v, 1), -jnp.inf, lax.max, w, w, "VALID") * 2,
        lambda v: lax.top_k(v, 1)[0] * 3,
        lambda v: sum(p * (k + 1) for k, p in enumerate(jnp.split(v, v.shape[d], d))),
        lambda v: jnp.where(v > 0, v * v, 0),
        lambda v: (
            lax.dynamic_slice_in_dim(v, other.ravel()[0].astype(jnp.int32) if other.size else 1, max(1, b - a), d)
            * v[index].sum()
        ),
        lambda v: lax.scan(lambda c, row: (c + row, c * 2), jnp.zeros(v.shape[1:]), v)[1] * 2,
    ]
    f = _one_of(rng, forms)
    return jax.grad(lambda v: f(v).sum())(y)


@step
def sharded(rng: Rng, x: Array, other: Array) -> Array:
    fitting = [s for s in _SHARDINGS if s.count(",") + 1 <= x.ndim or s in ("P('x')", "P('y')", "P()")]
    return spmdc.shard(x, _one_of(rng, fitting))


@dataclass(frozen=True)
class Function:
    """A function from the arguments to a few results."""

    steps: tuple[tuple[str, int], ...]
    results: int = 2

    def __call__(self, *args: Array) -> tuple[Array, ...]:
        pool: list[Array] = list(args)
        for name, seed in self.steps:
            rng = np.random.default_rng(seed)
            recent = len(pool) - 1 - min(int(rng.geometric(0.5)) - 1, len(pool) - 1)
            x, other = pool[recent], pool[int(rng.integers(len(pool)))]
            if x.ndim == 0 or x.size == 0:
                x = pool[0]
            made = STEPS[name](rng, x, other)
            if made.size <= _MOST:
                pool.append(_small(made))
        return tuple(pool[len(args) :][-self.results :]) or (pool[0],)


@st.composite
def functions(draw: st.DrawFn, most: int = 6) -> Function:
    steps = st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 2**32 - 1))
    return Function(tuple(draw(st.lists(steps, min_size=1, max_size=most))), draw(st.sampled_from((1, 2, 3))))
