"""Looks for short chains of ops that XLA compiles wrongly, or refuses to compile, where each op alone is right.

A chain is two to four ops of `jax.lax` behind each other: a later op may take the value before it twice, or take a
value from before that; starts and indices are arguments, within and out of range. Many chains are jitted together and
compared with JAX op by op. What is found is printed, smallest chain first, as ops and shapes; what is known, and how
the lowering avoids it, stands in `lowering/jax/xla_faults.py`.

    python tests/fuzz/op_chains.py [--seconds 60] [--seed 0] [--batch 24]
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_shaped: Any = jax.ShapeDtypeStruct
_clear_caches: Any = jax.clear_caches

Rng = np.random.Generator
Array = Any
Apply = Callable[..., Array]


@dataclass(frozen=True)
class Step:
    """One op: its name, what it does to the value, to the one before it and to arguments of its own, and these.

    With `part`, another op of the same arguments goes first; its value is then the first of the op's own arguments.
    """

    name: str
    apply: Apply
    arguments: tuple[Any, ...] = ()
    part: Apply | None = None


@dataclass(frozen=True)
class Value:
    """What a step may ask about the value that it is given."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Draw = Callable[[Rng, Value, Value], Step | None]
STEPS: dict[str, Draw] = {}


def step(draw: Draw) -> Draw:
    STEPS[draw.__name__] = draw
    return draw


def _numbers(rng: Rng, shape: Sequence[int], dtype: Any) -> Any:
    drawn = rng.integers(-4, 5, tuple(shape))
    if np.issubdtype(dtype, np.complexfloating):
        return (drawn + 1j * rng.integers(-4, 5, tuple(shape))).astype(dtype)
    if dtype == np.bool_:
        return drawn > 0
    return np.asarray(drawn).astype(dtype)


def _starts(rng: Rng, n: int) -> list[Any]:
    return [np.int32(s) for s in rng.choice([-7, -2, -1, 0, 0, 1, 2, 3, 9], n)]


def _sizes(rng: Rng, x: Value) -> list[int]:
    """Of a box in the value, mostly smaller by a few elements."""
    return [max(1, n - int(rng.integers(0, 4))) for n in x.shape]


def _is_number(v: Value) -> bool:
    return bool(v.dtype != np.bool_)


def _is_real(v: Value) -> bool:
    return _is_number(v) and not np.issubdtype(v.dtype, np.complexfloating)


def _is_f32(v: Value) -> bool:
    return bool(v.dtype == np.float32)


@step
def slice(rng: Rng, x: Value, first: Value) -> Step | None:
    start = [int(rng.integers(0, n)) for n in x.shape]
    limit = [int(rng.integers(s + 1, n + 1)) for s, n in zip(start, x.shape, strict=True)]
    stride = [int(rng.choice([1, 1, 2])) for _ in x.shape]
    return Step("slice", lambda v, _: lax.slice(v, start, limit, stride))


@step
def dynamic_slice(rng: Rng, x: Value, first: Value) -> Step | None:
    sizes = _sizes(rng, x)
    starts = _starts(rng, x.rank)
    return Step(
        "dynamic_slice", lambda v, _, *s: lax.dynamic_slice(v, s, sizes, allow_negative_indices=False), (*starts,)
    )


