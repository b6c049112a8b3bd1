"""Programs of several files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import spmdc
from ir.diagnostics import SpmdcError
from ir.program import all_ops
from spmdc.frontends.spmd import format_source, print_program, read
from spmdc.frontends.spmd.names import Definition, names_of

GATING = """const T = 4, E = 3
mesh (elsewhere=2)

def gates(x: f32[T, E]) -> (g: f32[T, E]) {
  return softmax(x, dim=1)
}

def main(x: f32[T, E]) -> (g: f32[T, E]) {
  return gates(x)
}
"""
PROGRAM = """include "parts/gating.spmd"

const T = 8
mesh (d=2)

def main(x: f32[T@d, E]) -> (g: f32[T@d, E]) {
  return gates(x) + T
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "gating.spmd").write_text(GATING)
    (tmp_path / "program.spmd").write_text(PROGRAM)
    return tmp_path


def errors(path: Path) -> list[str]:
    with pytest.raises(SpmdcError) as caught:
        spmdc.load(path)
    return [f"{d.code} {os.path.relpath(str(d.span), path.parent)}" for d in caught.value.diagnostics]


def test_functions_and_consts_of_another_file_are_there_and_own_consts_come_first(folder: Path) -> None:
    program = spmdc.load(folder / "program.spmd")
    assert [str(mesh) for mesh in program.meshes] == ["d=2"]
    assert set(program.functions) == {"main", "gates"}
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    softmax = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(spmdc.evaluate(program, x)[0], softmax / softmax.sum(1, keepdims=True) + 8, rtol=1e-6)
    assert {Path(op.span.source.name).name for op in all_ops(program) if op.span} == {"program.spmd", "gating.spmd"}


def test_an_included_program_is_one_by_itself(folder: Path) -> None:
    assert spmdc.load(folder / "parts" / "gating.spmd").main.params[0].shape == (4, 3)


def test_consts_of_included_files_can_be_overridden(folder: Path) -> None:
    assert spmdc.load(folder / "program.spmd", {"E": 5, "T": 2}).main.params[0].shape == (2, 5)


def test_a_file_gives_its_consts_to_what_it_includes_and_the_program_to_both(folder: Path) -> None:
    between = PROGRAM.replace("parts/", "").replace("const T = 8", "const T = 8, E = 7")
    (folder / "parts" / "between.spmd").write_text(between + "def again(x: f32[T, E]) -> f32[T, E] { return gates(x) }")
    text = 'include "parts/between.spmd"\ndef main(x: f32[T, E]) -> (y: f32[T, E]) { return again(x) }'
    for consts, shape in (("", (8, 7)), ("const T = 2\n", (2, 7)), ("const T = 2, E = 5\n", (2, 5))):
        assert spmdc.parse(consts + text, "p.spmd", folder=str(folder)).main.params[0].shape == shape


def test_files_include_one_another_once(folder: Path) -> None:
    (folder / "parts" / "gating.spmd").write_text('include "../program.spmd"\ninclude "gating.spmd"\n' + GATING)
    (folder / "program.spmd").write_text(f'include "./parts/../parts/gating.spmd"\n{PROGRAM}')
    assert set(spmdc.load(folder / "program.spmd").functions) == {"main", "gates"}


def test_a_text_includes_from_the_folder_that_is_given(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spmdc.parse(PROGRAM, "p.spmd", folder=str(folder)).main.params[0].shape == (8, 3)
    monkeypatch.chdir(folder)
    assert spmdc.parse(PROGRAM).main.params[0].shape == (8, 3)


def test_what_is_printed_has_all_of_it(folder: Path) -> None:
    program = spmdc.load(folder / "program.spmd")
    printed = print_program(program)
    assert "include" not in printed
    assert print_program(spmdc.parse(printed), locations=False) == print_program(program, locations=False)


def test_errors_are_where_they_are_and_only_there(folder: Path) -> None:
    (folder / "parts" / "gating.spmd").write_text(GATING.replace("softmax(x", "softmax(y"))
    assert errors(folder / "program.spmd") == ["E101 parts/gating.spmd:5:18"]
    (folder / "parts" / "gating.spmd").write_text("def gates(\n")
    assert errors(folder / "program.spmd") == ["E001 parts/gating.spmd:1:10"]


def test_a_file_that_cannot_be_read_is_the_only_error(folder: Path) -> None:
    (folder / "program.spmd").write_text(PROGRAM.replace("parts/gating", "parts/gatin"))
    with pytest.raises(SpmdcError, match=r"did you mean .*gating\.spmd"):
        spmdc.load(folder / "program.spmd")
    assert errors(folder / "program.spmd") == ["E005 program.spmd:1:9"]
    (folder / "program.spmd").write_text(PROGRAM.replace("parts/gating.spmd", "parts"))
    assert errors(folder / "program.spmd") == ["E005 program.spmd:1:9"]
    (folder / "program.spmd").write_text(PROGRAM.replace("parts/gating.spmd", "/dev/zero"))
    assert len(errors(folder / "program.spmd")) == 1
    (folder / "program.spmd").write_text(PROGRAM)
    (folder / "parts" / "gating.spmd").write_bytes(b"const T = \xff\n")
    assert errors(folder / "program.spmd") == ["E002 parts/gating.spmd:1:11"]


@pytest.mark.parametrize("stage", ["plan", "spmd"])
def test_only_global_programs_are_included(folder: Path, stage: str) -> None:
    (folder / "parts" / "gating.spmd").write_text(f"{stage}\n{GATING}")
    assert errors(folder / "program.spmd")[0] == "E406 program.spmd:1:9"


def test_a_function_of_both_files_is_defined_twice(folder: Path) -> None:
    (folder / "program.spmd").write_text(f"{PROGRAM}\n{GATING[GATING.index('def gates') : GATING.index('def main')]}")
    assert errors(folder / "program.spmd") == ["E403 program.spmd:10:5"]


@pytest.mark.parametrize("line", ["include", "include gating", 'include "a.spmd" as a', 'import "a.spmd"'])
def test_what_is_no_include_is_answered_by_one(line: str) -> None:
    with pytest.raises(SpmdcError, match=r'include "other\.spmd"'):
        spmdc.parse(f"{line}\ndef main(x: f32[2]) -> (y: f32[2]) {{\n  return x\n}}\n")


def test_include_is_a_name_elsewhere() -> None:
    text = "def main(include: f32[2]) -> (y: f32[2]) {\n  include.1 = include\n  return include.1\n}\n"
    assert spmdc.parse(text).main.params[0].name == "include"


def test_includes_have_a_layout() -> None:
    ugly = 'include   "a.spmd"   # gates\n\n\n\ninclude "b.spmd"\nconst   N=8\ndef main(x: f32[N]) -> f32[N] {return x}'
    laid_out = 'include "a.spmd"  # gates\n\ninclude "b.spmd"\nconst N = 8\n\ndef main'
    assert format_source(ugly).startswith(laid_out)
    assert format_source(format_source(ugly)) == format_source(ugly)


def test_names_lead_to_the_file_that_defines_them(folder: Path) -> None:
    reading = read(PROGRAM, "program.spmd", str(folder))
    names = names_of(reading.module, reading.whole)
    found = names.at((7, 10))
    assert found is not None
    assert isinstance(found.target, Definition)
    assert (Path(found.target.span.source.name).name, found.target.span.line) == ("gating.spmd", 4)
    assert all(definition.span.source is reading.source for definition in names.definitions)
    assert reading.bound[3, 7] == 8
