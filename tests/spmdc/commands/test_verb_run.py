"""`spmdc run`: inputs, backends, results, and their comparison."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Run

from lowering.reference import simulate


def inputs() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"a": (16, 32), "w": (32, 8), "b": (8,)}
    return {name: rng.integers(-4, 5, shape).astype(np.float32) for name, shape in shapes.items()}


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
    np.savez("in.npz", **{k: given[k] for k in ("a", "w")})
    np.save("b.npy", given["b"])
    ended = spmdc("run", "p.spmd", "--out", "out.npz", "in.npz", "b=b.npy")
    assert (ended.status, ended.err) == (0, "wrote out.npz\n")
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
    assert "numpy.asarray(x, 'float32')" in ended.err


def test_run_rejects_files_that_hold_no_arrays(spmdc: Run) -> None:
    np.save("pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save("plain.npy", np.zeros(8, np.float32))
    Path("empty.npz").write_bytes(b"")
    Path("broken.npz").write_bytes(b"PK\x03\x04 not a zip")
    for argument in ("b=pickled.npy", "plain.npy", "empty.npz", "broken.npz", "p.spmd", "missing.npz"):
        ended = spmdc("run", "p.spmd", argument)
        assert ended.status == 1, argument
        assert ended.err.count("error[E") == 1, ended.err


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
def test_damaged_arrays_are_told_and_no_bug(spmdc: Run, save: Callable[..., None]) -> None:
    save("whole.bin", np.arange(8, dtype=np.float32))
    (whole,) = (p.read_bytes() for p in Path().glob("whole.bin.np?"))
    rng = random.Random(0)
    for _ in range(50):
        damaged = bytearray(whole[: rng.choice((len(whole), rng.randrange(len(whole))))])
        for _ in range(min(len(damaged), rng.choice((1, 2, 8)))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        Path("damaged").write_bytes(damaged)
        ended = spmdc("run", "p.spmd", "b=damaged" if save is np.save else "damaged")
        assert ended.status == 1, bytes(damaged)
        assert "error[E" in ended.err


def test_what_an_archive_holds_besides_arrays_is_told(spmdc: Run) -> None:
    with zipfile.ZipFile("in.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "holds 'readme.txt', which is no array" in spmdc("run", "p.spmd", "in.npz").err


def test_the_name_of_a_file_may_be_too_long(spmdc: Run) -> None:
    for argument in ("x" * 300, f"a={'x' * 300}"):
        assert "error[E005]: cannot read xxx" in spmdc("run", "p.spmd", argument).err


def test_what_is_no_file_of_inputs_is_told_what_would_be_one(spmdc: Run) -> None:
    for argument in ("random", "a=3"):
        assert "help: an input is inputs.npz or name=file.npy" in spmdc("run", "p.spmd", argument).err


def test_an_input_given_twice(spmdc: Run) -> None:
    np.savez("in.npz", **inputs())
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
    np.savez("in.npz", **inputs())
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
    assert {"parse", "propagate", "plan", "write", "simulate", "reference"} <= ended.json["timings"].keys()


def test_json_has_words_for_what_is_not_finite(spmdc: Run) -> None:
    text = b"mesh (x=2)\ndef main(a: f32[2@x]) -> (r: f32[2]) {\n  return a / 0.0\n}\n"
    ended = spmdc("run", "-", "--json", "--integers", stdin=text)
    assert ended.status == 0
    assert set(ended.json["results"][0]["value"]) <= {"inf", "-inf", "nan"}


def test_a_result_that_is_off_is_an_error(spmdc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spmdc.commands.run.simulate", lambda *a, **k: tuple(x + 1 for x in simulate(*a, **k)))
    ended = spmdc("run", "p.spmd", "--check")
    assert ended.status == 1
    assert ended.err.count("error[E504]") == 2
    ended = spmdc("run", "p.spmd", "--check", "--json")
    assert ended.status == 1
    assert [d["code"] for d in ended.json["diagnostics"]] == ["E504", "E504"]


def test_a_rounding_that_xla_leaves_out_is_explained(spmdc: Run) -> None:
    Path("squares.spmd").write_text(
        "mesh (x=4)\ndef main(a: f32[13@x]) -> (b: s32[13]) { return s32(f32(bf16(a) * bf16(a)) * 1000) }\n"
    )
    assert spmdc("run", "squares.spmd", "--check").status == 0
    ended = spmdc("run", "squares.spmd", "--check", "--backend", "jax")
    assert ended.status == 1
    assert "error[E504]: b is off by" in ended.err
    assert "XLA_FLAGS=--xla_allow_excess_precision=false" in ended.err
