"""What is gathered along several dims, one after the other, is gathered by one message."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import spmdc
from ir.causes import Cause
from ir.verify.program import check
from lowering.reference import simulate
from passes.optimize.gathers_in_a_row import gather_at_once
from passes.rewrite import map_program
from spmdc.testing import check_equivalence


def sent(text: str, machine: str = "tpu-v3") -> list[tuple[str, str, int]]:
    """Kind, axes and bytes of each collective, of a program whose results are equal on devices and off."""
    program = spmdc.parse(text)
    check_equivalence(program, jax=True)
    return [(c.kind, c.axes, c.bytes) for c in spmdc.partition(program, machine=machine).collectives()]


@pytest.mark.parametrize(
    ("mesh", "given", "returned", "axes", "received"),
    [
        ("x=2, y=4", "[6@x, 8@y]", "[6, 8]", "x, y", 7 * 6),
        ("x=2, y=4", "[8@y, 6@x]", "[8, 6]", "x, y", 7 * 6),
        ("x=2, y=4", "[2@x, 4@y]", "[2, 4]", "x, y", 7),
        ("x=2, y=2, z=2", "[4@x, 3, 6@y, 4@z]", "[4, 3, 6, 4]", "x, y, z", 7 * 36),
        ("x=2, y=2, z=2", "[4@z, 3, 6@y, 4@x]", "[4, 3, 6@y, 4]", "x, z", 3 * 36),
        ("x=2, y=2, z=2", "[8@(x,z), 2@y]", "[8, 2]", "x, z, y", 7 * 2),
    ],
)
def test_gathers_along_several_dims_are_one(mesh: str, given: str, returned: str, axes: str, received: int) -> None:
    place = "" if "@" in returned else "{replicated}"
    text = f"mesh ({mesh})\ndef main(a: f32{given}) -> (b: f32{returned}{place}) {{\n  return a\n}}"
    assert sent(text) == [("all_gather", axes, 4 * received)]


def test_they_are_joined_with_others_whatever_the_order_of_their_dims() -> None:
    text = """
        mesh (x=2, y=4)
        def main(a: f32[6@x, 8@y], b: f32[4@y, 2@x]) -> (c: f32[6, 8]{replicated}, d: f32[4, 2]{replicated}) {
          return a, b
        }"""
    assert sent(text) == [("all_gather", "x, y", 4 * 7 * (6 + 1))]
    (one,) = spmdc.partition(spmdc.parse(text)).collectives()
    assert one.reason.startswith("4 in one: [x, y] -> [-, y], result c of main")


def test_gathers_that_share_messages_with_others_stay_as_they_are() -> None:
    text = """
        mesh (x=2, y=4)
        def main(a: f32[6@x, 8@y], b: f32[10@x, 8@y], c: f32[8@y, 5]) -> (
            d: f32[6, 8]{replicated}, e: f32[10, 8@y], f: f32[8, 5]{replicated}) {
          return a, b, c
        }"""
    assert sent(text) == [("all_gather", "x", 4 * (6 + 10)), ("all_gather", "y", 4 * 3 * (12 + 10))]


def test_what_is_needed_in_between_is_gathered_twice() -> None:
    text = """
        mesh (x=2, y=4)
        def main(a: f32[6@x, 8@y]) -> (b: f32[6, 8@y], c: f32[6, 8]{replicated}) {
          return a, a
        }"""
    assert sent(text) == [("all_gather", "x", 4 * 6), ("all_gather", "y", 4 * 3 * 12)]


def test_large_tensors_are_not_moved_to_save_a_message() -> None:
    text = "mesh (x=2, y=4)\ndef main(a: f32[600@x, 8000@y]) -> (b: f32[600, 8000]{replicated}) {\n  return a\n}"
    program = spmdc.partition(spmdc.parse(text))
    assert [c.axes for c in program.collectives()] == ["x", "y"]


def test_later_gathers_of_one_dim_are_the_outer_ones() -> None:
    """Of x, then of y, along the same dim: y is the major one."""
    text = """
        spmd
        mesh (x=2, y=3)
        def main(a: f32[2, 1] of f32[12@(y,x), 1]) -> (c: f32[12, 1] of f32[12, 1]{replicated}) {
          b: f32[4, 1] = all_gather(a, axes=(x), dim=0)
          c: f32[12, 1] = all_gather(b, axes=(y), dim=0)
          return c
        }"""
    program = spmdc.parse(text)
    assert gather_at_once(program, spmdc.machine("tpu-v3")) is program, "these are the user's"
    decided = map_program(program, lambda op: (replace(op, cause=Cause("operand", "add")),))
    one = gather_at_once(decided, spmdc.machine("tpu-v3"))
    assert [op.name for op in one.main.body.ops].count("all_gather") == 1
    check(one)
    a = np.arange(12, dtype=np.float32).reshape(12, 1)
    (c,) = simulate(one, a)
    np.testing.assert_array_equal(c, a)
