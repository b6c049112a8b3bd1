"""Floats of 8 and 4 bits and integers of 4 and 2 in JAX functions and StableHLO, as `jax.jit` computes them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from short_types import EACH_SHORT, SHORT

import spmdc
from ir.types import DTYPES, DType

pytestmark = pytest.mark.usefixtures("devices")

_spec: Any = PartitionSpec


def _drawn(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Any:
    low, high = (1, 2) if not dtype.has_zero else (int(max(-1, dtype.lowest)), 1)
    drawn = np.random.default_rng(seed).integers(low, high + 1, shape)
    return drawn.astype(dtype.computed.numpy).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", EACH_SHORT)
def test_a_function_gives_what_jax_gives(dtype: DType) -> None:
    table = _drawn(dtype, (16, 9), 5)

    def f(x: Any, i: Any) -> Any:
        moved = jnp.where(x[::-1] > x, x, table)
        wide = x.astype(jnp.float32) + table.astype(jnp.float32)
        # XLA knows where JAX finds the least number of a type without infinity, which begins with NaN, and finds it.
        more = () if not dtype.has_zero else ((wide * 2).astype(x.dtype), x * x, jnp.argmin(x, 0))
        return moved, wide, jnp.take(x, i, axis=0), jnp.concatenate([x, moved]), x.max(0), more

    x, i = _drawn(dtype, (16, 9)), np.array([3, 0, 15], np.int32)
    at = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("d",)), _spec("d"))
    got = spmdc.jit(f, in_shardings=(at, None))(x, i)
    known = dtype.bits != 2 and dtype.has_zero
    wanted = jax.jit(f)(x, i) if known else spmdc.evaluate(spmdc.from_jax(f, x, i), x, i)
    for ours, want in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert ours.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(ours).astype(np.float64), np.asarray(want).astype(np.float64))


@pytest.mark.optimised
@pytest.mark.parametrize("name", ["f8e4m3fn", "f8e5m2", "s4"])
def test_scaled_products_of_two_types(name: str) -> None:
    """f8 times f8 summed in f32 and scaled, as quantised layers do it; of two types of floats, too."""
    dtype = DTYPES[name]
    other = DTYPES["f8e5m2"] if dtype.is_float else dtype
    wide = jnp.float32 if dtype.is_float else jnp.int32

    def f(x: Any, w: Any, scale: Any) -> Any:
        return jax.lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=wide) * scale

    x, w = _drawn(dtype, (8, 12)), _drawn(other, (12, 4), 1)
    at = NamedSharding(Mesh(np.array(jax.devices()[:4]), ("d",)), _spec(None, "d"))
    scale = np.asarray(2, wide)
    got = spmdc.jit(f, in_shardings=(at, None, None))(x, w, scale)
    np.testing.assert_array_equal(got, (x.astype(np.float64) @ w.astype(np.float64) * 2).astype(wide))


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_constants_of_all_numbers_are_read_from_a_module(dtype: DType) -> None:
    """More numbers than MLIR prints one by one, a few, and one for all."""
    every = np.arange(2**dtype.bits, dtype=np.uint8).view(dtype.numpy)
    long, one = np.resize(every, 200), np.full((2, 3), every[1])
    program = spmdc.from_jax(lambda: (jnp.asarray(long), jnp.asarray(every[:3]), jnp.asarray(one)))
    for got, want in zip(spmdc.evaluate(program), (long, every[:3], one), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def test_what_a_type_lacks_is_refused_as_a_constant() -> None:
    for dtype, number in (("f8e4m3fn", "inf"), ("f4e2m1fn", "nan"), ("f8e8m0fnu", "0.0"), ("f8e8m0fnu", "-1.0")):
        text = f"mesh (x=2)\ndef main() -> (r: {dtype}[4]) {{ return full([4], {number}, dtype={dtype}) }}"
        with pytest.raises(spmdc.SpmdcError, match=f"{dtype} has no") as caught:
            spmdc.parse(text)
        assert [d.code for d in caught.value.diagnostics] == ["E201"]
    with pytest.raises(spmdc.SpmdcError, match="s4 holds -8 to 7"):
        spmdc.parse("mesh (x=2)\ndef main(a: s4[4]) -> (r: s4[4]) { return a + 9 }")
