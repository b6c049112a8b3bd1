"""What verbs print fits the terminal, and says the same in as many lines as it takes; elsewhere nothing is folded."""

from __future__ import annotations

import itertools
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from _pytest.capture import CaptureIO
from command_line import Run
from hypothesis import given
from hypothesis import strategies as st

import spmdc as library
from ir.diagnostics import Diagnostic, Source, Span, render
from ir.spelling.printer import print_program
from spmdc.commands.shared.fitting import fold_program, fold_table, fold_text, shorten
from spmdc.commands.shared.progress import progress
from spmdc.frontends.spmd import parse

PROGRAMS = Path(library.__file__).parent / "programs"
_COLOR = re.compile("\x1b\\[[0-9;]*m")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output and error as a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(f"{CaptureIO.__module__}.CaptureIO.isatty", lambda self: True)


def characters(text: str) -> str:
    """The text without its line breaks, indents and comment signs: a path longer than a line is broken within."""
    return re.sub(r"[\s#]", "", text)


@pytest.mark.parametrize("name", ["moe_layer", "transformer_block"])
@pytest.mark.parametrize("folder", ["programs", "a_folder_whose_name_is_longer_than_most_terminals_have_columns" * 2])
def test_a_folded_plan_is_the_same_plan(name: str, folder: str, tmp_path: Path) -> None:
    file = tmp_path / folder / f"{name}.spmd"
    shutil.copytree(PROGRAMS, file.parent)
    text = library.plan(library.load(file)).text(costs=True)
    for width in (60, 85, 140):
        folded = "\n".join(fold_program(text, width))
        assert max(map(len, folded.splitlines())) <= width
        if "…" not in folded:
            assert print_program(parse(folded), locations=False) == print_program(parse(text), locations=False)
            assert characters(folded) == characters(text)
    assert "…" not in folded


def test_comments_are_folded_under_their_op_and_what_cannot_be_broken_is_shortened() -> None:
    line = f'  y: f32[8@d] = reshard(x, steps="{"all_gather " * 5}")  # a.spmd:3  2 us, as x is wanted whole'
    assert list(fold_program(line, 40)) == [
        "  y: f32[8@d] = reshard(x,",
        '      steps="all_gat…ather all_gather ")',
        "      # a.spmd:3  2 us, as x is wanted",
        "      # whole",
    ]


def test_a_hash_in_a_string_begins_no_comment() -> None:
    line = 'y: f32[8] = opaque(x, target="a # b, c", rule="i, j -> i")'
    assert list(fold_program(line, 30)) == ["y: f32[8] = opaque(x,", '    target="a # b, c",', '    rule="i, j -> i")']


@given(st.text(" ab\n", max_size=40), st.integers(20, 30))
def test_folded_sentences_have_the_same_words(text: str, width: int) -> None:
    lines = list(fold_text(text, width))
    assert " ".join(lines).split() == text.split()
    assert all(len(line) <= width for line in lines)


CELLS = st.text("ab/ ", max_size=30)


@given(st.lists(st.lists(CELLS, min_size=4, max_size=4), min_size=1, max_size=4), st.integers(60, 90))
def test_a_folded_table_fits_and_keeps_its_numbers(rows: list[list[str]], width: int) -> None:
    table = [["name", "n", "m", "why"], *([name, str(10**i), "7", why] for i, (name, *_, why) in enumerate(rows))]
    lines = list(fold_table(table, (1, 2), width))
    assert all(len(line) <= width for line in lines)
    assert all(any(str(10**i) in line.split() for line in lines) for i in range(len(rows)))


def test_columns_without_room_follow_below_the_others() -> None:
    table = [["line", "time", "bytes"], ["layer.spmd:3", "12 us", "1,048,576"]]
    assert list(fold_table(table, (1, 2), 24)) == [
        "line           time",
        "layer.spmd:3  12 us",
        "",
        "line              bytes",
        "layer.spmd:3  1,048,576",
    ]


def test_the_middle_is_left_out() -> None:
    assert [shorten("abcdefgh", width) for width in (9, 8, 7, 4, 1)] == ["abcdefgh", "abcdefgh", "abc…fgh", "ab…h", "…"]


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("verb", ["plan", "partition --stats", "propagate", "cost", "why g", "plan --explain h"])
def test_every_verb_fits_a_terminal(spmdc: Run, verb: str) -> None:
    verb, *more = verb.split()
    ended = spmdc(verb, "p.spmd", *more)
    lines = _COLOR.sub("", ended.out).splitlines()
    assert lines
    assert max(map(len, lines)) <= 80


@pytest.mark.usefixtures("terminal")
def test_lines_are_whole_where_that_is_asked_for(spmdc: Run) -> None:
    assert max(map(len, _COLOR.sub("", spmdc("plan", "p.spmd", "--wide").out).splitlines())) > 80


@pytest.mark.usefixtures("terminal")
def test_collectives_axes_and_comments_are_coloured(spmdc: Run) -> None:
    out = spmdc("partition", "p.spmd").out
    assert re.search("\x1b\\[1;33m(all_reduce|all_gather|reduce_scatter|collective_permute)\x1b", out)
    assert "\x1b[90m# " in out
    assert "\x1b[1;36m@" in spmdc("propagate", "p.spmd").out


@pytest.mark.usefixtures("terminal")
def test_nothing_is_coloured_where_no_colour_is_asked_for(spmdc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in spmdc("partition", "p.spmd", "--stats").out


def test_diagnostics_fit_a_terminal() -> None:
    source = Source("long.spmd", f"def main(x: f32[8]) -> (y: f32[8]) {{ return {'tanh(' * 40}x{')' * 40} }}\n")
    found = Diagnostic("E101", "a message " * 12, Span(source, 1, 201, 1, 205), help="a way out " * 12)
    lines = render([found], width=60).splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert " ".join(" ".join(lines).split()).count("a message") == 12
    shown, caret = next((a, b) for a, b in itertools.pairwise(lines) if "^" in b)
    assert shown[caret.index("^") :][:4] == source.line(1)[200:204]  # type: ignore[index]
    assert max(map(len, render([found]).splitlines())) > 100


def test_what_takes_long_shows_how_far_it_is_on_terminals_alone(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import time\nfrom spmdc.commands.shared.progress import progress\n"
        "with progress('verify', 3) as advance:\n    advance(below='aux 1.02'); time.sleep(2.5); advance()\n"
        "print('done')\n"
    )
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    subprocess.run([sys.executable, "-c", code], stderr=slave, check=True, env=environment)
    os.close(slave)
    shown = os.read(master, 1 << 16).decode()
    os.close(master)
    assert "verify" in shown
    assert "1/3" in shown
    assert "aux 1.02" in shown
    assert "\x1b[?25l" not in shown, "the cursor is hidden, and stays so if the command is killed"
    assert capfd.readouterr().out.splitlines() == ["done"]


def test_what_is_quick_shows_nothing(terminal: None, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("parse"):
        time.sleep(0)
    assert capsys.readouterr().err == ""


def test_without_a_terminal_nothing_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spmdc.commands.shared.progress._PATIENCE", 0.0)
    with progress("parse", 2) as advance:
        advance()
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


_WAITS = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell has its background jobs ignore it.
from spmdc.commands.shared.terminal import interruptible
with interruptible(lambda: "left in between"):
    pass
with interruptible(lambda: "the last words"):
    print("begun", flush=True)
    time.sleep(60)
"""


def test_an_interruption_ends_a_command_with_its_last_words() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _WAITS], stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=30)[1]
    assert (child.returncode, said) == (130, "\nthe last words\n")
