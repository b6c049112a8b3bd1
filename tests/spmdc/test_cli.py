"""Every verb of the command line: what it prints, how it ends, and that no input makes it fail otherwise."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ir.diagnostics import InternalError
from ir.explanations import EXPLANATIONS
from spmdc.cli import main

PROGRAM = """\
mesh (x=4, y=2)

def main(a: f32[16@x, 32], w: f32[32, 8@y], b: f32[8]) -> (out: f32[16, 8], total: f32[]) {
  h = einsum("ij,jk->ik", a, w)
  g = relu(h + b)
  return g, reduce(g, dims=[0, 1], kind=sum)
}
"""


@dataclass
class Ended:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ended]


@pytest.fixture
def spmdc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in a folder that holds PROGRAM as p.spmd."""
    monkeypatch.chdir(tmp_path)
    Path("p.spmd").write_text(PROGRAM)

    def run(*arguments: str, stdin: bytes | None = None) -> Ended:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        status = main(arguments)
        return Ended(status, *capsys.readouterr())

    return run


def inputs() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    shapes = {"a": (16, 32), "w": (32, 8), "b": (8,)}
    return {name: rng.integers(-4, 5, shape).astype(np.float32) for name, shape in shapes.items()}


# Wrong usage


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, spmdc.cli; status = spmdc.cli.main(['--help']); "
        "sys.exit(status or any(m in sys.modules for m in ('jax', 'numpy', 'lark', 'networkx', 'rich')))"
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
    root = Path(__file__).resolve().parents[2]
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
        ("partition", "p.spmd", "-D", "n=1.5"),
        ("partition", "p.spmd", "-D", "=1"),
        ("partition", "p.spmd", "--mesh", "x"),
        ("partition", "p.spmd", "--mesh", "x=0"),
        ("partition", "p.spmd", "--mesh", "x=2,x=4"),
        ("partition", "p.spmd", "--devices", "0"),
        ("partition", "p.spmd", "--devices", "nan"),
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


# check


def test_check_counts_ops(spmdc: Run) -> None:
    ended = spmdc("check", "p.spmd")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == "p.spmd: ok (6 ops, mesh x=4, y=2)\n"


def test_check_goes_on_after_a_faulty_file(spmdc: Run) -> None:
    Path("bad.spmd").write_text("def main(\n")
    ended = spmdc("check", "bad.spmd", "--verbose", "missing.spmd", "p.spmd")
    assert ended.status == 1
    assert "p.spmd: ok" in ended.out
    assert "bad.spmd:1" in ended.err
    assert "error[E005]: cannot read missing.spmd" in ended.err


def test_check_reads_standard_input(spmdc: Run) -> None:
    ended = spmdc("check", "-", stdin=PROGRAM.encode())
    assert (ended.status, ended.out) == (0, "-: ok (6 ops, mesh x=4, y=2)\n")
    ended = spmdc("check", "-", stdin=b"mesh (x=0)\ndef main() -> () { return }\n")
    assert ended.status == 1
    assert "<stdin>:1" in ended.err


def test_check_reports_as_json(spmdc: Run) -> None:
    Path("bad.spmd").write_text("def main() -> f32[] { return y }\n")
    ended = spmdc("check", "p.spmd", "bad.spmd", "--json")
    assert (ended.status, ended.err) == (1, "")
    assert [f["ok"] for f in ended.json["files"]] == [True, False]
    (problem,) = ended.json["diagnostics"]
    assert problem["code"] == "E101"
    assert problem["span"]["file"] == "bad.spmd"


