"""Halo exchanges as pictures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import spmdc
from ir.program import Program
from spmdc.frontends.spmd import parse
from spmdc.pictures.halos import halos

PROGRAMS = Path(__file__).parents[2] / "programs"


_NEIGHBOURS = ["0: 1024", "1: 1023", "1: 2048", "2: 2047", "2: 3072", "3: 3071"]


def gets(program: Program) -> list[list[str]]:
    """Of each exchange, what devices get, as `0: 3` or `1: 4…5`."""
    drawings = [halo.svg() for halo in halos(spmdc.partition(program).program)]
    return [[f"{d}: {e}" for d, e in re.findall(r"device (\d+) gets ([\d…-]+)<", drawing)] for drawing in drawings]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("figure_5a_windows_need_their_neighbours", [_NEIGHBOURS]),
        ("figure_12_halo_masked_with_the_identity", [["0: 3", "1: 6…8", "2: 9…11"]] * 2),
        ("figure_13_base_dilation_case_1", [["0: 3", "1: 6"]]),
        ("figure_13_base_dilation_case_2", [["2: 5"]]),
        ("figure_5c_reshape_of_an_uneven_dim", [["1: 1"]]),
    ],
)
def test_the_figures_of_the_paper_show_what_each_device_gets(name: str, expected: list[list[str]]) -> None:
    assert gets(spmdc.load(PROGRAMS / f"{name}.spmd")) == expected


def test_devices_along_other_axes_are_not_repeated_and_keep_their_ids() -> None:
    text = "def main(x: f32[6@x, 8@y]) -> (y: f32[6@x, 8@y]) {\n  return pad(x[1:], [[0, 1], [0, 0]])\n}"
    program = parse(f"mesh (x=2, y=2) devices=[3, 1, 2, 0]\n{text}")
    assert gets(program) == [["3: 3"]]


def test_what_is_sent_of_few_bits_or_of_very_many_elements_is_not_drawn() -> None:
    text = "mesh (x=2)\ndef main(x: {}) -> (y: {}) {{ return pad(x[1:], [[0, 1]]) }}"
    for type in ("bf16[8@x]", "f32[4000000@x]"):
        assert gets(parse(text.format(type, type))) == [[]]


def test_without_an_exchange_there_is_none() -> None:
    assert gets(parse("mesh (x=2)\ndef main(x: f32[8@x]) -> (y: f32[8@x]) { return exp(x) }")) == []
