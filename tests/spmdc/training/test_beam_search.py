"""Flat beam search, a partitioned program, says what a search says that keeps every hypothesis apart and reads each
anew in every round, by the program that was trained."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jax
import numpy as np
import pytest

import spmdc
from ir.program import Program, all_ops
from ir.types import Array
from spmdc.frontends.jax.weights import initial_values

pytestmark = pytest.mark.usefixtures("devices")
PROGRAMS = files("spmdc") / "programs"
SIZES = {"D": 2, "B": 4, "T": 9, "V": 7, "M": 8, "N": 2, "K": 4, "H": 8, "E": 4}
LENGTH, END = SIZES["T"], 2
GIVEN = [[1, 4, 3, 5], [1, 5, 6, 4, 4, 3], [1, 3], [1, 6, 5, 4, 3, 5, 5, 5, 6]]


def model() -> Program:
    """The program that is trained, with its logits in place of the symbols that it predicts, and room for all."""
    text = (PROGRAMS / "moe_translation.spmd").read_text()
    text = text.replace("predicted: s32[B@d, T]", "predicted: f32[B@d, T, V]").replace(
        "argmax(logits, dim=2)", "logits"
    )
    text = text.replace("hits = f32(predicted == wanted)", "hits = f32(wanted == 0)")
    return spmdc.parse(text, defines={**SIZES, "C": LENGTH, "RANDOM": 0}, folder=str(PROGRAMS))


def weights_of(program: Program) -> dict[str, Array]:
    """Larger than they begin, so that what comes next is not all as likely."""
    return {name: np.asarray(array) * 6 for name, array in initial_values(program, 3).items()}


@dataclass(frozen=True)
class Hypothesis:
    symbols: list[int]
    total: float
    said: int

    @property
    def score(self) -> float:
        return float(self.total / ((5 + self.said) / 6) ** 0.6)


def searched(given: list[int], beam: int, logits_of: Any) -> Hypothesis:
    """What a plain beam search finds for a text."""
    alive = [Hypothesis(given, 0.0, 0)]
    while len(alive[0].symbols) <= LENGTH and not all(END in h.symbols[len(given) :] for h in alive):
        branches = []
        for h in alive:
            if END in h.symbols[len(given) :]:
                branches.append(Hypothesis([*h.symbols, 0], h.total, h.said))
                continue
            logits = logits_of(h.symbols)
            likely = logits - np.log(np.sum(np.exp(logits)))
            branches += [Hypothesis([*h.symbols, v], h.total + p, h.said + 1) for v, p in enumerate(likely)]
        alive = sorted(branches, key=lambda h: -h.score)[:beam]
    return alive[0]


CACHES = {1: "f32[2, 2, 20, 2, 4]", 2: "f32[2, 4, 10, 2, 4]", 3: "f32[2, 4, 20, 1, 4]"}
"""Two layers, texts, slots, heads and their size: a device's part of keys or values, by the dim that is split."""


def test_keys_and_values_are_split_by_texts_slots_or_heads_and_stay_where_they_are() -> None:
    programs = {
        dim: spmdc.load(str(PROGRAMS / "translate_by_beam.spmd"), {**SIZES, "BEAM": 2, "CACHE": dim}) for dim in CACHES
    }
    weights = weights_of(programs[1])
    rows = np.zeros((SIZES["B"], LENGTH + 1), np.int32)
    for row, given in zip(rows, GIVEN, strict=True):
        row[: len(given)] = given
    begun = np.array([len(given) for given in GIVEN], np.int32)
    inputs = {"tokens": rows, "begun": begun, **weights}
    sent: dict[int, Counter[str]] = {}
    said = []
    for dim, program in programs.items():
        partitioned = spmdc.partition(program)
        carried = [v.type for op in all_ops(partitioned.program) if op.name == "while" for v in op.results]
        assert sum(str(type) == CACHES[dim] for type in carried) >= 2
        said.append(partitioned.simulate(*(inputs[p.name] for p in program.main.params)))
        sent[dim] = Counter()
        for collective in partitioned.collectives():
            sent[dim][collective.kind] += collective.bytes * collective.at_least
    for found in said[1:]:
        np.testing.assert_array_equal(found[0], said[0][0])
        np.testing.assert_allclose(found[1], said[0][1], rtol=1e-5)

    # Of each symbol: there and back of the experts' inputs, half of [E, C of a device's tokens, M]; whether all ended.
    experts, ended = {"all_to_all": 2 * 4 * 4 * 8 * 4 // 2}, {"all_reduce": 4}
    assert sent[1] == {**experts, **ended}
    # And with heads apart, in two layers: half of what all hypotheses' symbols are, gathered and added up; masks.
    hypotheses, masks = 2 * (8 * 8 * 4 // 2), 2 * 320
    assert sent[3] == {
        "all_gather": hypotheses, "reduce_scatter": hypotheses, "all_to_all": experts["all_to_all"] + masks, **ended,
    }  # fmt: skip
    keys_and_values_of_a_device = 2 * 2 * 4 * 10 * 2 * 4 * 4
    assert sum(sent[2].values()) < keys_and_values_of_a_device


@pytest.mark.parametrize("beam", [1, 3])
def test_flat_beam_search_finds_what_a_plain_one_finds(beam: int) -> None:
    trained = model()
    weights = weights_of(trained)
    predict: Any = jax.jit(spmdc.as_jax(trained))

    def logits_of(symbols: list[int]) -> Any:
        rows = np.zeros((SIZES["B"], LENGTH + 1), np.int32)
        rows[:, : len(symbols)] = symbols
        results = predict(tokens=rows, key=np.zeros(2, np.uint32), **weights)
        return np.asarray(results[-1], np.float64)[0, len(symbols) - 1]

    rows = np.zeros((SIZES["B"], LENGTH + 1), np.int32)
    for row, given in zip(rows, GIVEN, strict=True):
        row[: len(given)] = given
    decode = spmdc.load(str(PROGRAMS / "translate_by_beam.spmd"), {**SIZES, "BEAM": beam})
    begun = np.array([len(given) for given in GIVEN], np.int32)
    decoder = spmdc.jit(spmdc.as_jax(decode), mesh={"d": 2})
    said, scores = decoder(tokens=rows, begun=begun, **weights)
    for given, row, score in zip(GIVEN, np.asarray(said), np.asarray(scores), strict=True):
        wanted = searched(given, beam, logits_of)
        assert row.tolist() == wanted.symbols + [0] * (LENGTH + 1 - len(wanted.symbols))
        np.testing.assert_allclose(score, wanted.score, rtol=1e-5)
