"""What a compiled program takes of a device's memory, against what is stored counted by hand."""

from __future__ import annotations

import dataclasses

import pytest

import spmdc
from ir.types import TensorType, bf16, f32
from passes.cost.buffers import padded_bytes, peak_of
from passes.cost.kernels import Kernels
from passes.cost.machine import TPU_V3

KIB = 1024
NARROW = Kernels(1e9, narrow=True)


def peak(text: str, kernels: Kernels | None = None) -> float:
    """The peak of a program, in KiB."""
    return peak_of(spmdc.parse(text), kernels).nbytes / KIB


def main(parameters: str, result: str, *lines: str) -> str:
    return f"def main({parameters}) -> ({result}) {{\n" + "\n".join(lines) + "\n}\n"


@pytest.mark.parametrize(
    ("lines", "kib"),
    [
        (("return relu(a * a + 1) * a",), 16 + 16),
        (("return a - sum(a, dim=1, keepdims=true)",), 16 + 16 + 0.25),
        (("b = sort(a, dim=0)", "return sort(b, dim=0)"), 16 + 16),
        (("b = sort(a, dim=0)", "return sort(b, dim=0) + b"), 16 + 32),
        (("return a",), 16 + 16),
        (("return matmul(matmul(a, a), a)",), 16 + 16),
        (("b = matmul(a, a)", "return matmul(b, b)"), 16 + 16 + 16),
        (("b = matmul(a, a)", "return matmul(a, a) * b"), 16 + 16),
        (("b = tanh(matmul(a, a))", "return matmul(b, a)"), 16 + 16 + 16),
    ],
    ids=[
        "chain",
        "sum",
        "over_itself",
        "used_later",
        "returned",
        "product_of_a_product",
        "squared",
        "epilogue",
        "dear",
    ],
)
def test_only_what_kernels_store_takes_memory(lines: tuple[str, ...], kib: float) -> None:
    """Of f32[64, 64] arguments and results, 16 KiB each."""
    assert peak(main("a: f32[64, 64]", "o: f32[64, 64]", *lines)) == kib


def test_what_only_products_read_takes_half_where_they_narrow() -> None:
    text = main("a: f32[64, 64]", "o: f32[64, 64]", "b = matmul(a, a)", "return matmul(b, b)")
    assert (peak(text), peak(text, NARROW)) == (48, 40)


STACKED = """
def main(a: f32[64, 64], w: f32[8, 64, 64]) -> (o: f32[64, 64]) {
  n, o = while(i = 0, h = a, trip_count=8) cond { return i < 8 } do {
    part = reshape(dynamic_slice(w, i, 0, 0, sizes=[1, 64, 64]), [64, 64])
    return i + 1, matmul(h, part)
  }
  return o
}
"""


def test_weights_of_a_loop_are_rounded_in_front_of_it_where_products_narrow() -> None:
    """a and w, h before and after, and w in bf16."""
    wide, narrow = peak(STACKED), peak(STACKED, NARROW)
    assert wide == pytest.approx(16 + 128 + 2 * 16, abs=0.1)
    assert narrow == pytest.approx(wide + 64, abs=0.1)


def test_an_update_in_place_takes_nothing_further() -> None:
    given = "a: f32[64, 64], u: f32[1, 64], i: s32[]"
    line = "return dynamic_update_slice(sort(a, dim=0), u, i, 0)"
    assert peak(main(given, "o: f32[64, 64]", line)) == pytest.approx(16 + 16 + 0.25, abs=0.01)


def test_two_dims_of_a_tensor_are_made_of_whole_tiles_and_the_others_are_not() -> None:
    assert padded_bytes(TensorType((3, 100, 5), f32), (8, 128)) == 3 * 128 * 8 * 4
    assert padded_bytes(TensorType((128, 5, 8), bf16), (8, 128)) == 128 * 5 * 8 * 2
    assert padded_bytes(TensorType((5,), f32), (8, 128)) == 20
    assert padded_bytes(TensorType((0, 5), f32), (8, 128)) == 0
    assert padded_bytes(TensorType((3, 5), f32), (1, 1)) == 60


LARGE = """mesh (x=2)
def main(a: f32[1024@x, 1024], w: f32[1024, 1024]) -> (o: f32[1024@x, 1024]) {
  h = tanh(matmul(a, w))
  return matmul(h, w) + h
}
"""


def test_a_program_that_does_not_fit_warns_of_what_is_alive() -> None:
    """a, h and o of 2 MiB and w of 4."""
    small = dataclasses.replace(TPU_V3, name="small", memory=10 * 2**20 - 1)
    (warning,) = spmdc.partition(spmdc.parse(LARGE), machine=small, memory_limit=2**40).warnings
    assert (warning.code, warning.severity) == ("W003", "warning")
    assert warning.message == "the program takes 10,485,760 bytes on each device, and small has 10,485,759"
    assert warning.notes[:2] == ("alive at the peak, on each device:", "w: f32[1024, 1024], 4,194,304 bytes")
    assert warning.span is not None
    assert warning.span.line in (3, 4)
    enough = dataclasses.replace(small, memory=10 * 2**20)
    assert spmdc.partition(spmdc.parse(LARGE), machine=enough, memory_limit=2**40).warnings == ()
