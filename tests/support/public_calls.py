"""Calls of JAX's public functions that no rule can construct, and the functions that compute nothing from arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.ndimage
import jax.scipy.optimize
import jax.scipy.sparse.linalg
import numpy as np
from jax import lax
from jax.scipy import linalg as jsl

Array = np.ndarray[Any, Any]
Given = tuple[Callable[..., Any], tuple[Any, ...]]

sparse: Any = jax.scipy.sparse.linalg
untyped: Any = lax
_rng = np.random.default_rng(0)


def _floats(*shape: int) -> Array:
    return _rng.uniform(-0.95, 0.95, shape).astype(np.float32)


FLOATS = _floats(8, 8)
MATRICES = _floats(4, 8, 8)
VECTOR = _floats(8)
TRIPLES = _floats(8, 3)
INTEGERS = _rng.integers(1, 6, (8, 8)).astype(np.int32)
NUMBERS = _rng.integers(0, 6, 8).astype(np.int32)
FLAGS = _rng.integers(0, 2, (8, 8)).astype(np.bool_)
POSITIVE = (FLOATS @ FLOATS.T + 8 * np.eye(8)).astype(np.float32)
COMPLEX = (FLOATS + 1j * FLOATS.T).astype(np.complex64)
IMAGES, KERNEL = MATRICES.reshape(4, 1, 8, 8), _floats(1, 1, 3, 3)
PLACES = np.arange(8, dtype=np.int32)[::-1].copy()
ONE, TWO = np.float32(0.5), np.int32(2)
KEY = np.array([1, 2], np.uint32)

_GATHERED = lax.GatherDimensionNumbers((1,), (0,), (0,))
_SCATTERED = lax.ScatterDimensionNumbers((1,), (0,), (0,))
_PRODUCT = (((1,), (0,)), ((), ()))
_RAGGED = untyped.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))


def _scatters(name: str) -> Given:
    scatter = getattr(lax, name)
    if name == "scatter":
        return lambda a, i, b: scatter(a, i[:, None], b, _SCATTERED, unique_indices=True), (FLOATS, PLACES, MATRICES[0])
    return lambda a, i, b: scatter(a, i[:, None], b, _SCATTERED), (FLOATS, NUMBERS, MATRICES[0])


def _initializes(name: str) -> Given:
    options = {"constant": (2.0,), "variance_scaling": (1.0, "fan_in", "normal")}.get(name, ())
    shape = (3, 3, 8, 8) if name == "delta_orthogonal" else (8, 8)
    initializer = getattr(jax.nn.initializers, name)
    return lambda: initializer(*options)(jax.random.key(7), shape), ()


def _of_two(name: str, a: Array) -> Given:
    return getattr(jnp, name), (a, a.T.copy())


_NUMPY: dict[str, Given] = {
    **{n: _of_two(n, FLOATS) for n in ("add", "logaddexp", "logaddexp2", "maximum", "minimum", "multiply", "subtract")},
    **{f"bitwise_{n}": _of_two(f"bitwise_{n}", INTEGERS) for n in ("and", "or", "xor")},
    **{f"logical_{n}": _of_two(f"logical_{n}", FLAGS) for n in ("and", "or", "xor")},
    "apply_along_axis": (lambda a: jnp.apply_along_axis(jnp.cumsum, 0, a), (FLOATS,)),
    "apply_over_axes": (lambda a: jnp.apply_over_axes(jnp.sum, a, [0, 1]), (MATRICES,)),
    "argpartition": (lambda a: jnp.argpartition(a, 3), (FLOATS,)),
    "argwhere": (lambda a: jnp.argwhere(a > 0, size=8), (FLOATS,)),
    "array": (lambda a: jnp.array(a), (FLOATS,)),
    "bincount": (lambda a: jnp.bincount(a, length=8), (NUMBERS,)),
    "choose": (lambda a, b, c: jnp.choose(a, [b, c], mode="clip"), (INTEGERS, FLOATS, POSITIVE)),
    "clip": (lambda a: jnp.clip(a, -0.5, 0.5), (FLOATS,)),
    "compress": (lambda m, a: jnp.compress(m, a, axis=0, size=4), (FLAGS[0], FLOATS)),
    "delete": (lambda a: jnp.delete(a, 2, axis=0), (FLOATS,)),
    "einsum": (lambda a, b: jnp.einsum("ij,jk->ik", a, b), (FLOATS, POSITIVE)),
    "extract": (lambda m, a: jnp.extract(m, a, size=9), (FLAGS, FLOATS)),
    "fill_diagonal": (lambda a: jnp.fill_diagonal(a, 2.0, inplace=False), (FLOATS,)),
    "flatnonzero": (lambda a: jnp.flatnonzero(a, size=9), (FLAGS,)),
    "fliplr": (jnp.fliplr, (FLOATS,)),
    "flipud": (jnp.flipud, (FLOATS,)),
    "fromfunction": (lambda: jnp.fromfunction(lambda i, j: i * 3 + j, (8, 8)), ()),
    "frompyfunc": (lambda a: jnp.frompyfunc(lambda x, y: x + y, 2, 1, identity=0).reduce(a, axis=1), (FLOATS,)),
    "histogramdd": (lambda a: jnp.histogramdd(a, bins=4), (TRIPLES,)),
    "insert": (lambda a, b: jnp.insert(a, 3, b), (VECTOR, ONE)),
    "intersect1d": (lambda a, b: jnp.intersect1d(a, b, size=8), (NUMBERS, INTEGERS[0])),
    "mask_indices": (lambda a: [a[i] for i in jnp.mask_indices(8, jnp.triu, size=36)], (FLOATS,)),
    "nonzero": (lambda a: jnp.nonzero(a, size=20), (FLAGS,)),
    "partition": (lambda a: jnp.partition(a, 3), (FLOATS,)),
    "place": (lambda a, m, v: jnp.place(a, m, v, inplace=False), (FLOATS, FLAGS, VECTOR)),
    "put": (lambda a, i, v: jnp.put(a, i, v, inplace=False), (FLOATS, PLACES, VECTOR)),
    "put_along_axis": (
        lambda a, i, v: jnp.put_along_axis(a, i[:, None], v, axis=1, inplace=False), (FLOATS, PLACES, POSITIVE[:, :1])
    ),
    "ravel_multi_index": (lambda a, b: jnp.ravel_multi_index((a, b), (8, 8), mode="clip"), (NUMBERS, PLACES)),
    "resize": (lambda a: jnp.resize(a, (5, 7)), (FLOATS,)),
    "roots": (lambda a: jnp.roots(a, strip_zeros=False), (VECTOR,)),
    "rot90": (jnp.rot90, (FLOATS,)),
    "setdiff1d": (lambda a, b: jnp.setdiff1d(a, b, size=8), (NUMBERS, INTEGERS[0])),
    "setxor1d": (lambda a, b: jnp.setxor1d(a, b, size=8), (NUMBERS, INTEGERS[0])),
    "tril": (jnp.tril, (FLOATS,)),
    "triu": (jnp.triu, (FLOATS,)),
    "union1d": (lambda a, b: jnp.union1d(a, b, size=8), (NUMBERS, INTEGERS[0])),
    "unique": (
        lambda a: jnp.unique(a, size=8, return_index=True, return_inverse=True, return_counts=True), (INTEGERS,)
    ),
    "unique_all": (lambda a: jnp.unique_all(a, size=8), (INTEGERS,)),
    "unique_counts": (lambda a: jnp.unique_counts(a, size=8), (INTEGERS,)),
    "unique_inverse": (lambda a: jnp.unique_inverse(a, size=8), (INTEGERS,)),
    "unique_values": (lambda a: jnp.unique_values(a, size=8), (INTEGERS,)),
    "unpackbits": (jnp.unpackbits, (INTEGERS.astype(np.uint8),)),
    "vectorize": (lambda a, b: jnp.vectorize(jnp.dot, signature="(n),(n)->()")(a, b), (FLOATS, POSITIVE)),
    "where": (jnp.where, (FLAGS, FLOATS, POSITIVE)),
}  # fmt: skip

_LAX: dict[str, Given] = {
    **{n: _scatters(n) for n in ("scatter", *(f"scatter_{k}" for k in ("add", "max", "min", "mul", "sub")))},
    "associative_scan": (lambda a: lax.associative_scan(jnp.add, a), (FLOATS,)),
    "collapse": (lambda a: lax.collapse(a, 0, 2), (MATRICES,)),
    "composite": (lambda a: lax.composite(lambda x: x * 2, "two.times")(a), (FLOATS,)),
    "cond": (lambda c, a: lax.cond(c[0, 0], jnp.sin, jnp.cos, a), (FLAGS, FLOATS)),
    "conv": (lambda a, b: lax.conv(a, b, (1, 1), "SAME"), (IMAGES, KERNEL)),
    "conv_general_dilated": (lambda a, b: lax.conv_general_dilated(a, b, (2, 1), "SAME"), (IMAGES, KERNEL)),
    "conv_general_dilated_local": (
        lambda a, b: lax.conv_general_dilated_local(a, b, (1,), "VALID", (3,)), (MATRICES[:, :2], _floats(2, 6, 6))
    ),
    "conv_general_dilated_patches": (
        lambda a: lax.conv_general_dilated_patches(a, (3,), (1,), "SAME"), (MATRICES,)
    ),
    "conv_transpose": (lambda a, b: lax.conv_transpose(a, b, (2,), "SAME"), (MATRICES, _floats(3, 8, 2))),
    "conv_with_general_padding": (
        lambda a, b: lax.conv_with_general_padding(a, b, (1, 1), [(1, 1), (0, 2)], (1, 1), (2, 1)), (IMAGES, KERNEL)
    ),
    "custom_linear_solve": (
        lambda a, b: lax.custom_linear_solve(lambda x: a @ x, b, lambda _, y: jnp.linalg.solve(a, y)),
        (POSITIVE, VECTOR),
    ),
    "custom_root": (
        lambda a: lax.custom_root(lambda x: x - a, 0 * a, lambda f, x: x - f(x), lambda g, y: y / g(1.0)), (ONE,)
    ),
    "dot_general": (lambda a, b: lax.dot_general(a, b, _PRODUCT), (FLOATS, POSITIVE)),
    "dynamic_index_in_dim": (lax.dynamic_index_in_dim, (FLOATS, TWO)),
    "dynamic_update_index_in_dim": (lambda a, b, i: lax.dynamic_update_index_in_dim(a, b, i, 0), (FLOATS, VECTOR, TWO)),
    "fori_loop": (lambda a: lax.fori_loop(0, 3, lambda i, x: x * 2 + i, a), (FLOATS,)),
    "gather": (lambda a, i: lax.gather(a, i[:, None], _GATHERED, (1, 8)), (FLOATS, NUMBERS)),
    "imag": (lax.imag, (COMPLEX,)),
    "index_in_dim": (lambda a: lax.index_in_dim(a, 3), (FLOATS,)),
    "index_take": (lambda a, i: untyped.index_take(a, (i,), (0,)), (FLOATS, NUMBERS)),
    "integer_pow": (lambda a: lax.integer_pow(a, 3), (FLOATS,)),
    "map": (lambda a: lax.map(jnp.cumsum, a), (FLOATS,)),
    "pad": (lambda a: lax.pad(a, 0.0, ((1, 2, 0), (0, -1, 1))), (FLOATS,)),
    "platform_dependent": (lambda a: lax.platform_dependent(a, cpu=jnp.sin, default=jnp.cos), (FLOATS,)),
    "polygamma": (lambda a: lax.polygamma(jnp.ones_like(a), abs(a) + 1), (FLOATS,)),
    "ragged_dot": (lax.ragged_dot, (FLOATS, MATRICES, np.array([2, 3, 1, 2], np.int32))),
    "ragged_dot_general": (
        lambda a, b, n: lax.ragged_dot_general(a, b, n, _RAGGED), (FLOATS, MATRICES, np.array([2, 3, 1, 2], np.int32))
    ),
    "random_gamma_grad": (lambda a, b: lax.random_gamma_grad(abs(a) + 1, abs(b) + 0.5), (FLOATS, POSITIVE)),
    "real": (lax.real, (COMPLEX,)),
    "reduce": (lambda a: lax.reduce(a, 1.0, lax.mul, (0,)), (FLOATS,)),
    "reduce_window": (lambda a: lax.reduce_window(a, 0.0, lax.add, (2, 2), (1, 2), "SAME"), (FLOATS,)),
    "rng_bit_generator": (lambda a: untyped.rng_bit_generator(a, (8, 8)), (np.arange(4, dtype=np.uint32),)),
    "rng_uniform": (lambda a, b: untyped.rng_uniform(a, b, (8, 8)), (np.float32(0), np.float32(1))),
    "scan": (lambda a: lax.scan(lambda c, x: (c + x, c * x), a[0], a), (FLOATS,)),
    "scatter_apply": (
        lambda a, i: lax.scatter_apply(a, i[:, None], jnp.sin, _SCATTERED, update_shape=(8, 8)), (FLOATS, NUMBERS)
    ),
    "split": (lambda a: lax.split(a, (2, 6)), (FLOATS,)),
    "squeeze": (lambda a: lax.squeeze(a, (1,)), (MATRICES.reshape(4, 1, 64),)),
    "switch": (lambda i, a: lax.switch(i[0], [jnp.sin, jnp.cos], a), (NUMBERS, FLOATS)),
    "tile": (lambda a: lax.tile(a, (2, 3)), (FLOATS,)),
    "while_loop": (lambda a: lax.while_loop(lambda x: x.sum() < 50, lambda x: x + 1, a), (FLOATS,)),
    "linalg.cholesky": (lax.linalg.cholesky, (POSITIVE,)),
    "linalg.cholesky_update": (lax.linalg.cholesky_update, (POSITIVE, VECTOR)),
    "linalg.householder_product": (lax.linalg.householder_product, (FLOATS, VECTOR)),
    "linalg.lu_pivots_to_permutation": (lambda a: lax.linalg.lu_pivots_to_permutation(a, 8), (PLACES[::-1].copy(),)),
    "linalg.ormqr": (lax.linalg.ormqr, (FLOATS, VECTOR, POSITIVE)),
    "linalg.triangular_solve": (lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True), (POSITIVE, FLOATS)),
    "linalg.tridiagonal_solve": (lambda a, b: lax.linalg.tridiagonal_solve(a, a + 4, a, b), (VECTOR, FLOATS)),
}  # fmt: skip

_NN: dict[str, Given] = {
    **{f"initializers.{n}": _initializes(n) for n in (
        "constant", "delta_orthogonal", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "lecun_normal",
        "lecun_uniform", "normal", "orthogonal", "truncated_normal", "uniform", "variance_scaling",
    )},
    "dot_product_attention": (
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), (MATRICES.reshape(2, 8, 4, 4),) * 3
    ),
    "scaled_dot_general": (lambda a, b: jax.nn.scaled_dot_general(a, b, _PRODUCT), (FLOATS, POSITIVE)),
}  # fmt: skip

_RANDOM: dict[str, Given] = {
    "PRNGKey": (jax.random.PRNGKey, (TWO,)),
    "fold_in": (lambda i: jax.random.fold_in(jax.random.key(7), i), (TWO,)),
    "generalized_normal": (lambda: jax.random.generalized_normal(jax.random.key(7), 1.5, (8, 8)), ()),
    "key": (lambda i: jax.random.key_data(jax.random.key(i)), (TWO,)),
    "key_data": (lambda: jax.random.key_data(jax.random.key(3)), ()),
    "wrap_key_data": (lambda a: jax.random.bits(jax.random.wrap_key_data(a), (8,)), (KEY,)),
}

_SCIPY: dict[str, Given] = {
    "linalg.cho_solve": (lambda a, b: jsl.cho_solve((a, True), b), (np.linalg.cholesky(POSITIVE), FLOATS)),
    "linalg.cholesky": (jsl.cholesky, (POSITIVE,)),
    "linalg.eigh_tridiagonal": (lambda d, e: jsl.eigh_tridiagonal(d, e[:7], eigvals_only=True), (VECTOR, VECTOR)),
    "linalg.funm": (lambda a: jsl.funm(a, jnp.exp), (POSITIVE / 16,)),
    "linalg.leslie": (lambda f, s: jsl.leslie(f, s[:7]), (VECTOR, VECTOR)),
    "linalg.lu_solve": (lambda a, b: jsl.lu_solve(jsl.lu_factor(a), b), (POSITIVE, FLOATS)),
    "ndimage.map_coordinates": (lambda a, b: jax.scipy.ndimage.map_coordinates(a, [b, b], 1), (FLOATS, 7 * VECTOR)),
    "optimize.minimize": (
        lambda a: jax.scipy.optimize.minimize(lambda x: ((x - a) ** 2).sum(), 0 * a, method="BFGS").x, (VECTOR,)
    ),
    "sparse.linalg.bicgstab": (lambda a, b: sparse.bicgstab(a, b)[0], (POSITIVE, VECTOR)),
    "sparse.linalg.cg": (lambda a, b: sparse.cg(a, b)[0], (POSITIVE, VECTOR)),
    "sparse.linalg.gmres": (lambda a, b: sparse.gmres(a, b)[0], (POSITIVE, VECTOR)),
    "special.bessel_jn": (lambda a: jax.scipy.special.bessel_jn(a, v=2), (VECTOR,)),
    "special.sph_harm_y": (
        lambda n, m, t: jax.scipy.special.sph_harm_y(n, m, t, t, n_max=6), (NUMBERS, NUMBERS // 2, VECTOR)
    ),
    "special.zeta": (lambda a: jax.scipy.special.zeta(abs(a) + 2, abs(a) + 1), (FLOATS,)),
}  # fmt: skip

_OF_MODULES = {"numpy": _NUMPY, "lax": _LAX, "nn": _NN, "random": _RANDOM, "scipy": _SCIPY}
CALLS: Mapping[str, Given] = {f"jax.{m}.{n}": call for m, of in _OF_MODULES.items() for n, call in of.items()} | {
    "jax.numpy.linalg.cholesky": (jnp.linalg.cholesky, (POSITIVE,)),
    "jax.numpy.linalg.tensorinv": (lambda a: jnp.linalg.tensorinv(a, 1), (POSITIVE,)),
    "jax.numpy.linalg.tensorsolve": (jnp.linalg.tensorsolve, (POSITIVE, VECTOR)),
}

_REASONS: Mapping[str, str] = {
    "gives text, types or shapes, or changes how arrays are printed": """
        jax.numpy.array_repr jax.numpy.array_str jax.numpy.broadcast_shapes jax.numpy.einsum_path
        jax.numpy.get_printoptions jax.numpy.printoptions jax.numpy.promote_types jax.numpy.result_type
        jax.numpy.set_printoptions jax.lax.broadcast_shapes jax.lax.conv_dimension_numbers
        jax.lax.conv_general_permutations jax.lax.conv_general_shape_tuple jax.lax.conv_shape_tuple
        jax.lax.conv_transpose_shape_tuple jax.lax.dtype jax.lax.padtype_to_pads jax.lax.reduce_window_shape_tuple
        jax.nn.get_scaled_dot_general_config jax.random.key_dtype jax.random.key_impl""",
    "reads or writes files or memory, or needs known values": """
        jax.numpy.from_dlpack jax.numpy.frombuffer jax.numpy.fromfile jax.numpy.fromiter jax.numpy.fromstring
        jax.numpy.load jax.numpy.save jax.numpy.savez jax.numpy.trim_zeros""",
    "works along the axes of a shard_map": """
        jax.lax.all_gather jax.lax.all_to_all jax.lax.axis_index jax.lax.axis_size jax.lax.pbroadcast jax.lax.pcast
        jax.lax.pmax jax.lax.pmean jax.lax.pmin jax.lax.ppermute jax.lax.precv jax.lax.psend jax.lax.pshuffle
        jax.lax.psum jax.lax.psum_scatter jax.lax.psum_scatter_start jax.lax.pswapaxes jax.lax.ragged_all_to_all""",
    "takes or gives tokens, or nothing": "jax.lax.after_all jax.lax.create_token jax.lax.dce_sink",
    "takes shardings, and is tested as an annotation": "jax.lax.with_sharding_constraint",
    "has no rule for a CPU in JAX": "jax.nn.scaled_matmul",
}
NO_COMPUTATIONS: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names.split()}
"""Functions that `jax.jit` does not run on arrays, and why."""
