"""Where JAX or XLA would by itself do something else: NaNs across devices, meshes of one device, nothing to pass."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from ir.diagnostics import SpmdcError
from ir.types import DTYPES
from lowering import jax as lowering_jax
from lowering.jax.module import write_entry
from lowering.reference import simulate
from spmdc.api import evaluate, partition
from spmdc.frontends.spmd import parse
from spmdc.testing import check_equivalence

Array = npt.NDArray[Any]

pytestmark = pytest.mark.usefixtures("devices")

FLOATS = [name for name, dtype in DTYPES.items() if dtype.is_float]

NAN, INF = np.nan, np.inf
BACKWARD_NAN = np.copysign(NAN, -1.0)


def agree(text: str, *arrays: Array) -> tuple[Array, ...]:
    """Runs the program in JAX and in the simulator: the same bits, but that any NaN is as good as another."""
    program = parse(text)
    ours = tuple(np.asarray(x) for x in lowering_jax.compile(program)(*arrays))
    for got, want in zip(ours, simulate(program, *arrays), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
        known = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(want[known]))
    return ours


COLUMNS = np.array(
    [
        [1, NAN, 3, 5],
        [NAN, -1, 3, INF],
        [BACKWARD_NAN, 1, -INF, 4],
        [1, 2, 3, BACKWARD_NAN],
        [NAN, NAN, NAN, NAN],
        [0.0, -0.0, -0.0, -0.0],
        [-0.0, -0.0, -0.0, 0.0],
        [-INF, 3, INF, -3],
        [-INF, -INF, -INF, -INF],
        [-3, -1, -4, -2],
        [5e-5, -6e-5, 3e-5, -2e-5],
        [2, 7, 1, 8],
    ]
).T


@pytest.mark.optimised
@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_nan_on_one_device_is_the_extreme_of_all_and_zeros_are_told_apart(dtype: str, kind: str) -> None:
    x = COLUMNS.astype(DTYPES[dtype].numpy)
    text = f"""
spmd
mesh (x=4)
def main(a: {dtype}[1, 12] of {dtype}[4@x, 12])
    -> (r: {dtype}[1, 12] of {dtype}[1, 12], s: {dtype}[1, 3] of {dtype}[1, 12@x],
        p: {dtype}[1, 12] of {dtype}[1, 12]{{partial: {kind} x}}) {{
  r = all_reduce(a, axes=(x), kind={kind})
  s = reduce_scatter(a, axes=(x), dim=1, kind={kind})
  return r, s, a
}}
"""
    of_each_column = (np.max if kind == "max" else np.min)(x.astype(np.float64), 0, keepdims=True)
    for result in agree(text, x):
        np.testing.assert_array_equal(result.astype(np.float64), of_each_column.astype(x.dtype).astype(np.float64))


def test_extremes_of_floats_along_the_axes_of_a_mesh_in_another_device_order() -> None:
    text = """
spmd
mesh (x=2, y=2)
mesh m (a=2, b=2) devices=[3, 1, 0, 2]
def main(v: f32[1, 5] of f32[4@(a, b), 5]) -> (r: f32[1, 5] of f32[2@a, 5]) {
  r = all_reduce(v, axes=(b), kind=max)
  return r
}
"""
    (largest,) = agree(text, COLUMNS[:, :5].astype(np.float32))
    np.testing.assert_array_equal(largest, [[NAN, NAN, NAN, 2, NAN], [5, INF, 4, NAN, NAN]])


@pytest.mark.parametrize("dtype", [*FLOATS, "c64", "s8"])
def test_results_on_a_mesh_in_another_device_order_keep_the_signs_of_zeros(dtype: str) -> None:
    text = f"""
spmd
mesh (x=4)
mesh m (a=2, b=2) devices=[3, 1, 0, 2]
def main(v: {dtype}[2, 5] of {dtype}[4@a, 5]) -> (r: {dtype}[2, 5] of {dtype}[4@a, 5]) {{
  return v
}}
"""
    v = np.where(np.arange(20).reshape(4, 5) % 2, -0.0, 0.0).astype(DTYPES[dtype].numpy)
    (same,) = lowering_jax.compile(parse(text))(v)
    assert np.asarray(same).tobytes() == v.tobytes()


def test_results_that_jax_cannot_prove_equal_keep_the_signs_of_zeros() -> None:
    text = """
