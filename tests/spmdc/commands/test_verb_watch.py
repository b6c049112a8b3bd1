"""`spmdc watch`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import PROGRAM, Run

from spmdc.commands.watch import State, changes


def _heed_interruptions() -> None:
    """What runs in the background of a shell, as tests may, ignores them, and so does all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command at work on p.spmd."""
    (tmp_path / "p.spmd").write_text(PROGRAM)
    command = [sys.executable, "-m", "spmdc", "watch", "p.spmd"]
    process = subprocess.Popen(
        command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=_heed_interruptions
    )
    yield process
    process.kill()
    process.communicate()


def test_each_save_is_told_until_an_interruption(watching: subprocess.Popen[str], tmp_path: Path) -> None:
    assert watching.stdout is not None
    assert watching.stderr is not None
    lines = iter(watching.stdout.readline, "")
    assert "ok: 1 collective" in next(lines)
    assert "all_reduce over x, y" in next(lines)
    (tmp_path / "p.spmd").write_text(PROGRAM.replace("relu(h + b)", "relu(h + missing)"))
    assert "1 error" in next(lines)
    (tmp_path / "p.spmd").write_text(PROGRAM.replace("b: f32[8]", "b: f32[8@y]").replace("[16@x, 32]", "[16, 32]"))
    assert next(lines).rstrip().endswith("ok: 1 collective, 4 bytes received, was 7")
    assert next(lines).startswith("- all_reduce over x, y")
    assert next(lines).startswith("+ all_reduce over y")
    watching.send_signal(signal.SIGINT)
    assert watching.wait(20) == 130
    assert "error[E101]: 'missing' is not defined here" in watching.stderr.read()


def test_a_file_that_is_included_is_watched_too(tmp_path: Path) -> None:
    (tmp_path / "gate.spmd").write_text("def gate(v: f32[8]) -> (w: f32[8]) {\n  return tanh(v)\n}\n")
    head = 'include "gate.spmd"\nmesh (x=4)\n'
    main = "def main(a: f32[8@x]) -> (b: f32[8]{replicated}) {\n  return gate(a)\n}\n"
    (tmp_path / "p.spmd").write_text(head + main)
    command = [sys.executable, "-m", "spmdc", "watch", "p.spmd"]
    with subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert "ok: 1 collective" in next(lines)
        next(lines)
        (tmp_path / "gate.spmd").write_text("def gate(v: f32[8]) -> (w: f32[8]) {\n  return zeros([8])\n}\n")
        assert "ok: 0 collectives" in next(lines)
        process.kill()


def test_what_changed_is_told_by_collectives_and_bytes() -> None:
    before = State((), Counter({"all_gather over x: 8 bytes  a": 2, "all_reduce over y: 4 bytes  b": 1}), 20)
    after = State((), Counter({"all_gather over x: 8 bytes  a": 1, "all_reduce over y: 4 bytes  b": 1}), 12)
    assert changes(before, after) == ("ok: 2 collectives, 12 bytes received, was 20\n- all_gather over x: 8 bytes  a")
    assert changes(after, after) == "ok: 2 collectives, 12 bytes received, nothing else is sent"
    assert changes(before, State()) == "0 errors"


def test_standard_input_cannot_be_watched(spmdc: Run) -> None:
    assert spmdc("watch", "-", stdin=b"").status == 2


def test_a_file_that_is_not_there_at_the_start_is_not_waited_for(spmdc: Run) -> None:
    ended = spmdc("watch", "nothing.spmd")
    assert ended.status == 1
    assert "error[E005]: cannot read nothing.spmd" in ended.err


def test_each_save_is_an_output_of_the_schema(spmdc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (PROGRAM, PROGRAM.replace("relu(h + b)", "relu(h + missing)")):
        Path("p.spmd").write_text(text)
        monkeypatch.setattr("spmdc.commands.watch._saves", lambda file: iter([None]))
        assert spmdc("watch", "p.spmd", "--json").json["ok"] == (text == PROGRAM)