@step
def dynamic_update_slice(rng: Rng, x: Value, first: Value) -> Step | None:
    sizes = _sizes(rng, x)
    starts, manner = _starts(rng, x.rank), rng.integers(0, 4)
    if manner == 0:
        update = _numbers(rng, sizes, x.dtype)
        return Step(
            "dynamic_update_slice",
            lambda v, _, u, *s: lax.dynamic_update_slice(v, u, s, allow_negative_indices=False),
            (update, *starts),
        )
    alike = first.rank == x.rank and first.dtype == x.dtype
    if manner == 1 and alike and all(a <= b for a, b in zip(x.shape, first.shape, strict=True)):
        return Step(
            "dynamic_update_slice(first, x)",
            lambda v, w, *s: lax.dynamic_update_slice(w, v, s, allow_negative_indices=False),
            (*starts,),
        )
    if manner == 2:
        at = [int(rng.integers(0, n - k + 1)) for n, k in zip(x.shape, sizes, strict=True)]
        ends = [a + k for a, k in zip(at, sizes, strict=True)]
        return Step(
            "dynamic_update_slice(x, slice x)",
            lambda v, _, u, *s: lax.dynamic_update_slice(v, u, s, allow_negative_indices=False),
            (*starts,),
            lambda v, _, *s: lax.slice(v, at, ends),
        )
    others = _starts(rng, x.rank)
    return Step(
        "dynamic_update_slice(x, dynamic_slice x)",
        lambda v, _, u, *s: lax.dynamic_update_slice(v, u, s[: x.rank], allow_negative_indices=False),
        (*starts, *others),
        lambda v, _, *s: lax.dynamic_slice(v, s[x.rank :], sizes, allow_negative_indices=False),
    )


def _indices(rng: Rng, x: Value, count: int) -> Any:
    return rng.choice([-9, -2, -1, 0, 1, 2, 3, 8], (count, x.rank)).astype(np.int32)


@step
def gather(rng: Rng, x: Value, first: Value) -> Step | None:
    if not x.rank:
        return None
    sizes = tuple(_sizes(rng, x))
    indices, mode = _indices(rng, x, int(rng.integers(1, 4))), str(rng.choice(["clip", "fill"]))
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(1, x.rank + 1)), collapsed_slice_dims=(), start_index_map=tuple(range(x.rank))
    )
    return Step(f"gather {mode}", lambda v, _, i: lax.gather(v, i, numbers, sizes, mode=mode), (indices,))


@step
def gather_rows(rng: Rng, x: Value, first: Value) -> Step | None:
    if not x.rank:
        return None
    d, mode = int(rng.integers(0, x.rank)), str(rng.choice(["clip", "fill"]))
    indices = _indices(rng, Value((1,), np.int32), int(rng.integers(1, 6)))
    sizes = tuple(1 if e == d else n for e, n in enumerate(x.shape))
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(1, x.rank)), collapsed_slice_dims=(d,), start_index_map=(d,)
    )
    return Step(f"gather rows {mode}", lambda v, _, i: lax.gather(v, i, numbers, sizes, mode=mode), (indices,))


@step
def scatter(rng: Rng, x: Value, first: Value) -> Step | None:
    if not x.rank or not _is_real(x):
        return None
    kind = str(rng.choice(["scatter", "scatter_add", "scatter_min", "scatter_mul"]))
    apply: Any = getattr(lax, kind)
    sizes, count = tuple(_sizes(rng, x)), int(rng.integers(1, 4))
    indices = _indices(rng, x, 1 if kind == "scatter" else count)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, x.rank + 1)),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=tuple(range(x.rank)),
    )
    if rng.integers(0, 3) == 0:
        at = [int(rng.integers(0, n - k + 1)) for n, k in zip(x.shape, sizes, strict=True)]
        ends = [a + k for a, k in zip(at, sizes, strict=True)]

        def box(v: Array, _: Array, i: Array) -> Array:
            return lax.broadcast(lax.slice(v, at, ends), (len(indices),))

        def of_itself(v: Array, _: Array, u: Array, i: Array) -> Array:
            return apply(v, i, u, numbers, mode="drop")

        return Step(f"{kind}(x, slice x)", of_itself, (indices,), box)
    updates = _numbers(rng, (len(indices), *sizes), x.dtype)
    return Step(kind, lambda v, _, i, u: apply(v, i, u, numbers, mode="drop"), (indices, updates))