NESTED = "(" * 100 + "a" + ")" * 100
BAD_PROGRAMS = {
    "unknown op": ("E103", "def main(a: f32[8]) -> (f32[8]) {\n  return frobnicate(a)\n}"),
    "wrong shapes": ("E201", "def main(a: f32[8, 3], b: f32[8, 4]) -> (f32[8, 3]) {\n  return add(a, b)\n}"),
    "wrong result": ("E401", "def main(a: f32[8]) -> (f32[9]) {\n  return a\n}"),
    "axis twice": ("E302", "mesh (x=2)\ndef main(a: f32[8@x, 8@x]) -> (f32[8, 8]) {\n  return a\n}"),
    "axis not in the mesh": ("E301", "mesh (x=2)\ndef main(a: f32[8@z]) -> (f32[8]) {\n  return a\n}"),
    "no mesh": ("E306", "def main(a: f32[8@x]) -> (f32[8]) {\n  return a\n}"),
    "more partitions than devices": (
        "E305",
        "mesh (x=2)\ndef main(a: f32[8]) -> (f32[8]) {\n  return split(a, 0, 4)\n}",
    ),
    "device id twice": ("E304", "mesh (x=2) devices=[1, 1]\ndef main() -> () {\n  return\n}"),
    "an axis of no devices": ("E304", "mesh (x=0)\ndef main() -> () {\n  return\n}"),
    "cycle": (
        "E402",
        "def main(a: f32[8]) -> (f32[8]) {\n  return f(a)\n}\n\ndef f(a: f32[8]) -> (f32[8]) {\n  return main(a)\n}",
    ),
    "missing return": ("E401", "def main(a: f32[8]) -> (f32[8]) {\n  b = neg(a)\n}"),
    "a const that does not divide": ("E204", "const A = 7 / 2\ndef main(a: f32[A]) -> (f32[A]) {\n  return a\n}"),
    "a size that is no number": ("E205", "def main(a: f32[nan]) -> (f32[8]) {\n  return a\n}"),
    "a size below zero": ("E205", "def main(a: f32[-3]) -> (f32[-3]) {\n  return a\n}"),
    "a name not defined": ("E101", "def main(a: f32[8]) -> (f32[8]) {\n  return a + b\n}"),
    "a name defined twice": ("E102", "def main(a: f32[8]) -> (f32[8]) {\n  b = a\n  b = a\n  return b\n}"),
    "no end": ("E001", "def main(a: f32[8]) -> (f32[8]) {\n  return a\n"),
    "deep nesting": ("E003", f"def main(a: f32[8]) -> (f32[8]) {{\n  return {NESTED}\n}}"),
}


@pytest.mark.parametrize("name", BAD_PROGRAMS)
def test_a_faulty_program_is_told_with_code_place_line_and_caret(spmdc: Run, name: str) -> None:
    code, text = BAD_PROGRAMS[name]
    Path("bad.spmd").write_text(f"{text}\n")
    ended = spmdc("check", "bad.spmd")
    assert ended.status == 1
    assert ended.out == ""
    assert f"error[{code}]" in ended.err, ended.err
    assert "Traceback" not in ended.err
    place = next(line for line in ended.err.splitlines() if line.startswith("  --> bad.spmd:"))
    line, column = map(int, place.split(":")[1:3])
    assert f" {line} | {text.splitlines()[line - 1][:100]}" in ended.err
    assert "^" in ended.err
    assert column >= 1


def test_binary_data_is_told_with_its_place(spmdc: Run) -> None:
    Path("bad.spmd").write_bytes(b"mesh (x=2)\ndef \xff\xfe\x00")
    ended = spmdc("check", "bad.spmd")
    assert ended.status == 1
    assert "error[E002]" in ended.err
    assert "--> bad.spmd:2:5" in ended.err
    ended = spmdc("check", "-", stdin=bytes(range(32)) * 100)
    assert ended.status == 1
    assert "error[E002]" in ended.err


def test_a_line_of_ten_megabytes_is_refused(spmdc: Run) -> None:
    Path("bad.spmd").write_text("# ok\n" + "x" * 10_000_000)
    ended = spmdc("check", "bad.spmd")
    assert ended.status == 1
    assert "error[E004]" in ended.err
    assert "--> bad.spmd:2:1" in ended.err
    assert len(ended.err) < 1000


def test_a_folder_is_not_a_program(spmdc: Run) -> None:
    ended = spmdc("check", ".")
    assert ended.status == 1
    assert "error[E005]" in ended.err


def test_colour_only_where_a_terminal_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from spmdc.commands.terminal import use_color

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


# Printing programs


def test_propagate_prints_every_sharding(spmdc: Run) -> None:
    ended = spmdc("propagate", "p.spmd")
    assert (ended.status, ended.err) == (0, "")
    assert "h: f32[16@x, 8@y] = dot_general(a, w" in ended.out
    assert spmdc("propagate", "p.spmd", "--json").json["text"] == ended.out


def test_what_propagate_prints_is_a_program(spmdc: Run) -> None:
    text = spmdc("propagate", "p.spmd").out
    assert spmdc("propagate", "-", stdin=text.encode()).out == text


