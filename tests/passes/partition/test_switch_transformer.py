"""The Switch Transformer that ships with spmdc, in the ways of section 5 of its paper."""

from __future__ import annotations

from collections import Counter
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import spmdc

FILE = Path(str(files("spmdc"))) / "programs" / "switch_transformer.spmd"
SMALL = {"LAYERS": 2, "T": 4, "V": 8, "M": 8, "N": 4, "K": 2, "H": 8}
WAYS = {
    "data, section 5.1": ({"DATA": 4, "EXPERT": 1}, set[tuple[str, str]]()),
    "model, section 5.2": ({"DATA": 1, "EXPERT": 1, "MODEL": 4}, {("all_gather", "model"), ("all_reduce", "model")}),
    "experts and data, section 5.4": ({"DATA": 1, "EXPERT": 4}, {("all_to_all", "expert")}),
    "experts, model and data, section 5.5": (
        {"DATA": 2, "EXPERT": 2, "MODEL": 2},
        {("all_to_all", "expert"), ("all_gather", "model"), ("all_reduce", "model")},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_computes_the_same_and_sends_only_what_that_way_of_splitting_needs(way: str) -> None:
    """Besides the sums of the losses, which are numbers."""
    sizes, expected = WAYS[way]
    program = spmdc.load(FILE, {**SMALL, **sizes})
    q, inputs = spmdc.partition(program), spmdc.random_inputs(program)
    for want, got in zip(spmdc.evaluate(program, *inputs), q.simulate(*inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    tensors = Counter((c.kind, c.axes) for c in q.collectives() if (c.bytes or 0) > 8)
    assert set(tensors) == expected
    assert tensors["all_to_all", "expert"] in (0, 2)
