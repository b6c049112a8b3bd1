"""The picture of a run."""

from __future__ import annotations

import math

from spmdc.training.curves import curves, range_of


def test_the_numbers_of_a_tensor_are_a_band_from_the_least_to_the_largest_around_their_mean() -> None:
    records = [{"step": 1, "load": [[0.1, 0.5], [0.6, 0.4]]}, {"step": 2, "load": [[0.25, 0.75], [0.5, 0.5]]}]
    drawn = curves(records, ["load"])
    assert "load, from the least of 4 to the largest" in drawn
    assert ">0.75<" in drawn
    assert ">0.1<" in drawn
    assert drawn.count("<polygon") == 1
    assert range_of(records[0]["load"]) == (0.1, 0.4, 0.6)


def test_a_number_is_a_line_without_a_band() -> None:
    drawn = curves([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}], ["loss", "never"])
    assert drawn.count("<polyline") == 1
    assert "<polygon" not in drawn


def test_numbers_that_are_not_finite_are_left_out_of_a_picture() -> None:
    assert range_of([math.nan, 1.0, math.inf]) == (1.0, 1.0, 1.0)
    assert range_of([math.nan]) is None
    assert range_of([]) is None
    assert range_of("nan") is None
    assert range_of(None) is None
