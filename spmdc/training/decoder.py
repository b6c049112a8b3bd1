"""A decoder: a program that translates texts with the weights of a trained one, and searches for the likeliest English.

It has the weights of the trained program, by name, and those of its inputs that are symbols. `begun` has the number of
symbols that are given in each row of `target` or `tokens`; its result `said` has the rest as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ir.diagnostics import Diagnostic, Diagnostics, error
from ir.program import Program, Result, Value
from ir.types import TensorType, s32
from lowering.jax.untyped import spec_of
from spmdc.frontends.jax.jit import jit
from spmdc.frontends.jax.programs import as_jax
from spmdc.training.config import Config
from spmdc.training.data import BEGIN, PAD, SEQUENCES, Phrase, decoded, joined_symbols, target_symbols
from spmdc.training.programs import translating_program

_SAID, _BEGUN = "said", "begun"
_ASKED = ("target", "tokens")
"""The inputs whose English is filled in, the first of which is said again."""


class Decoder:
    """A decoder, partitioned over the mesh of the trained program."""

    def __init__(self, program: Program, trained: Program, mesh: Any) -> None:
        """Raises SpmdcError (E606) if it is no decoder for the trained program."""
        _check(program, trained)
        results = [r.name for r in program.main.results]
        function, position = as_jax(program), results.index(_SAID)
        inputs = [p for p in program.main.params if p.name not in trained.weights]

        def say(weights: Mapping[str, Any], rows: Mapping[str, Any]) -> Any:
            found = function(**{n: weights[n] for n in trained.weights}, **rows)
            return found[position] if len(results) > 1 else found

        self._shapes = {p.name: p.type.shape for p in inputs if p.name in SEQUENCES}
        self._counts = any(p.name == _BEGUN for p in inputs)
        self._say = jit(say, mesh=mesh, out_shardings=spec_of())
        self.batch = next(iter(self._shapes.values()))[0]

    def takes(self, phrase: Phrase) -> bool:
        """Whether it is short enough, and leaves room for a symbol."""
        return all(len(given_symbols(name, phrase)) < shape[1] for name, shape in self._shapes.items())

    def __call__(self, weights: Mapping[str, Any], phrases: Sequence[Phrase]) -> list[str]:
        """The translations of at most one batch of phrases."""
        filled = [*phrases, *[phrases[0]] * (self.batch - len(phrases))]
        rows = {name: np.full(shape, PAD, np.int32) for name, shape in self._shapes.items()}
        for name, array in rows.items():
            for row, phrase in zip(array, filled, strict=True):
                symbols = given_symbols(name, phrase)
                row[: len(symbols)] = symbols
        asked = next((name for name in _ASKED if name in rows), "target")
        begun = np.array([len(given_symbols(asked, phrase)) for phrase in filled], np.int32)
        said = np.asarray(self._say(weights, {**rows, **({_BEGUN: begun} if self._counts else {})}))
        return [decoded(row[n:]) for row, n in zip(said[: len(phrases)].tolist(), begun, strict=False)]


def decoder_of(config: Config, trained: Program, mesh: Any) -> Decoder | None:
    """The decoder that the configuration names. Raises SpmdcError, also if it is no decoder for the trained program
    (E606)."""
    program = translating_program(config)
    if program is None:
        return None
    with config.at("translate.program"):
        return Decoder(program, trained, mesh)


def given_symbols(name: str, phrase: Phrase) -> list[int]:
    """The symbols before the English in the input with that name; of `source` all, since it has no English."""
    if name == "source":
        return SEQUENCES[name](phrase)
    if name == "target":
        return [BEGIN]
    return joined_symbols(phrase)[: 1 - len(target_symbols(phrase))]


def _check(program: Program, trained: Program) -> None:
    problems, params = Diagnostics(), {p.name: p for p in program.main.params}
    wanted = {p.name: p for p in trained.main.params if p.name in trained.weights}
    for name, weight in wanted.items():
        found = params.get(name)
        if found is None:
            what = f"the program that translates has no weight called {name}"
            help = f"take it as a parameter of main, as where it is trained: {name}: {weight.type}"
            problems.add(Diagnostic("E606", what, program.main.span, help=help))
        elif found.type != weight.type:
            what = f"{name} is {found.type}, and {weight.type} where it is trained"
            problems.add(Diagnostic("E606", what, found.span, help="the same consts for both"))
    problems.extend(_misfit(p) for name, p in params.items() if name not in wanted and not _fits(p))
    problems.raise_errors()
    texts = [p for name, p in params.items() if name in SEQUENCES]
    if not texts:
        raise error("E606", f"the program that translates takes none of {', '.join(SEQUENCES)}", program.main.span,
                    help="take one as a parameter of main, such as source: s32[batch, length]")  # fmt: skip
    said = next((r for r in program.main.results if r.name == _SAID), None)
    if said is None:
        raise error("E606", f"the program that translates has no result {_SAID}: s32[batch, length]", program.main.span,
                    help="return the symbols that it says under this name")  # fmt: skip
    problems.extend(_other_sizes([*texts, *filter(None, [params.get(_BEGUN)])], said))
    problems.raise_errors()


def _other_sizes(inputs: Sequence[Value], said: Result) -> Iterator[Diagnostic]:
    """The errors in the shapes of inputs, and of what is said."""
    first = inputs[0]
    batch = first.type.shape[0]
    if not batch:
        yield Diagnostic("E606", f"{first.name} is {first.type}: a batch of no texts", first.span, help="1 or more")
    for other in inputs:
        if other.type.shape[0] != batch:
            what = f"{other.name} is {other.type}, and {first.name} has a batch of {batch}"
            yield Diagnostic("E606", what, other.span, help="the first dim of each input is the batch")
    asked = next((p for name in _ASKED for p in inputs if p.name == name), None)
    length = (asked.type.shape if asked is not None else said.type.shape)[-1:] or (1,)
    wanted = TensorType((batch, *length), s32)
    if said.type != wanted:
        what = f"{_SAID} is {said.type}, and not {wanted}"
        yield Diagnostic("E606", what, said.span, help="the symbols of target or tokens, with the rest filled in")


def _fits(param: Value) -> bool:
    rank = {_BEGUN: 1, **dict.fromkeys(SEQUENCES, 2)}.get(param.name)
    return rank == param.type.rank and str(param.type.dtype) == "s32"


def _misfit(param: Value) -> Diagnostic:
    known = f"{_BEGUN}: s32[batch], {' and '.join(SEQUENCES)}: s32[batch, length], and the weights that are trained"
    return Diagnostic("E606", f"there is nothing for {param.name}: {param.type}", param.span, help=f"there are {known}")
