"""What all devices have whole is cut where they need boxes of it, and not exchanged."""

from __future__ import annotations

import pytest

import spmdc
from spmdc.testing import check_equivalence


def collectives(text: str) -> list[tuple[str, int]]:
    """Kinds and bytes, of a program whose results are equal on devices and off."""
    program = spmdc.parse(f"mesh (x=4)\n{text}")
    check_equivalence(program, jax=True)
    return [(c.kind, c.bytes) for c in spmdc.partition(program).collectives()]


WHOLE = {
    "concatenate([a, a], dim=0)": 22,
    "a[3:]": 8,
    "pad(a, 7, low=[3, 0], high=[2, 0])": 16,
    "pad(a, 7, low=[-3, 0], high=[30, 0])": 38,
    "reverse(a, dims=[0])": 11,
    "reduce_window(a, window=[3, 1], padding_low=[1, 0], padding_high=[2, 0], kind=max)": 12,
}
"""What is computed of eleven rows, and how many rows that are."""


@pytest.mark.parametrize("way", WHOLE)
def test_a_device_cuts_its_part_of_what_it_has(way: str) -> None:
    text = f"def main(a: s32[11, 3]{{replicated}}) -> (r: s32[{WHOLE[way]}@x, 3]) {{ return {way} }}"
    assert collectives(text) == []


def test_a_concatenate_exchanges_only_the_operands_that_are_split() -> None:
    """As much as for a split tensor that is shifted by the whole one before it."""
    shifted = "def main(a: f32[16@x]) -> (r: f32[20@x]) { return pad(a, 0.0, low=[2], high=[2]) }"
    for before, behind in (("b", "b"), ("zeros(2)", "ones(2)"), ("b", "iota(type=f32[2], dim=0)")):
        text = f"""def main(a: f32[16@x], b: f32[2]{{replicated}}) -> (r: f32[20@x]) {{
          return concatenate([{before}, a, {behind}], dim=0)
        }}"""
        assert collectives(text) == collectives(shifted)


def test_a_whole_operand_is_cut_even_where_the_device_that_receives_most_would_not_receive_it() -> None:
    """To exchange a quarter of it reads less memory, but sends what all devices have."""
    text = """mesh (x=4)
    def main(a: f32[8, 48]{replicated}, b: f32[16@x, 48], c: f32[16@x, 48]) -> (r: f32[40@x, 48]) {
      return concatenate([a, b, c], dim=0)
    }"""
    program = spmdc.parse(text)
    check_equivalence(program, jax=True)
    sent = [part.values for c in spmdc.partition(program).collectives() for part in c.cause.parts or (c.cause,)]
    assert set(sent) == {("b", "c")}


def test_what_is_put_together_of_tensors_that_all_have_is_had_by_all() -> None:
    """It is not cut for one op, and gathered for the next."""
    text = """def main(a: f32[8@x], b: f32[8@x]) -> (
          p: f32[8]{replicated}, q: f32[8]{replicated}, c: f32[16@x], r: f32[16]{replicated}) {
      p: f32[8]{replicated} = a
      q: f32[8]{replicated} = b
      c: f32[16@x] = concatenate([p, q], dim=0)
      return p, q, c, sort(c, dim=0)
    }"""
    assert collectives(text) == [("all_gather", 2 * 3 * 2 * 4)]
