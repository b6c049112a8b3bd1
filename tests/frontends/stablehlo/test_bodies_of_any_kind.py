"""Comparators of sorts and bodies of scatters and reductions that are no kind we have: they are evaluated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import spmdc
from ir.program import all_ops

Array = npt.NDArray[Any]
KEYS = np.array([[3, -1, 2, -2, 5, 1, -3, 0, 4, -5, 6, 1, -1], [0, 0, 1, -1, 2, 2, -2, 3, -3, 1, 9, 8, 7]], np.float32)


def comparator(body: str, count: int = 1) -> str:
    names = "abcd"[: 2 * count]
    params = "".join(f"  {name} = f32[] parameter({i})\n" for i, name in enumerate(names))
    return f"before {{\n{params}  {body}\n}}\n\n"


COMPARATORS: dict[str, tuple[str, Callable[[float], Any]]] = {
    "by their bits": (
        "i = s32[] bitcast-convert(a)\n  j = s32[] bitcast-convert(b)\n  ROOT r = pred[] compare(i, j), direction=GT",
        lambda x: -int(np.float32(x).view(np.int32)),
    ),
    "by the sign of the difference": (
        "d = f32[] subtract(a, b)\n  z = f32[] constant(0)\n  ROOT r = pred[] compare(d, z), direction=LT", float,
    ),
    "not the other way round": ("n = pred[] compare(a, b), direction=GE\n  ROOT r = pred[] not(n)", float),
    "selected": (
        "l = pred[] compare(a, b), direction=GT\n  t = pred[] constant(true)\n  f = pred[] constant(false)\n"
        "  ROOT r = pred[] select(l, t, f)",
        lambda x: -x,
    ),
    "in two classes": (
        "k = f32[] constant(1)\n  p = pred[] compare(a, k), direction=LT\n  q = pred[] compare(b, k), direction=GE\n"
        "  ROOT r = pred[] and(p, q)",
        lambda x: x >= 1,
    ),
    "none before another": ("ROOT r = pred[] constant(false)", lambda _: 0),
    "by a function that is no op of elements here": (
        "i = f32[] cosine(a)\n  j = f32[] cosine(b)\n  ROOT r = pred[] compare(i, j), direction=LT",
        lambda x: float(np.cos(np.float32(x))),
    ),
    "by a choice of numbers": (
        "k = f32[] constant(1)\n  z = f32[] constant(0)\n  p = pred[] compare(a, k), direction=LT\n"
        "  q = pred[] compare(b, k), direction=LT\n  i = f32[] select(p, z, k)\n  j = f32[] select(q, z, k)\n"
        "  ROOT r = pred[] compare(i, j), direction=GT",
        lambda x: x < 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("split", ["[2,1]", "[1,2]"], ids=["rows split", "sorted dim split"])
@pytest.mark.parametrize("name", COMPARATORS)
def test_a_sort_by_any_comparator(name: str, split: str) -> None:
    body, key = COMPARATORS[name]
    n = KEYS.shape[1]
    program = spmdc.from_hlo(
        f"HloModule m, num_partitions=2\n\n{comparator(body)}ENTRY e {{\n"
        f"  p = f32[2,{n}] parameter(0), sharding={{devices={split}<=[2]}}\n"
        f"  ROOT s = f32[2,{n}] sort(p), dimensions={{1}}, is_stable=true, to_apply=before\n}}\n"
    )
    expected = np.array([sorted(row, key=key) for row in KEYS.tolist()], np.float32)
    for found in (*spmdc.evaluate(program, KEYS), *spmdc.partition(program).simulate(KEYS)):
        np.testing.assert_array_equal(found, expected)


def test_a_sort_of_pairs_by_their_sums() -> None:
    payload = np.flip(KEYS, axis=1).copy()
    body = "s = f32[] add(a, c)\n  t = f32[] add(b, d)\n  ROOT r = pred[] compare(s, t), direction=LT"
    program = spmdc.from_hlo(
        f"HloModule m, num_partitions=2\n\n{comparator(body, 2)}ENTRY e {{\n"
        "  p = f32[2,13] parameter(0), sharding={devices=[2,1]<=[2]}\n  q = f32[2,13] parameter(1)\n"
        "  ROOT s = (f32[2,13], f32[2,13]) sort(p, q), dimensions={1}, is_stable=true, to_apply=before\n}\n"
    )
    order = np.argsort(KEYS + payload, axis=1, kind="stable")
    expected = [np.take_along_axis(v, order, 1) for v in (KEYS, payload)]
    for have, want in zip(spmdc.partition(program).simulate(KEYS, payload), expected, strict=True):
        np.testing.assert_array_equal(have, want)


SCATTERED: dict[str, Callable[[Array, Array], Array]] = {
    "s = f32[] add(a, a)\n  ROOT r = f32[] add(s, b)": lambda a, b: 2 * a + b,
    "s = f32[] abs(b)\n  ROOT r = f32[] subtract(s, a)": lambda a, b: np.abs(b) - a,
}


@pytest.mark.parametrize("body", SCATTERED)
def test_a_scatter_by_any_body_applies_updates_in_their_order(body: str) -> None:
    x, updates = np.arange(32, dtype=np.float32).reshape(8, 4), np.arange(-8, 12, dtype=np.float32).reshape(5, 4)
    rows = [1, 5, 1, 9, 1]
    program = spmdc.from_hlo(
        "HloModule m, num_partitions=2\n\nbody {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        f"  {body}\n}}\n\nENTRY e {{\n  p = f32[8,4] parameter(0), sharding={{devices=[2,1]<=[2]}}\n"
        f"  i = s32[5,1] constant({{{','.join(f'{{{r}}}' for r in rows)}}})\n  u = f32[5,4] parameter(1)\n"
        "  ROOT r = f32[8,4] scatter(p, i, u), update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=body\n}\n"
    )
    expected = x.copy()
    for row, update in zip(rows, updates, strict=True):
        if row < 8:
            expected[row] = SCATTERED[body](expected[row], update)
    np.testing.assert_array_equal(spmdc.partition(program).simulate(x, updates)[0], expected)


def test_a_scatter_of_several_whose_results_depend_on_all() -> None:
    x, y = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    u, v, rows = np.array([1, 2, 3], "f4"), np.array([2, 2, 5], "f4"), [3, 6, 3]
    program = spmdc.from_hlo(
        "HloModule m, num_partitions=2\n\nbody {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        "  c = f32[] parameter(2)\n  d = f32[] parameter(3)\n  s = f32[] add(a, d)\n  t = f32[] multiply(b, c)\n"
        "  ROOT r = (f32[], f32[]) tuple(s, t)\n}\n\nENTRY e {\n"
        "  p = f32[8] parameter(0), sharding={devices=[2]<=[2]}\n  q = f32[8] parameter(1)\n"
        "  i = s32[3] constant({3, 6, 3})\n  u = f32[3] parameter(2)\n  v = f32[3] parameter(3)\n"
        "  ROOT r = (f32[8], f32[8]) scatter(p, q, i, u, v), update_window_dims={}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=body\n}\n"
    )
    first, second = x.copy(), y.copy()
    for i, row in enumerate(rows):
        first[row], second[row] = first[row] + v[i], second[row] * u[i]
    for have, want in zip(spmdc.partition(program).simulate(x, y, u, v), (first, second), strict=True):
        np.testing.assert_array_equal(have, want)


def test_a_scatter_with_batching_dims_by_any_body() -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    rows, updates = np.array([[1, 1, 4], [0, 5, 0]], np.int32), np.arange(6, dtype=np.float32).reshape(2, 3)
    program = spmdc.from_mlir(
        """func.func @main(%x: tensor<2x6xf32>, %i: tensor<2x3x1xi32>, %u: tensor<2x3xf32>) -> tensor<2x6xf32> {
  %0 = "stablehlo.scatter"(%x, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1],
      input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1],
      index_vector_dim = 2>}> ({
  ^b(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %a : tensor<f32>
    %2 = stablehlo.subtract %1, %b : tensor<f32>
    stablehlo.return %2 : tensor<f32>
  }) : (tensor<2x6xf32>, tensor<2x3x1xi32>, tensor<2x3xf32>) -> tensor<2x6xf32>
  return %0 : tensor<2x6xf32>
}"""
    )
    expected = x.copy()
    for batch, column in np.ndindex(2, 3):
        at = batch, rows[batch, column]
        expected[at] = 2 * expected[at] - updates[batch, column]
    np.testing.assert_array_equal(spmdc.evaluate(program, x, rows[..., None], updates)[0], expected)


@pytest.mark.parametrize(
    ("op", "columns"), [("all_reduce", 8), ("reduce_scatter", 4)], ids=["all_reduce", "reduce_scatter"]
)
def test_a_collective_by_any_body(op: str, columns: int) -> None:
    x = np.arange(64, dtype=np.float32).reshape(8, 8) % 7
    where = ", scatter_dimension = 1 : i64" if op == "reduce_scatter" else ""
    program = spmdc.from_mlir(
        f"""sdy.mesh @m = <["x"=2, "y"=2]>
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x{columns}xf32> {{
  %0 = sdy.manual_computation(%x) in_shardings=[<@m, [{{"x"}}, {{}}]>] out_shardings=[<@m, [{{"x"}}, {{}}]>]
      manual_axes={{"x"}} (%a: tensor<4x8xf32>) {{
    %1 = "stablehlo.{op}"(%a) <{{replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids{where}}}> ({{
    ^b(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.multiply %p, %q : tensor<f32>
      %t = stablehlo.add %p, %q : tensor<f32>
      %u = stablehlo.subtract %t, %s : tensor<f32>
      stablehlo.return %u : tensor<f32>
    }}) : (tensor<4x8xf32>) -> tensor<4x{columns}xf32>
    sdy.return %1 : tensor<4x{columns}xf32>
  }} : (tensor<8x8xf32>) -> tensor<8x{columns}xf32>
  return %0 : tensor<8x{columns}xf32>
}}"""
    )
    reduced = x[:4] + x[4:] - x[:4] * x[4:]
    halves = [reduced, reduced] if columns == 8 else [reduced[:, :4], reduced[:, 4:]]
    np.testing.assert_array_equal(spmdc.partition(program).simulate(x)[0], np.concatenate(halves))


@pytest.mark.parametrize(
    ("body", "key", "ops"),
    [
        (
            "%c = stablehlo.compare LT, %a, %k : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
            "    %d = stablehlo.compare GE, %b, %k : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
            "    %p = stablehlo.and %c, %d : tensor<i1>",
            lambda x: x >= 1,
            "map",
        ),
        (
            "%c = stablehlo.maximum %a, %k : tensor<f32>\n    %d = stablehlo.maximum %b, %k : tensor<f32>\n"
            "    %p = stablehlo.compare LT, %c, %d : (tensor<f32>, tensor<f32>) -> tensor<i1>",
            lambda x: max(x, 1.0),
            "sort",
        ),
    ],
    ids=["evaluated", "by a key"],
)
def test_a_body_may_use_constants_from_outside(body: str, key: Callable[[float], Any], ops: str) -> None:
    """jax.export puts constants in front of the ops in whose bodies they are used."""
    program = spmdc.from_mlir(
        f"""func.func @main(%x: tensor<13xf32>) -> tensor<13xf32> {{
  %k = stablehlo.constant dense<1.0> : tensor<f32>
  %0 = "stablehlo.sort"(%x) <{{dimension = 0 : i64, is_stable = true}}> ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    {body}
    stablehlo.return %p : tensor<i1>
  }}) : (tensor<13xf32>) -> tensor<13xf32>
  return %0 : tensor<13xf32>
}}"""
    )
    assert ops in {op.name for op in all_ops(program)}
    given = np.array([0, 1, 2, 3, -1, -2, 1, 5, 0, -3, 1, 2, 2], np.float32)
    np.testing.assert_array_equal(spmdc.evaluate(program, given)[0], sorted(given, key=key))