spmd
mesh (x=4)
def main(v: f32[5] of f32[20@x]) -> (r: f32[5] of f32[5]) {
  s: f32[5] = collective_permute(v, target=(x), source=(x), shift=1)
  r: f32[5] = all_reduce(s, axes=(x), kind=max)
  t: f32[5] = collective_permute(r, target=(x), source=(x), shift=1)
  return t
}
"""
    (same,) = agree(text, np.full(20, -0.0, np.float32))
    assert np.signbit(same).all()


@pytest.mark.parametrize("default", ["(x=1)", "(x=1, y=1)"])
def test_partial_values_on_another_mesh_of_one_device(default: str) -> None:
    text = f"""
spmd
mesh {default}
mesh m (a=1)
def main(v: f32[7, 5] of f32[7, 5]{{partial: min a}}, w: f32[4] of f32[4@a])
    -> (r: f32[] of f32[], s: f32[7, 5] of f32[7, 5], t: f32[7, 5] of f32[7, 5]{{partial: min a}},
        u: f32[4] of f32[4@a]) {{
  r = reduce(v, dims=[0, 1], kind=min)
  return r, v, v, w
}}
"""
    v, w = np.arange(35, dtype=np.float32).reshape(7, 5), np.arange(4, dtype=np.float32)
    least, *same = agree(text, v, w)
    assert least == 0
    for got, want in zip(same, (v, v, w), strict=True):
        np.testing.assert_array_equal(got, want)


def moving(before: str, padded: str) -> str:
    """A program that pads, and then moves the split from dim 1 to dim 0."""
    return f"""
spmd
mesh (z=2)
def main(a: f32[12, 1, 4] of f32[12, 1, 8@z]) -> (r: f32[1, 8, 12] of f32[1@z, 8, 12]) {{
  b = transpose(a, perm=[1, 2, 0])
  {before}
  c = {padded}
  r = all_to_all(c, axes=(z), split=0, concat=1)
  return r
}}
"""


@pytest.mark.parametrize(
    ("before", "padded"),
    [
        ("zero = constant(value=0.0, type=f32[])", "pad(b, zero, low=[0, 0, 0], high=[1, 0, 0])"),
        ("zeros = constant(value=0.0, type=f32[1, 4, 12])", "concatenate(b, zeros, dim=0)"),
        ("zeros = constant(value=0.0, type=f32[1, 4, 12])\n  d = concatenate(b, zeros, dim=0)", "abs(d)"),
        ("", "joined(b)"),
    ],
)
def test_all_to_all_of_parts_that_xla_lays_out_differently(before: str, padded: str) -> None:
    joined = """
def joined(b: f32[1, 4, 12]) -> (d: f32[2, 4, 12]) {
  zeros = constant(value=0.0, type=f32[1, 4, 12])
  d = concatenate(b, zeros, dim=0)
  return d
}
"""
    text = moving(before, padded) + (joined if "joined" in padded else "")
    a = np.arange(96, dtype=np.float32).reshape(12, 1, 8)
    (moved,) = agree(text, a)
    np.testing.assert_array_equal(moved, a.transpose(1, 2, 0))


def test_all_to_all_of_a_parameter_is_one_call() -> None:
    text = """
spmd
mesh (z=2)
def main(a: f32[4, 4] of f32[8@z, 4]) -> (r: f32[8, 2] of f32[8, 4@z]) {
  r = all_to_all(a, axes=(z), split=1, concat=0)
  return r
}
"""
    source = lowering_jax.jax_source(parse(text))
    assert 'r = lax.all_to_all(a, "z", 1, 0, tiled=True)' in source
    assert "optimization_barrier" not in source


@pytest.mark.parametrize(("split", "concat"), [(0, 1), (2, 1), (2, 3), (0, 3)])
@pytest.mark.parametrize(("axes", "last"), [("y", 1), ("x, y", 32)])
def test_all_to_all_into_a_dim_of_size_1_exchanges_leading_parts(split: int, concat: int, axes: str, last: int) -> None:
    """The TPU compiler then sends what products round to 16 bits as that. Few rows are sent as some of 128."""
    whole, devices = [4, 1, 4, 1, last], 2 if axes == "y" else 4
    before, after = list(whole), list(whole)
    after[split], before[concat], after[concat] = whole[split] // devices, devices, devices
    shards = [f"{n}@({axes})" if i == concat else f"{n}" for i, n in enumerate(before)]
    moved = [f"{n}@({axes})" if i == split else f"{n}" for i, n in enumerate(before)]
    text = f"""
