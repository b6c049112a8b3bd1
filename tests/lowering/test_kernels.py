"""What XLA's CPU backend compiles: kernels that differ in nothing but their operands once."""

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