@step
def pad(rng: Rng, x: Value, first: Value) -> Step | None:
    edges = []
    for n in x.shape:
        low, high, inner = (int(rng.choice(c)) for c in ([0, 1, 2, -1], [0, 1, 2, -1], [0, 0, 1]))
        edges.append((low, high, inner) if n + low + high > 0 else (0, 0, 0))
    value = _numbers(rng, (), x.dtype)
    return Step("pad", lambda v, _, p: lax.pad(v, p, edges), (value,))


@step
def concatenate(rng: Rng, x: Value, first: Value) -> Step | None:
    if not x.rank:
        return None
    d = int(rng.integers(0, x.rank))
    fits = first.dtype == x.dtype and first.rank == x.rank
    if fits and all(a == b for e, (a, b) in enumerate(zip(x.shape, first.shape, strict=True)) if e != d):
        return Step("concatenate(first, x)", lambda v, w: lax.concatenate([w, v], d))
    other = _numbers(rng, [2 if e == d else n for e, n in enumerate(x.shape)], x.dtype)
    return Step("concatenate", lambda v, _, o: lax.concatenate([v, o, v], d), (other,))


@step
def reshape(rng: Rng, x: Value, first: Value) -> Step | None:
    factors = [p for n in x.shape for p in _primes(n)]
    shape = [1] * int(rng.integers(1, 5))
    for f in factors:
        shape[int(rng.integers(0, len(shape)))] *= f
    return Step(f"reshape {shape}", lambda v, _: lax.reshape(v, shape)) if math.prod(shape) == x.size else None


