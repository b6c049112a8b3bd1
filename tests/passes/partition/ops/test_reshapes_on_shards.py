"""Reshapes of tensors that are split along any dims: elements go where they belong, and nothing is gathered for it."""

from __future__ import annotations

import math

import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdc
from ir.builder import Names, RegionBuilder
from ir.mesh import AxisRef
from ir.ops.reshape_blocks import blocks_of
from ir.program import Program, Result
from ir.types import TensorType, f32
from spmdc.api import PartitionedProgram
from spmdc.testing import check_equivalence, meshes, shardings


@st.composite
def divided(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """A shape of that many elements."""
    shape: list[int] = []
    while size > 1:
        factor = draw(st.sampled_from([k for k in range(2, size + 1) if size % k == 0]))
        shape.append(factor)
        size //= factor
        if draw(st.integers(0, 5)) == 0:
            shape.append(1)
    return tuple(shape)


@st.composite
def reshapes(draw: st.DrawFn) -> Program:
    mesh = draw(meshes(max_devices=12))
    size = draw(st.sampled_from((48, 36, 60, 30, 64, 42)))
    source, target = draw(divided(size)), draw(divided(size))
    b = RegionBuilder(Names())
    type = TensorType((*source, 3), f32)
    x = b.param("x", type, draw(shardings(mesh, type, partial=False)))
    y = b.op("reshape", x, shape=(*target, 3))
    sharding = draw(st.none() | shardings(mesh, y.type, partial=False))
    return Program((mesh,), {"main": b.function("main", [y], [Result("y", y.type, sharding)])})


@settings(max_examples=examples(80))
@given(reshapes())
def test_a_reshape_is_the_same_however_its_ends_are_split_and_warns_of_nothing(program: Program) -> None:
    check_equivalence(program)
    assert not spmdc.partition(program).warnings


@settings(max_examples=examples(4))
@given(reshapes())
def test_a_reshape_is_the_same_on_jax_devices(program: Program) -> None:
    if program.mesh.size <= 8:
        check_equivalence(program, jax=True)


def reshaped(source: str, target: str, mesh: str = "d=4") -> PartitionedProgram:
    """The program that reshapes a tensor so split, which equals the unpartitioned one."""
    sizes = [int(dim.split("@")[0]) for dim in target.split("; ")]
    ends = [end.replace(";", ",") for end in (source, target)]
    text = f"mesh ({mesh})\ndef main(x: f32[{ends[0]}]) -> (y: f32[{ends[1]}]) {{ return reshape(x, {sizes}) }}"
    program = spmdc.parse(text)
    check_equivalence(program)
    q = spmdc.partition(program)
    assert not q.warnings
    return q


def moves(q: PartitionedProgram) -> list[tuple[str, int]]:
    return [(c.kind, c.bytes) for c in q.collectives()]


def result_axes(q: PartitionedProgram) -> tuple[tuple[AxisRef, ...], ...]:
    sharding = q.program.main.results[0].sharding
    assert sharding is not None
    return sharding.axes


K = 512
"""Elements of a row, so many that messages cost little beside what they carry."""


@pytest.mark.parametrize("split_result", [False, True])
def test_a_minor_dim_becomes_whole_by_all_to_all_where_rows_divide(split_result: bool) -> None:
    """A result about which nothing is said is split as the rows are."""
    q = reshaped(f"8; {4 * K}@d", f"{32 * K}{'@d' if split_result else ''}")
    assert moves(q) == [("all_to_all", 3 * 8 * K * 4 // 4)]
    assert [len(axes) for axes in result_axes(q)] == [1]


def test_rows_that_do_not_divide_are_exchanged_after_the_all_to_all() -> None:
    """Of 6 rows each device has 2, and the last one nothing: its run of a row and a half comes from its neighbour."""
    q = reshaped(f"6; {4 * K}@d", f"{24 * K}@d")
    assert moves(q) == [("all_to_all", 3 * 8 * K * 4 // 4), ("collective_permute", 6 * K * 4)]


def test_the_minor_dim_of_the_result_is_split_by_all_to_all() -> None:
    q = reshaped(f"{32 * K}@d", f"8; {4 * K}@d")
    assert moves(q) == [("all_to_all", 3 * 8 * K * 4 // 4)]


def test_a_dim_that_keeps_its_place_in_another_grouping_moves_twice() -> None:
    q = reshaped(f"12; {4 * K}@d", f"4; {12 * K}@d")
    assert moves(q) == [("all_to_all", 3 * 12 * K * 4 // 4)] * 2


def test_axes_of_several_dims_meet_on_the_dim_that_they_become() -> None:
    q = reshaped(f"8@x; {6 * K}@y", f"{48 * K}", "x=2, y=2")
    assert moves(q) == [("all_to_all", 12 * K * 4 // 2)]
    assert [len(axes) for axes in result_axes(q)] == [2]


def test_a_split_dim_beside_the_regrouped_ones_stays_split() -> None:
    assert moves(reshaped(f"5; 7; {K}@d", f"35; {K}")) == []


def test_why_tells_where_an_axis_that_moved_to_another_dim_came_from() -> None:
    q = reshaped(f"8; {4 * K}@d", f"{32 * K}")
    assert "y dim 0 <- x dim 1" in q.why("y")


def test_blocks_cover_both_shapes() -> None:
    for source, target in (((6, 8), (48,)), ((4, 1, 6), (2, 2, 3, 2)), ((), (1,)), ((2, 3, 5), (2, 15))):
        blocks = blocks_of(source, target)
        assert [d for b in blocks for d in b.source] == list(range(len(source)))
        assert [d for b in blocks for d in b.target] == list(range(len(target)))
        for b in blocks:
            assert math.prod(source[d] for d in b.source) == math.prod(target[d] for d in b.target)
    assert len(blocks_of((2, 3, 5), (2, 15))) == 2
