"""Products whose results are only transposed, whose operands are swapped for it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import spmdc
from ir.program import Program, all_ops
from ir.verify.program import check
from lowering.jax.module import write_entry
from lowering.jax.swapped_products import swap_products
from lowering.reference import simulate
from spmdc.testing import inputs_for


def ops(program: Program) -> list[str]:
    return [op.name for op in all_ops(program)]


_PRODUCT = "dot_general(a, b, lhs_batch=[1], rhs_batch=[0], lhs_contract=[3], rhs_contract=[2])"
"""Of a[M, B, N, K] and b[B, H, K]: its dims are B, M, N and H."""
_SWAPPED = "transpose(p, [0, 3, 1, 2])"


@pytest.mark.parametrize(
    ("returned", "results", "made"),
    [
        (_SWAPPED, "r: s32[3, 2, 5, 7]", ["dot_general"]),
        (f"-{_SWAPPED}", "r: s32[3, 2, 5, 7]", ["dot_general", "negate"]),
        ("transpose(f32(-p), [0, 3, 1, 2])", "r: f32[3, 2, 5, 7]", ["dot_general", "negate", "convert"]),
        (
            "transpose(bitcast_convert(bitcast_convert(p, dtype=u16), dtype=s32), [0, 3, 1, 2])",
            "r: s32[3, 2, 5, 7]",
            ["dot_general", "bitcast_convert", "bitcast_convert", "transpose"],
        ),
        ("transpose(p, [0, 3, 2, 1])", "r: s32[3, 2, 7, 5]", ["dot_general", "transpose"]),
        ("transpose(p, [0, 2, 3, 1])", "r: s32[3, 7, 2, 5]", ["dot_general", "transpose"]),
        ("transpose(p, [3, 0, 1, 2])", "r: s32[2, 3, 5, 7]", ["dot_general", "transpose"]),
        ("transpose(p + p, [0, 3, 1, 2])", "r: s32[3, 2, 5, 7]", ["dot_general", "add", "transpose"]),
        (f"{_SWAPPED}, p", "r: s32[3, 2, 5, 7], q: s32[3, 5, 7, 2]", ["dot_general", "transpose"]),
        (f"{_SWAPPED}, -p", "r: s32[3, 2, 5, 7], q: s32[3, 5, 7, 2]", ["dot_general", "transpose", "negate"]),
    ],
)
def test_a_product_that_is_only_transposed_has_its_operands_swapped(
    returned: str, results: str, made: list[str]
) -> None:
    program = spmdc.parse(
        f"def main(a: s32[5, 3, 7, 4], b: s32[3, 2, 4]) -> ({results}) {{ p = {_PRODUCT} return {returned} }}"
    )
    after, _ = swap_products(program)
    check(after)
    assert ops(after) == made
    assert (after is program) == ("transpose" in made)
    (want, *_), (got, *_) = (spmdc.evaluate(p, *inputs_for(program, 0)) for p in (program, after))
    assert (want == got).all()


@pytest.mark.parametrize(
    ("product", "result", "sent"),
    [
        ("a: s32[6@y, 8@x], b: s32[8@x, 10]", "s32[10, 6@y]", ["all_reduce"]),
        ("a: s32[6, 8@x], b: s32[8@x, 10]", "s32[10@x, 6]", ["reduce_scatter"]),
        ("a: s32[6, 8@x], b: s32[8@x, 10@y]", "s32[10@y, 6@x]", ["reduce_scatter"]),
        ("a: s32[6, 8@x], b: s32[8@x, 10]", "s32[10@x, 6@y]", ["reduce_scatter"]),
    ],
)
def test_operands_are_swapped_in_front_of_collectives(product: str, result: str, sent: list[str]) -> None:
    program = spmdc.parse(
        f"""
        mesh (x=2, y=2)
        def main({product}) -> (r: {result}) {{
          p = dot_general(a, b, lhs_contract=[1], rhs_contract=[0])
          return transpose(p, [1, 0])
        }}
        """
    )
    partitioned = spmdc.partition(program)
    assert [c.kind for c in partitioned.collectives()] == sent
    after, before = swap_products(partitioned.program)
    check(after)
    assert "transpose" not in ops(after)
    assert {before[op] for op in all_ops(after)} == {
        op for op in all_ops(partitioned.program) if op.name != "transpose"
    }
    arrays = inputs_for(program, 0)
    (want,), (got,) = spmdc.evaluate(program, *arrays), simulate(after, *arrays)
    assert (want == got).all()


def test_gradients_of_jax_are_summed_over_devices_without_transposes() -> None:
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(x @ w))

    w, x = jnp.zeros((8, 16)), jnp.zeros((512, 8))
    spec: Any = jax.P
    program = spmdc.from_jax(jax.grad(loss), w, x, mesh={"x": 2}, in_shardings=(None, spec("x")))
    partitioned = spmdc.partition(program)
    assert [c.kind for c in partitioned.collectives()] == ["all_reduce"]
    assert "lax.transpose" in write_entry(partitioned.program)[0].text
    written, _ = write_entry(partitioned.program, is_for_cpu=False)
    assert "lax.transpose" not in written.text
    assert set(written.op_of_line().values()) <= set(all_ops(partitioned.program))
