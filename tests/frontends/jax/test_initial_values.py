"""The values of a program's weights before training."""

from __future__ import annotations

import numpy as np
import pytest

import spmdc
from ir.diagnostics import SpmdcError
from ir.program import Program
from spmdc.frontends.spmd import parse

pytestmark = pytest.mark.usefixtures("devices")


def program(extra: str = "", axes: str = "d=4, m=2") -> Program:
    return parse(
        f"mesh ({axes})\ndef main({extra}w: f32[64@d, 50@m] = normal(0.5), cut: bf16[200, 30] = truncated_normal(2),"
        "  odd: f32[7@d, 9] = uniform(-1, 3), one: f64[3] = 1, count: s32[] = 4) -> f32[64, 50] { return w }"
    )


def test_weights_are_drawn_as_they_are_initialised() -> None:
    values = spmdc.initial_values(program("x: f32[4], "), seed=3)
    assert {n: (v.shape, str(v.dtype)) for n, v in values.items()} == {
        "w": ((64, 50), "float32"),
        "cut": ((200, 30), "bfloat16"),
        "odd": ((7, 9), "float32"),
        "one": ((3,), "float64"),
        "count": ((), "int32"),
    }
    w, cut, odd = (np.asarray(values[n], np.float64) for n in ("w", "cut", "odd"))
    assert abs(w.mean()) < 0.05
    assert abs(w.std() - 0.5) < 0.02
    assert np.abs(cut).max() <= 4
    assert abs(cut.std() - 2 * 0.8796) < 0.06
    assert -1 <= odd.min() < 0 < 2 < odd.max() <= 3
    np.testing.assert_array_equal(values["one"], 1)
    assert values["count"] == 4


def test_they_depend_on_the_seed_and_their_name_alone() -> None:
    one, other = (
        spmdc.initial_values(program()),
        spmdc.initial_values(program("x: f32[4], v: f32[64, 50] = normal(0.5), ")),
    )
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])
    assert not np.array_equal(other["v"], other["w"])
    assert not np.array_equal(one["w"], spmdc.initial_values(program(), seed=1)["w"])


def test_each_device_makes_its_shards_of_the_same_values() -> None:
    alone = spmdc.initial_values(program())
    split = spmdc.initial_values(program(), mesh={"d": 4, "m": 2})
    assert [str(v.sharding.shard_shape(v.shape)) for v in split.values()] == [
        "(16, 25)", "(200, 30)", "(7, 9)", "(3,)", "()"
    ]  # fmt: skip
    assert all(len(v.sharding.device_set) == 8 for v in split.values())
    for name, value in split.items():
        np.testing.assert_array_equal(value, alone[name])


def test_a_weight_of_no_elements_has_shards_that_fit_together() -> None:
    none = spmdc.parse("mesh (d=4)\ndef main(w: f32[0, 8@d] = normal(1.0)) -> (y: f32[0, 8]) { return w }")
    w = spmdc.initial_values(none, mesh={"d": 4})["w"]
    assert w.addressable_shards[0].data.shape == (0, 2)
    assert np.asarray(w).shape == (0, 8)


def test_a_mesh_of_other_axes_is_refused() -> None:
    with pytest.raises(SpmdcError) as raised:
        spmdc.initial_values(program(), mesh={"d": 8})
    assert raised.value.diagnostics[0].code == "E301"


def test_an_spmd_program_has_the_whole_weights() -> None:
    partitioned = spmdc.partition(program()).program
    assert spmdc.initial_values(partitioned)["w"].shape == (64, 50)
