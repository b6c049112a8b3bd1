"""`spmdc train`: what it says before the first step if there cannot be one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from command_line import Run
from command_line import spmdc as spmdc
from training import CONFIG, PROGRAM, written

from ir.diagnostics import SpmdcError
from spmdc.reading import parse
from spmdc.training.config import read_config
from spmdc.training.step import Trainer


@pytest.mark.parametrize("package", ["optax", "babel"])
def test_a_package_that_is_missing_is_named_with_the_extra_that_has_it(
    package: str, spmdc: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr("spmdc.commands.train.find_spec", lambda name: None if name == package else found(name))
    ended = spmdc("train", "train.toml")
    assert ended.status == 1
    assert f"training needs the package {package}" in ended.err
    assert "pip install 'spmdc[train]'" in ended.err


def test_a_run_has_a_folder_by_the_file_or_by_an_option(spmdc: Run) -> None:
    written(Path(), CONFIG.replace('out = "out"\n', ""))
    ended = spmdc("train", "train.toml")
    assert (ended.status, "error[E606]: out is missing" in ended.err) == (1, True)
    assert read_config(Path("train.toml"), Path("there")).out == Path("there")


@pytest.mark.parametrize("name", ["nothing.toml", "nothing.spmd"])
def test_a_file_that_is_not_there_is_named(name: str, spmdc: Run) -> None:
    written(Path(), CONFIG.replace("trained.spmd", "nothing.spmd"))
    ended = spmdc("train", name if name.endswith(".toml") else "train.toml")
    assert (ended.status, name in ended.err, "E005" in ended.err) == (1, True, True)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (PROGRAM.replace(" = normal(0.1)", "").replace(" = normal(0.3)", "").replace(" = 0)", ")"), "has no weights"),
        (PROGRAM.replace("loss: f32[]", "loss: f32[1]").replace("return -sum(probable * counted) / sum(counted)",
         "return expand_dims(-sum(probable * counted), 0)"), "the loss, a float scalar, and loss is f32[1]"),
        (PROGRAM.replace("right: f32[]", "seconds: f32[]"), "a metric is called seconds"),
        (PROGRAM.replace("right: f32[]", "held_out_loss: f32[]"), "a metric is called held_out_loss"),
    ],
)  # fmt: skip
def test_a_program_that_cannot_be_trained_is_refused(program: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SpmdcError) as failed:
        Trainer(parse(program), read_config(written(tmp_path)))
    assert said in str(failed.value)
    assert failed.value.diagnostics[0].code == "E606"
