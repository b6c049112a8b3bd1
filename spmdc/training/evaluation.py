"""The quality of translations, by language (GShard, section 4.4 and Figure 6), by scores that are defined for short
phrases too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from spmdc.pictures.svg import BY_ITSELF, element, lettered, rect
from spmdc.training.data import in_one_cell
from spmdc.training.translate import Translation

_WIDTH, _HEIGHT, _LEFT, _TOP, _LINE, _WINDOW = 640, 200, 40, 28, 16, 9
HEADERS = ("language", "trained on", "held out", "right", "chrF", "BLEU")


@dataclass(frozen=True)
class Score:
    """The scores of a language: the number of phrases that the program was trained on, the number that it translated,
    the number of exact translations, and their similarity to the English, from 0 to 100: by letters (chrF, Popović
    2015) and by words (BLEU, of one to four in a row as far as phrases are that long)."""

    language: str
    trained: int
    translated: int
    right: int
    chrf: float
    bleu: float

    def cells(self) -> list[str]:
        counts = (f"{n:,}" for n in (self.trained, self.translated, self.right))
        return [in_one_cell(self.language), *counts, f"{self.chrf:.1f}", f"{self.bleu:.1f}"]


def score_of(found: Sequence[Translation], language: str, trained: int) -> Score:
    """The score of these translations, of which there is at least one."""
    said, wanted = [t.said for t in found], [[t.phrase.target for t in found]]
    return Score(
        language, trained, len(found), sum(t.is_right for t in found), CHRF().corpus_score(said, wanted).score,
        BLEU(effective_order=True).corpus_score(said, wanted).score,
    )  # fmt: skip


def scores_of(found: Sequence[Translation], trained: Mapping[str, int]) -> list[Score]:
    """The score of each language, with the number of phrases that it was trained on: those with most of them first."""
    parts: dict[str, list[Translation]] = {}
    for translation in found:
        parts.setdefault(translation.phrase.locale, []).append(translation)
    scores = [score_of(part, language, trained.get(language, 0)) for language, part in parts.items()]
    return sorted(scores, key=lambda score: (-score.trained, score.language))


def by_size(scores: Sequence[Score]) -> str:
    """The chrF of each language as a point, in the order of their numbers of training phrases, and the running mean, as
    SVG: GShard's Figure 6."""
    step = _WIDTH / max(1, len(scores))
    xs = [_LEFT + step * (i + 0.5) for i in range(len(scores))]
    points = [
        f'<circle cx="{x:.1f}" cy="{_height(s.chrf):.1f}" r="2.5" fill="#2a7ae2" fill-opacity="0.6">'
        f"<title>{escape(in_one_cell(s.language))}: {s.chrf:.1f}, trained on {s.trained:,}</title></circle>"
        for x, s in zip(xs, scores, strict=True)
    ]
    line = " ".join(f"{x:.1f},{_height(mean):.1f}" for x, mean in zip(xs, _running_mean(scores), strict=True))
    below, width = _TOP + _HEIGHT, _LEFT + _WIDTH + _LINE
    ends = [
        lettered(f"{in_one_cell(s.language)}: {s.trained:,} phrases", x, below + _LINE, anchor)
        for s, x, anchor in ((scores[0], _LEFT, "start"), (scores[-1], _LEFT + _WIDTH, "end"))
    ]
    return element(
        "chrF by language", width, below + 2 * _LINE, BY_ITSELF,
        rect(_LEFT, _TOP, _WIDTH, _HEIGHT, 'fill="none" stroke="currentColor" stroke-opacity="0.3"'),
        lettered("chrF of phrases that were held out, languages with most phrases first", _LEFT, _TOP - 8, "start"),
        lettered("100", _LEFT - 6, _TOP + 8, "end"), lettered("0", _LEFT - 6, below, "end"), *ends, *points,
        f'<polyline points="{line}" fill="none" stroke="#2a7ae2" stroke-width="1.5"/>',
    ) + "\n"  # fmt: skip


def _height(score: float) -> float:
    return _TOP + _HEIGHT * (1 - score / 100)


def _running_mean(scores: Sequence[Score]) -> list[float]:
    half = min(_WINDOW, len(scores)) // 2
    windows = (scores[max(0, i - half) : i + half + 1] for i in range(len(scores)))
    return [math.fsum(score.chrf for score in window) / len(window) for window in windows]
