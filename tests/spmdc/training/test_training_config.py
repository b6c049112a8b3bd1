"""The file of a training: all that is wrong with it is reported at once, each with its line and a way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from training import CONFIG

import spmdc
from ir.diagnostics import SpmdcError
from spmdc.reading import load
from spmdc.training.config import SETTINGS, Config, read_config
from spmdc.training.feed import feed_of
from spmdc.training.translate import can_translate


def config(tmp_path: Path, text: str) -> Config:
    (tmp_path / "train.toml").write_text(text)
    return read_config(tmp_path / "train.toml")


def test_what_is_left_out_is_as_in_the_paper(tmp_path: Path) -> None:
    found = config(tmp_path, 'program = "a.spmd"\nout = "out"\nsteps = 5\n')
    own = found.optimizer
    assert (found.program, found.out, found.steps) == (tmp_path / "a.spmd", tmp_path / "out", 5)
    assert (own.name, own.settings, own.schedule, own.rate) == ("adafactor", SETTINGS["adafactor"], "square_root", 1)
    assert (own.warmup, found.data.temperature) == (10_000, 5)


def test_all_that_is_wrong_is_reported_at_once_with_its_line(tmp_path: Path) -> None:
    text = """\
program = 5
out = "out"
stepps = 3

[data]
locales = ["dee"]
kinds = ["month"]
held_out = 1.5

[optimizer]
name = "adan"
b1 = 0.5
schedule = "constant"

[mesh]
x = 0
"""
    with pytest.raises(SpmdcError) as failed:
        config(tmp_path, text)
    found = {(d.span.line if d.span else 0, d.message) for d in failed.value.diagnostics}
    assert {d.code for d in failed.value.diagnostics} == {"E606"}
    lines = sorted(line for line, _ in found)
    assert lines == [1, 1, 3, 6, 7, 8, 10, 11, 16]
    for near in ("did you mean steps", "did you mean adam", "months", "de"):
        assert near in str(failed.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CONFIG.replace('"constant"', '"cosine"\nwarmup = 9'), "the rate grows for 9 steps, and there are 6"),
        (
            CONFIG.replace("held_out", 'locales = ["de"]\nheld_out'),
            "Unicode's, and the phrases are a file's",
        ),
        (CONFIG + "keep = 0\n", "keep is a whole number above 0, and not 0"),
        (CONFIG.replace("[data]", "[data"), "is not TOML"),
        ("", "program is missing"),
    ],
)
def test_contradictions_are_reported(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SpmdcError) as failed:
        config(tmp_path, text)
    assert said in str(failed.value)


def test_the_demo_is_of_a_program_that_can_translate_and_has_names_that_it_does_not_see(tmp_path: Path) -> None:
    demo = read_config(Path(spmdc.__file__).parent / "programs" / "translate_months.toml", tmp_path / "months")
    program = load(demo.program, demo.consts)
    feed = feed_of(program, demo)
    assert demo.out == tmp_path / "months"
    assert can_translate(program)
    assert (len(feed.trained.languages), len(feed.held_out) > 50) == (30, True)
