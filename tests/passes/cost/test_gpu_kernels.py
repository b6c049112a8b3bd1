"""How kernels of GPUs differ: rows in one pass, products by a library, and a cache. Counted by hand."""

from __future__ import annotations

import pytest

import spmdc
from passes.cost.buffers import peak_of
from passes.cost.fusion import Fusion, Kernel
from passes.cost.kernel_times import kernel_times
from passes.cost.kernels import Kernels
from passes.cost.machine import machine

KIB = 1024
GPU = Kernels(1e9, reads=1.0, reorders=1.0, rows=True, library=True, overwrites=False, workspace=2**20)
ONE = "a: f32[64, 256]", "o: f32[64, 256]"


def main(parameters: str, result: str, *lines: str) -> str:
    return f"def main({parameters}) -> ({result}) {{\n" + "\n".join(lines) + "\n}\n"


def kernels(text: str) -> list[Kernel]:
    return Fusion(spmdc.parse(text).main.body, GPU).kernels


def moved(text: str) -> list[tuple[int, int]]:
    """KiB that each kernel reads and stores."""
    return [(sum(each.reads.values()) // KIB, sum(each.writes.values()) // KIB) for each in kernels(text)]


@pytest.mark.parametrize("body", ["softmax(a)", "log_softmax(a)", "rms_norm(a)", "a - sum(a, dim=1, keepdims=true)"])
def test_rows_are_reduced_and_used_in_one_pass(body: str) -> None:
    assert moved(main(*ONE, f"return {body}")) == [(64, 64)]


def test_the_mean_of_rows_that_three_ops_use_is_a_pass_of_its_own() -> None:
    assert moved(main(*ONE, "return (a - mean(a, dim=1, keepdims=true)) * a")) == [(64, 0), (64, 64)]


def test_columns_are_reduced_in_a_pass_of_their_own() -> None:
    assert moved(main(*ONE, "return a - sum(a, dim=0, keepdims=true)")) == [(64, 1), (65, 64)]


def test_rows_computed_of_two_tensors_are_reduced_in_a_pass_of_their_own() -> None:
    text = main("a: f32[64, 256], b: f32[64, 256]", "o: f32[64, 256]", "return a - sum(a * b, dim=1, keepdims=true)")
    assert moved(text) == [(128, 0), (64, 64)]


def test_a_library_multiplies_what_is_stored() -> None:
    text = main("a: f32[64, 256], b: f32[256, 64]", "o: f32[64, 64]", "return matmul(tanh(a), b)")
    assert moved(text) == [(64, 64), (128, 16)]


def test_a_library_multiplies_slices_that_are_stored() -> None:
    text = main(
        "x: f32[64, 64], w: f32[8, 64, 64], i: s32[]",
        "o: f32[64, 64]",
        "return matmul(x, reshape(dynamic_slice(w, i, 0, 0, sizes=[1, 64, 64]), [64, 64]))",
    )
    assert moved(text) == [(16, 16), (32, 16)]


@pytest.mark.parametrize(
    "end", ["relu(p + c)", "p + d", "2.0 * p", "relu(0.5 * p + d)"], ids=["relu", "tensor", "scale", "all"]
)
def test_a_library_scales_adds_and_applies_relu(end: str) -> None:
    text = main("a: f32[64, 256], b: f32[256, 64], c: f32[64], d: f32[64, 64]", "o: f32[64, 64]", "p = matmul(a, b)")
    (kernel,) = kernels(text.replace("\n}", f"\nreturn {end}\n}}"))
    assert kernel.is_product


@pytest.mark.parametrize("end", ["tanh(p)", "p * p", "p * d", "max(p, dim=1)"])
def test_what_else_is_computed_of_a_product_is_another_kernel(end: str) -> None:
    result = "o: f32[64]" if "dim" in end else "o: f32[64, 64]"
    text = main("a: f32[64, 256], b: f32[256, 64], d: f32[64, 64]", result, "p = matmul(a, b)", f"return {end}")
    assert [kernel.is_product for kernel in kernels(text)] == [True, False]


def test_what_is_added_to_a_product_is_computed_before() -> None:
    given = "a: f32[64, 256], b: f32[256, 64], d: f32[64, 64]"
    text = main(given, "o: f32[64, 64]", "t = tanh(d)", "return matmul(a, b) + t")
    assert moved(text) == [(16, 16), (144, 16)]


def test_products_of_products_are_kernels_of_their_own() -> None:
    text = main("a: f32[64, 64], b: f32[64, 64]", "o: f32[64, 64]", "return matmul(matmul(a, b), b)")
    assert moved(text) == [(32, 16), (32, 16)]


@pytest.mark.parametrize(
    ("sum_", "copied"),
    [
        ("bnik,bnjk->bnij", ()),
        ("bnki,bnjk->bnij", ()),
        ("bink,bnjk->bnij", (64,)),
        ("bink,bjnk->bnij", (64, 64)),
        ("ibnk,bnjk->bnij", (64,)),
    ],
)
def test_operands_whose_batch_dims_are_not_first_are_copied(sum_: str, copied: tuple[int, ...]) -> None:
    sizes = {"b": 2, "n": 4, "i": 32, "j": 32, "k": 64}
    first, second = (f"f32[{', '.join(str(sizes[c]) for c in dims)}]" for dims in sum_.split("->")[0].split(","))
    text = main(f"q: {first}, k: {second}", "o: f32[2, 4, 32, 32]", f'return einsum("{sum_}", q, k)')
    product = next(kernel for kernel in kernels(text) if kernel.is_product)
    assert product.copied == tuple(KIB * n for n in copied)


def test_an_operand_that_is_computed_for_a_product_is_computed_in_its_order() -> None:
    text = main(
        "q: f32[2, 32, 4, 64], k: f32[2, 4, 32, 64]",
        "o: f32[2, 4, 32, 32]",
        'return einsum("bink,bnjk->bnij", tanh(q), k)',
    )
    assert [kernel.copied for kernel in kernels(text)] == [(), ()]


def test_a_transpose_of_a_matrix_is_a_view_for_products_and_one_of_batch_dims_is_none() -> None:
    text = main("a: f32[64, 32], b: f32[64, 64]", "o: f32[32, 64]", "return matmul(transpose(a), b)")
    assert len(kernels(text)) == 1
    text = main(
        "a: f32[32, 2, 64], b: f32[2, 64, 64]", "o: f32[2, 32, 64]", "return matmul(transpose(a, [1, 0, 2]), b)"
    )
    assert [kernel.heart.name for kernel in kernels(text)] == ["transpose", "dot_general"]


def test_memory_has_the_workspace_of_large_products_and_what_is_copied_for_them() -> None:
    """256 KiB each; the products in between have a workspace of 1 MiB."""
    large = main("a: f32[256, 256]", "o: f32[256, 256]", "return matmul(a, a)")
    small = large.replace("f32[256, 256]", "f32[255, 255]")
    assert peak_of(spmdc.parse(large), GPU).nbytes == 2 * 256 * KIB + 2**20
    assert peak_of(spmdc.parse(small), GPU).nbytes == 2 * 255 * 255 * 4
    text = main(
        "q: f32[2, 32, 4, 64], k: f32[2, 4, 32, 64]", "o: f32[2, 4, 32, 32]", 'return einsum("bink,bnjk->bnij", q, k)'
    )
    assert peak_of(spmdc.parse(text), GPU).nbytes == KIB * (64 + 64 + 32 + 64)


def test_only_what_is_returned_is_written_over_what_is_read_for_the_last_time() -> None:
    """16 KiB each."""
    text = main("a: f32[64, 64]", "o: f32[64, 64]", "b = tanh(matmul(a, a))", "return matmul(b, b)")
    assert peak_of(spmdc.parse(text), GPU).nbytes == 3 * 16 * KIB
    text = main("a: f32[64, 64]", "o: f32[64, 64]", "return tanh(matmul(a, a))")
    assert peak_of(spmdc.parse(text), GPU).nbytes == 2 * 16 * KIB


def test_a_cache_has_all_of_what_fits_and_none_of_twice_as_much() -> None:
    cached = Kernels(1e9, cache=1000, cached=4e9)
    assert cached.seconds(500) == pytest.approx(500 / 4e9)
    assert cached.seconds(1000) == pytest.approx(1000 / 4e9)
    assert cached.seconds(1500) == pytest.approx(1500 * (0.5 / 4e9 + 0.5 / 1e9))
    assert cached.seconds(2000) == pytest.approx(2000 / 1e9)
    assert cached.seconds(4000) == pytest.approx(4000 / 1e9)
    assert Kernels(1e9).seconds(500) == 500 / 1e9


def test_a_kernel_whose_values_fit_in_the_cache_takes_less_than_by_the_memory() -> None:
    program = spmdc.partition(
        spmdc.parse("mesh (x=1)\n" + main("a: f32[1024, 2048]", "o: f32[1024, 2048]", "return tanh(a)"))
    ).program
    (time,) = kernel_times(program, machine("h100")).values()
    assert time.memory == pytest.approx(2 * 2**23 / 4.7e12)
    assert time.seconds == pytest.approx(time.memory + 1e-6)


def test_a_product_reaches_a_fraction_of_the_arithmetic_and_copies_take_kernels() -> None:
    program = spmdc.partition(
        spmdc.parse("mesh (x=1)\n" + main("a: f32[4096, 4096]", "o: f32[4096, 4096]", "return matmul(a, a)"))
    ).program
    (time,) = kernel_times(program, machine("h100")).values()
    memory = 2 * 4 * 4096**2 / 2.9e12
    assert time.seconds == pytest.approx(2 * 4096**3 / (0.8 * 494e12) + 0.5 * memory + 2e-6)