def test_partition_prints_the_program_of_one_device(spmdc: Run) -> None:
    ended = spmdc("partition", "p.spmd")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("spmd\nmesh (x=4, y=2)\n")
    assert "f32[4, 32] of f32[16@x, 32]" in ended.out
    assert "all_reduce(" in ended.out


def test_partition_tells_what_is_communicated(spmdc: Run) -> None:
    ended = spmdc("partition", "p.spmd", "--stats", "--verbose")
    table = ended.out.split("\n\n")[-1].splitlines()
    assert table[0].split() == ["collective", "axes", "bytes", "count", "source", "reason"]
    assert table[1].startswith("all_reduce  x, y      7      1  p.spmd:")
    assert "received by the worst device" in table[2]
    assert "propagate" in ended.err
    (collective,) = spmdc("partition", "p.spmd", "--json").json["collectives"]
    assert (collective["kind"], collective["bytes"], collective["count"]) == ("all_reduce", 7, 1)


def test_partition_over_another_mesh(spmdc: Run) -> None:
    ended = spmdc("partition", "p.spmd", "--mesh", "x=2,y=1")
    assert ended.status == 0
    assert "mesh (x=2, y=1)" in ended.out
    ended = spmdc("partition", "p.spmd", "--mesh", "z=2")
    assert ended.status == 1
    assert "error[E301]" in ended.err


CROSSED = b"""
mesh (d=4)
def main(a: f32[64@d, 32], b: f32[32, 64@d]) -> (out: f32[64@d, 64]) {
  return einsum("ij,jk->ik", a, b)
}
"""


def test_a_memory_limit_keeps_operands_from_being_gathered(spmdc: Run) -> None:
    whole = spmdc("partition", "-", "--json", stdin=CROSSED).json
    parts = spmdc("partition", "-", "--json", "--memory-limit", "13.5 KiB", stdin=CROSSED).json
    assert [c["kind"] for c in whole["collectives"]] == ["all_gather"]
    assert [(c["kind"], c["count"]) for c in parts["collectives"]] == [("collective_permute", 3)]
    assert "windowed einsum: parts of b travel along d" in parts["collectives"][0]["reason"]
    assert parts["peak_bytes"] <= 13.5 * 1024 < whole["peak_bytes"]
    ended = spmdc("partition", "-", "--memory-limit", "1", stdin=CROSSED)
    assert ended.status == 0
    assert "warning[W002]: dot_general takes" in ended.err


def test_einsums_are_windowed_when_asked(spmdc: Run) -> None:
    flag = ("--windowed-einsum", "always")
    assert "lax.while_loop" in spmdc("lower", "-", *flag, stdin=CROSSED).out
    assert "lax.while_loop" not in spmdc("lower", "-", stdin=CROSSED).out
    assert spmdc("run", "-", "--check", "--integers", *flag, stdin=CROSSED).status == 0


def test_devices_sizes_a_mesh_of_one_axis(spmdc: Run) -> None:
    text = b"mesh (d=8)\ndef main(a: f32[12@d]) -> (f32[12]) {\n  return a + a\n}\n"
    assert "f32[4] of f32[12@d]" in spmdc("partition", "-", "--devices", "3", stdin=text).out


def test_a_program_without_a_mesh_takes_one_from_the_command_line(spmdc: Run) -> None:
    text = b"def main(a: f32[12]) -> (f32[12]) {\n  return a + a\n}\n"
    assert spmdc("check", "-", stdin=text).out == "-: ok (1 op, no mesh)\n"
    assert "mesh ()" in spmdc("partition", "-", stdin=text).out
    assert "mesh (x=2)" in spmdc("partition", "-", "--mesh", "x=2", stdin=text).out
    assert "mesh (d=2)" in spmdc("partition", "-", "--devices", "2", stdin=text).out


def test_defines_override_consts(spmdc: Run) -> None:
    text = b"const N = 8, M = 2\nmesh (d=M)\ndef main(a: f32[N@d]) -> (f32[N]) {\n  return a + a\n}\n"
    assert "f32[4] of f32[12@d]" in spmdc("partition", "-", "-D", "N=12", "-D", "M=3", stdin=text).out
    ended = spmdc("partition", "-", "-D", "K=12", stdin=text)
    assert ended.status == 1
    assert "error[E104]" in ended.err


