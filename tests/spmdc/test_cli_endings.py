"""How commands end that cannot finish: bugs, interrupts, readers that leave, full disks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import PROGRAM, Run

from ir.diagnostics import InternalError


@pytest.mark.parametrize("problem", [InternalError("an invariant fails"), RecursionError("too deep"), KeyError("x")])
def test_a_bug_says_what_to_report(spmdc: Run, monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr("spmdc.commands.partition.load_program", fail)
    ended = spmdc("partition", "p.spmd")
    assert (ended.status, ended.out) == (3, "")
    assert "Traceback" not in ended.err
    assert type(problem).__name__ in ended.err
    assert "command:   spmdc partition p.spmd" in ended.err
    assert "jax" in ended.err
    path = Path(ended.err.split("traceback: ")[1].strip())
    assert "Traceback" in path.read_text()
    path.unlink()
    bug = spmdc("partition", "p.spmd", "--json")
    assert bug.status == 3
    Path(bug.json["bug"]["traceback"]).unlink()


def test_an_interrupt_ends_with_130(spmdc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("spmdc.commands.partition.load_program", interrupt)
    ended = spmdc("partition", "p.spmd")
    assert (ended.status, ended.out, ended.err) == (130, "", "")


def test_a_reader_that_leaves_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "p.spmd").write_text(PROGRAM)
    code = "import sys, spmdc.cli; sys.exit(spmdc.cli.main(['partition', sys.argv[1]]))"
    command = [sys.executable, "-c", code, str(tmp_path / "p.spmd")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        process.wait()
    assert (process.returncode, errors) == (141, "")


def test_a_full_disk_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "p.spmd").write_text(PROGRAM)
    code = "import sys, spmdc.cli; sys.exit(spmdc.cli.main(['partition', sys.argv[1]]))"
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", code, str(tmp_path / "p.spmd")]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error[E005]: cannot write to standard output: No space left on device\n"


def test_a_program_too_large_for_the_machine_is_told_so(spmdc: Run) -> None:
    text = b"mesh (x=2)\ndef main(a: f32[1048576@x, 1048576]) -> (r: f32[1048576, 1048576]) {\n  return a + a\n}\n"
    assert spmdc("partition", "-", stdin=text).status == 0
    ended = spmdc("run", "-", stdin=text)
    assert ended.status == 1
    assert "error[E505]" in ended.err
