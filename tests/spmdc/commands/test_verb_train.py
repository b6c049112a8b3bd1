"""`spmdc train`: what it says before the first step if there cannot be one."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from pathlib import Path

import pytest
from command_line import Run
from command_line import spmdc as spmdc
from training import CONFIG, PROGRAM, written

from ir.diagnostics import SpmdcError
from spmdc.commands.train import _live
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


def test_the_line_of_a_step_says_which_of_its_numbers_are_not_finite() -> None:
    nan = float("nan")
    assert _live({"step": 1, "loss": 2.0, "aux": nan, "load": [1.0, nan, 2.0]}) == "aux not finite, load 1 to 2"
    assert _live({"step": 1, "loss": 2.0, "load": [nan], "rest": []}) == "load not finite"


def test_every_error_in_what_is_trained_says_what_to_do() -> None:
    made = 0
    for path in Path(inspect.getfile(Trainer)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and any(isinstance(a, ast.Constant) and a.value == "E606" for a in node.args):
                called = ast.unparse(node.func)
                if called in ("error", "Diagnostic"):
                    made += 1
                    assert "help" in [k.arg for k in node.keywords], f"{path.name}:{node.lineno}"
    assert made > 20