def test_why_names_the_annotation(spmdc: Run) -> None:
    ended = spmdc("why", "p.spmd", "h")
    assert ended.status == 0
    assert "h: f32[16@x, 8@y]" in ended.out
    assert "annotated" in ended.out
    assert "p.spmd:3" in ended.out
    ended = spmdc("why", "p.spmd", "hh")
    assert ended.status == 1
    assert "error[E101]" in ended.err
    assert "did you mean" in ended.err


def test_lower_writes_a_module(spmdc: Run) -> None:
    ended = spmdc("lower", "p.spmd", "--emit", "jax")
    assert ended.status == 0
    compile(ended.out, "out.py", "exec")
    assert "shard_map" in ended.out
    assert spmdc("lower", "p.spmd", "-o", "out.py").out == ""
    assert Path("out.py").read_text() == ended.out
    assert "shard_map" not in spmdc("lower", "p.spmd", "--unpartitioned").out


def test_lower_writes_stablehlo_and_hlo_of_one_device(spmdc: Run) -> None:
    assert "func.func @main" in spmdc("lower", "p.spmd", "--emit", "stablehlo").out
    assert spmdc("lower", "p.spmd", "--emit", "hlo").out.startswith("HloModule p,")


def test_an_output_that_cannot_be_written(spmdc: Run) -> None:
    ended = spmdc("lower", "p.spmd", "-o", "no/such/folder/out.py")
    assert ended.status == 1
    assert "error[E005]: cannot write" in ended.err


def test_explain_knows_every_code(spmdc: Run) -> None:
    for code in EXPLANATIONS:
        assert spmdc("explain", code).status == 0
    assert all(code in spmdc("explain").out for code in EXPLANATIONS)
    assert spmdc("explain", "e201").out == spmdc("explain", "E201").out
    assert "did you mean E20" in spmdc("explain", "E20").err


# run


@pytest.mark.parametrize("backend", ["simulate", "jax", "reference"])
def test_run_checks_itself_on_every_backend(spmdc: Run, backend: str) -> None:
    ended = spmdc("run", "p.spmd", "--backend", backend, "--check", "--integers")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.count("equal to the unpartitioned run") == 2
    assert "out: f32[16, 8]" in ended.out


def test_run_draws_the_same_inputs_from_the_same_seed(spmdc: Run) -> None:
    first = spmdc("run", "p.spmd", "--seed", "1").out
    assert spmdc("run", "p.spmd", "--seed", "1").out == first
    assert spmdc("run", "p.spmd", "--seed", "2").out != first


def test_run_reads_inputs_and_writes_results(spmdc: Run) -> None:
    given = inputs()
    np.savez("in.npz", **{k: given[k] for k in ("a", "w")})  # type: ignore[arg-type]
    np.save("b.npy", given["b"])
    ended = spmdc("run", "p.spmd", "--out", "out.npz", "in.npz", "b=b.npy")
    assert (ended.status, ended.err) == (0, "")
    expected = np.maximum(given["a"] @ given["w"] + given["b"], 0)
    with np.load("out.npz") as results:
        np.testing.assert_array_equal(results["out"], expected)
        np.testing.assert_array_equal(results["total"], expected.sum())
    assert str(int(expected.sum())) in ended.out


def test_run_rejects_all_wrong_inputs_at_once(spmdc: Run) -> None:
    np.savez("in.npz", a=np.zeros((16, 31), np.float32), b=np.zeros(8, np.float64), c=np.zeros(1))
    ended = spmdc("run", "p.spmd", "in.npz")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.count("error[E501]") == 4
    assert "'c'" in ended.err
    assert "input 'a' is f32[16, 31], and the program takes f32[16, 32]" in ended.err
    assert "input 'w', f32[32, 8], is missing" in ended.err
    assert "x.astype('float32')" in ended.err


