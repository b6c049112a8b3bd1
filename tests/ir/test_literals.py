"""Constants of many numbers."""

from __future__ import annotations

import numpy as np
import pytest
from counted import instructions

import spmdc
from ir.literals import flattened, written
from ir.ops.creation import check_numbers
from ir.ops.declaration import TypeRuleError
from ir.types import DType, c64, f32, pred, s32

_NUMBERS = {c64: (1.5, 2j), f32: (1.5, -0.0, float("nan")), s32: (1, -5, True), pred: (True, False)}


@pytest.mark.parametrize("dtype", _NUMBERS, ids=str)
def test_numbers_of_a_type_are_not_examined_one_by_one(dtype: DType) -> None:
    many = flattened(tuple(np.resize(np.array(_NUMBERS[dtype], object), 10_000).tolist()))
    assert instructions(lambda: check_numbers(many, dtype)) < 200


@pytest.mark.parametrize(("dtype", "number"), [(f32, 1j), (s32, 2**31), (s32, 0.5), (pred, 2), (c64, 10**400)])
def test_a_number_that_a_type_does_not_have_is_found_among_many(dtype: DType, number: complex) -> None:
    with pytest.raises(TypeRuleError):
        check_numbers(flattened((*[1] * 1000, number)), dtype)


def test_constants_that_differ_in_the_sign_of_zero_or_in_type_are_written_differently() -> None:
    assert len({written(v) for v in ((0.0, 1), (-0.0, 1), (0, 1), (False, 1), 0.0, -0.0, 0)}) == 7
    same = (0.5, float("nan"))
    assert written(same) == written(same) == written((0.5, float("nan")))


def test_a_large_complex_constant_arrives_as_it_was() -> None:
    import jax.numpy as jnp

    table = (np.arange(600).reshape(20, 30) * (0.25 - 0.5j)).astype(np.complex64)
    table[0, 0] = complex(-0.0, float("inf"))
    assert np.array_equal(
        spmdc.jit(lambda x: x * table)(jnp.ones((20, 30))), jnp.ones((20, 30)) * table, equal_nan=True
    )
