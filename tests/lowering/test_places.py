"""Numbers that tell the place of a device are known for all devices before a loop runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from loop_with_places import LOOP

import spmdc
from ir.program import Op, Value
from ir.types import TensorType, s32
from lowering.jax import compile
from lowering.jax.module import write_module
from lowering.jax.places import IN_NUMPY, of_all_devices
from lowering.jax.running import compile_program
from lowering.jax.runtime.collectives import at
from spmdc.testing import check_equivalence

_IN_LAX: dict[str, Callable[..., jax.Array]] = {
    "add": lax.add, "subtract": lax.sub, "multiply": lax.mul, "maximum": lax.max, "minimum": lax.min,
    "negate": lax.neg, "clamp": lax.clamp, "divide": lax.div, "remainder": lax.rem,
}  # fmt: skip


@pytest.mark.parametrize("name", IN_NUMPY)
def test_numbers_of_all_devices_are_what_each_computes(name: str) -> None:
    numbers = np.arange(-9, 10, dtype=np.int32)
    given: dict[str, list[Any]] = {"negate": [numbers], "clamp": [np.int32(-4), numbers, np.int32(3)]}
    for other in (-4, 3, 2**31 - 1):
        operands = given.get(name, [numbers, np.int32(other)])
        scalar = TensorType((), s32)
        op = Op(name, tuple(Value(f"x{i}", scalar) for i in range(len(operands))), (Value("y", scalar),))
        text = of_all_devices(op, [f"x{i}" for i in range(len(operands))])
        found = eval(text, {"np": np, **{f"x{i}": x for i, x in enumerate(operands)}})
        arrays = [np.full_like(numbers, x) for x in operands]
        np.testing.assert_array_equal(found, np.asarray(_IN_LAX[name](*arrays)), strict=True)


def test_a_loop_with_uneven_exchanges_gives_what_the_program_gives(devices: list[jax.Device]) -> None:
    program = spmdc.parse(LOOP)
    a, b = np.arange(36, dtype=np.int32).reshape(3, 12), -np.arange(60, dtype=np.int32).reshape(3, 20)
    (expected,) = spmdc.evaluate(program, a, b)
    (found,) = compile(spmdc.partition(program).program)(a, b)
    np.testing.assert_array_equal(np.asarray(found), expected)


def test_chains_are_looked_up_on_cpus_and_elsewhere_in_loops_only() -> None:
    program = spmdc.partition(spmdc.parse(LOOP)).program
    of_cpus, _, body = write_module(program).partition("def n_step")
    elsewhere, _, same = write_module(program, portable=True).partition("def n_step")
    for loop in (body, same):
        assert re.search(r"at_\d+ = at\(at_\d+_each, index", loop)
        assert not re.search(r"lax\.(div|mul|sub)\(", loop)
    assert re.search(r"at_\d+ = lax\.div", elsewhere)
    assert re.search(r"at_\d+ = at\(at_\d+_each, index", of_cpus)
    assert not re.search(r"lax\.(div|sub|clamp)\((at|start)", of_cpus)


def test_elements_of_a_table_are_those_of_its_places() -> None:
    places = np.arange(6, dtype=np.int32)
    wrapping, flags, bytes_ = np.int32(2**30) * places, places < 1, places.astype(np.uint8)
    for table in (places, 7 - 3 * places, 0 * places, places**2, places[:1], wrapping, flags, ~flags, bytes_):
        found = [at(table, jax.numpy.int32(i)) for i in range(len(table))]
        np.testing.assert_array_equal(np.asarray(found), table, strict=True)


def test_what_one_op_computes_of_the_place_stays_that_op_in_front_of_loops() -> None:
    module = write_module(spmdc.partition(spmdc.parse("""
    mesh (x=4)

    def main(a: f32[8, 6]{replicated}, c: f32[8@x, 6]) -> (b: f32[8@x, 6]) {
      return a + c
    }
    """)).program)  # fmt: skip
    assert re.search(r"start = lax\.mul\(index, ", module)
    assert "_each" not in module


@pytest.mark.optimised
def test_no_element_of_a_mask_loads_where_the_device_is(devices: list[jax.Device]) -> None:
    program = spmdc.parse("""
    mesh (x=8)
    def main(u: f32[64@x, 4]) -> (r: f32[64@x, 4]) { return pad(u[2:, :] - u[0:62, :], 0.0, low=[1, 0], high=[1, 0]) }
    """)
    check_equivalence(program, jax=True)
    hlo = str(compile_program(spmdc.partition(program).program, None).ahead().as_text())
    assert "dynamic-slice" not in hlo


def test_a_number_of_the_place_and_of_a_chain_is_looked_up_too(devices: list[jax.Device]) -> None:
    program = spmdc.parse("""
    mesh (x=6)
    def main(a: f32[2@(x:(3)2,x:(1)3)]) -> (out: f32[6]) {
      return pad(a, 1.0, low=[1], high=[2], interior=[1])
    }""")
    check_equivalence(program, jax=True)
