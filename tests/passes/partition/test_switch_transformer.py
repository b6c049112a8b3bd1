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


@pytest.mark.parametrize("recompute", [0, 1])
def test_every_layer_has_experts_and_relu_if_asked(recompute: int) -> None:
    """Switch-C (Table 9), here of 3 layers: no weights of dense layers, and a pair of all_to_alls for each layer."""
    consts = {**SMALL, "LAYERS": 3, "EVERY": 1, "GEGLU": 0, "DATA": 1, "RECOMPUTE": recompute}
    program = spmdc.load(FILE, consts)
    assert next(p for p in program.main.params if p.name == "dense_in").type.size == 0
    q, inputs = spmdc.partition(program), spmdc.random_inputs(program)
    for want, got in zip(spmdc.evaluate(program, *inputs), q.simulate(*inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    assert sum(c.count or 0 for c in q.collectives() if c.kind == "all_to_all") == 6


@pytest.mark.parametrize(
    ("consts", "billions"),
    [
        ({"M": 768, "H": 2048, "N": 12, "LAYERS": 24, "E": 128}, 7),
        ({"M": 1024, "H": 2816, "N": 16, "LAYERS": 48, "E": 128}, 26),
        ({"M": 2080, "H": 6144, "N": 32, "LAYERS": 30, "E": 2048, "EVERY": 1, "GEGLU": 0}, 1571),
    ],
)
def test_the_models_of_the_paper_have_as_many_weights(consts: dict[str, int], billions: float) -> None:
    """Table 9, with the layers of encoder and decoder together: all but the decoder's attention to the encoder."""
    sizes = {"EXPERT": 32, "B": 2048, "T": 512, "V": 32128, "K": 64, **consts}
    program = spmdc.load(FILE, sizes)
    count = sum(p.type.size for p in program.main.params if p.name in program.weights)
    assert count / 1e9 == pytest.approx(billions, rel=0.06)
