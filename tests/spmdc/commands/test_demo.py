"""The demo: what it shows is what the compiler gives, and its numbers add up."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spmdc.cli import main
from spmdc.commands.demo import routing_of


def demo(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["demo", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(demo(capsys, "--json", *arguments))


@pytest.fixture(scope="module")
def found() -> Any:
    """The figures of one demo on its own text and 8 devices, on every backend."""
    with redirect_stdout(io.StringIO()) as out:
        assert main(["demo", "--json"]) == 0
    return json.loads(out.getvalue())


def test_the_demo_shows_every_stage(capsys: pytest.CaptureFixture[str]) -> None:
    out = demo(capsys, "--no-jax")
    assert "8 devices" in out
    for shown in (
        'include "gating/top2.spmd"',
        "dispatched    f32[8@d, 16, 16, 128]    annotated",
        "5 annotated, 22 inferred",
        "inputs: f32[2, 64, 128] of f32[16@d, 64, 128]",
        "all_to_all  d     114,688",
        "expert 7",
        "auxiliary loss:",
        "simulator",
        "yes, up to rounding",
    ):
        assert shown in out


def test_the_layer_costs_two_all_to_alls_and_a_scalar(found: Any) -> None:
    """GShard, section 3.2: dispatch and combine are AllToAlls; the loss is one number."""
    kinds = [(c["kind"], c["bytes"]) for c in found["collectives"]]
    assert sorted(kinds) == [("all_reduce", 7), ("all_to_all", 114_688), ("all_to_all", 114_688)]


def test_every_backend_agrees_with_the_unpartitioned_program(found: Any) -> None:
    runs = {r["backend"]: r["differences"] for r in found["runs"]}
    assert runs.keys() == {"unpartitioned", "simulator", "jax"}
    assert max(runs["simulator"].values()) < 1e-4
    assert max(runs["jax"].values()) < 1e-4


def test_any_number_of_devices_and_any_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(256)) * 40)
    found = figures(capsys, "--no-jax", "--devices", "3", "--text", str(path))
    assert (found["devices"], found["bytes"]) == (3, 6 * 64)
    assert len(found["routing"]["load"]) == 3
    path.write_bytes(b"short")
    found = figures(capsys, "--no-jax", "--devices", "2", "--text", str(path))
    assert found["bytes"] == found["routing"]["tokens"] == 5


def test_tokens_are_all_accounted_for(found: Any) -> None:
    routing = found["routing"]
    assert routing["twice"] + routing["once"] + routing["dropped"] == routing["tokens"]
    assert sum(routing["load"]) == 2 * routing["twice"] + routing["once"]
    assert max(routing["load"]) <= routing["room"] == routing["capacity"] * routing["groups"]


def test_an_empty_or_missing_text_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for path in ("empty", "missing"):
        assert main(["demo", "--text", str(tmp_path / path)]) == 1
        assert "Traceback" not in capsys.readouterr().err


def test_routing_counts_by_hand() -> None:
    combine = np.zeros((2, 2, 3, 1))
    combine[0, 0, 0, 0] = combine[0, 0, 1, 0] = 0.5  # token 0 goes to experts 0 and 1
    combine[0, 1, 2, 0] = 1.0  # token 1 to expert 2
    combine[1, 1, 2, 0] = 1.0  # token 3 is padding
    routing = routing_of(combine, 3)
    assert (routing.twice, routing.once, routing.dropped) == (1, 1, 1)
    assert routing.load == (1, 1, 1)
    assert routing.full == (1, 1, 2)
    assert routing.room == 2


def test_a_terminal_gets_tables_and_bars(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    plain = demo(capsys, "--no-jax", "--devices", "2")
    assert "─" in plain
    assert "█" in plain
    assert "yes, up to rounding" in plain


@pytest.mark.parametrize("width", [40, 80, 200])
def test_only_the_last_column_of_a_table_is_folded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    from spmdc.commands.shared.pages import Page

    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    rows = [("collective_permute", "1,024", "what it is for, in more words than there is room for in one line of 80")]
    Page().table(("collective", "bytes", "reason"), rows, right=(1,))
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if "collective_permute" in line)
    assert "1,024" in line
    assert width < 80 or max(map(len, out.splitlines())) <= width
    assert " ".join(out.split()).endswith(rows[0][2])


def test_the_demo_and_verify_are_for_the_machine_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert "yes, up to rounding" in demo(capsys, "--no-jax", "--machine", "tpu-v4:2x2x2")
    assert main(["demo", "--no-jax", "--machine", "tpu-v4:3x3x3"]) == 1
    assert "error[E604]" in capsys.readouterr().err
    program = str(Path(__file__).parents[2] / "programs" / "concatenate_in_two_permutes.spmd")
    assert main(["verify", program, "--examples", "5", "--machine", "tpu-v4:4x2x1"]) == 0
    assert "5 examples agree" in capsys.readouterr().out
    assert main(["verify", program, "--machine", "tpu"]) == 2
