"""Where tensors are put together of pieces that arrive, only these pieces are selected by position."""

from __future__ import annotations

import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdc
from ir.program import all_ops
from spmdc.testing import check_equivalence


def selected(text: str) -> set[tuple[int, ...]]:
    """The shapes that the devices select in, of a program whose results are equal on devices and off."""
    program = spmdc.parse(text)
    check_equivalence(program, jax=True)
    return {op.result.shape for op in all_ops(spmdc.partition(program).program) if op.name == "select"}


@pytest.mark.parametrize(
    ("expression", "shape"),
    [
        ("concatenate([a[63:], a[:63]], dim=0)", (1, 5)),
        ("concatenate([a[3:], a[:3]], dim=0)", (3, 5)),
        ("concatenate([a[63:], a[:63]], dim=0) + concatenate([a[1:], a[:1]], dim=0)", (1, 5)),
        ("dynamic_update_slice(a, a[1:2], 0, 0)", (1, 5)),
        ("dynamic_update_slice(a, a[62:63], 63, 0)", (1, 5)),
        ("dynamic_update_slice(dynamic_update_slice(a, 2 * a[1:2], 0, 0), a[60:61], 63, 0)", (1, 5)),
    ],
)
def test_only_the_rows_that_cross_a_border_are_selected(expression: str, shape: tuple[int, ...]) -> None:
    found = selected(f"mesh (x=4)\ndef main(a: s32[64@x, 5]) -> (r: s32[64@x, 5]) {{ return {expression} }}")
    assert found == {shape}


def test_a_row_that_is_taken_from_the_first_shard_is_not_put_into_a_buffer() -> None:
    text = "mesh (x=4)\ndef main(a: s32[64@x, 5]) -> (r: s32[64@x, 5]) { return dynamic_update_slice(a, a[1:2], 0, 0) }"
    spmd = spmdc.partition(spmdc.parse(text))
    assert not spmd.collectives()
    assert max(v.shape[0] for op in all_ops(spmd.program) for v in op.results if v.shape) == 16


def _cut(value: str, dim: int, low: int, high: int) -> str:
    return f"{value}[{', '.join(f'{low}:{high}' if d == dim else ':' for d in range(2))}]"


@pytest.mark.parametrize("joined", ["e, a", "e, a[3:], e, a[:3]", "a[3:], e, e, a[:3], e"])
@pytest.mark.parametrize("seed", range(3))
def test_operands_without_rows_are_joined_with_others(joined: str, seed: int) -> None:
    program = spmdc.parse(f"""
        mesh (x=4)
        def main(e: s32[0@x, 4], a: s32[4@x, 4]) -> (r: s32[4@x, 4]) {{ return concatenate([{joined}], dim=0) }}""")
    check_equivalence(program, seed=seed, any_strategies=True)
    check_equivalence(program, seed=seed, machine=spmdc.machine("host"))


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Updates at constant places and rotations, one behind the other, along split dims."""
    n, m = draw(st.sampled_from([5, 8, 12])), draw(st.sampled_from([3, 4, 8]))
    lines, value = list[str](), "a"
    for i in range(draw(st.integers(1, 3))):
        dim = draw(st.integers(0, 1))
        size = (n, m)[dim]
        place = draw(st.integers(0, size - 1))
        rows = draw(st.integers(1, size - place))
        start = draw(st.integers(0, size - rows))
        if draw(st.booleans()) and place > 0:
            text = f"concatenate([{_cut(value, dim, place, size)}, {_cut(value, dim, 0, place)}], dim={dim})"
        else:
            at = ", ".join(str(place) if d == dim else "0" for d in range(2))
            text = f"dynamic_update_slice({value}, {_cut(value, dim, start, start + rows)}, {at})"
        lines.append(f"v{i} = {text}")
        value = f"v{i}"
    split = draw(st.sampled_from(["@x, {m}", "@(x, y), {m}", "@x, {m}@y", ", {m}@(y, x)"])).format(m=m)
    return f"""
        mesh (x=2, y=2)
        def main(a: s32[{n}{split}]) -> (r: s32[{n}{split}]) {{
          {chr(10).join(lines)}
          return {value}
        }}"""


@settings(max_examples=examples(40), deadline=None)
@given(programs())
def test_updates_and_rotations_are_equal_to_those_of_the_whole(text: str) -> None:
    check_equivalence(spmdc.parse(text))
