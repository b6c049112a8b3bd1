"""What XLA's CPU backend compiles: kernels that differ in nothing but their operands once; few copies for layouts."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

import spmdc
from lowering.jax.running import compile_program

OF_ONE_SIZE = """
mesh (x=4)

def main(a: DTYPE[8@x, 6], b: DTYPE[8@x, 6], c: DTYPE[12@x, 4])
    -> (d: DTYPE[8, 6]{replicated}, e: DTYPE[8, 6]{replicated}, f: DTYPE[12, 4]{replicated}) {
  return a + a, b + b, c + c
}
"""
"""Three tensors of 12 elements on each device, which are gathered in one message."""


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_parts_of_one_size_of_a_message_are_cut_out_by_equal_kernels(dtype: str, devices: list[jax.Device]) -> None:
    partitioned = spmdc.partition(spmdc.parse(OF_ONE_SIZE.replace("DTYPE", dtype)))
    executable = compile_program(partitioned.program, None)
    kernels = _cutting_kernels(str(executable.ahead().as_text()))
    assert [len(kernels), len(set(kernels))] == [3, 2], "two are of one shape in the end, too"
    params = partitioned.program.main.params
    arrays = [np.arange(48).reshape((p.of or p.type).shape).astype(p.dtype.numpy) for p in params]
    for given, found in zip(arrays, executable(*arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(found), given + given)


def _cutting_kernels(hlo: str) -> list[str]:
    """The computations that slice or gather, without the names in them."""
    blocks = re.findall(r"^%[^\n]*\{\n(.*?)^\}", hlo, re.MULTILINE | re.DOTALL)
    return [_unnamed(block) for block in blocks if re.search(r" (slice|gather)\(", block)]


def _unnamed(block: str) -> str:
    numbers: dict[str, str] = {}
    text = re.sub(r", metadata=[^\n]*", "", block)
    return re.sub(r"%[\w.\-]+", lambda name: numbers.setdefault(name.group(), f"%{len(numbers)}"), text)


@pytest.mark.parametrize(
    ("reason", "dtype", "size"),
    [
        ("are of sizes of their own", "f32", "5"),
        ("are of short floats, of whose NaNs a gather may change bits", "f8e4m3fn", "6"),
    ],
)
def test_parts_are_slices_where_they(reason: str, dtype: str, size: str) -> None:
    program = """
    mesh (x=4)

    def main(a: DTYPE[8@x, 6], b: DTYPE[8@x, SIZE]) -> (c: DTYPE[8, 6]{replicated}, d: DTYPE[8, SIZE]{replicated}) {
      return a, b
    }
    """
    source = spmdc.partition(spmdc.parse(program.replace("DTYPE", dtype).replace("SIZE", size))).jax_source()
    assert [source.count("lax.slice("), source.count("columns(")] == [2, 0], f"they {reason}"


def test_parts_of_one_row_are_cut_out_in_halves(devices: list[jax.Device]) -> None:
    """What a reduce_scatter of several sums brings is one row."""
    program = spmdc.parse("""
    mesh (x=4)

    def main(a: f32[6, 4@x], b: f32[4@x, 8], c: f32[4@x, 8]) -> (d: f32[6, 8@x], e: f32[6, 8@x]) {
      return matmul(a, b), matmul(a, c)
    }
    """)
    partitioned = spmdc.partition(program)
    assert partitioned.jax_source().count(" = columns(") == 2
    a, b = np.arange(24, dtype=np.float32).reshape(6, 4), np.arange(32, dtype=np.float32).reshape(4, 8)
    found = compile_program(partitioned.program, None)(a, b, b + 1)
    for one, other in zip(found, spmdc.evaluate(program, a, b, b + 1), strict=True):
        np.testing.assert_array_equal(np.asarray(one), other)


EXCHANGE = """
mesh (x=MESH)

def main(a: DTYPE[16@x, 3, 16]) -> (b: DTYPE[16, 3, 16@x]) {
  return a
}
"""


@pytest.mark.parametrize(("dtype", "mesh", "is_one"), [("f32", 8, True), ("s8", 4, True), ("bf16", 8, False)])
def test_an_exchange_sends_parts_that_equal_kernels_cut_out(
    dtype: str, mesh: int, is_one: bool, devices: list[jax.Device]
) -> None:
    """Not of 16-bit floats, which XLA sends as wider ones."""
    text = EXCHANGE.replace("DTYPE", dtype).replace("MESH", str(mesh))
    executable = compile_program(spmdc.partition(spmdc.parse(text)).program, None)
    hlo = str(executable.ahead().as_text())
    assert hlo.count(" all-to-all(") == 1
    assert (len(set(_cutting_kernels(hlo))) == 1) == is_one
    given = np.arange(16 * 3 * 16).reshape(16, 3, 16).astype(executable.program.main.params[0].dtype.numpy)
    np.testing.assert_array_equal(np.asarray(executable(given)[0]), given)


INSIDE = {
    "all_gather": "def main(a: f32[6, 3, 8@x]) -> (b: f32[6, 3, 8]{replicated}) {\n  return a\n}",
    "reduce_scatter": "def main(a: f32[6, 3, 8@x], c: f32[8@x, 4]) -> (b: f32[6, 3, 4@x]) {\n"
    '  return einsum("abc,cd->abd", a, c)\n}',
}


@pytest.mark.parametrize(("kind", "kernels"), [("all_gather", 1), ("reduce_scatter", 4)])
def test_collectives_along_inner_dims_are_along_a_first_one(kind: str, kernels: int, devices: list[jax.Device]) -> None:
    """Of the sum of products, two kernels are the product's."""
    program = spmdc.parse(f"mesh (x=4)\n\n{INSIDE[kind]}")
    executable = compile_program(spmdc.partition(program).program, None)
    hlo = str(executable.ahead().as_text())
    assert hlo.count(f" {kind.replace('_', '-')}(") == 1
    assert hlo.count(" fusion(") <= kernels
    arrays = [np.arange(p.type.size).reshape(p.type.shape).astype("f4") for p in program.main.params]
    for found, expected in zip(executable(*arrays), spmdc.evaluate(program, *arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(found), expected)