def _primes(n: int) -> list[int]:
    for p in range(2, n + 1):
        if n % p == 0:
            return [p, *_primes(n // p)]
    return []


@step
def expand_dims(rng: Rng, x: Value, first: Value) -> Step | None:
    d = int(rng.integers(0, x.rank + 1))
    return Step("expand_dims", lambda v, _: lax.expand_dims(v, (d,)))


@step
def transpose(rng: Rng, x: Value, first: Value) -> Step | None:
    order = [int(d) for d in rng.permutation(x.rank)]
    return Step("transpose", lambda v, _: lax.transpose(v, order))


@step
def reverse(rng: Rng, x: Value, first: Value) -> Step | None:
    dims = [d for d in range(x.rank) if rng.integers(0, 2)]
    return Step("reverse", lambda v, _: lax.rev(v, dims))


@step
def broadcast(rng: Rng, x: Value, first: Value) -> Step | None:
    if x.rank > 3:
        return None
    d = int(rng.integers(0, x.rank + 1))
    shape = (*x.shape[:d], 3, *x.shape[d:])
    return Step("broadcast", lambda v, _: lax.broadcast_in_dim(v, shape, [e for e in range(len(shape)) if e != d]))


_BITCASTS = [np.int8, np.uint8, np.uint16, np.int16, np.int32, np.uint32, jnp.bfloat16, np.float16, np.float32]


@step
def bitcast(rng: Rng, x: Value, first: Value) -> Step | None:
    if not _is_real(x):
        return None
    bits = 8 * np.dtype(x.dtype).itemsize
    targets = [
        t for t in _BITCASTS if 8 * np.dtype(t).itemsize <= bits or x.shape[-1:] == (8 * np.dtype(t).itemsize // bits,)
    ]
    target = targets[int(rng.integers(0, len(targets)))]
    return Step(f"bitcast {np.dtype(target).name}", lambda v, _: lax.bitcast_convert_type(v, target))


_DTYPES = [np.int8, np.uint16, np.int32, np.float32, np.float32, jnp.bfloat16, np.float16, np.complex64, np.bool_]


@step
def convert(rng: Rng, x: Value, first: Value) -> Step | None:
    targets = [np.complex64] if not _is_real(x) and _is_number(x) else _DTYPES
    target = targets[int(rng.integers(0, len(targets)))]
    return Step(f"convert {np.dtype(target).name}", lambda v, _: lax.convert_element_type(v, target))


@step
def elementwise(rng: Rng, x: Value, first: Value) -> Step | None:
    if x.dtype == np.bool_:
        return Step("not", lambda v, _: ~v)
    same = first.shape == x.shape and first.dtype == x.dtype
    if same and rng.integers(0, 2):
        return Step("add first", lambda v, w: v + w)
    return Step("negate", lambda v, _: -v)


@step
def select(rng: Rng, x: Value, first: Value) -> Step | None:
    if not x.rank:
        return None
    d, k = int(rng.integers(0, x.rank)), np.int32(rng.integers(-1, 4))

    def masked(v: Array, _: Array, limit: Array) -> Array:
        return jnp.where(lax.broadcasted_iota(jnp.int32, v.shape, d) < limit, v, jnp.zeros_like(v))

    return Step("select", masked, (k,))


@step
def fft(rng: Rng, x: Value, first: Value) -> Step | None:
    kind = str(rng.choice(["FFT", "IFFT", "RFFT"]))
    count = int(rng.integers(1, min(3, x.rank) + 1)) if x.rank else 0
    if not count or not (_is_f32(x) or x.dtype == np.complex64):
        return None
    length = x.shape[x.rank - count :]
    real = kind == "RFFT"

    def transformed(v: Array, _: Array) -> Array:
        v = v.real if real and v.dtype == np.complex64 else v
        v = v if real else v.astype(np.complex64)
        return lax.fft(v, getattr(lax.FftType, kind), length)

    return Step(f"fft {kind} {length}", transformed)


@step
def sort(rng: Rng, x: Value, first: Value) -> Step | None:
    if not x.rank:
        return None
    d = int(rng.integers(0, x.rank))
    return Step("sort", lambda v, _: lax.sort(v, dimension=d)) if _is_real(x) else None


@step
def top_k(rng: Rng, x: Value, first: Value) -> Step | None:
    if not x.rank or not _is_real(x):
        return None
    k, which = int(rng.integers(1, x.shape[-1] + 1)), int(rng.integers(0, 2))
    return Step(f"top_k {which}", lambda v, _: lax.top_k(v, k)[which])


@step
def cumsum(rng: Rng, x: Value, first: Value) -> Step | None:
    if not x.rank or not _is_real(x):
        return None
    d, reverse = int(rng.integers(0, x.rank)), bool(rng.integers(0, 2))
    return Step("cumsum", lambda v, _: lax.cumsum(v, d, reverse))


@step
def reduce(rng: Rng, x: Value, first: Value) -> Step | None:
    if not x.rank or not _is_real(x):
        return None
    dims, kind = (int(rng.integers(0, x.rank)),), str(rng.choice(["sum", "max"]))
    return Step(
        f"reduce {kind}", lambda v, _: getattr(jnp, kind)(v, dims, dtype=v.dtype) if kind == "sum" else v.max(dims)
    )


@step
def argmax(rng: Rng, x: Value, first: Value) -> Step | None:
    if not x.rank or not _is_real(x):
        return None
    d = int(rng.integers(0, x.rank))
    return Step("argmax", lambda v, _: lax.argmax(v, d, jnp.int32))


@step
def reduce_window(rng: Rng, x: Value, first: Value) -> Step | None:
    if not x.rank or not (_is_f32(x) or x.dtype == np.int32):
        return None
    window = tuple(int(rng.integers(1, min(n, 3) + 1)) for n in x.shape)
    strides = tuple(int(rng.integers(1, 3)) for _ in x.shape)
    padding = tuple((int(rng.integers(0, 2)), int(rng.integers(0, 2))) for _ in x.shape)
    zero = np.zeros((), x.dtype)
    return Step("reduce_window", lambda v, _: lax.reduce_window(v, zero, lax.add, window, strides, padding))


@step
def convolution(rng: Rng, x: Value, first: Value) -> Step | None:
    if x.rank != 3 or not _is_f32(x):
        return None
    kernel = _numbers(rng, (2, x.shape[1], min(2, x.shape[2])), x.dtype)
    low = int(rng.integers(0, 2))
    return Step("convolution", lambda v, _, k: lax.conv_general_dilated(v, k, (1,), [(low, 1)]), (kernel,))


@step
def dot(rng: Rng, x: Value, first: Value) -> Step | None:
    if x.rank < 1 or not (_is_number(x) and np.dtype(x.dtype).itemsize > 1):
        return None
    d, n = int(rng.integers(0, x.rank)), int(rng.integers(1, 4))
    if rng.integers(0, 3) == 0:
        return Step("dot(x, x)", lambda v, _: lax.dot_general(v, v, (((d,), (d,)), ((), ()))))
    other = _numbers(rng, (n, x.shape[d]), x.dtype)
    if x.rank > 1 and rng.integers(0, 2):
        b = (d + 1) % x.rank
        other = _numbers(rng, (x.shape[b], n, x.shape[d]), x.dtype)
        return Step("dot batch", lambda v, _, o: lax.dot_general(v, o, (((d,), (2,)), ((b,), (0,)))), (other,))
    return Step("dot", lambda v, _, o: lax.dot_general(o, v, (((1,), (d,)), ((), ()))), (other,))


@step
def triangular_solve(rng: Rng, x: Value, first: Value) -> Step | None:
    if x.rank < 2 or not _is_f32(x):
        return None
    n = x.shape[-2]
    a = np.broadcast_to(np.tril(_numbers(rng, (n, n), x.dtype)), (*x.shape[:-2], n, n))
    options = {"left_side": True, "lower": True, "unit_diagonal": True, "transpose_a": bool(rng.integers(0, 2))}
    return Step("triangular_solve", lambda v, _, m: lax.linalg.triangular_solve(m, v, **options), (a,))


@step
def loop(rng: Rng, x: Value, first: Value) -> Step | None:
    """Writes rows of the value into itself, one a turn."""
    if not x.rank:
        return None
    starts = _starts(rng, 2)

    def body(i: Array, v: Array) -> Array:
        row = lax.dynamic_slice_in_dim(v, jnp.clip(i + starts[0], 0, x.shape[0] - 1), 1, 0)
        return lax.dynamic_update_slice_in_dim(v, row, jnp.clip(i + starts[1], 0, x.shape[0] - 1), 0)

    return Step("loop", lambda v, _, n: lax.fori_loop(0, n, body, v), (np.int32(3),))


@dataclass(frozen=True)
class Chain:
    """Steps behind each other, from an argument on."""

    start: Any
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return f"{self.start.dtype}{list(self.start.shape)} " + " -> ".join(s.name for s in self.steps)

    def arguments(self) -> list[Any]:
        return [self.start, *(a for s in self.steps for a in s.arguments)]

    def run(self, arguments: Sequence[Any]) -> Array:
        first, *rest = arguments
        value, before = first, first
        for s in self.steps:
            mine, rest = rest[: len(s.arguments)], rest[len(s.arguments) :]
            part = [s.part(value, before, *mine)] if s.part is not None else []
            value, before = s.apply(value, before, *part, *mine), value
        return value


_LIKELY = (
    "slice",
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    "gather_rows",
    "scatter",
    "reshape",
    "expand_dims",
)


def draw_chain(rng: Rng, length: int, only: Sequence[str] = ()) -> Chain:
    names = [*STEPS, *_LIKELY, *_LIKELY]
    dtype = rng.choice(
        np.array([np.float32, np.float32, np.int32, np.int32, np.dtype(jnp.bfloat16), np.dtype(np.complex64)], object)
    )
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 5, 6, 6], int(rng.integers(1, 4))))
    start = _numbers(rng, shape, np.dtype(dtype))
    first = before = Value(shape, np.dtype(dtype))
    steps: list[Step] = []
    value = first
    while len(steps) < length:
        name = only[len(steps)] if only else names[int(rng.integers(0, len(names)))]
        found = STEPS[name](rng, value, before)
        if found is None:
            if only:
                break
            continue
        arguments = [_shaped(v.shape, v.dtype) for v in (value, before)]
        more = [_shaped(np.shape(a), np.asarray(a).dtype) for a in found.arguments]
        part = [jax.eval_shape(found.part, *arguments, *more)] if found.part is not None else []
        made = jax.eval_shape(found.apply, *arguments, *part, *more)
        if made.size > 4000 or made.size == 0:
            break
        steps.append(found)
        value, before = Value(made.shape, made.dtype), value
    return Chain(start, tuple(steps))


