"""What is trained on: phrases and their symbols, and which of them a step is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from training import written

from ir.diagnostics import SpmdcError
from ir.types import Array
from spmdc.reading import load
from spmdc.training.cldr import KINDS, locale_names, phrases_of
from spmdc.training.config import read_config
from spmdc.training.data import (
    BEGIN,
    END,
    PAD,
    SEPARATOR,
    VOCABULARY,
    Corpus,
    Phrase,
    cldr_phrases,
    decoded,
    encoded,
    in_turn,
    joined_symbols,
    read_phrases,
    source_symbols,
)  # fmt: skip
from spmdc.training.feed import feed_of
from spmdc.training.translate import _said

SHAPES = {"source": (64, 40), "target": (64, 32)}


def corpus(temperature: float = 5.0, seed: int = 0) -> Corpus:
    return Corpus.of(cldr_phrases(("de", "cy", "ja"), ("months", "territories")), SHAPES, temperature, seed)


def test_there_are_over_a_hundred_languages_and_all_kinds_in_them() -> None:
    assert len(locale_names()) > 300
    assert not {"en", "root", "de_AT"} & {*locale_names()}
    assert {"de", "sr_Latn"} <= {*locale_names()}
    assert all(len([*phrases_of("de", kind)]) > 5 for kind in KINDS)
    assert ("Dezember", "December") in phrases_of("de", "months")
    assert ("Österreich", "Austria") in phrases_of("de", "territories")


def test_names_that_a_locale_lacks_are_no_phrases() -> None:
    assert not any(text.startswith("M0") for locale in ("aa", "ia", "yi") for text, _ in phrases_of(locale, "months"))


@pytest.mark.parametrize("text", ["", "März", "十二月", "a\tb", "\x00"])
def test_symbols_of_a_text_are_its_bytes(text: str) -> None:
    symbols = encoded(text)
    assert all(SEPARATOR < symbol < VOCABULARY for symbol in symbols)
    assert decoded([BEGIN, *symbols, END, *encoded("more")]) == text


def test_both_texts_and_the_language_are_one_sequence_for_a_model_without_an_encoder() -> None:
    phrase = Phrase("de", "Mai", "May")
    assert source_symbols(phrase) == [*encoded("de"), SEPARATOR, *encoded("Mai"), END]
    wanted = [BEGIN, *encoded("de"), SEPARATOR, *encoded("Mai"), SEPARATOR, *encoded("May"), END]
    assert joined_symbols(phrase) == wanted


def test_a_batch_depends_on_the_seed_and_the_step_alone() -> None:
    one, same, other = corpus(), corpus(), corpus(seed=1)
    for name, (batch, length) in SHAPES.items():
        assert one.batch(7)[name].shape == (batch, length)
        np.testing.assert_array_equal(one.batch(7)[name], same.batch(7)[name])
        assert (one.batch(7)[name] != one.batch(8)[name]).any()
        assert (one.batch(7)[name] != other.batch(7)[name]).any()


def test_rows_of_a_batch_belong_together_and_are_padded() -> None:
    known = {(p.source, p.target) for p in corpus().phrases}
    batch = corpus().batch(0)
    for source, target in zip(batch["source"], batch["target"], strict=True):
        assert (decoded(source[list(source).index(SEPARATOR) :]), decoded(target)) in known
        assert {*target[list(target).index(END) + 1 :]} <= {PAD}


def test_a_higher_temperature_draws_small_languages_more_often() -> None:
    sizes = np.array([len(numbers) for numbers in corpus().languages.values()])
    np.testing.assert_allclose(corpus(1.0).shares, sizes / sizes.sum())
    np.testing.assert_allclose(corpus(5.0).shares, sizes**0.2 / (sizes**0.2).sum())
    np.testing.assert_array_equal(corpus(1e-6).shares, sizes == sizes.max())


def test_no_text_is_held_out_in_one_language_and_trained_on_in_another() -> None:
    phrases = cldr_phrases(("de", "nl", "da", "nb"), ("months",))
    apart = {p.source.casefold() for p in phrases if p.is_held_out(0.2)}
    assert 0 < len(apart) < len(phrases) / 2
    assert not apart & {p.source.casefold() for p in phrases if not p.is_held_out(0.2)}


def test_a_line_that_is_no_phrase_is_reported_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "phrases.tsv"
    path.write_text("de\tMai\tMay\n\nde\tJuni\nnl\tmei\tMay\n")
    with pytest.raises(SpmdcError, match=r"E606[\s\S]*phrases.tsv:3:1"):
        read_phrases(path)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_end_with_newlines_only_and_a_mark_of_utf_8_is_no_language(end: str, tmp_path: Path) -> None:
    path = tmp_path / "phrases.tsv"
    path.write_bytes(f"\ufeffde\tMai\u2028\tMay{end}nl\tmei\x0c\tMay{end}".encode())
    assert [(p.locale, p.source, p.target) for p in read_phrases(path)] == [
        ("de", "Mai\u2028", "May"),
        ("nl", "mei\x0c", "May"),
    ]


def test_a_locale_without_phrases_is_an_error_if_it_is_asked_for() -> None:
    with pytest.raises(SpmdcError, match=r"E606.*the locale cho has no currencies"):
        cldr_phrases(("cho",), ("currencies",))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("source", "sources", "did you mean source"),
        ("source: s32[B@x, S]", "source: f32[B@x, S]", "the input source is s32[batch, length], and not f32[8, 12]"),
        ("T = 10", "T = 4", "no phrase of 6 fits into source of 12, target of 4"),
        ("target: s32[B@x, T]", "target: s32[B@x, T], key: u32[3]", "the input key is u32[2], and not u32[3]"),
    ],
)
def test_inputs_that_nothing_fits_are_reported(before: str, after: str, said: str, tmp_path: Path) -> None:
    config = read_config(written(tmp_path))
    config.program.write_text(config.program.read_text().replace(before, after))
    with pytest.raises(SpmdcError) as failed:
        feed_of(load(config.program), config)
    assert said in str(failed.value)
    assert failed.value.diagnostics[0].code == "E606"


def test_random_bits_and_the_number_of_the_step_are_there_for_programs_that_take_them(tmp_path: Path) -> None:
    config = read_config(written(tmp_path))
    text = config.program.read_text().replace("target: s32[B@x, T]", "target: s32[B@x, T], key: u32[2], step: s32[]")
    config.program.write_text(text)
    feed = feed_of(load(config.program), config)
    assert feed.at(5)["step"] == 5
    assert (feed.at(5)["key"] != feed.at(6)["key"]).any()


@pytest.mark.parametrize("inputs", ["source: s32[4, 16], target: s32[4, 14]", "tokens: s32[4, 24]"])
def test_texts_are_said_symbol_by_symbol_behind_what_was_said(inputs: str, tmp_path: Path) -> None:
    config = read_config(written(tmp_path, program=f"def main({inputs}, w: f32[2] = 0) -> f32[] {{ return sum(w) }}"))
    feed = feed_of(load(config.program), config)
    phrases = feed.trained.phrases[:4]
    name, asked = inputs.split(":")[0].replace("source", "target"), []

    def next_of(batch: dict[str, Array]) -> Array:
        """The right symbol behind each that is right so far, and an end behind any other."""
        right = feed.of_phrases(phrases)[name]
        asked.append(batch[name].copy())
        so_far = np.cumprod(batch[name] == right, axis=1)[:, :-1]
        return np.where(so_far, right[:, 1:], END)

    assert _said(next_of, feed, phrases) == [phrase.target for phrase in phrases]
    assert {*asked[0][0]} >= {BEGIN, PAD}
    assert len(asked) == 1 + max(len(phrase.target.encode()) for phrase in phrases)


def test_what_is_shown_of_many_languages_has_some_of_each() -> None:
    phrases = [Phrase(locale, text, text) for locale, text in ("a1", "a2", "a3", "b4", "c5", "c6")]
    assert "".join(phrase.source for phrase in in_turn(phrases)) == "145263"
