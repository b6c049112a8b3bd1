"""Arithmetic on a device's position: what is known is folded, and the ops that are written compute the rest."""

from __future__ import annotations

import numpy as np
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.builder import RegionBuilder
from ir.mesh import Mesh
from ir.program import Program, Result, all_ops
from ir.sharding import Sharding
from ir.types import TensorType, s32
from ir.verify.program import check
from lowering.reference import simulate
from passes.partition.exchange.affine import Affine, clamped, divided_down, divided_up, position, written
from spmdc.frontends.spmd import print_program

MESH = Mesh((("d", 6),))


def on_each_device(b: RegionBuilder, a: Affine) -> Program:
    """A program whose result lists what the scalar is on each device."""
    y = b.op("broadcast_in_dim", written(b, a), shape=(1,), dims=())
    result = Result("y", y.type, Sharding.of(MESH, "d"), TensorType((6,), s32))
    program = Program((MESH,), {"main": b.function("main", (y,), (result,))}, "spmd")
    check(program)
    return program


@settings(max_examples=examples(200))
@given(st.data())
def test_sums_quotients_and_clamps_are_those_of_integers_and_lie_within_their_bounds(data: st.DataObject) -> None:
    b = RegionBuilder()
    a, want = position(b, MESH.whole_axes()), np.arange(6)
    first, start = a, want
    for _ in range(data.draw(st.integers(1, 5))):
        k = data.draw(st.integers(-7, 7))
        match data.draw(st.sampled_from(["add", "times", "minus", "down", "up", "clamp"])):
            case "add":
                a, want = a + k, want + k
            case "times":
                a, want = a * k, want * k
            case "minus":
                a, want = a - first * k, want - start * k
            case "down":
                a, want = divided_down(b, a, abs(k) + 1), want // (abs(k) + 1)
            case "up":
                a, want = divided_up(b, a, abs(k) + 1), -(-want // (abs(k) + 1))
            case _:
                a, want = clamped(b, a, k, k + 3), np.clip(want, k, k + 3)
    np.testing.assert_array_equal(simulate(on_each_device(b, a))[0], want)
    assert a.low <= np.min(want)
    assert np.max(want) <= a.high


def test_what_is_known_is_not_written() -> None:
    b = RegionBuilder()
    index = position(b, MESH.whole_axes())
    box = index * 4 + 7
    a = clamped(b, divided_down(b, box - index * 4, 2) + divided_down(b, index * 4 + 2, 4) - index, -9, 9)
    assert a.is_number
    assert a.number == 3
    assert [op.name for op in all_ops(on_each_device(b, a))] == ["axis_index", "constant", "broadcast_in_dim"]


def test_a_quotient_of_what_is_not_negative_is_one_division() -> None:
    b = RegionBuilder()
    a = divided_down(b, position(b, MESH.whole_axes()) * 5 + 1, 3)
    text = print_program(on_each_device(b, a), locations=False)
    assert "divide(at.1, fill.2)" in text
    assert "negate" not in text
    assert sum(op.name == "add" for op in all_ops(on_each_device(b, a))) == 1
