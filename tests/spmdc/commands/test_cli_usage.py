"""What every command line has in common: usage, help, colour."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import PROGRAM, Run


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, spmdc.cli; status = spmdc.cli.main(['--help']); "
        "sys.exit(status or any(m in sys.modules for m in ('jax', 'numpy', 'lark', 'networkx', 'pygls', 'rich')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for verb in ("run", "check", "fmt", "propagate", "partition", "why", "lower", "explain", "demo"):
        assert f"    {verb}" in done.stdout


def test_the_simulator_does_not_import_jax(tmp_path: Path) -> None:
    (tmp_path / "p.spmd").write_text(PROGRAM)
    code = (
        "import sys, spmdc.cli; status = spmdc.cli.main(['run', 'p.spmd', '--check']); "
        "sys.exit(status or 'jax' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[3]
    environment = {"PYTHONPATH": str(root), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("run",),
        ("run", "p.spmd", "--nonsense"),
        ("run", "p.spmd", "--backend", "abacus"),
        ("partition", "p.spmd", "-D", "n"),
        ("partition", "p.spmd", "-D", "n=1.5.0"),
        ("partition", "p.spmd", "-D", "=1"),
        ("partition", "p.spmd", "--mesh", "x"),
        ("partition", "p.spmd", "--mesh", "x=0"),
        ("partition", "p.spmd", "--mesh", "x=2,x=4"),
        ("partition", "p.spmd", "--devices", "0"),
        ("partition", "p.spmd", "--devices", "nan"),
        ("partition", "p.spmd", "--devices", "\u0664"),
        ("partition", "p.spmd", "--mesh", "x=1_0,y=2"),
        ("partition", "p.spmd", "--mesh", "def=2"),
        ("partition", "p.spmd", "--mesh", "\u00e9=2"),
        ("partition", "p.spmd", "-D", f"n={'9' * 5000}"),
        ("partition", "p.spmd", "--memory-limit", "9" * 400),
        ("run", "p.spmd", "--seed", "9" * 5000),
        ("run", "p.spmd", "--out", ""),
        ("check", "p.spmd", ""),
        ("grad", "p.spmd", "--wrt", "w,"),
        ("verify",),
        ("verify", "p.spmd", "--rules"),
        ("partition", "p.spmd", "--devices", "4", "--mesh", "x=4"),
        ("partition", "p.spmd", "extra.spmd"),
        ("partition", "p.spmd", "--memory-limit", "-1"),
        ("partition", "p.spmd", "--memory-limit", "4 parsecs"),
        ("partition", "p.spmd", "--windowed-einsum", "often"),
        ("explain", "E999"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_way_out(spmdc: Run, arguments: tuple[str, ...]) -> None:
    ended = spmdc(*arguments)
    assert ended.status == 2
    assert ended.out == ""
    assert "error[E601]" in ended.err
    assert "help" in ended.err
    assert len(ended.err) < 1500


def test_wrong_usage_is_json_where_that_is_asked_for(spmdc: Run) -> None:
    for arguments in (("partition", "p.spmd", "--mesh", "x"), ("run",), ("fmt", "p.spmd", "--nonsense"), ("nonsense",)):
        ended = spmdc(*arguments, "--json")
        assert (ended.status, ended.err) == (2, "")
        assert [d["code"] for d in ended.json["diagnostics"]] == ["E601"]


def test_only_arguments_that_a_verb_lacks_are_required(spmdc: Run) -> None:
    assert "required: FILE\n" in spmdc("run").err


def test_an_unknown_argument_leads_to_the_help_of_its_verb(spmdc: Run) -> None:
    assert "help: spmdc fmt --help" in spmdc("fmt", "p.spmd", "--verbose").err


def test_a_file_that_is_not_there_may_be_one_of_a_similar_name(spmdc: Run) -> None:
    Path("layer.spmd").write_text("")
    for arguments in (("check", "layr.spmd"), ("fmt", "layr.spmd"), ("run", "p.spmd", "a=layr.spmd")):
        assert "did you mean layer.spmd\n" in spmdc(*arguments).err
    assert "did you mean" not in spmdc("check", "nothing.like.it").err
    Path("laye.spmd").symlink_to("nowhere")
    assert "did you mean layer.spmd\n" in spmdc("check", "laye.spmd").err


def test_the_mesh_of_the_command_line_must_have_the_programs_axes(spmdc: Run) -> None:
    ended = spmdc("partition", "p.spmd", "--mesh", "z=8")
    assert ended.status == 1
    assert ended.err.count("error[E301]") == 2
    assert "the program's own mesh is (x=4, y=2)" in ended.err
    assert ended.err.count("needs its axes, as in z=8,x=1,y=1") == 2
    ended = spmdc("partition", "p.spmd", "--mesh", "x=4")
    assert ended.err.count("error[E301]") == 1
    assert "as in x=4,y=1" in ended.err


def test_devices_of_a_mesh_of_two_axes_must_be_divided(spmdc: Run) -> None:
    ended = spmdc("run", "p.spmd", "--devices", "4")
    assert ended.status == 2
    assert "error[E601]" in ended.err
    assert "--mesh x=…,y=…" in ended.err


def test_version_names_what_spmdc_stands_on(spmdc: Run) -> None:
    ended = spmdc("--version")
    assert ended.status == 0
    for package in ("spmdc", "python", "jax", "numpy"):
        assert package in ended.out


def test_colour_only_where_a_terminal_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from spmdc.commands.shared.terminal import use_color

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert use_color(Terminal())
    assert not use_color(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not use_color(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_color(Terminal())


_TOO_LATE = (("--mesh", "x=2"), ("--devices", "2"), ("--memory-limit", "1MiB"), ("--windowed-einsum", "always"))


@pytest.mark.parametrize("verb", ["check", "compare", "cost", "lower", "partition", "plan", "run", "trace"])
@pytest.mark.parametrize("stage", ["plan", "partition"])
def test_a_plan_or_an_spmd_program_refuses_what_comes_too_late_for_it(spmdc: Run, verb: str, stage: str) -> None:
    Path("a.spmd").write_text("mesh (x=4)\ndef main(a: f32[8@x]) -> (r: f32[8]) { return replicate(tanh(a)) }\n")
    Path("made.spmd").write_text(spmdc(stage, "a.spmd").out)
    for option in _TOO_LATE[: 2 if verb == "check" else None]:
        ended = spmdc(verb, "made.spmd", *option)
        assert ended.status == 1
        assert ended.err.startswith("error[E406]: a")
    if verb == "cost":
        assert "E406" in spmdc("cost", "made.spmd", "--mesh", "x=2", "--mesh", "x=4").err
        assert spmdc("cost", "made.spmd", "--machine", "tpu-v3", "--machine", "tpu-v4").status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("grad", "p.spmd", "--wrt", "w", "--of", "total"),
        ("lower", "p.spmd"),
        ("report", "p.spmd"),
        ("run", "p.spmd"),
        ("trace", "p.spmd"),
        ("visualize", "p.spmd", "h"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_file_that_is_written_is_named_beside_what_is_printed(spmdc: Run, arguments: tuple[str, ...]) -> None:
    ended = spmdc(*arguments, "-o", "written")
    assert (ended.status, ended.err) == (0, "wrote written\n")
    assert Path("written").exists()
    assert spmdc(*arguments, "-o", "written", "--json").err == ""
