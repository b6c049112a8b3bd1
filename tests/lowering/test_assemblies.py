"""Boxes that are assembled of pieces, which one kernel gathers on CPUs."""

from __future__ import annotations

import jax
import pytest

import spmdc
from lowering.jax.module import write_module
from spmdc.testing import check_equivalence


def _shifted(dtype: str = "f32", width: int = 12, rows: int = 3) -> str:
    """A program of which each device needs elements of several others, from places that differ."""
    wider = width * 3 // 2
    return f"""
    mesh (x=4)

    def main(a: {dtype}[{width}@x, {rows}], b: {dtype}[{width}@x, {rows}]) -> (out: {dtype}[{wider}@x, {rows}]) {{
      joined = concatenate(a, b, dim=0)
      return slice(joined, start=[5, 0], limit=[{5 + wider}, {rows}], stride=[1, 1])
    }}
    """


def test_a_box_of_pieces_is_gathered_on_cpus_and_put_together_elsewhere() -> None:
    program = spmdc.partition(spmdc.parse(_shifted())).program
    of_cpus, elsewhere = write_module(program), write_module(program, portable=True)
    assert " = assembled(" in of_cpus
    assert "lax.dynamic_update_slice(" not in of_cpus
    assert "assembled" not in elsewhere
    assert "lax.dynamic_update_slice(" in elsewhere


@pytest.mark.parametrize(("dtype", "rows"), [("f8e4m3fn", 3), ("f32", 1 << 13)])
def test_what_is_large_or_of_short_floats_is_put_together_piece_by_piece(dtype: str, rows: int) -> None:
    module = write_module(spmdc.partition(spmdc.parse(_shifted(dtype, rows=rows))).program)
    assert "assembled" not in module
    assert "lax.dynamic_update_slice(" in module


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("width", [12, 16, 20])
def test_a_gathered_box_has_each_element_of_the_piece_that_was_written_last(
    width: int, dtype: str, devices: list[jax.Device]
) -> None:
    check_equivalence(spmdc.parse(_shifted(dtype, width=width)), jax=True)
