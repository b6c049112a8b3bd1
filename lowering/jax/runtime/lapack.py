"""Helpers of generated modules that call LAPACK. On devices other than the host's CPU, jax computes what it would.

Each returns what the routine of that name does, in its order, and how it ended: 0 or, where numbers are lost, 1.
Options are the codes of letters, as LAPACK has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def load_lapack() -> None:
    """jaxlib loads LAPACK when jax first lowers a call of it; to call it before that ends the process."""
    jax.jit(lax.linalg.hessenberg).trace(np.zeros((1, 1), np.float32)).lower(lowering_platforms=("cpu",))


def lapack_info(matrices: jax.Array) -> jax.Array:
    """For each matrix 1 if it has a NaN, else 0."""
    return jnp.any(jnp.isnan(matrices), axis=(-2, -1)).astype(jnp.int32)


def lapack_getrf(a: jax.Array) -> Sequence[jax.Array]:
    """P, L and U; rows are counted from 1."""
    factors, pivots, _ = lax.linalg.lu(a)
    return factors, pivots + 1, lapack_info(factors)


def lapack_geqrf(a: jax.Array) -> Sequence[jax.Array]:
    """Q as reflectors, below R."""
    reflectors, scales = jnp.linalg.qr(a, mode="raw")
    return jnp.swapaxes(reflectors, -1, -2), scales


def lapack_orgqr(a: jax.Array, scales: jax.Array) -> jax.Array:
    """The product of reflectors."""
    return lax.linalg.householder_product(a, scales)


def lapack_ormqr(a: jax.Array, scales: jax.Array, c: jax.Array, left: bool, transpose: bool) -> jax.Array:
    """The product of reflectors, times a matrix."""
    return lax.linalg.ormqr(a, scales, c, left=left, transpose=transpose)


def lapack_syevd(a: jax.Array, mode: int, uplo: int) -> Sequence[jax.Array]:
    """Eigenvectors and eigenvalues of Hermitian matrices."""
    vectors, values = lax.linalg.eigh(a, lower=uplo == ord("L"), symmetrize_input=False)
    return vectors, values, lapack_info(vectors)


def lapack_gesdd(a: jax.Array, mode: int) -> Sequence[jax.Array]:
    """Singular values, and vectors of all dims (A), of those with a value (S), or of none (N)."""
    left, values, right = lax.linalg.svd(a, full_matrices=mode != ord("S"))
    return a, values, left, right, lapack_info(left)


def lapack_sytrd(a: jax.Array, uplo: int) -> Sequence[jax.Array]:
    """Reflectors that make Hermitian matrices tridiagonal, and the two diagonals."""
    reflectors, diagonal, beside, scales = lax.linalg.tridiagonal(a, lower=uplo == ord("L"))
    return reflectors, diagonal, beside, scales, lapack_info(reflectors)


def lapack_gtsv(below: jax.Array, diagonal: jax.Array, above: jax.Array, b: jax.Array) -> Sequence[jax.Array]:
    """Solutions of tridiagonal systems."""
    solved = lax.linalg.tridiagonal_solve(below, diagonal, above, b)
    return below, diagonal, above, solved, lapack_info(solved)


def lapack_geev(a: jax.Array, compute_left: int, compute_right: int) -> Sequence[jax.Array]:
    """Eigenvalues of real matrices, their real and imaginary parts, and eigenvectors on both sides, where computed."""
    values, left, right, info = lapack_complex_geev(a, compute_left, compute_right)
    return jnp.real(values), jnp.imag(values), left, right, info


def lapack_complex_geev(a: jax.Array, compute_left: int, compute_right: int) -> Sequence[jax.Array]:
    """Eigenvalues of complex matrices, and eigenvectors on both sides, where computed."""
    sides = [bool(side == ord("V")) for side in (compute_left, compute_right)]
    values, *found = lax.linalg.eig(a, compute_left_eigenvectors=sides[0], compute_right_eigenvectors=sides[1])
    vectors = iter(found)
    left, right = (next(vectors) if side else jnp.zeros(a.shape, values.dtype) for side in sides)
    return values, left, right, lapack_info(jnp.expand_dims(values, -1))