spmd
mesh (x=2, y=2)
def main(a: f32{whole} of f32[{", ".join(shards)}]) -> (r: f32{after} of f32[{", ".join(moved)}]) {{
  r = all_to_all(a, axes=({axes}), split={split}, concat={concat})
  return r
}}
"""
    assert f", {devices}, {split}, {concat})  #" in write_entry(parse(text), is_for_cpu=False)[0].text
    a = np.arange(16 * last * devices, dtype=np.float32).reshape(before)
    (result,) = agree(text, a)
    np.testing.assert_array_equal(result, a)


def test_a_program_none_of_whose_inputs_has_elements() -> None:
    text = """
spmd
mesh (x=4)
def main(a: f32[0, 3] of f32[0@x, 3], b: f32[5, 0] of f32[5, 0@x], c: f32[0] of f32[0]{partial: x})
    -> (s: f32[2, 3] of f32[5@x, 3], c: f32[0] of f32[0]{partial: x}) {
  s = dot_general(b, a, lhs_contract=[1], rhs_contract=[0])
  zero = constant(value=0.0, type=f32[])
  padded = pad(s, zero, low=[0, 0], high=[3, 0])
  r = reduce_scatter(padded, axes=(x), dim=0)
  return r, c
}
"""
    none = [np.zeros(shape, np.float32) for shape in ((0, 3), (5, 0), (0,))]
    total, _ = agree(text, *none)
    np.testing.assert_array_equal(total, np.zeros((5, 3)))


def test_inputs_without_elements_beside_one_that_has_some() -> None:
    text = """
spmd
mesh (x=4)
def main(a: f32[0, 3] of f32[0@x, 3], b: f32[1] of f32[4@x]) -> (s: f32[3] of f32[3], t: f32[1] of f32[4@x]) {
  p = reduce(a, dims=[0], kind=sum)
  q = reshape(broadcast_in_dim(b, shape=[1, 3], dims=[0]), shape=[3])
  s = all_reduce(p + q, axes=(x))
  return s, b
}
"""
    agree(text, np.zeros((0, 3), np.float32), np.arange(4, dtype=np.float32))
    assert "lax.reduce" not in lowering_jax.jax_source(parse(text))


@pytest.mark.parametrize(("outer", "inner"), [(4, -3), (4, 5), (-5, 1), (20, 0), (-20, 7)])
def test_a_slice_of_a_slice_clamps_each_start_to_its_own_tensor(outer: int, inner: int) -> None:
    text = """
    mesh (x=2)
    def main(a: f32[10@x], i: s32[], j: s32[]) -> (c: f32[1]) {
      b = dynamic_slice(a, i, sizes=[4])
      return dynamic_slice(b, j, sizes=[1])
    }
    """
    x = np.arange(10, dtype=np.float32)
    partitioned = partition(parse(text)).program
    (got,) = lowering_jax.compile(partitioned)(x, np.int32(outer), np.int32(inner))
    start = min(max(outer, 0), 6)
    np.testing.assert_array_equal(got, x[start : start + 4][min(max(inner, 0), 3)])


def test_results_that_take_more_memory_than_the_machine_has_are_reported_at_their_op() -> None:
    """JAX ends the process over them."""
    head = "mesh (x=8)\ndef main(a: f32[8@x]) -> (b: f32[1048576, 1048576]) {\n"
    program = parse(head + "  return broadcast_in_dim(sum(a), shape=[1048576, 1048576], dims=[])\n}\n")
    for stage in (program, partition(program).program):
        with pytest.raises(SpmdcError) as caught:
            lowering_jax.compile(stage)(np.zeros(8, np.float32))
        (diagnostic,) = caught.value.diagnostics
        assert diagnostic.code == "E505"
        assert diagnostic.span is not None
        assert diagnostic.span.line == 3


def test_a_gradient_of_weights_is_transposed_apart_from_the_product_on_cpus() -> None:
    """XLA's CPU backend would compute the product transposed, without its library."""
    text = """
        mesh (x=2)
        def main(w: f32[6, 4], g: f32[32@x, 5, 4], a: f32[32@x, 5, 6], v: f32[3, 64]) -> (r: f32[6, 4], s: f32[64, 3]) {
          d = einsum("bsf,bsd->fd", g, a)
          return w - transpose(d, perm=[1, 0]), transpose(matmul(v, matmul(transpose(v, perm=[1, 0]), v)), perm=[1, 0])
        }"""
    program = parse(text)
    check_equivalence(program, jax=True)
    spmd = partition(program).program
    assert write_entry(spmd)[0].text.count(_APART) == 2
    assert _APART not in write_entry(spmd, is_for_cpu=False)[0].text
    assert _APART not in lowering_jax.jax_source(spmd)


