"""Programs that translate by themselves say what the trained one says symbol by symbol; and what is said is scored."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from training import CONFIG, PROGRAM, run_of, written

import spmdc
from ir.diagnostics import SpmdcError
from spmdc.training.data import Phrase, in_turn
from spmdc.training.decoder import Decoder
from spmdc.training.evaluation import by_size, scores_of
from spmdc.training.run import Run
from spmdc.training.step import State
from spmdc.training.translate import Translation, translate

pytestmark = pytest.mark.usefixtures("devices")
TRAINED = PROGRAM.replace("right: f32[]", "right: f32[], predicted: s32[B@x, T - 1]").replace(
    "/ sum(counted)\n}", "/ sum(counted), argmax(logits, dim=2)\n}"
)
GREEDY = """\
const B = 6, S = 12, T = 10, V = 260, M = 8
mesh (x=2, y=2)

def main(source: s32[B@x, S], target: s32[B@x, T], begun: s32[B@x], table: f32[V, M@y], wi: f32[M, 16@y],
         wo: f32[16@y, V], bias: f32[V]) -> (said: s32[B@x, T]) {
  read = mean(einsum("BSV,VM->BSM", one_hot(source, V), table), dim=1)
  return loop t < T - 1 (rows = target) {
    before = einsum("BTV,VM->BTM", one_hot(rows, V), table)
    next = argmax(matmul(relu(matmul(before + expand_dims(read, 1), wi)), wo) + bias, dim=2)
    return dynamic_update_slice(rows, dynamic_slice(next, 0, t, sizes=[B, 1]), 0, t + 1)
  }
}
"""


def test_a_decoder_says_what_is_said_symbol_by_symbol(tmp_path: Path) -> None:
    (tmp_path / "greedy.spmd").write_text(GREEDY)
    config = CONFIG.replace("held_out = 0.0", "held_out = 0.5").replace("rate = 0.01", "rate = 0.05")
    config = config.replace("steps = 6", "steps = 80").replace("every = 2", "every = 60")
    run = run_of(written(tmp_path, f'{config}\n[translate]\nprogram = "greedy.spmd"\n', TRAINED))
    state = run.train(lambda record: None)
    _log_has_what_is_held_out(run, state)
    phrases = [*run.feed.trained.phrases, *run.feed.held_out, Phrase("de", "ein zu langer Text", "long")]
    found = translate(run.trainer, state, run.feed, phrases, run.decoder)
    assert found == translate(run.trainer, state, run.feed, phrases[:-1], None)
    assert len({t.said for t in found}) > 1
    assert run.translate_held_out(state)
    headers, *rows = [line.split("\t") for line in run.languages.read_text().splitlines()]
    assert headers[:3] == ["language", "trained on", "held out"]
    assert (rows[-1][0], int(rows[-1][2])) == ("all", len(run.feed.held_out))


def _log_has_what_is_held_out(run: Run, state: State) -> None:
    """Beside each checkpoint, and it is the loss of these phrases."""
    records = [json.loads(line) for line in run.log.read_text().splitlines()]
    measured = [record for record in records if "held_out_loss" in record]
    assert [record["step"] for record in measured] == [60, 80]
    batch = run.feed.of_phrases((in_turn(run.feed.held_out) * 8)[:8])
    loss, metrics = run.trainer.loss(state[0], batch)
    np.testing.assert_allclose(measured[-1]["held_out_loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(measured[-1]["held_out_right"], metrics["right"], rtol=1e-5)
    assert "held_out_predicted" not in measured[-1]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("16@y", "12@y", r"wi is f32\[8, 12\], and f32\[8, 16\] where it is trained"),
        ("bias", "offset", "no weight called bias"),
        ("bias", "offset", r"nothing for offset: f32\[260\]"),
        ("said: s32", "says: s32", "no result said"),
        ("begun: s32[B@x]", "begun: s32[B@x, 1]", r"nothing for begun: s32\[6, 1\]"),
        ("begun: s32[B@x]", "begun: s32[7]", r"begun is s32\[7\], and source has a batch of 6"),
        ("B = 6", "B = 0", "a batch of no texts"),
    ],
)
def test_a_program_that_is_no_decoder_of_what_is_trained_is_refused(old: str, new: str, said: str) -> None:
    program = spmdc.parse(GREEDY.replace(old, new))
    with pytest.raises(SpmdcError, match=said) as failed:
        Decoder(program, spmdc.parse(TRAINED), {"x": 2, "y": 2})
    assert {d.code for d in failed.value.diagnostics} == {"E606"}


@pytest.mark.parametrize(
    ("kind", "value"), [("f32[6, 10]", "f32(rows)"), ("s32[6, 1]", "rows[:, :1]"), ("s32[3, 10]", "rows[:3]")]
)
def test_what_a_decoder_says_has_the_type_of_what_it_is_asked(kind: str, value: str) -> None:
    text = GREEDY.replace("said: s32[B@x, T]", f"said: {kind}").replace("  return loop", "  rows = loop")
    program = spmdc.parse(
        text.replace("(rows = target)", "(rows = target + 0)").replace("  }\n}", f"  }}\n  return {value}\n}}")
    )
    with pytest.raises(SpmdcError, match=r"and not s32\[6, 10\]") as failed:
        Decoder(program, spmdc.parse(TRAINED), {"x": 2, "y": 2})
    assert failed.value.diagnostics[0].message.startswith(f"said is {kind}")


def test_languages_are_scored_and_drawn_in_the_order_of_their_sizes() -> None:
    said = [("de", "January", "January"), ("de", "March", "Marsh"), ("fr", "June", "June"), ("nl", "May", "")]
    found = [Translation(Phrase(locale, "", target), text) for locale, target, text in said]
    scores = scores_of(found, {"fr": 30, "de": 7})
    assert [(s.language, s.trained, s.translated, s.right) for s in scores] == [
        ("fr", 30, 1, 1), ("de", 7, 2, 1), ("nl", 0, 1, 0),
    ]  # fmt: skip
    assert [(round(s.chrf), round(s.bleu)) for s in (scores[0], scores[2])] == [(100, 100), (0, 0)]
    assert 60 < scores[1].chrf < 100
    picture = ElementTree.fromstring(by_size(scores))
    circles = picture.findall("{http://www.w3.org/2000/svg}circle")
    heights = [float(circle.attrib["cy"]) for circle in circles]
    assert heights[0] < heights[1] < heights[2]


def test_a_text_stays_in_its_cell_and_in_a_picture() -> None:
    translation = Translation(Phrase("a<b\x01", "été\u00a0\u200c", "May"), "M\ta\r\ny\u2028\\")
    assert translation.cells() == [r"a<b\x01", "été\u00a0\u200c", "May", "M\\ta\\r\\ny\\u2028\\"]
    score = scores_of([translation], {})[0]
    assert score.cells()[0] == r"a<b\x01"
    ElementTree.fromstring(by_size([score]))
