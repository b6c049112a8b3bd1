"""Two programs have the same fingerprint if they compute the same, wherever, and whatever the names in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from training import PROGRAM

import spmdc
from spmdc.training.fingerprint import fingerprint_of, text_of


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x=2, y=2", "x=4, y=1"),
        ("T@x", "T"),
        ("B@x", "B"),
        ("hidden", "inner"),
        ("  wanted", "  # a comment\n\n  wanted"),
        ("(hidden, wo)", "(shard(hidden, group=0), wo)"),
        ("const B = 8", "const D = 2, B = 4 * D"),
    ],
)
def test_names_annotations_and_the_mesh_do_not_matter(old: str, new: str) -> None:
    other = PROGRAM.replace(old, new)
    assert fingerprint_of(spmdc.parse(other)) == fingerprint_of(spmdc.parse(PROGRAM))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("relu", "gelu"),
        ("wanted != 0", "wanted != 1"),
        ("-sum(probable", "sum(probable"),
        ("normal(0.1)", "normal(0.2)"),
        ("B = 8", "B = 4"),
        ("right: f32", "hits: f32"),
    ],
)
def test_what_is_computed_matters(old: str, new: str) -> None:
    other = PROGRAM.replace(old, new)
    assert other != PROGRAM
    assert fingerprint_of(spmdc.parse(other)) != fingerprint_of(spmdc.parse(PROGRAM))


FUNCTIONS = """\
def main(x: f32[8], w: f32[8] = 0) -> (loss: f32[], size: f32[]) {
  a = twice(sin(x))
  b = cos(w) + other(x)
  n, o = while(i = 0, s = x) cond { return i < 3 } do { return i + 1, s + exp(a) * exp(b) }
  return sum(o), sum(a)
}
def twice(y: f32[8]) -> (z: f32[8]) {
  return other(y) + y
}
def other(y: f32[8]) -> (z: f32[8]) {
  return y * 3
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def twice", "def unused(y: f32[8]) -> (z: f32[8]) {\n  return other(y) - y\n}\ndef twice"),
        ("  b = ", "  c = tan(other(w))\n  b = "),
        ("a = twice(sin(x))\n  b = cos(w) + other(x)", "b = cos(w) + other(x)\n  a = twice(sin(x))"),
        ("twice", "doubled"),
        ("other", "another"),
        ("exp(a) * exp(b)", "shard(exp(a), group=0) * exp(b)"),
    ],
)
def test_what_no_result_depends_on_order_and_names_of_functions_do_not_matter(old: str, new: str) -> None:
    other = FUNCTIONS.replace(old, new)
    assert other != FUNCTIONS
    assert fingerprint_of(spmdc.parse(other)) == fingerprint_of(spmdc.parse(FUNCTIONS))


def test_the_order_of_functions_does_not_matter() -> None:
    main, *others = FUNCTIONS.split("def ")[1:]
    other = "".join(f"def {function}" for function in (*reversed(others), main))
    assert fingerprint_of(spmdc.parse(other)) == fingerprint_of(spmdc.parse(FUNCTIONS))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y * 3", "y * 4"),
        ("other(y) + y", "other(y) + other(y)"),
        ("exp(a) * exp(b)", "exp(a) * exp(a)"),
        ("exp(a) * exp(b)", "exp(a) * exp(s)"),
        ("cos(w) + other(x)", "cos(x) + other(w)"),
        ("a = twice(sin(x))", "a = other(sin(x))"),
        ("i < 3", "i < 4"),
        ("cond { return i < 3 }", "cond { return sum(s) < 3 }"),
    ],
)
def test_what_is_computed_in_functions_and_loops_matters(old: str, new: str) -> None:
    other = FUNCTIONS.replace(old, new)
    assert other != FUNCTIONS
    assert fingerprint_of(spmdc.parse(other)) != fingerprint_of(spmdc.parse(FUNCTIONS))


def test_each_number_of_a_long_constant_matters() -> None:
    numbers = [0.5] * 5000
    text = "def main(w: f32[5000] = 0) -> (loss: f32[]) {{\n  return sum(w * constant({}, f32[5000]))\n}}"
    other = [*numbers[:2500], 0.25, *numbers[2501:]]
    assert fingerprint_of(spmdc.parse(text.format(numbers))) != fingerprint_of(spmdc.parse(text.format(other)))


def test_the_time_for_a_fingerprint_is_linear_in_lines_that_use_each_other_twice() -> None:
    lines = "".join(f"  x{i + 1} = x{i} + x{i}\n" for i in range(2000))
    text = f"def main(x0: f32[2], w: f32[2] = 0) -> (loss: f32[]) {{\n{lines}  return sum(x2000 * w)\n}}"
    assert len(fingerprint_of(spmdc.parse(text))) == 16


def test_a_callback_matters_if_its_effect_is_awaited() -> None:
    called = "  t = callback(w, u32(0), function=log, types=[], effect=true)\n"
    alone, dropped, awaited, other = (
        fingerprint_of(spmdc.parse(f"def main(w: f32[4] = 0) -> (loss: f32[]) {{\n{lines}  return sum(w)\n}}"))
        for lines in (
            "",
            called,
            called + "  await_callbacks(t)\n",
            called.replace("log", "log_more") + "  await_callbacks(t)\n",
        )
    )
    assert alone == dropped
    assert len({alone, awaited, other}) == 3


def test_the_text_of_a_program_is_that_of_all_its_files_wherever_they_are(tmp_path: Path) -> None:
    def text(folder: str, sizes: str) -> str | None:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sizes.spmd").write_text(sizes)
        part = 'include "sizes.spmd"\ndef f(x: f32[N]) -> (y: f32[N]) { return x }'
        (tmp_path / folder / "part.spmd").write_text(part)
        program = 'include "part.spmd"\ndef main(x: f32[N]) -> (y: f32[N]) { return f(x) }'
        (tmp_path / folder / "own.spmd").write_text(program)
        return text_of(spmdc.load(tmp_path / folder / "own.spmd"))

    assert text("a", "const N = 8") == text("b", "const N = 8") != text("c", "const N = 9")


def test_a_program_that_is_made_of_no_text_of_ours_has_none() -> None:
    assert text_of(spmdc.from_jax(lambda x: x + 1, 1.0)) is None
