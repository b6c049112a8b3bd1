"""How commands end that cannot finish: bugs, interrupts, readers that leave, full disks."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import PROGRAM, Run

from ir.diagnostics import InternalError
from ir.program import Program
from spmdc.__main__ import main

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}


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


@pytest.mark.parametrize(("missing", "status"), [("rich.console", 1), ("pygls.uris", 1), ("passes.nothing", 3)])
def test_a_package_that_is_missing_is_no_bug(
    spmdc: Run, monkeypatch: pytest.MonkeyPatch, missing: str, status: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr("spmdc.commands.partition.load_program", fail)
    ended = spmdc("partition", "p.spmd")
    assert ended.status == status
    assert ("error[E605]: " + missing.partition(".")[0] + " is not installed" in ended.err) == (status == 1)
    assert ("pip install 'spmdc[lsp]'" in ended.err) == (missing == "pygls.uris")
    if status == 3:
        Path(ended.err.split("traceback: ")[1].strip()).unlink()


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
    assert done.stderr == (
        "error[E005]: cannot write to standard output: No space left on device\n"
        "  = help: free some space there, or name a place on another disk\n"
    )


@pytest.mark.parametrize(
    ("verb", "status"), [("partition p.spmd", 1), ("plan p.spmd --json", 1), ("trace p.spmd -o made.json", 0)]
)
def test_closed_standard_output_is_told_so_if_it_is_written_to(tmp_path: Path, verb: str, status: int) -> None:
    (tmp_path / "p.spmd").write_text(PROGRAM)
    command = f"{sys.executable} -m spmdc {verb} >&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == status
    assert ("error[E005]: cannot write to standard output: Bad file descriptor\n" in done.stderr) == (status == 1)
    assert ("  = help: open standard output, or redirect it to a file\n" in done.stderr) == (status == 1)
    assert (tmp_path / "made.json").exists() == (status == 0)


def test_a_program_too_large_for_the_machine_is_told_so(spmdc: Run) -> None:
    text = b"mesh (x=2)\ndef main(a: f32[1048576@x, 1048576]) -> (r: f32[1048576, 1048576]) {\n  return a + a\n}\n"
    assert spmdc("partition", "-", stdin=text).status == 0
    ended = spmdc("run", "-", stdin=text)
    assert ended.status == 1
    assert "error[E505]" in ended.err


def test_code_that_does_not_look_for_interrupts_is_ended_by_them(spmdc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def compile(program: Program) -> Callable[..., list[object]]:
        def execute(*arrays: object) -> list[object]:
            seen.append(signal.getsignal(signal.SIGINT))
            return [np.zeros(r.of.shape if r.of else r.type.shape, np.float32) for r in program.main.results]

        return execute

    monkeypatch.setattr("spmdc.commands.run.compile", compile)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert spmdc("run", "p.spmd", "--backend", "jax").status == 0
        assert seen == [signal.SIG_DFL]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_where_stderr_cannot_be_written_the_status_still_tells(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        for arguments, status in ((("nonsense",), 2), (("check", "missing.spmd", "--verbose"), 1)):
            command = [sys.executable, "-m", "spmdc.cli", *arguments]
            assert subprocess.run(command, stderr=full, check=False, cwd=tmp_path, env=ENVIRONMENT).returncode == status


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_help_on_a_full_disk_is_an_error(tmp_path: Path, unbuffered: str) -> None:
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "spmdc.cli", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error[E005]")


def test_an_output_may_be_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "p.spmd").write_text(PROGRAM)
    command = [sys.executable, "-m", "spmdc.cli", "lower", "p.spmd", "--out", "/dev/stdout"]
    done = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (0, b"wrote /dev/stdout\n")
    assert b"shard_map" in done.stdout


def test_standard_input_that_is_closed_or_cannot_be_read_is_told(spmdc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            raise OSError(5, "Input/output error")

    for stdin in (None, io.TextIOWrapper(io.BufferedReader(Broken()))):
        monkeypatch.setattr(sys, "stdin", stdin)
        for verb in ("check", "fmt", "partition"):
            ended = spmdc(verb, "-")
            assert ended.status == 1
            assert "error[E005]: cannot read standard input: " in ended.err
            assert "help: redirect a program to it" in ended.err


def test_an_interrupt_while_modules_are_imported_ends_with_130_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "spmdc.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "spmdc.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupting, *sys.meta_path])
    assert main() == 130
