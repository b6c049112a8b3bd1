"""What is padded in front of windows is padding of the windows, to the bit; what is not the same stays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec
from simplified import ops

import spmdc
from ir.program import Op, Program, all_ops
from ir.verify.program import check
from lowering.reference.shards import same_bits
from passes.optimize.fold.simplify import simplify

P: Any = PartitionSpec
ODD = (np.nan, -np.inf, np.inf, -0.0, 0.0)


def the(program: Program, name: str) -> Op:
    (op,) = (op for op in all_ops(program) if op.name == name)
    return op


def simplified(text: str) -> Program:
    """The program made simple, and found to compute the same of odd numbers."""
    program = spmdc.parse(text)
    after = simplify(program)
    check(after)
    rng = np.random.default_rng(0)
    for odd in (0, 3, 20):
        arrays = [rng.integers(-3, 4, p.shape).astype(p.dtype.numpy) for p in program.main.params]
        if arrays[0].dtype.kind == "f":
            arrays[0].reshape(-1)[rng.integers(0, arrays[0].size, odd)] = rng.choice(ODD, odd)
        for want, got in zip(spmdc.evaluate(program, *arrays), spmdc.evaluate(after, *arrays), strict=True):
            assert same_bits(want, got), f"{want.tolist()} and then {got.tolist()}"
    return after


def scattered(operand: str, rows: int, start: int, limit: int, attrs: str) -> str:
    return f"""def main(x: f32[9, 4], g: f32[{rows}, 4]) -> (r: f32[{limit - start}, 4]) {{
      all = select_and_scatter({operand}, g, window=[3, 1], {attrs})
      return slice(all, start=[{start}, 0], limit=[{limit}, 4])
    }}"""


PADDED = "pad(x, {}, low=[{}, 0], high=[{}, 0])"


@pytest.mark.parametrize("value", ["-inf", "inf", "nan", "0.5"])
@pytest.mark.parametrize("select", ["GE", "LT"])
def test_what_is_scattered_into_a_padded_tensor_and_cut_out_is_padded_by_its_windows(value: str, select: str) -> None:
    attrs = f"stride=[2, 1], select={select}"
    after = simplified(scattered(PADDED.format(value, 1, 2), 5, 1, 10, attrs))
    assert ops(after) == ["select_and_scatter"]
    assert the(after, "select_and_scatter").attrs["padding_low"] == (1, 0)
    part = simplified(scattered(PADDED.format(value, 1, 2), 5, 3, 7, attrs))
    assert ops(part) == ["select_and_scatter", "slice"]


STAYS = {
    "the slice has padding": scattered(PADDED.format("1.0", 1, 2), 5, 0, 10, "stride=[2, 1]"),
    "some is taken away": scattered(PADDED.format("1.0", -1, 3), 5, 0, 8, "stride=[2, 1]"),
    "padding of its own is never selected": scattered(
        PADDED.format("1.0", 1, 0), 5, 1, 10, "stride=[2, 1], padding_high=[2, 0]"
    ),
    "padding of its own holds another value": scattered(
        PADDED.format("1.0", 1, 0), 5, 1, 10, "stride=[2, 1], padding_high=[2, 0], padding_value=2.0"
    ),
}


@pytest.mark.parametrize("why", STAYS)
def test_a_pad_stays_in_front_of_what_is_scattered_if(why: str) -> None:
    assert "pad" in ops(simplified(STAYS[why]))


def test_padding_of_one_value_is_joined() -> None:
    attrs = "stride=[2, 1], padding_high=[2, 0], padding_value=1.0"
    after = simplified(scattered(PADDED.format("1.0", 1, 0), 5, 1, 10, attrs))
    assert the(after, "select_and_scatter").attrs["padding_high"] == (2, 0)


POOL = """def main(x: {dtype}[9, 4]) -> (r: {dtype}[{rows}, 4]) {{
  y = pad(x, {value}, low=[{low}, 0], high=[{high}, 0], interior=[{gap}, 0])
  return reduce_window(y, window=[3, 1], kind={kind})
}}"""


@pytest.mark.parametrize(
    ("dtype", "kind", "value", "low", "high", "gap"),
    [
        ("f32", "max", "-inf", 1, 2, 0),
        ("f32", "min", "inf", 2, -1, 1),
        ("f32", "sum", "0.0", 1, 1, 2),
        ("s8", "max", "-128", 1, 1, 0),
    ],
)
def test_windows_over_what_was_padded_with_nothing(
    dtype: str, kind: str, value: str, low: int, high: int, gap: int
) -> None:
    rows = 9 + 8 * gap + low + high - 2
    given = {"dtype": dtype, "kind": kind, "value": value, "low": low, "high": high, "gap": gap, "rows": rows}
    after = simplified(POOL.format(**given))
    assert ops(after) == ["reduce_window"]
    assert the(after, "reduce_window").attrs["base_dilation"] == (gap + 1, 1)


@pytest.mark.parametrize(("kind", "value"), [("max", "0.0"), ("sum", "1.0"), ("sum", "-0.0"), ("prod", "0.0")])
def test_padding_that_counts_stays(kind: str, value: str) -> None:
    given = {"dtype": "f32", "kind": kind, "value": value, "low": 1, "high": 1, "gap": 0, "rows": 9}
    assert "pad" in ops(simplified(POOL.format(**given)))


IMAGES = """def main(x: f32[2, 9, 3], w: f32[3, 3, 5]) -> (r: f32[2, {rows}, 5]) {{
  y = pad(x, {value}, low=[0, {low}, 0], high=[0, {high}, 0], interior=[0, {gap}, 0])
  return conv(y, w, "NWC,WIO->NWC", padding=[[{before}, 1]])
}}"""


@pytest.mark.parametrize(
    ("value", "low", "high", "gap", "before", "left"),
    [
        ("0.0", 1, 2, 0, 0, ["convolution"]),
        ("0.0", -1, 2, 1, -1, ["convolution"]),
        ("0.0", -1, 2, 0, 1, ["constant", "pad", "convolution"]),
        ("-0.0", 1, 2, 0, 0, ["constant", "pad", "convolution"]),
        ("1.0", 1, 2, 0, 0, ["constant", "pad", "convolution"]),
    ],
)
def test_images_padded_with_zeros(value: str, low: int, high: int, gap: int, before: int, left: list[str]) -> None:
    rows = 9 + 8 * gap + low + high + before + 1 - 2
    given = {"value": value, "low": low, "high": high, "gap": gap, "before": before, "rows": rows}
    for dtype in ("f32", "c64"):
        assert ops(simplified(IMAGES.format(**given).replace("f32", dtype))) == left


@pytest.mark.parametrize(("a", "direction", "b", "expected"), [
    ("8.0", "GT", "0.0", True), ("0.0", "EQ", "-0.0", True), ("nan", "NE", "nan", True), ("nan", "GE", "nan", False),
    ("0.1", "LT", "0.1000000001", False),
])  # fmt: skip
def test_two_numbers_are_compared(a: str, direction: str, b: str, expected: bool) -> None:
    text = f"""def main(x: f32[4]) -> (r: pred[3]) {{
      return compare(full(f32[3], {a}), full(f32[3], {b}), direction={direction})
    }}"""
    after = simplify(spmdc.parse(text))
    assert [op.attrs["value"] for op in all_ops(after)] == [expected]


def test_the_gradient_of_max_pooling_keeps_the_rows_where_they_lie() -> None:
    """JAX pads in front of it, to 33 rows over 4 devices; nothing but the rows that windows share is sent, and
    the one that the pooling and its gradient both need once."""

    def pooled(x: jax.Array) -> jax.Array:
        y = lax.reduce_window(x, -jnp.inf, lax.max, (3, 1), (2, 1), "SAME")
        return jnp.sum(y * y)

    x = np.random.default_rng(0).integers(-9, 9, (32, 4)).astype(np.float32)
    spec = P("d")
    program = spmdc.from_jax(jax.grad(pooled), x, mesh={"d": 4}, in_shardings=(spec,), out_shardings=spec)
    assert "pad" not in ops(program)
    partitioned = spmdc.partition(program)
    row = 4 * 4
    assert partitioned.received_bytes() == row + 3 * row
    (got,) = partitioned.simulate(x)
    np.testing.assert_array_equal(got, jax.grad(pooled)(x))