def _differs(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return True
    if np.issubdtype(a.dtype, np.integer) or a.dtype == np.bool_:
        return not np.array_equal(a, b)
    kind = np.complex128 if np.issubdtype(a.dtype, np.complexfloating) else np.float64
    a, b = a.astype(kind), b.astype(kind)
    with np.errstate(all="ignore"):
        scale = np.max(np.abs(b[np.isfinite(b)]), initial=1.0)
        tolerance = 1e-4 if a.dtype != np.float64 else 3e-2
        return not np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def one_by_one(chains: Sequence[Chain]) -> list[Any]:
    """What the chains compute op by op: the first ops of all in one module, then the second ones."""
    values = [(c.start, c.start) for c in chains]
    for k in range(max(len(c.steps) for c in chains)):
        going = [i for i, c in enumerate(chains) if k < len(c.steps)]
        steps = [chains[i].steps[k] for i in going]

        def parts(taken: Any, steps: Sequence[Step] = steps) -> Any:
            return [[s.part(*t)] if s.part is not None else [] for s, t in zip(steps, taken, strict=True)]

        def applied(taken: Any, found: Any, steps: Sequence[Step] = steps) -> Any:
            every = zip(steps, taken, found, strict=True)
            return [s.apply(*t[:2], *p, *t[2:]) for s, t, p in every]

        taken = [(*values[i], *chains[i].steps[k].arguments) for i in going]
        found = jax.jit(parts)(taken)
        for i, value in zip(going, jax.jit(applied)(taken, found), strict=True):
            values[i] = value, values[i][0]
    return [np.asarray(v) for v, _ in values]


def failures(chains: Sequence[Chain], expected: Sequence[Any]) -> list[tuple[Chain, str]]:
    """The chains that differ when jitted together, or that make XLA refuse the module; these are found one by one."""
    arguments = [c.arguments() for c in chains]
    try:
        got = jax.jit(lambda args: [c.run(a) for c, a in zip(chains, args, strict=True)])(arguments)
        got = [np.asarray(g) for g in got]
    except Exception as problem:
        if len(chains) == 1:
            return [(chains[0], f"refused: {str(problem).splitlines()[0][:150]}")]
        half = len(chains) // 2
        return failures(chains[:half], expected[:half]) + failures(chains[half:], expected[half:])
    return [(c, "wrong") for c, g, e in zip(chains, got, expected, strict=True) if _differs(g, e)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Looks for chains of ops that XLA compiles wrongly or refuses.")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=24)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    end, tried, kinds = time.monotonic() + options.seconds, 0, Counter[str]()
    while time.monotonic() < end:
        chains = [draw_chain(rng, int(rng.integers(2, 5))) for _ in range(options.batch)]
        chains = [c for c in chains if c.steps]
        expected = one_by_one(chains)
        tried += len(chains)
        _clear_caches()
        for chain, how in failures(chains, expected):
            kinds[how.split(":")[0]] += 1
            print(f"{how}: {chain}", flush=True)
    print(f"{tried} chains with jax {jax.__version__}: {dict(kinds)}")


if __name__ == "__main__":
    main()