_APART = "lax.transpose(lax.optimization_barrier("


@pytest.mark.parametrize(
    ("product", "lhs", "rhs"),
    [
        ("fk,bk->fb", "8, 64", "4, 64"),  # of a layer that is mapped over examples
        ("kf,bk->fb", "64, 8", "4, 64"),
        ("kf,kb->fb", "64, 8", "64, 4"),
        ("fk,kb->fb", "8, 16", "16, 4"),  # few terms
    ],
)
def test_a_product_is_computed_transposed_where_that_is_faster(product: str, lhs: str, rhs: str) -> None:
    text = f"""
        mesh (x=2)
        def main(w: f32[{lhs}], v: f32[{rhs}]) -> (r: f32[4, 8]) {{
          return transpose(einsum("{product}", w, v), perm=[1, 0])
        }}"""
    assert _APART not in write_entry(partition(parse(text)).program)[0].text


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_indices_need_be_neither_distinct_nor_below_the_largest_integer(kind: str) -> None:
    text = f"""
    mesh (d=2)
    def main(x: f32[4], i: s32[4], y: f32[6@d]) -> (v: f32[], j: s32[], w: f32[], k: s32[]) {{
      v, j = reduce(x, i, dims=[0], kind={kind})
      counted: s32[6] = iota(type=s32[6], dim=0)
      w, k = reduce(y, counted, dims=[0], kind={kind})
      return v, j, w, k
    }}"""
    program, last = parse(text), np.iinfo(np.int32).max
    y = np.array([-0.0, 0.0, NAN, -0.0, 0.0, -0.0], np.float32)
    for x, i in (
        ([1, 5, 2, 3], [0, 0, 0, 0]),
        ([5, -1, 5, -1], [last, 3, last, 3]),
        ([-5, 1, 0, 1], [last] * 4),
        ([NAN, 1, NAN, 2], [3, 3, 1, 1]),
    ):
        for rest in (y, np.where(np.isnan(y), np.float32(0), y)):
            arrays = np.array(x, np.float32), np.array(i, np.int32), rest
            want = evaluate(program, *arrays)
            for run in (lowering_jax.compile(program), partition(program).to_jax()):
                for mine, other in zip(run(*arrays), want, strict=True):
                    np.testing.assert_array_equal(mine, other)
                    np.testing.assert_array_equal(np.signbit(mine), np.signbit(other))


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_a_program_that_only_moves_elements_has_its_derivative_in_jax(dtype: str) -> None:
    """Also where a program that JAX does not differentiate sends bits."""
    text = f"""
    mesh (d=4)
    def main(x: {dtype}[8@d, 3], y: {dtype}[8@d, 8]) -> (r: {dtype}[8@d, 3], s: {dtype}[8, 8@d], t: {dtype}[8, 3]) {{
      return reverse(x, dims=[0]), y, x
    }}"""
    run = partition(parse(text)).to_jax()
    numpy = DTYPES[dtype].numpy
    x, y = jnp.ones((8, 3), numpy), jnp.ones((8, 8), numpy)
    of_x, of_y = jax.grad(lambda x, y: sum(r.astype(jnp.float32).sum() for r in run(x, y)), (0, 1))(x, y)
    np.testing.assert_array_equal(np.asarray(of_x).astype(np.float32), 2.0)
    np.testing.assert_array_equal(np.asarray(of_y).astype(np.float32), 1.0)
