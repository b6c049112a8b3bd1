"""What weights hold at first: the parameters of main with an initializer."""

from __future__ import annotations

from pathlib import Path

import pytest

import spmdc
from ir.diagnostics import SpmdcError
from ir.initializers import Initializer
from spmdc.frontends.spmd import format_source, parse, print_program

HEAD = "const M = 16\nmesh (d=4)\n\n"
TEXT = f"""{HEAD}def main(x: f32[8@d, M], w: f32[M, 6@d] = normal(1 / M ** 0.5), scale: f32[6] = 1,
    b: f32[6] = uniform(low=-1, high=M), n: s32[] = 3, t: bf16[6@d] = truncated_normal(stddev=0.5))
    -> (loss: f32[]) {{
  return sum(matmul(x, w) * scale + b + f32(t) + f32(n))
}}
"""
WEIGHTS = {
    "w": Initializer("normal", (0.25,)),
    "scale": Initializer("", (1.0,)),
    "b": Initializer("uniform", (-1.0, 16.0)),
    "n": Initializer("", (3,)),
    "t": Initializer("truncated_normal", (0.5,)),
}


def test_parameters_with_an_initializer_are_weights_at_every_stage() -> None:
    program = parse(TEXT)
    plan = spmdc.plan(program)
    stages = [program, spmdc.propagate(program).program, plan.program, spmdc.partition(plan).program]
    stages += [parse(print_program(stage)) for stage in stages]
    stages.append(spmdc.gradient(program))
    assert [stage.weights for stage in stages] == [WEIGHTS] * 9
    assert parse(TEXT.replace("= 16", "= 4")).weights["w"] == Initializer("normal", (0.5,))


def test_they_are_formatted_as_bindings() -> None:
    text = TEXT.replace(" = ", "=").replace("M=16", "M = 16")
    assert format_source(text) == format_source(TEXT)
    assert "w: f32[M, 6@d] = normal(1 / M ** 0.5)" in format_source(text)
    assert "uniform(low=-1, high=M)" in format_source(text)


def test_weights_of_an_included_file_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "layer.spmd").write_text(TEXT + "\ndef twice(v: f32[4]) -> f32[4] { return v + v }\n")
    (tmp_path / "model.spmd").write_text(
        'include "layer.spmd"\n\ndef main(v: f32[4] = 2) -> f32[4] { return twice(v) }\n'
    )
    assert spmdc.load(tmp_path / "model.spmd").weights == {"v": Initializer("", (2.0,))}


@pytest.mark.parametrize(
    ("written", "code", "help"),
    [
        ("zeros", "E414", "write = 0"),
        ("ones([6])", "E414", "write = 1"),
        ("normal", "E414", "write = normal(stddev)"),
        ("normal()", "E203", "normal(stddev)"),
        ("normal(1, 2)", "E203", "normal(stddev)"),
        ("normal(1, stddev=2)", "E203", "normal(stddev)"),
        ("normal(scale=2)", "E203", "normal(stddev)"),
        ("nrmal(1)", "E414", "did you mean normal"),
        ("glorot_uniform(1)", "E414", "truncated_normal(stddev)"),
        ("normal(-0.5)", "E414", ""),
        ("normal(inf)", "E414", ""),
        ("uniform(1, 0)", "E414", ""),
        ("normal(1 / 3)", "E204", "`//`"),
        ("x", "E101", ""),
        ('"one"', "E207", ""),
        ("true", "E201", "write 1"),
        ("normal(1 1)", "E001", ""),
    ],
)
def test_what_says_nothing_of_a_weight_is_reported_where_it_is_written(written: str, code: str, help: str) -> None:
    text = TEXT.replace("scale: f32[6] = 1", f"scale: f32[6] = {written}")
    with pytest.raises(SpmdcError) as raised:
        parse(text, "t.spmd")
    (found,) = raised.value.diagnostics
    assert found.code == code
    assert help in found.help
    assert found.span is not None
    begins = text.splitlines()[found.span.line - 1].index("f32[6] = ") + len("f32[6] = ")
    assert begins < found.span.column <= begins + len(written)


@pytest.mark.parametrize(
    ("type", "written"), [("s32", "normal(1)"), ("pred", "uniform(0, 1)"), ("c64", "normal(1)"), ("s32", "1.5")]
)
def test_only_floats_are_drawn_and_numbers_fit_the_elements(type: str, written: str) -> None:
    with pytest.raises(SpmdcError) as raised:
        parse(f"def main(w: {type}[4] = {written}) -> {type}[4] {{ return w }}")
    assert raised.value.diagnostics[0].code in ("E414", "E201")


def test_parameters_of_other_functions_are_no_weights() -> None:
    with pytest.raises(SpmdcError) as raised:
        parse("def main(w: f32[4]) -> f32[4] { return f(w) }\ndef f(v: f32[4] = 0) -> f32[4] { return v }", "t.spmd")
    assert [(d.code, d.span.line) for d in raised.value.diagnostics if d.span is not None] == [("E414", 2)]


def test_without_weights_a_gradient_needs_names() -> None:
    with pytest.raises(SpmdcError, match="no weights to differentiate by"):
        spmdc.gradient(parse("def main(x: f32[4]) -> (loss: f32[]) { return sum(x) }"))
