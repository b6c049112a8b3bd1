"""A training whose gradient may take so much memory computes blocks of the program again, and has the same losses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import Run as Command
from command_line import spmdc as spmdc
from compiling import compiling_alike
from training import CONFIG, PROGRAM, losses, run_of, written

from ir.diagnostics import SpmdcError
from spmdc.api import partition
from spmdc.reading import from_jax
from spmdc.training.config import read_config

DEEP = PROGRAM.replace("wi: f32[M, 16@y] = normal(0.3)", "wi: f32[6, M, 256@y] = normal(0.3), back: f32[6, 256@y, M] = "
    "normal(0.05)").replace("wo: f32[16@y, V]", "wo: f32[M, V]").replace(
    "hidden = relu(matmul(before + expand_dims(read, 1), wi))",
    "hidden = loop l < 6 (h = before + expand_dims(read, 1)) { return h + matmul(gelu(matmul(h, wi[l])), back[l]) }",
)  # fmt: skip
LIMIT = 700_000


def limited(limit: str) -> str:
    return f"memory_limit = {limit}\n{CONFIG}"


@pytest.mark.parametrize(
    ("written_as", "count"), [("4096", 4096), ('"4096"', 4096), ('"64MiB"', 64 << 20), ('"1.5 GB"', 1_500_000_000)]
)
def test_a_limit_is_written_as_on_the_command_line(written_as: str, count: int, tmp_path: Path) -> None:
    assert read_config(written(tmp_path, limited(written_as))).memory_limit == count
    assert read_config(written(tmp_path)).memory_limit is None


@pytest.mark.parametrize("nonsense", ["0", "-1", "1.5", "true", "[1]", '"0 GiB"', '"-1"', '"12 parsecs"', '""'])
def test_a_limit_that_is_no_number_of_bytes_is_reported_at_its_line(nonsense: str, tmp_path: Path) -> None:
    with pytest.raises(SpmdcError, match="memory_limit is a number of bytes above 0, and not") as failed:
        read_config(written(tmp_path, limited(nonsense)))
    (found,) = failed.value.diagnostics
    assert found.code == "E606"
    assert found.span is not None
    assert found.span.line == 1
    assert "64MiB" in found.help


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("mesh", ["mesh (x=2, y=2)\n", ""], ids=["four devices", "no mesh"])
def test_a_gradient_beyond_the_limit_computes_its_loop_again_to_the_same_losses(mesh: str, tmp_path: Path) -> None:
    program = DEEP.replace("mesh (x=2, y=2)\n", mesh)
    if not mesh:
        program = program.replace("@x", "").replace("@y", "")
    free, within = (run_of(written(_made(tmp_path / n), c, program)) for n, c in
                    (("free", CONFIG), ("within", limited(str(LIMIT if mesh else 2 * LIMIT)))))  # fmt: skip
    assert free.trainer.warnings == ()
    (warning,) = within.trainer.warnings
    assert warning.code == "W004"
    assert warning.notes[0].startswith("computed again: the loop of hidden")
    assert not warning.help
    for run in (free, within):
        run.train(lambda record: None)
    np.testing.assert_allclose(losses(tmp_path / "within" / "train.toml"), losses(tmp_path / "free" / "train.toml"),
                               rtol=1e-5)  # fmt: skip


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.usefixtures("devices")
def test_the_step_keeps_less_of_what_the_loop_computes(tmp_path: Path) -> None:
    """The products of six layers with 256 hidden units are kept without a limit, and are not with one."""

    def peak(config: str) -> int:
        trainer = run_of(written(tmp_path, config, DEEP)).trainer
        weights, memory = trainer.first
        batch = {"source": np.zeros((8, 12), "i4"), "target": np.zeros((8, 10), "i4")}
        step = from_jax(trainer.updated, (weights, memory), batch, mesh={"x": 2, "y": 2},
                              in_shardings=(trainer.shardings, None))  # fmt: skip
        return partition(step).cost().peak

    assert peak(limited(str(LIMIT))) < 0.8 * peak(CONFIG)


def test_a_limit_that_cannot_be_kept_is_a_warning_with_a_way_out(tmp_path: Path, devices: object) -> None:
    (warning,) = run_of(written(tmp_path, limited("4096"))).trainer.warnings
    assert "and not the 4,096 that it may" in warning.message
    assert "more devices" in warning.help


@pytest.mark.usefixtures("devices")
def test_what_is_computed_again_is_among_the_figures(spmdc: Command) -> None:
    written(Path(), limited(str(LIMIT)).replace("steps = 6", "steps = 1"), DEEP)
    ended = spmdc("train", "train.toml", "--json")
    (warning,) = ended.json["diagnostics"]
    assert (ended.status, warning["code"], ended.err) == (0, "W004", "")


def test_several_processes_say_once_what_is_computed_again(tmp_path: Path) -> None:
    config = written(tmp_path, limited(str(LIMIT)).replace("steps = 6", "steps = 1"), DEEP)
    command = [sys.executable, "-m", "spmdc", "train", str(config), "--processes", "2"]
    ended = subprocess.run(command, env=compiling_alike(), text=True, capture_output=True, check=True, timeout=300)
    assert ended.stderr.count("warning[W004]: the gradient takes") == 1
    assert "the loop of hidden" in ended.stderr