def test_run_rejects_files_that_hold_no_arrays(spmdc: Run) -> None:
    np.save("pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save("plain.npy", np.zeros(8, np.float32))
    Path("empty.npz").write_bytes(b"")
    Path("broken.npz").write_bytes(b"PK\x03\x04 not a zip")
    for argument in ("b=pickled.npy", "plain.npy", "empty.npz", "broken.npz", "p.spmd", "missing.npz"):
        ended = spmdc("run", "p.spmd", argument)
        assert ended.status == 1, argument
        assert ended.err.count("error[E") == 1, ended.err


def test_an_input_given_twice(spmdc: Run) -> None:
    np.savez("in.npz", **inputs())  # type: ignore[arg-type]
    ended = spmdc("run", "p.spmd", "in.npz", "in.npz")
    assert ended.status == 1
    assert "given twice" in ended.err


def test_bf16_survives_files(spmdc: Run) -> None:
    Path("b.spmd").write_text("mesh (x=2)\ndef main(a: bf16[4@x]) -> (r: bf16[4]) {\n  return a + a\n}\n")
    assert spmdc("run", "b.spmd", "--integers", "--out", "r.npz").status == 0
    with np.load("r.npz") as results:
        np.savez("in.npz", a=results["r"])
    assert spmdc("run", "b.spmd", "in.npz", "--check").status == 0


def test_run_takes_a_partitioned_program(spmdc: Run) -> None:
    np.savez("in.npz", **inputs())  # type: ignore[arg-type]
    Path("q.spmd").write_text(spmdc("partition", "p.spmd").out)
    assert spmdc("run", "q.spmd", "in.npz").out == spmdc("run", "p.spmd", "in.npz").out
    ended = spmdc("run", "q.spmd", "--check")
    assert ended.status == 2
    assert "E601" in ended.err
    for verb in (("partition", "q.spmd"), ("propagate", "q.spmd"), ("why", "q.spmd", "h")):
        ended = spmdc(*verb)
        assert ended.status == 1
        assert "error[E406]" in ended.err


def test_run_reports_as_json(spmdc: Run) -> None:
    ended = spmdc("run", "p.spmd", "--json", "--check", "--integers")
    assert (ended.status, ended.err) == (0, "")
    out, total = ended.json["results"]
    assert out["type"] == "f32[16, 8]"
    assert out["difference"] == 0
    assert total["value"] == total["min"] == total["max"]
    assert {"parse", "propagate", "partition", "simulate", "reference"} <= ended.json["timings"].keys()


def test_json_has_words_for_what_is_not_finite(spmdc: Run) -> None:
    text = b"mesh (x=2)\ndef main(a: f32[2@x]) -> (r: f32[2]) {\n  return a / 0.0\n}\n"
    ended = spmdc("run", "-", "--json", "--integers", stdin=text)
    assert ended.status == 0
    assert set(ended.json["results"][0]["value"]) <= {"inf", "-inf", "nan"}


def test_a_result_that_is_off_is_an_error(spmdc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import lowering.reference

    simulate = lowering.reference.simulate
    monkeypatch.setattr(lowering.reference, "simulate", lambda *a, **k: tuple(x + 1 for x in simulate(*a, **k)))
    ended = spmdc("run", "p.spmd", "--check")
    assert ended.status == 1
    assert ended.err.count("error[E504]") == 2
    ended = spmdc("run", "p.spmd", "--check", "--json")
    assert ended.status == 1
    assert [d["code"] for d in ended.json["diagnostics"]] == ["E504", "E504"]


# Ends that are nobody's wish


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


# fmt

UGLY = "mesh (x=4,   y=2)\n\n\n\ndef  main(a: f32[16@x,32])->(out: f32[16,32]) { # why\n    return   a+a }\n"


def test_fmt_rewrites_in_place_and_then_has_nothing_to_do(spmdc: Run) -> None:
    path = Path("ugly.spmd")
    path.write_text(UGLY)
    path.chmod(0o640)
    before = spmdc("propagate", "ugly.spmd").out
    ended = spmdc("fmt", "ugly.spmd", "p.spmd")
    assert (ended.status, ended.out, ended.err) == (0, "reformatted ugly.spmd\n", "")
    text = path.read_text()
    assert "  return a + a\n" in text
    assert "# why" in text
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in Path().iterdir()) == ["p.spmd", "ugly.spmd"]
    assert spmdc("propagate", "ugly.spmd").out == before
    assert spmdc("fmt", "ugly.spmd").out == ""


def test_fmt_only_tells_when_asked_to(spmdc: Run) -> None:
    Path("ugly.spmd").write_text(UGLY)
    ended = spmdc("fmt", "--check", "p.spmd", "ugly.spmd")
    assert (ended.status, ended.out) == (1, "would reformat ugly.spmd\n")
    ended = spmdc("fmt", "--diff", "ugly.spmd")
    assert ended.status == 1
    assert "+  return a + a\n" in ended.out
    assert Path("ugly.spmd").read_text() == UGLY
    assert spmdc("fmt", "--check", "p.spmd").status == 0


def test_fmt_of_standard_input_goes_to_standard_output(spmdc: Run) -> None:
    ended = spmdc("fmt", "-", stdin=UGLY.encode())
    assert ended.status == 0
    assert "  return a + a\n" in ended.out


def test_fmt_leaves_a_faulty_file_alone_and_goes_on(spmdc: Run) -> None:
    Path("bad.spmd").write_text("def main( {")
    Path("ugly.spmd").write_text(UGLY)
    ended = spmdc("fmt", "bad.spmd", "ugly.spmd", "missing.spmd")
    assert ended.status == 1
    assert ended.out == "reformatted ugly.spmd\n"
    assert "--> bad.spmd:1" in ended.err
    assert "error[E005]" in ended.err
    assert Path("bad.spmd").read_text() == "def main( {"


def test_fmt_reports_as_json(spmdc: Run) -> None:
    Path("p.spmd").write_text("def main( a:f32[8] )->f32[8]{return a}")
    Path("q.spmd").write_text("def main(\n")
    ended = spmdc("fmt", "--check", "--json", "p.spmd", "q.spmd")
    assert (ended.status, ended.err) == (1, "")
    assert ended.json["files"] == [
        {"file": "p.spmd", "ok": True, "changed": True},
        {"file": "q.spmd", "ok": False},
    ]
    assert {d["code"] for d in ended.json["diagnostics"]} == {"E001"}
    assert "+def main(a: f32[8]) -> f32[8] {" in spmdc("fmt", "--diff", "--json", "p.spmd").json["files"][0]["diff"]
    assert spmdc("fmt", "-", "--json", stdin=b"const  A=1").json["files"][0]["text"] == "const A = 1\n"
    assert spmdc("fmt", "p.spmd", "--json").json["files"] == [{"file": "p.spmd", "ok": True, "changed": True}]
    assert spmdc("fmt", "p.spmd", "--json").json["files"] == [{"file": "p.spmd", "ok": True, "changed": False}]


def test_explain_reports_as_json(spmdc: Run) -> None:
    assert spmdc("explain", "e201", "--json").json == {"code": "E201", "text": EXPLANATIONS["E201"]}
    listed = spmdc("explain", "--json").json["codes"]
    assert {entry["code"]: entry["text"] for entry in listed} == EXPLANATIONS
    ended = spmdc("explain", "E999", "--json")
    assert (ended.status, [d["code"] for d in ended.json["diagnostics"]]) == (2, ["E601"])


def test_an_interrupted_fmt_loses_nothing(spmdc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    Path("ugly.spmd").write_text(UGLY)
    monkeypatch.setattr("os.fsync", interrupt)
    assert spmdc("fmt", "ugly.spmd").status == 130
    assert Path("ugly.spmd").read_text() == UGLY
    assert sorted(p.name for p in Path().iterdir()) == ["p.spmd", "ugly.spmd"]


def test_a_program_too_large_for_the_machine_is_told_so(spmdc: Run) -> None:
    text = b"mesh (x=2)\ndef main(a: f32[1048576@x, 1048576]) -> (r: f32[1048576, 1048576]) {\n  return a + a\n}\n"
    assert spmdc("partition", "-", stdin=text).status == 0
    ended = spmdc("run", "-", stdin=text)
    assert ended.status == 1
    assert "error[E505]" in ended.err


def test_a_full_disk_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "p.spmd").write_text(PROGRAM)
    code = "import sys, spmdc.cli; sys.exit(spmdc.cli.main(['partition', sys.argv[1]]))"
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", code, str(tmp_path / "p.spmd")]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error[E005]: cannot write to standard output: No space left on device\n"


# Any text at all

SEEDS = (
    PROGRAM,
    UGLY,
    """\
const D = 4, N = 2 * D
mesh (d=D, e=2) devices=[7, 6, 5, 4, 3, 2, 1, 0]

def main(a: f32[N@d, 8@?], b: s32[3]{replicated}) -> (r: f32[N, 8@e], n: s32[]) {
  c: f32[N@(d,?), 8] = layer(split(a, 0, D), 0.5)   # a note
  i, x = while(i: s32[] = 0, x: f32[N, 8] = c, trip_count=3) cond {
    return i < 3
  } do {
    return i + 1, softmax(x, dim=-1) * 2.0
  }
  y = repeat k < 2 (y = x) {
    return concatenate(y[0:4], y[4:N], dim=0) + einsum("ij,jk->ik", y, ones([8, 8]))
  }
  return y, sum(b) + i
}

def layer(x: f32[N, 8], s: f32[]) -> (f32[N, 8]) {
  return where(x > s, relu(x), -x ** 2.0)
}
""",
)
PIECES = (
    *("", "(", ")", "[", "]", "{", "}", ",", ":", "@", "?", "=", "-", "->", "!1", "%", "#", '"', "\n", " ", "\0", "é"),
    *("0", "1", "7", "-1", "99999999999999999999", "1e999", "nan", "x", "a", "d", "D", "f32[]", "s32[2]", "d:(2)2"),
    *("def", "return", "mesh", "const", "while", "repeat", "spmd\n", "{partial: d}", "main(a)", "dim=9", "shape=[2]"),
    *("reshape", "reduce_window", "replicate", "layer", "einsum"),
)


WORD = re.compile(r"\w+|[^\w\s]")


@st.composite
def mistaken(draw: st.DrawFn) -> str:
    """A program with words exchanged for other words of it."""
    text = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 3))):
        words = list(WORD.finditer(text))
        old = draw(st.sampled_from(words))
        new = draw(st.sampled_from(words))
        text = text[: old.start()] + new[0] + text[old.end() :]
    return text


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A program with pieces put in and taken out."""
    text = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from((0, 0, 1, 2, 5, 20, 80))))
        text = text[:start] + draw(st.sampled_from(PIECES)) + text[end:]
    return text


@pytest.mark.parametrize("text", SEEDS)
def test_the_texts_to_damage_are_sound(spmdc: Run, text: str) -> None:
    assert spmdc("run", "-", "--check", "--integers", stdin=text.encode()).status == 0


@given(damaged() | mistaken())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_text_holds_it_is_run_or_told_what_is_wrong(spmdc: Run, text: str) -> None:
    ended = spmdc("check", "-", stdin=text.encode())
    assert ended.status in (0, 1), f"{text}\n{ended.err}"
    if ended.status:
        assert "error[E" in ended.err
        return
    ended = spmdc("partition", "-", stdin=text.encode())
    assert ended.status in (0, 1), f"{text}\n{ended.err}"
    assert spmdc("fmt", "-", stdin=text.encode()).status == 0, text


def test_a_mesh_of_any_size_costs_nothing_to_partition_for(spmdc: Run) -> None:
    ended = spmdc("partition", "p.spmd", "--mesh", "x=1000000000000,y=2")
    assert ended.status == 0
    assert "a: f32[1, 32] of f32[16@x, 32]" in ended.out


def test_a_gather_is_warned_of_and_does_not_fail(spmdc: Run) -> None:
    text = b"mesh (x=2)\ndef main(a: f32[8@x]) -> (r: f32[8]) {\n  return running(a)\n}\n" + (
        b"def running(a: f32[8]) -> (f32[8]) {\n  return sort(a, dim=0)\n}\n"
    )
    for verb in (("partition", "-"), ("run", "-"), ("lower", "-")):
        ended = spmdc(*verb, stdin=text)
        assert ended.status == 0
        assert "warning[W001]: sort gathers a" in ended.err
        assert "--> <stdin>:6:10" in ended.err
    (warning,) = spmdc("partition", "-", "--json", stdin=text).json["diagnostics"]
    assert (warning["code"], warning["severity"]) == ("W001", "warning")


def test_grad_prints_a_program(spmdc: Run) -> None:
    ended = spmdc("grad", "p.spmd", "--wrt", "w", "--of", "out")
    assert ended.status == 0
    assert "d_w" in ended.out
    assert spmdc("grad", "p.spmd", "--wrt", "w", "--of", "out", "-o", "g.spmd").out == ""
    assert spmdc("check", "g.spmd").status == 0
    assert "error[E101]" in spmdc("grad", "p.spmd", "--wrt", "nothing").err
    assert spmdc("grad", "p.spmd", "--wrt", "w,,b").status == 2


def test_compare_prints_both_partitioners_bytes(spmdc: Run) -> None:
    ended = spmdc("compare", "p.spmd")
    assert ended.status == 0
    assert "spmdc / XLA: " in ended.out
    assert json.loads(spmdc("compare", "p.spmd", "--json").out)["ratio"] <= 1
