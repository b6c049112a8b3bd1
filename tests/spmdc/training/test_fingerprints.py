"""Two programs have the same fingerprint if they compute the same, wherever, and whatever the names in them."""

from __future__ import annotations

import pytest
from training import PROGRAM

import spmdc
from spmdc.training.fingerprint import fingerprint_of


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x=2, y=2", "x=4, y=1"),
        ("T@x", "T"),
        ("B@x", "B"),
        ("hidden", "inner"),
        ("  wanted", "  # a comment\n\n  wanted"),
        ("(hidden, wo)", "(shard(hidden, group=0), wo)"),
        ("const B = 8", "const D = 2, B = 4 * D"),
    ],
)
def test_names_annotations_and_the_mesh_do_not_matter(old: str, new: str) -> None:
    other = PROGRAM.replace(old, new)
    assert fingerprint_of(spmdc.parse(other)) == fingerprint_of(spmdc.parse(PROGRAM))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("relu", "gelu"),
        ("wanted != 0", "wanted != 1"),
        ("-sum(probable", "sum(probable"),
        ("normal(0.1)", "normal(0.2)"),
        ("B = 8", "B = 4"),
        ("right: f32", "hits: f32"),
    ],
)
def test_what_is_computed_matters(old: str, new: str) -> None:
    other = PROGRAM.replace(old, new)
    assert other != PROGRAM
    assert fingerprint_of(spmdc.parse(other)) != fingerprint_of(spmdc.parse(PROGRAM))
