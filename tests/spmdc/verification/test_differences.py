"""What passes for rounding between two runs, what a run that is off is reported as, and inputs that are drawn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ir.types import DTYPES, DType
from lowering.reference import simulate
from spmdc import parse, random_inputs
from spmdc.cli import main
from spmdc.verification.differences import (
    Difference,
    difference,
    differences,
    types_of_roundings,
    without_subnormals,
)

Array = npt.NDArray[Any]

INEXACT = [d for d in DTYPES.values() if (d.is_float or d.is_complex) and not d.is_short]


def compared(dtype: DType, got: Array, expected: Array) -> Difference:
    return difference("r", dtype, got, expected)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 100.0])
@pytest.mark.parametrize("dtype", INEXACT)
def test_zeros_and_other_signs_are_never_rounding(dtype: DType, scale: float) -> None:
    expected = (np.random.default_rng(0).standard_normal((8, 8)) * scale).astype(dtype.numpy)
    assert not compared(dtype, np.zeros_like(expected), expected).is_rounding
    assert not compared(dtype, -expected, expected).is_rounding
    assert not compared(dtype, (expected * 1.5).astype(dtype.numpy), expected).is_rounding


@pytest.mark.parametrize("dtype", ["f8e3m4", "f8e4m3", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"])
def test_of_8_bits_the_last_place_alone_is_rounding(dtype: str) -> None:
    element = DTYPES[dtype]
    expected = np.array([1.0, 0.25, -0.5]).astype(element.numpy)
    ulp = 2.0**-element.format.mantissa_bits
    off = np.array([1.0 + ulp, 0.25, -0.5]).astype(element.numpy)
    assert compared(element, off, expected).is_rounding
    for other in (-expected, np.zeros_like(expected), (expected * 1.5).astype(element.numpy)):
        assert not compared(element, other, expected).is_rounding


@pytest.mark.parametrize("dtype", INEXACT)
def test_the_last_places_of_the_largest_number_are_rounding(dtype: DType) -> None:
    expected = np.array([1.0, 0.25, -0.5]).astype(dtype.numpy)
    ulp = {"bf16": 2.0**-7, "f16": 2.0**-10, "f32": 2.0**-23, "f64": 2.0**-52}[dtype.component.name]
    off = (expected + np.array([4 * ulp, -2 * ulp, 0]).astype(dtype.numpy)).astype(dtype.numpy)
    difference = compared(dtype, off, expected)
    assert difference.largest == 4 * ulp
    assert difference.is_rounding


def test_nothing_but_equal_integers_agree() -> None:
    s32 = DTYPES["s32"]
    expected = np.array([1_000_000, 2], np.int32)
    assert compared(s32, expected, expected).is_rounding
    assert not compared(s32, expected + 1, expected).is_rounding


PROGRAMS = {
    "floats": "mesh (x=2)\ndef main(a: f32[4@x]) -> (r: f32[4]) {\n  return a + a\n}\n",
    "zeros": "mesh (x=2)\ndef main(a: f32[4@x]) -> (r: f32[4]) {\n  return a - a\n}\n",
    "chosen": "mesh (x=2)\ndef main(a: f32[4@x]) -> (r: pred[4]) {\n  return a > 0.0\n}\n",
    "integers": "mesh (x=2)\ndef main(a: s32[4@x]) -> (r: s32[4]) {\n  return a + a\n}\n",
}

Report = Callable[..., str]


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Report:
    """What `run --check` says of a program whose results are spoilt."""

    def run(program: str, spoil: Callable[[Array], Array], *options: str) -> str:
        monkeypatch.setattr("spmdc.commands.run.simulate", lambda *a, **k: tuple(map(spoil, simulate(*a, **k))))
        path = tmp_path / "p.spmd"
        path.write_text(PROGRAMS[program])
        assert main(["run", str(path), "--check", *options]) == 1
        return " ".join(capsys.readouterr().err.split())

    return run


@pytest.mark.parametrize("options", [(), ("--integers",)])
def test_a_wrong_shape_is_told_as_one_and_is_no_rounding(report: Report, options: tuple[str, ...]) -> None:
    text = report("floats", lambda x: x[None], *options)
    assert "error[E504]: r has shape [1, 4], and in the unpartitioned program [4]" in text
    assert "report" in text
    assert "rounding" not in text
    assert "--integers" not in text


@pytest.mark.parametrize("program", ["floats", "zeros"])
def test_floats_that_are_off_may_cancel(report: Report, program: str) -> None:
    text = report(program, lambda x: x + 1)
    assert "integers and booleans" not in text
    assert "rounding explains at most" in text
    assert "cancel" in text
    assert "try --integers" in text


@pytest.mark.parametrize("program", ["floats", "chosen"])
def test_with_integers_the_help_names_what_is_not_exact_on_them(report: Report, program: str) -> None:
    text = report(program, lambda x: x + 1 if x.dtype != np.bool_ else ~x, "--integers")
    assert "try --integers" not in text
    assert "softmax" in text
    assert "argmax" in text
    assert "try without --integers" in text


def test_booleans_chosen_by_floats_may_fall_either_way(report: Report) -> None:
    text = report("chosen", lambda x: ~x)
    assert "rounding explains at most" not in text
    assert "integers and booleans must be equal" in text
    assert "nearly equal" in text
    assert "try --integers" in text


@pytest.mark.parametrize("options", [(), ("--integers",)])
def test_a_program_without_floats_that_is_off_is_a_bug(report: Report, options: tuple[str, ...]) -> None:
    text = report("integers", lambda x: x + 1, *options)
    assert "off by 1 " in text
    assert "report" in text
    assert "--integers" not in text


@pytest.mark.parametrize("shape", ["0, 3", "0, 0", "3, 0", "0", ""])
@pytest.mark.parametrize("dtype", ["f32", "c64"])
def test_inputs_without_elements_are_drawn_silently(dtype: str, shape: str) -> None:
    program = parse(f"def main(a: {dtype}[{shape}]) -> (r: {dtype}[{shape}]) {{\n  return a\n}}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (drawn,) = random_inputs(program)
    assert drawn.shape == program.main.params[0].shape


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f64", "c64"])
def test_subnormal_numbers_are_taken_for_zeros_and_no_others_are(dtype: str) -> None:
    kind = DTYPES[dtype]
    smallest = kind.component.format.smallest
    numbers = np.array([smallest / 2, -smallest / 4, smallest, -smallest, 1.0, np.inf, 0.0]).astype(kind.numpy)
    zeros = np.array([0.0, 0.0, smallest, -smallest, 1.0, np.inf, 0.0]).astype(kind.numpy)
    np.testing.assert_array_equal(without_subnormals(numbers), zeros)


@pytest.mark.parametrize("dtype", ["f16", "f8e5m2", "f8e8m0fnu", "s32", "pred"])
def test_types_whose_small_numbers_are_computed_with_in_larger_ones_keep_them(dtype: str) -> None:
    bits = np.arange(4, dtype=np.uint8).astype(DTYPES[dtype].numpy)
    numbers = np.full(4, 2.0**-24).astype(DTYPES[dtype].numpy) if dtype == "f16" else bits
    assert without_subnormals(numbers).tobytes() == numbers.tobytes()


ROUNDED = """
mesh (d=2)
def halved(x: f32[4]) -> (f32[4]) {
  return f32(bf16(x) * 0.5)
}
def main(x: f32[4@d], words: bf16[8, 4], w: bf16[4@d, 4], i: s32[4]) -> (
  plain: f32[4], looked_up: f32[4, 4], product: f32[], called: f32[4], repeated: f32[4], count: s32[],
) {
  product = mean(square(f32(matmul(bf16(x), w))))
  repeated = loop n < 3 (h = x) { return f32(f16(h) + 1) }
  return x + 1, f32(take(words, i, 0)) * 2, product, halved(x) + x, repeated, sum(i)
}
"""


def test_results_are_as_precise_as_the_least_precise_type_that_was_rounded_for_them() -> None:
    found = [dtype and dtype.name for dtype in types_of_roundings(parse(ROUNDED))]
    assert found == ["f32", "f32", "bf16", "bf16", "f16", None]
    program = parse(ROUNDED)
    results = [np.ones(r.type.shape, r.type.dtype.numpy) for r in program.main.results]
    off = [r + np.asarray(2**-8, r.dtype) if r.dtype.kind == "f" else r for r in results]
    assert [d.is_rounding for d in differences(program, off, results)] == [False, False, True, True, True, True]


def test_a_loss_in_f32_of_products_in_bf16_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loss.spmd"
    file.write_text(
        "mesh (d=4)\ndef main(x: bf16[16, 64@d], w: bf16[64@d, 16]) -> (loss: f32[]) {\n"
        "  return mean(square(f32(matmul(x, w))))\n}\n"
    )
    assert main(["run", str(file), "--check"]) == 0
    assert "equal to the unpartitioned run" not in capsys.readouterr().out
