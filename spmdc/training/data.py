"""The data of a step: phrases in many languages, and their English, as UTF-8 bytes.

The phrases of a batch depend only on the seed and the number of the step, so a continued run gets the same.
"""

from __future__ import annotations

import unicodedata
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ir.diagnostics import Diagnostic, Diagnostics, Source, Span, error
from ir.types import Array
from spmdc.files import decode as decode_utf8
from spmdc.files import read_bytes
from spmdc.training.cldr import KINDS, locale_names, phrases_of
from spmdc.training.config import PATHS

PAD, BEGIN, END, SEPARATOR = range(4)
_BYTES = 4
VOCABULARY = _BYTES + 256
"""Four symbols, and a byte b as 4 + b."""
FEWEST = 100
"""A locale with fewer phrases is left out, unless it is named."""


@dataclass(frozen=True)
class Phrase:
    """A text in a language, and in English."""

    locale: str
    source: str
    target: str

    def is_held_out(self, part: float) -> bool:
        """Whether it belongs to the fraction that is never trained on. This depends on the source text only: a held-out
        text is not trained on as another language's either."""
        text = unicodedata.normalize("NFC", self.source).casefold()
        return zlib.crc32(text.encode()) < part * 2**32


def encoded(text: str) -> list[int]:
    """The symbols of a text."""
    return [_BYTES + byte for byte in text.encode()]


def decoded(symbols: Sequence[int]) -> str:
    """The text of symbols, up to the end; bytes that are no text are shown as such."""
    found: list[int] = []
    for symbol in symbols:
        if symbol == END:
            break
        if _BYTES <= symbol < VOCABULARY:
            found.append(symbol - _BYTES)
    return bytes(found).decode(errors="backslashreplace")


def in_one_cell(text: str) -> str:
    """The text in a cell of a table: characters that end lines or cells, or control terminals, are escaped."""
    return "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in _BREAKING else c for c in text)


_BREAKING = ("Cc", "Zl", "Zp")


def source_symbols(phrase: Phrase) -> list[int]:
    """The symbols of the source: the language, a separator, the text, an end."""
    return [*encoded(phrase.locale), SEPARATOR, *encoded(phrase.source), END]


def target_symbols(phrase: Phrase) -> list[int]:
    """The symbols of the target: a beginning, the English, an end."""
    return [BEGIN, *encoded(phrase.target), END]


def joined_symbols(phrase: Phrase) -> list[int]:
    """The symbols for a model without an encoder: a beginning, the language, the text and the English, each after a
    separator."""
    return [BEGIN, *source_symbols(phrase)[:-1], SEPARATOR, *target_symbols(phrase)[1:]]


SEQUENCES = {"source": source_symbols, "target": target_symbols, "tokens": joined_symbols}
"""The inputs of a program that are symbols, s32[batch, length], by name."""


def cldr_phrases(locales: Sequence[str], kinds: Sequence[str]) -> tuple[Phrase, ...]:
    """The phrases of these locales and kinds; without names, of all locales with enough phrases. Raises SpmdcError
    (E606) for a named locale without phrases."""
    found: list[Phrase] = []
    for locale in locales or locale_names():
        own = [Phrase(locale, *pair) for kind in kinds or KINDS for pair in phrases_of(locale, kind)]
        if locales and not own:
            raise error("E606", f"the locale {locale} has no {' and no '.join(kinds or KINDS)} that are not English",
                        help="other kinds, or without this locale")  # fmt: skip
        if locales or kinds or len(own) >= FEWEST:
            found += own
    return tuple(found)


_LINE = "a language, a text and its English, with tabs between"


def read_phrases(path: Path) -> tuple[Phrase, ...]:
    """The phrases of a file with a line for each: language, text and English, with tabs between. Raises SpmdcError
    (E002, E005, E606)."""
    text = decode_utf8(read_bytes(path, PATHS), str(path), "phrases").removeprefix("\ufeff")
    source, problems, found = Source(str(path), text), Diagnostics(most=10), []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        fields = line.split("\t")
        if len(fields) == 3 and all(fields):
            found.append(Phrase(*fields))
        elif line:
            span = Span(source, number, 1, number, len(line) + 1)
            help = "such as: de<tab>Januar<tab>January"
            problems.items.append(Diagnostic("E606", f"a line is {_LINE}", span, help=help))
    problems.raise_errors()
    if not found:
        raise error("E606", f"{path} has no phrases", help=f"a line is {_LINE}")
    return tuple(found)


