"""Functions lowered for devices other than the host's CPU, of which none is needed: what depends on the platform is as
on it, everything else as on the CPU, and what only the platform has is called as a function of JAX's."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas

import spmdc
from ir.program import Op, Program, all_ops
from lowering.jax.runtime import lapack
from lowering.jax.versions import abstract_mesh
from spmdc.frontends.jax.lowering import Lowering, annotate, import_lowered, platform_on
from spmdc.frontends.jax.shardings import mesh_of

P: Any = jax.sharding.PartitionSpec
struct: Any = jax.ShapeDtypeStruct
MESH = {"x": 4, "y": 2}
X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
linalg = jax.lax.linalg


def lowered(function: Callable[..., Any], platform: str, *arrays: Any) -> Program:
    """The program of a function of arrays, the first one split over x, as for devices of that platform."""
    found = import_lowered(Lowering(function, arrays, {}, platform=platform).lowered, mesh_of(MESH))
    count = len(found.main.params) - 1
    return annotate(found, [P("x"), *[None] * count], [None] * len(found.main.results))


def ops(program: Program, name: str) -> list[Op]:
    return [op for op in all_ops(program) if op.name == name]


def doubled(x: Any, **options: Any) -> Any:
    def kernel(given: Any, result: Any) -> None:
        result[...] = given[...] * 2

    called: Any = pallas.pallas_call(kernel, out_shape=struct(x.shape, x.dtype), name="doubled", **options)
    return called(x)


def test_the_platform_is_that_of_the_devices_of_the_mesh() -> None:
    devices = np.array(jax.devices()[:8])
    assert platform_on(jax.sharding.Mesh(devices, ("x",))) == platform_on(MESH) == platform_on(None) == "cpu"


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_what_depends_on_the_platform_is_that_of_the_devices(platform: str) -> None:
    def f(x: Any) -> Any:
        return jax.lax.platform_dependent(x, cpu=lambda x: x, cuda=lambda x: x + 1, tpu=lambda x: x + 2)

    (result,) = spmdc.partition(lowered(f, platform, X)).simulate(X)
    np.testing.assert_array_equal(result, X + {"cuda": 1, "tpu": 2}[platform])


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_ops_are_those_of_the_cpu(platform: str) -> None:
    def f(a: Any) -> Sequence[Any]:
        s = a @ a.mT + 4 * jnp.eye(3)
        drawn = jax.random.uniform(jax.random.key(1), (8, 3))
        decomposed = [linalg.lu(s), linalg.qr(s), linalg.eigh(s), linalg.svd(s), linalg.cholesky(s)]
        return [*jax.tree.leaves(decomposed), linalg.tridiagonal(s), drawn, jnp.cumsum(a, axis=0), jnp.fft.fft(a)]

    def called(program: Program) -> Counter[tuple[str, object]]:
        return Counter((op.name, op.attrs.get("target")) for op in all_ops(program) if op.name != "call")

    a = np.ones((8, 3, 3), np.float32)
    here, there = lowered(f, "cpu", a), lowered(f, platform, a)
    assert called(here) == called(there)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_python_functions_are_called(platform: str) -> None:
    told: list[float] = []

    def f(x: Any) -> Any:
        jax.debug.callback(lambda total: told.append(float(total)), x.sum())
        jax.debug.print("{}", x.sum())
        given = jax.experimental.io_callback(lambda v: np.asarray(v) + 1, struct(x.shape, x.dtype), x)
        return jax.pure_callback(lambda v: 2 * np.asarray(v), struct(x.shape, x.dtype), given)

    program = lowered(f, platform, X)
    assert len(ops(program, "callback")) == 4
    (result,) = spmdc.partition(program).simulate(X)
    np.testing.assert_array_equal(result, 2 * (X + 1))
    assert told == [float(X.sum())]


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_python_functions_are_called_in_order(platform: str) -> None:
    told: list[str] = []

    def f(x: Any) -> Any:
        for name in "ab":
            jax.debug.callback(functools.partial(told.append, name), ordered=True)
            x = jax.experimental.io_callback(lambda v: np.asarray(v) + 1, struct(x.shape, x.dtype), x, ordered=True)
        return x

    (result,) = spmdc.partition(lowered(f, platform, X)).simulate(X)
    np.testing.assert_array_equal(result, X + 2)
    assert told == ["a", "b"]


def test_python_functions_are_called_by_a_hosts_devices_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def f(x: Any) -> Any:
        return jax.pure_callback(lambda v: 2 * np.asarray(v), struct(x.shape, x.dtype), x)

    (result,) = spmdc.partition(lowered(f, "cpu", X)).simulate(X)
    np.testing.assert_array_equal(result, 2 * X)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_kernel_is_called_by_each_device_with_whole_arrays(platform: str) -> None:
    program = lowered(lambda x: doubled(x) + 1, platform, X)
    (call,) = ops(program, "opaque")
    assert call.attrs["target"] == "doubled"
    partitioned = spmdc.partition(program)
    assert [c.kind for c in partitioned.collectives()] == ["all_gather"]
    (warning,) = partitioned.warnings
    assert warning.code == "W001"
    assert "jax.shard_map" in warning.help


def test_a_kernel_in_a_shard_map_is_called_with_shards_and_is_in_the_module() -> None:
    def f(x: Any) -> Any:
        return jax.shard_map(doubled, in_specs=P("x"), out_specs=P("x"), check_vma=False)(x) + 1

    with jax.sharding.use_abstract_mesh(abstract_mesh((4, 2), ("x", "y"))):
        partitioned = spmdc.partition(lowered(f, "tpu", X))
    assert not partitioned.collectives()
    assert not partitioned.warnings
    run = partitioned.to_jax()
    module: Any = jax.jit(lambda x: run(x)).trace(X).lower(lowering_platforms=("tpu",))
    (call,) = [line for line in module.as_text().splitlines() if "@tpu_custom_call" in line]
    assert "(tensor<2x128xf32>) -> tensor<2x128xf32>" in call


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_kernel_that_is_interpreted_is_the_ops_that_it_consists_of(platform: str) -> None:
    program = lowered(lambda x: doubled(x, interpret=True), platform, X)
    assert not ops(program, "opaque")
    (result,) = spmdc.partition(program).simulate(X)
    np.testing.assert_array_equal(result, 2 * X)


@pytest.mark.parametrize("kind", [np.float32, np.complex64])
@pytest.mark.parametrize("left", [True, False])
def test_products_with_reflectors_are_the_same_without_lapack(kind: Any, left: bool) -> None:
    rng = np.random.default_rng(0)
    a, c = (jnp.asarray(rng.normal(size=(2, 4, 4)).astype(kind)) for _ in range(2))
    a, scales = lapack.lapack_geqrf(a)
    got = lapack.lapack_ormqr(a, scales, c, left, True)
    program = spmdc.from_jax(lambda *x: linalg.ormqr(*x, left=left, transpose=True), a, scales, c)
    (call,) = ops(program, "opaque")
    assert "mqr_ffi" in str(call.attrs["target"])
    np.testing.assert_allclose(got, spmdc.evaluate(program, a, scales, c)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [np.float32, np.complex64])
@pytest.mark.parametrize("sides", [(True, True), (False, True), (True, False), (False, False)])
def test_eigenvectors_are_those_that_are_asked_for_without_lapack(kind: Any, sides: tuple[bool, bool]) -> None:
    a = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 4)).astype(kind))
    codes = [np.uint8(ord("V" if side else "N")) for side in sides]
    helper: Any = lapack.lapack_geev if kind is np.float32 else lapack.lapack_complex_geev
    *values, left, right, _ = helper(a, *codes)
    wanted = linalg.eig(a, compute_left_eigenvectors=sides[0], compute_right_eigenvectors=sides[1])
    found = [values[0] + 1j * values[1] if kind is np.float32 else values[0]]
    for got, want in zip([*found, *([left] * sides[0]), *([right] * sides[1])], wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert left.shape == right.shape == a.shape
