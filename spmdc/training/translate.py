"""Translates texts with a trained program.

A decoder does so by itself. Without one, the likeliest next symbol is always taken: the program returns it as a result
`predicted`: s32[batch, length - 1], which has for each position of `target` or `tokens` the symbol after it. It is run
once for each symbol, on all texts of a batch together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ir.program import Program
from spmdc.frontends.jax.jit import jit
from spmdc.training.data import END, PAD, Phrase, decoded, in_one_cell
from spmdc.training.decoder import Decoder, given_symbols
from spmdc.training.feed import Feed
from spmdc.training.step import PREDICTED, State, Trainer


@dataclass(frozen=True)
class Translation:
    """A phrase, and its translation into English by the program."""

    phrase: Phrase
    said: str

    @property
    def is_right(self) -> bool:
        return self.said == self.phrase.target

    def cells(self) -> list[str]:
        """The language, the text, the English, and what is said."""
        return [*map(in_one_cell, (self.phrase.locale, self.phrase.source, self.phrase.target, self.said))]


def can_translate(program: Program) -> bool:
    """Whether the program predicts the next symbols."""
    return any(result.name == PREDICTED for result in program.main.results)


def translate(
    trainer: Trainer, state: State, feed: Feed, phrases: Sequence[Phrase], decoder: Decoder | None
) -> list[Translation]:
    """The translations of phrases that fit into the program's inputs."""
    if decoder is None:
        return _symbol_by_symbol(trainer, state, feed, phrases)
    fitting, found = [phrase for phrase in phrases if decoder.takes(phrase)], list[Translation]()
    for i in range(0, len(fitting), decoder.batch):
        batch = fitting[i : i + decoder.batch]
        found += map(Translation, batch, decoder(state[0], batch))
    return found


def _symbol_by_symbol(trainer: Trainer, state: State, feed: Feed, phrases: Sequence[Phrase]) -> list[Translation]:

    def predict(weights: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        return trainer.loss(weights, batch)[1][PREDICTED]

    run = jit(predict, mesh=trainer.mesh, in_shardings=(trainer.shardings[0], None), out_shardings=trainer.whole)
    size = next(iter(feed.trained.shapes.values()))[0]
    found: list[Translation] = []
    for i in range(0, len(phrases), size):
        batch = phrases[i : i + size]
        rows = _said(
            lambda inputs: np.asarray(run(state[0], inputs)), feed, [*batch, *[batch[0]] * (size - len(batch))]
        )
        found += map(Translation, batch, rows)
    return found


def _said(predict: Any, feed: Feed, phrases: Sequence[Phrase]) -> list[str]:
    """The translations of a whole batch."""
    inputs = feed.of_phrases(phrases)
    name = "tokens" if "tokens" in inputs else "target"
    begun = [len(given_symbols(name, phrase)) for phrase in phrases]
    rows = np.full_like(inputs[name], PAD)
    for row, phrase, length in zip(rows, phrases, begun, strict=True):
        row[:length] = given_symbols(name, phrase)
    ends, at = np.array(begun), np.arange(len(phrases))
    is_open = ends < rows.shape[1]
    while is_open.any():
        symbols = predict({**inputs, name: rows})[at, np.minimum(ends, rows.shape[1] - 1) - 1]
        rows[at[is_open], ends[is_open]] = symbols[is_open]
        ends = ends + is_open
        is_open &= (symbols != END) & (ends < rows.shape[1])
    return [decoded(row[length:end]) for row, length, end in zip(rows, begun, ends, strict=True)]
