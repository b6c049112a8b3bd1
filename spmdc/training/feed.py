"""The inputs of a program in each step, by name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ir.diagnostics import Diagnostic, Diagnostics, error
from ir.names import did_you_mean
from ir.program import Program, Value
from ir.types import Array
from spmdc.training.config import Config
from spmdc.training.data import SEQUENCES, Corpus, Phrase, cldr_phrases, in_turn, read_phrases

_KEYS = ("key", "rng")
_KNOWN = (*SEQUENCES, *_KEYS, "step")


@dataclass(frozen=True)
class Feed:
    """The phrases for training and the held-out ones, and how they become the inputs of a program."""

    inputs: tuple[str, ...]
    trained: Corpus
    held_out: tuple[Phrase, ...]
    accumulate: int
    seed: int

    def at(self, step: int) -> dict[str, Array]:
        """The inputs of a step. If it is accumulated, its parts are along an additional first dim."""
        if self.accumulate == 1:
            return self._part(self.trained, step)
        parts = [self._part(self.trained, step * self.accumulate + i) for i in range(self.accumulate)]
        return {name: np.stack([part[name] for part in parts]) for name in self.inputs}

    def of_phrases(self, phrases: Sequence[Phrase]) -> dict[str, Array]:
        """The inputs of a run on these phrases, at most one batch."""
        rows = replace(self.trained, phrases=tuple(phrases)).rows
        return {name: rows.get(name, array) for name, array in self._part(self.trained, 0).items()}

    def held_out_batches(self, most: int) -> Iterator[dict[str, Array]]:
        """The inputs of at most that many runs on held-out phrases, alternating between languages. The last batch is
        filled up with the first phrases again."""
        size = next(iter(self.trained.shapes.values()))[0]
        chosen = in_turn(self.held_out)[: most * size]
        for i in range(0, len(chosen), size):
            yield self.of_phrases(list(itertools.islice(itertools.cycle(chosen), i, i + size)))

    def parts_of(self, step: int) -> list[dict[str, Array]]:
        """The inputs of a step for each run of the program."""
        batch = self.at(step)
        if self.accumulate == 1:
            return [batch]
        return [{name: array[i] for name, array in batch.items()} for i in range(self.accumulate)]

    def phrases_of(self, step: int, part: int) -> list[Phrase]:
        """The phrases in a step, for one of the runs of the program."""
        return [self.trained.phrases[i] for i in self.trained.drawn(step * self.accumulate + part)]

    def _part(self, corpus: Corpus, number: int) -> dict[str, Array]:
        key = np.random.default_rng([self.seed, number, 1]).integers(2**32, size=2, dtype=np.uint32)
        step = np.array(number // self.accumulate, np.int32)
        found = {**corpus.batch(number), **dict.fromkeys(_KEYS, key), "step": step}
        return {name: found[name] for name in self.inputs}


def feed_of(program: Program, config: Config) -> Feed:
    """The feed of a program. Raises SpmdcError (E606) for an input without data, and for data that do not fit."""
    inputs = [param for param in program.main.params if param.name not in program.weights]
    problems = Diagnostics()
    for param in inputs:
        problems.extend(_misfits(param))
    shapes = {p.name: (p.type.shape[0], p.type.shape[1]) for p in inputs if p.name in SEQUENCES and p.type.rank == 2}
    if len({batch for batch, _ in shapes.values()}) > 1:
        sizes = ", ".join(f"{name}: {batch}" for name, (batch, _) in shapes.items())
        span = next(p.span for p in inputs if p.name in shapes)
        problems.add(Diagnostic("E606", f"the inputs are of batches of different sizes: {sizes}", span,
                                help="the first dim of each is the batch"))  # fmt: skip
    if not shapes:
        what = f"the program has no input called {', '.join(SEQUENCES)}: s32[batch, length]"
        problems.add(Diagnostic("E606", what, program.main.span, help="these are what is drawn from the data"))
    problems.raise_errors()
    phrases = _phrases(config)
    part = config.data.held_out
    trained = [phrase for phrase in phrases if not phrase.is_held_out(part)]
    apart = [phrase for phrase in phrases if phrase.is_held_out(part)]
    with config.at("data.held_out"):
        if not trained:
            raise error("E606", f"no phrase of {len(phrases):,} is left to train on", help="a smaller held_out")
    with config.at("data.file"):
        corpus = Corpus.of(trained, shapes, config.data.temperature, config.seed)
    held_out = tuple(filter(corpus.takes, apart))
    return Feed(tuple(p.name for p in inputs), corpus, held_out, config.accumulate, config.seed)


def _phrases(config: Config) -> tuple[Phrase, ...]:
    data = config.data
    with config.at("data.file" if data.file else "data.locales"):
        return read_phrases(Path(data.file)) if data.file else cldr_phrases(data.locales, data.kinds)


def _misfits(param: Value) -> list[Diagnostic]:
    name, type = param.name, param.type
    if name not in _KNOWN:
        help = did_you_mean(name, _KNOWN, 1) or "a weight has an initializer: = normal(0.02)"
        message = f"there is nothing for an input called {name!r}: data are {', '.join(_KNOWN)}"
        return [Diagnostic("E606", message, param.span, help=help)]
    wanted: Mapping[str, str] = {**dict.fromkeys(_KEYS, "u32[2]"), "step": "s32[]"}
    if name in SEQUENCES:
        fits, written = type.rank == 2 and str(type.dtype) == "s32", "s32[batch, length]"
    else:
        fits, written = str(type) == wanted[name], wanted[name]
    if not fits:
        return [Diagnostic("E606", f"the input {name} is {written}, and not {type}", param.span,
                           help=f"declare it so: {name}: {written}")]  # fmt: skip
    if name in SEQUENCES and not type.shape[0]:
        return [Diagnostic("E606", f"the input {name} is {type}: a batch of no phrases", param.span,
                           help="a batch of 1 or more: its first dim")]  # fmt: skip
    return []