def in_turn(phrases: Sequence[Phrase]) -> list[Phrase]:
    """The first of each language, then the second of each, and so on."""
    seen: Counter[str] = Counter()
    places: list[tuple[int, int]] = []
    for i, phrase in enumerate(phrases):
        places.append((seen[phrase.locale], i))
        seen[phrase.locale] += 1
    return [phrases[i] for _, i in sorted(places)]


@dataclass(frozen=True)
class Corpus:
    """Phrases as the symbols of a program's inputs: for each of its `shapes` by name, [batch, length], one row for each
    phrase."""

    phrases: tuple[Phrase, ...]
    shapes: Mapping[str, tuple[int, int]]
    temperature: float
    seed: int

    @classmethod
    def of(
        cls, phrases: Sequence[Phrase], shapes: Mapping[str, tuple[int, int]], temperature: float, seed: int
    ) -> Corpus:
        """The corpus, without the phrases that are too long for a shape. Raises SpmdcError (E606) if none is left."""
        all_of_them = cls(tuple(phrases), shapes, temperature, seed)
        fitting = tuple(filter(all_of_them.takes, phrases))
        if not fitting:
            lengths = ", ".join(f"{name} of {length}" for name, (_, length) in shapes.items())
            what = f"no phrase of {len(phrases):,} fits into {lengths}" if phrases else "there are no phrases"
            raise error("E606", what, help="longer inputs, or other data")
        return cls(fitting, shapes, temperature, seed)

    def takes(self, phrase: Phrase) -> bool:
        """Whether it is short enough."""
        return all(len(SEQUENCES[name](phrase)) <= length for name, (_, length) in self.shapes.items())

    @cached_property
    def fingerprint(self) -> str:
        """A hash that is the same for the same phrases, whatever their source."""
        lines = (f"{p.locale}\t{p.source}\t{p.target}\n" for p in self.phrases)
        return f"{zlib.crc32(''.join(lines).encode()):08x}"

    @cached_property
    def rows(self) -> Mapping[str, Array]:
        """The symbols of all phrases for each input, padded."""
        return {name: _padded(list(map(SEQUENCES[name], self.phrases)), n) for name, (_, n) in self.shapes.items()}

    @cached_property
    def languages(self) -> Mapping[str, Array]:
        """The numbers of each language's phrases."""
        numbers: dict[str, list[int]] = {}
        for i, phrase in enumerate(self.phrases):
            numbers.setdefault(phrase.locale, []).append(i)
        return {locale: np.array(found) for locale, found in sorted(numbers.items())}

    @cached_property
    def shares(self) -> Array:
        """How often each language is drawn: as n ** (1 / temperature) of its n phrases (GShard, section 4.2)."""
        counts = np.array([len(found) for found in self.languages.values()], np.float64)
        weights = (counts / counts.max()) ** (1 / self.temperature)
        return np.asarray(weights / weights.sum())

    def batch(self, step: int) -> dict[str, Array]:
        """The inputs for step `step`."""
        picked = self.drawn(step)
        return {name: rows[picked] for name, rows in self.rows.items()}

    def drawn(self, step: int) -> Array:
        """The numbers of the phrases in step `step`."""
        draw = np.random.default_rng([self.seed, step])
        size = next(iter(self.shapes.values()))[0]
        numbers = list(self.languages.values())
        chosen = [numbers[i] for i in draw.choice(len(numbers), size, p=self.shares)]
        return np.array([found[draw.integers(len(found))] for found in chosen])


def _padded(sequences: Sequence[Sequence[int]], length: int) -> Array:
    rows = np.full((len(sequences), length), PAD, np.int32)
    for row, symbols in zip(rows, sequences, strict=True):
        row[: len(symbols)] = symbols
    return rows
