"""Every op that JAX can emit computes, imported, what jax.jit computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import spmdc
from ir.program import all_ops
from spmdc.frontends.spmd import print_program

Case = tuple[Callable[..., Any], tuple[Any, ...]]
LAX: Any = lax
RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 6)).astype("f4")
Y = RNG.normal(size=(4, 6)).astype("f4")
UNIT = RNG.uniform(-0.9, 0.9, size=(4, 6)).astype("f4")
POSITIVE = RNG.uniform(0.5, 4, size=(4, 6)).astype("f4")
HALVES = RNG.normal(size=(4, 6)).astype("bfloat16")
ODD = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 1e-40], "f4")
INTS = RNG.integers(-9, 9, (4, 6)).astype("i4")
MORE = RNG.integers(1, 9, (4, 6)).astype("i4")
WORDS = RNG.integers(0, 2**32, (4, 6), dtype="u4")
FLAGS = RNG.integers(0, 2, (4, 6)).astype(bool)
COMPLEX = (X + 1j * Y).astype("c8")
IMAGE = RNG.normal(size=(2, 8, 8, 3)).astype("f4")
KERNEL = RNG.normal(size=(3, 3, 3, 4)).astype("f4")
SYMMETRIC = (lambda a: a @ a.T + 4 * np.eye(4))(RNG.normal(size=(4, 4))).astype("f4")
ROWS = np.array([2, 0, 5, -1], "i4")
KEY = np.array([1, 2], "u4")

UNARY = {
    "abs": X, "neg": X, "sign": X, "floor": X, "ceil": X, "exp": X, "expm1": X, "sin": X, "cos": X, "tan": UNIT,
    "tanh": X, "logistic": X, "cbrt": X, "erf": X, "erfc": X, "erf_inv": UNIT, "asin": UNIT, "acos": UNIT, "atan": X,
    "sinh": X, "cosh": X, "asinh": X, "acosh": POSITIVE + 1, "atanh": UNIT, "log": POSITIVE, "log1p": POSITIVE,
    "sqrt": POSITIVE, "rsqrt": POSITIVE, "lgamma": POSITIVE, "digamma": POSITIVE, "bessel_i1e": X, "square": X,
    "is_finite": ODD, "population_count": WORDS, "clz": WORDS, "bitwise_not": INTS, "real": COMPLEX, "imag": COMPLEX,
    "conj": COMPLEX, "exp2": X, "reciprocal": POSITIVE,
}  # fmt: skip
BINARY = {
    "add": (X, Y), "sub": (X, Y), "mul": (X, Y), "div": (X, Y), "rem": (X, POSITIVE), "max": (X, Y), "min": (X, Y),
    "pow": (POSITIVE, Y), "atan2": (X, Y), "nextafter": (X, Y), "complex": (X, Y), "bitwise_and": (INTS, MORE),
    "bitwise_or": (INTS, MORE), "bitwise_xor": (INTS, MORE), "shift_left": (INTS, MORE),
    "shift_right_logical": (INTS, MORE), "shift_right_arithmetic": (INTS, MORE), "eq": (INTS, MORE),
    "lt": (X, Y), "ge": (X, Y), "igamma": (POSITIVE, POSITIVE[::-1]), "polygamma": (POSITIVE, POSITIVE),
    "zeta": (POSITIVE + 1, POSITIVE),
}  # fmt: skip
CASES: dict[str, Case] = {
    **{name: (getattr(lax, name), (x,)) for name, x in UNARY.items()},
    **{name: (getattr(lax, name), xs) for name, xs in BINARY.items()},
    "round_even": (lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), (ODD,)),
    "round_away": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), (ODD,)),
    "integer_division": (lambda x, y: (x // y, x % y, lax.div(x, y), lax.rem(x, y)), (INTS, MORE)),
    "integer_power": (lambda x: lax.integer_pow(x, 3), (X,)),
    "clamp": (lambda x: lax.clamp(-0.5, x, 0.5), (X,)),
    "select_n": (lambda p, x, y: lax.select_n(p, x, y), (FLAGS, X, Y)),
    "select_of_several": (lambda i, x, y: lax.select_n(i, x, y, x + y), (np.abs(INTS) % 3, X, Y)),
    "converts": (lambda x: (x.astype("i4"), x.astype("bfloat16"), x > 0, x.astype("c8")), (X,)),
    "bitcasts": (lambda x: (lax.bitcast_convert_type(x, "i4"), lax.bitcast_convert_type(x, "u1")), (X,)),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 5, 10), (X,)),
    "logical": (lambda a, b: (a & b, a | b, a ^ b, ~a, a == b), (FLAGS, FLAGS[::-1])),
    "bf16_math": (lambda x: (x + x * x, jnp.tanh(x), x.sum(), lax.erf_inv(x * 0.1)), (HALVES,)),
    "complex_math": (lambda z: (z * z, jnp.exp(z), jnp.abs(z), jnp.tanh(z), z / (1 + z), jnp.log(z)), (COMPLEX,)),
    "complex_functions": (lambda z: (jnp.arcsin(z), jnp.arccosh(z), jnp.sinh(z), jnp.cosh(z)), (COMPLEX,)),
    "complex_angle": (lambda z: (lax.atan2(z, z[::-1]), lax.atan2(2j + z, z)), (COMPLEX,)),
    "constants": (lambda x: x + np.arange(6, dtype="f4") * np.ones((4, 1), "f4"), (X,)),
    "bf16_constants": (lambda x: x + np.array([1.5, 2.5, -3, 0.1, np.inf, 7]).astype("bfloat16"), (HALVES,)),
    "long_bf16_constants": (lambda x: x + np.linspace(-9, 9, 300).astype("bfloat16"), (HALVES[0, 0],)),
    "complex_constants": (lambda x: x * np.array([1, 2j, 3 - 1j, 0, np.inf, 5], "c8"), (X,)),
    "iota": (lambda x: x + lax.broadcasted_iota("f4", (4, 6), 1), (X,)),
    "eye_and_tri": (lambda x: jnp.tril(x) + jnp.eye(4, 6), (X,)),
    "broadcasts": (lambda x: x[:, None, :] * x[None, :, :] + 1, (X,)),
    "reshape": (lambda x: x.reshape(3, 2, 4), (X,)),
    "transpose": (lambda x: jnp.transpose(x.reshape(2, 2, 6), (2, 0, 1)), (X,)),
    "slices": (lambda x: (x[1:3, ::2], x[-1], x[:, -3:]), (X,)),
    "pads": (lambda x: (lax.pad(x, 1.0, [(1, 2, 1), (-1, 3, 0)]), jnp.pad(x, 2, mode="reflect")), (X,)),
    "rev": (lambda x: lax.rev(x, (0, 1)), (X,)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y, x], 1), (X, Y)),
    "roll": (lambda x: jnp.roll(x, 2, 1), (X,)),
    "stack_split": (lambda x: jnp.stack(jnp.split(x, 3, 1)), (X,)),
    "matmul": (lambda x, y: x @ y.T, (X, Y)),
    "einsum": (lambda x, y: jnp.einsum("bij,bkj->bik", x, y), (X.reshape(2, 2, 6), Y.reshape(2, 2, 6))),
    "dot_in_f32": (lambda x: lax.dot_general(x, x, (((1,), (1,)), ((), ())), preferred_element_type="f4"), (HALVES,)),
    "dot_of_integers": (lambda x: lax.dot_general(x, x, (((1,), (1,)), ((), ())), preferred_element_type="i4"),
                        (INTS.astype("i1"),)),
    "dot_of_flags": (lambda x: (x @ x.T, lax.dot_general(x, x, (((1,), (1,)), ((), ())), preferred_element_type="i4")),
                     (FLAGS,)),
    "convolution_of_flags": (lambda x: lax.conv(x[None, None], x[None, None, :3, :3], (1, 1), "SAME"), (FLAGS,)),
    "reduce_all_kinds": (lambda x: (x.sum(0), x.prod(1), x.max(), x.min((0, 1))), (X,)),
    "reduce_flags": (lambda x: (x.any(0), x.all(1), x.sum(0)), (FLAGS,)),
    "reduce_integers": (lambda x: (x.sum(0), x.max(1), jnp.bitwise_or.reduce(x), jnp.bitwise_and.reduce(x)), (INTS,)),
    "reduce_xor": (lambda x: jnp.bitwise_xor.reduce(x, axis=1), (INTS,)),
    "reduce_from": (lambda x: lax.reduce(x, np.float32(10), lax.add, (0,)), (X,)),
    "argmax_argmin": (lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argmax(x)), (X,)),
    "argmax_of_integers": (lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)), (INTS,)),
    "argmax_of_nan": (lambda x: (jnp.argmax(x), jnp.argmin(x), jnp.nanargmax(x)), (ODD,)),
    "reduce_any_body": (lambda x, y: lax.reduce(
        (x, y), (np.float32(1), np.float32(0)), lambda a, b: (a[0] * b[0], a[0] * b[1] + a[1]), (1,)), (X, Y)),
    "reduce_pairs": (lambda x, y: lax.reduce(
        (x, y), (np.float32(0), np.float32(-np.inf)), lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])), (0,)), (X, Y)),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, 1), (X,)),
    "softmax": (lambda x: jax.nn.softmax(x, 1), (X,)),
    "mean_var": (lambda x: (x.mean(1), x.var(0), jnp.median(x, 1)), (X,)),
    "cumulative": (
        lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 1, reverse=True), lax.cummin(x)), (X,)),
    "cumlogsumexp": (lambda x: (lax.cumlogsumexp(x, 1), lax.cumlogsumexp(x, 0, reverse=True)), (X,)),
    "associative_scan": (lambda x: lax.associative_scan(jnp.multiply, x, axis=1), (X,)),
    "sort": (lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1), jnp.sort(x, descending=True)), (X,)),
    "sort_of_odd_floats": (lambda x: (lax.sort(x), jnp.argsort(x)), (ODD,)),
    "sort_by_keys": (lambda x, y, z: lax.sort((x, y, z), num_keys=2), (INTS // 4, X, Y)),
    "sort_of_complex": (lambda z: lax.sort(z.round()), (COMPLEX,)),
    "sort_of_flags": (lambda x: jnp.sort(x, 1), (FLAGS,)),
    "lexsort": (lambda x, y: jnp.lexsort((x, y)), (INTS // 4, MORE // 4)),
    "top_k": (lambda x: lax.top_k(x, 3), (X,)),
    "unique_size": (lambda x: jnp.unique(x, size=5), (INTS,)),
    "searchsorted": (lambda x: jnp.searchsorted(jnp.sort(x[0]), x), (X,)),
    "take": (lambda x, i: (x[:, i], jnp.take(x, i, axis=1, mode="fill"), x[i % 4, i % 6]), (X, ROWS)),
    "take_along": (lambda x, i: jnp.take_along_axis(x, i, 1), (X, np.abs(INTS) % 6)),
    "batched_gather": (lambda x, i: jax.vmap(lambda r, j: r[j])(x, i), (X, np.abs(INTS[:, :2]) % 6)),
    "one_hot": (lambda i: jax.nn.one_hot(i, 6), (ROWS,)),
    "dynamic_slices": (lambda x, i: (lax.dynamic_slice(x, (i, i), (2, 3)), lax.dynamic_index_in_dim(x, i)),
                       (X, np.int32(2))),
    "dynamic_update": (lambda x, y, i: lax.dynamic_update_slice(x, y[:2, :2], (i, i)), (X, Y, np.int32(5))),
    "scatter_set": (lambda x, i: x.at[:, i].set(7.0), (X, np.array([1, 3], "i4"))),
    "scatter_kinds": (lambda x, i: (x.at[i % 4].add(1.0), x.at[i % 4].multiply(2.0), x.at[i % 4].max(0.0),
                                    x.at[i % 4].min(0.0), x.at[i % 4].subtract(1.0)), (X, ROWS)),
    "scatter_of_flags": (lambda x: (x.at[1].set(True), x.at[:, 2].max(True)), (FLAGS,)),
    "scatter_out_of_range": (lambda x, i: x.at[:, i].add(1.0, mode="drop"), (X, ROWS)),
    "scatter_apply": (lambda x: x.at[jnp.array([1, 3])].apply(jnp.sin, unique_indices=True), (X,)),
    "segment_sum": (lambda x, i: jax.ops.segment_sum(x, i % 3, 3), (X, np.abs(ROWS))),
    "gradient_of_gather": (lambda x, i: jax.grad(lambda a: (a[i % 4] ** 2).sum())(x), (X, ROWS)),
    "reduce_windows": (lambda x: (
        lax.reduce_window(x, 0.0, lax.add, (2, 3), (1, 2), "SAME"),
        lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2), "VALID"),
        lax.reduce_window(x, np.inf, lax.min, (2, 2), (1, 1), [(1, 0), (0, 1)], (2, 1), (1, 2))), (X,)),
    "reduce_window_from": (lambda x: lax.reduce_window(x, np.float32(2), lax.add, (2, 2), (1, 1), "SAME"), (X,)),
    "reduce_window_any_body": (lambda x: lax.reduce_window(
        x, np.float32(0), lambda a, b: jnp.sqrt(a * a + b * b), (2, 3), (1, 2), "SAME"), (X,)),
    "pool_gradients": (jax.grad(lambda x: (
        lax.reduce_window(x, -np.inf, lax.max, (2, 3), (1, 2), "SAME") ** 2).sum()), (X,)),
    "average_pool": (lambda x: jax.grad(lambda a: (
        lax.reduce_window(a, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "SAME") ** 2).sum())(x), (IMAGE,)),
    "convolution": (lambda x, k: lax.conv_general_dilated(
        x, k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")), (IMAGE, KERNEL)),
    "convolution_gradients": (jax.grad(lambda x, k: (lax.conv_general_dilated(
        x, k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2).sum(), (0, 1)), (IMAGE, KERNEL)),
    "transposed_convolution": (lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"), (IMAGE, KERNEL)),
    "depthwise_convolution": (lambda x, k: lax.conv_general_dilated(
        x, k, (1, 1), "VALID", rhs_dilation=(2, 1), dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=3), (IMAGE, KERNEL[:, :, :1].repeat(3, 3)[..., :6])),
    "fft": (lambda x: (jnp.fft.fft(x), jnp.fft.rfft(x), jnp.fft.ifft2(x), jnp.fft.irfft(jnp.fft.rfft(x))), (X,)),
    "cholesky": (jnp.linalg.cholesky, (SYMMETRIC,)),
    "cholesky_that_fails": (jnp.linalg.cholesky, (-SYMMETRIC,)),
    "triangular_solves": (lambda a, b: (
        jax.scipy.linalg.solve_triangular(a, b, lower=True), jax.scipy.linalg.solve_triangular(a, b, trans=1),
        lax.linalg.triangular_solve(a, b.T, lower=True, unit_diagonal=True)), (SYMMETRIC, X)),
    "cho_solve": (lambda a, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), b), (SYMMETRIC, X)),
    "while_loop": (lambda x: lax.while_loop(lambda c: jnp.abs(c).sum() < 500, lambda c: c * 2 + x, x), (X,)),
    "fori_loop": (lambda x: lax.fori_loop(0, 5, lambda i, c: c * 0.5 + i * x, x), (X,)),
    "scan": (lambda x, w: lax.scan(lambda c, r: (jnp.tanh(c @ w + r), c), x[0], x), (X, X.T @ X)),
    "gradient_of_scan": (jax.grad(lambda x, w: lax.scan(
        lambda c, r: (jnp.tanh(c @ w + r), None), x[0], x)[0].sum()), (X, X.T @ X)),
    "cond": (lambda x, n: lax.cond(n > 0, lambda a: a + 1, lambda a: a * x, x), (X, np.int32(1))),
    "switch": (lambda x, n: lax.switch(n, [lambda a: a + 1, lambda a: a * 2, lambda a: -a], x), (X, np.int32(9))),
    "vmapped_cond": (jax.vmap(lambda r, p: lax.cond(p, jnp.sin, jnp.cos, r)), (X, FLAGS[:, 0])),
    "checkpoint": (jax.grad(lambda x: jax.checkpoint(lambda a: jnp.sin(jnp.sin(a)))(x).sum()), (X,)),
    "custom_jvp": (lambda x: jax.grad(lambda a: jax.nn.relu(a).sum())(x), (X,)),
    "optimization_barrier": (lambda x, y: LAX.optimization_barrier((x, y)), (X, Y)),
    "uniform": (lambda k: (jax.random.uniform(k, (3, 5)), jax.random.normal(k, (4,))), (KEY,)),
    "bits": (
        lambda k: (jax.random.bits(k, (6,), "u1"), jax.random.randint(k, (4,), 0, 9), jax.random.split(k)), (KEY,)),
    "permutation": (lambda k: (jax.random.permutation(k, 9), jax.random.categorical(k, jnp.zeros((2, 5)))), (KEY,)),
    "rng_bit_generator": (lambda k: LAX.rng_bit_generator(jnp.tile(k, 2), (4, 3), "u4"), (KEY,)),
    "gelu": (lambda x: (jax.nn.gelu(x, approximate=False), jax.nn.gelu(x), jax.nn.silu(x)), (X,)),
    "attention": (lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), (
        RNG.normal(size=(1, 6, 2, 4)).astype("f4"),) * 3),
    "vmap_of_matmul": (jax.vmap(lambda a, b: a @ b, in_axes=(0, None)), (X.reshape(2, 2, 6), X.T)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_imported_function_computes_what_jax_computes_and_prints_and_parses_again(name: str) -> None:
    function, args = CASES[name]
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*args))]
    program = spmdc.from_jax(function, *args)
    found = spmdc.evaluate(program, *args)
    assert len(found) == len(expected)
    for have, want in zip(found, expected, strict=True):
        assert have.dtype == want.dtype
        assert have.shape == want.shape
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(have, want)
        else:
            tolerance = 2e-2 if want.dtype.itemsize == 2 else 2e-5
            wide = np.result_type(want.dtype, "f4")
            np.testing.assert_allclose(have.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance)
    again = spmdc.parse(print_program(program))
    assert [op.name for op in all_ops(again)] == [op.name for op in all_ops(program)]


def test_the_hlo_text_of_calls_of_lapack_is_imported() -> None:
    """It has their options in another attribute than MLIR."""

    def solved(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.linalg.solve(a, b), jnp.linalg.cholesky(a)

    matrix = (X @ X.T + 4 * np.eye(4)).astype("f4")
    lowered: Any = jax.jit(solved).lower(matrix, Y)
    program = spmdc.from_hlo(lowered.compiler_ir("hlo").as_hlo_text())
    for have, want in zip(spmdc.evaluate(program, matrix, Y), jax.jit(solved)(matrix, Y), strict=True):
        np.testing.assert_allclose(have, np.asarray(want), rtol=1e-4, atol=1e-5)
