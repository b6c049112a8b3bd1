"""Which ops run as one kernel, what it reads and stores, and what it takes on a machine."""

from __future__ import annotations

import dataclasses

import pytest

import spmdc
from ir.program import Program
from passes.cost.fusion import Fusion, Kernel
from passes.cost.kernel_times import kernel_times, tiled_flops
from passes.cost.kernels import Kernels
from passes.cost.machine import TPU_V3, machine

KIB = 1024


def kernels(text: str, *, narrows: bool = False) -> list[Kernel]:
    return Fusion(spmdc.parse(text).main.body, Kernels(1.0, narrow=narrows)).kernels


def kinds(found: list[Kernel]) -> list[str]:
    return [kernel.heart.name for kernel in found]


def moved(kernel: Kernel) -> tuple[int, int]:
    """KiB that it reads and stores."""
    return sum(kernel.reads.values()) // KIB, sum(kernel.writes.values()) // KIB


def main(parameters: str, result: str, *lines: str) -> str:
    return f"def main({parameters}) -> ({result}) {{\n" + "\n".join(lines) + "\n}\n"


def test_a_chain_of_elementwise_ops_is_one_pass_that_reads_its_inputs_once() -> None:
    (kernel,) = kernels(main("a: f32[64, 128], b: f32[128]", "o: f32[64, 128]", "return relu((a + b) * a - 0.5) * a"))
    assert moved(kernel) == (32, 32)


def test_a_reduction_computes_what_it_sums_and_what_uses_it_is_another_pass() -> None:
    found = kernels(main("a: f32[64, 128]", "o: f32[64, 128]", "return a - sum(a * a, dim=1, keepdims=true)"))
    assert kinds(found) == ["reduce", "subtract"]
    assert [moved(kernel) for kernel in found] == [(32, 0), (32, 32)]


def test_softmax_is_three_passes_over_its_operand() -> None:
    found = kernels(main("a: f32[64, 256]", "o: f32[64, 256]", "return softmax(a)"))
    assert kinds(found) == ["reduce", "reduce", "divide"]
    assert [moved(kernel) for kernel in found] == [(64, 0), (64, 0), (64, 64)]


def test_layer_norm_is_three_passes_over_its_operand() -> None:
    found = kernels(main("a: f32[64, 256], g: f32[256], b: f32[256]", "o: f32[64, 256]", "return layer_norm(a, g, b)"))
    large = [kernel for kernel in found if sum(kernel.reads.values()) >= 64 * KIB]
    assert [moved(kernel) for kernel in large] == [(64, 0), (64, 0), (66, 64)]


def test_a_product_computes_its_operands_and_its_epilogue() -> None:
    (kernel,) = kernels(
        main(
            "a: f32[64, 256], b: f32[256, 64], c: f32[64]",
            "o: f32[64, 64]",
            "return relu(matmul(tanh(a), transpose(transpose(b))) + c)",
        )
    )
    assert kernel.is_product
    assert moved(kernel) == (128, 16)


def test_a_product_that_only_another_reads_is_computed_in_its_kernel_unless_that_is_dear() -> None:
    text = main("a: f32[64, 128], v: f32[128, 128], w: f32[128, 64]", "o: f32[64, 64]", "return matmul({}, w)")
    (kernel,) = kernels(text.replace("{}", "relu(matmul(a, v))"))
    assert moved(kernel) == (128, 16)
    for dear in ("tanh(matmul(a, v))", "softmax(matmul(a, v))"):
        assert kinds(kernels(text.replace("{}", dear)))[0] == "dot_general", dear
        assert len(kernels(text.replace("{}", dear))) > 1, dear


def test_the_maximum_of_a_product_is_found_where_the_product_is() -> None:
    found = kernels(
        main(
            "a: f32[64, 256], b: f32[256, 64]",
            "o: f32[64, 64]",
            "s = matmul(a, b)",
            "return s - max(s, dim=1, keepdims=true)",
        )
    )
    assert kinds(found) == ["dot_general", "subtract"]
    assert [moved(kernel) for kernel in found] == [(128, 16), (16, 16)]


def test_two_sums_of_the_same_read_it_once() -> None:
    (kernel,) = kernels(main("a: f32[64, 256]", "o: f32[64], p: f32[64]", "return sum(a, dim=1), sum(a * a, dim=1)"))
    assert moved(kernel) == (64, 0)


def test_a_slice_of_a_stack_is_read_for_what_it_has() -> None:
    text = main(
        "x: f32[64, 64], w: f32[8, 64, 64], i: s32[]",
        "o: f32[64, 64]",
        "part = dynamic_slice(w, i, 0, 0, sizes=[1, 64, 64])",
        "return matmul(x, reshape(part, [64, 64]))",
    )
    (kernel,) = kernels(text)
    assert moved(kernel) == (32, 16)


def test_an_update_in_place_stores_its_part_and_one_of_what_is_needed_later_copies() -> None:
    line = "return dynamic_update_slice({}, u, i, 0)"
    given = "a: f32[64, 128], u: f32[1, 128], i: s32[]"
    (copied,) = kernels(main(given, "o: f32[64, 128]", line.format("a")))
    assert moved(copied) == (32, 32)
    made = kernels(main(given, "o: f32[64, 128]", "s = sort(a, dim=0)", line.format("s")))
    assert (kinds(made), moved(made[-1])) == (["sort", "dynamic_update_slice"], (0, 0))


def test_what_is_used_twice_is_computed_twice_only_if_that_reads_less() -> None:
    one = main(
        "a: f32[64, 128], p: f32[128, 64], q: f32[128, 64]",
        "o: f32[64, 64], r: f32[64, 64]",
        "h = tanh(a)",
        "return matmul(h, p), matmul(h, q)",
    )
    assert kinds(kernels(one)) == ["dot_general", "dot_general"]
    many = one.replace("a: f32[64, 128]", "a: f32[64, 128], b: f32[64, 128], c: f32[64, 128], d: f32[64, 128]")
    found = kernels(many.replace("tanh(a)", "tanh(a) + b * c + d"))
    assert kinds(found) == ["add", "dot_general", "dot_general"]


def test_what_only_products_read_is_stored_in_half_where_they_narrow() -> None:
    text = main(
        "a: f32[64, 128], v: f32[128, 128], w: f32[128, 64]",
        "o: f32[64, 64], p: f32[64, 64]",
        "b = matmul(a, v)",
        "return matmul(b, w), matmul(b, 2.0 * w)",
    )
    assert [moved(kernel) for kernel in kernels(text)] == [(96, 32), (64, 16), (64, 16)]
    assert [moved(kernel) for kernel in kernels(text, narrows=True)] == [(96, 16), (48, 16), (48, 16)]


def partitioned(text: str) -> Program:
    return spmdc.partition(spmdc.parse(f"mesh (x=1)\n{text}")).program


def test_products_count_in_whole_tiles() -> None:
    program = partitioned(main("a: f32[4, 10, 300], b: f32[4, 300, 20]", "o: f32[4, 10, 20]", "return matmul(a, b)"))
    (dot,) = program.main.body.ops
    assert tiled_flops(dot, (1, 1)) == 2 * 4 * 10 * 20 * 300
    assert tiled_flops(dot, (8, 128)) == 2 * 4 * 16 * 128 * 384


def test_a_kernels_time_is_at_its_heart_and_no_less_than_the_roofline() -> None:
    program = partitioned(
        main("a: f32[512, 512], b: f32[512, 512]", "o: f32[512, 512]", "return relu(matmul(tanh(a), b))")
    )
    times = {op.name: time for op, time in kernel_times(program, TPU_V3).items()}
    product = times["dot_general"]
    assert product.touched == 3 * 2**20
    assert product.compute > product.flops / 61e12
    assert product.memory == pytest.approx(3 * 2**20 / 450e9)
    assert product.overhead > 0
    assert times["tanh"].seconds == times["maximum"].seconds == 0


def test_products_of_some_machines_find_what_the_program_made_on_the_chip() -> None:
    """The first product stores nothing in memory, and the second reads half of what it needs there."""
    given = "a: f32[1024, 1024], b: f32[1024, 1024], c: f32[1024, 1024]"
    program = partitioned(main(given, "o: f32[1024, 1024]", "return matmul(tanh(matmul(a, b)), c)"))
    own = machine("tpu-v5e").kernels
    assert own is not None
    far = dataclasses.replace(machine("tpu-v5e"), kernels=dataclasses.replace(own, near=0))
    near, without = (
        [time for time in kernel_times(program, m).values() if time.seconds] for m in (machine("tpu-v5e"), far)
    )
    assert all(one.seconds < other.seconds for one, other in zip(near, without, strict=True))
    assert [time.touched for time in near] == [8 * 2**20, 8 * 2**20]
    assert [time.touched for time in without] == [12 * 2**20, 12 * 2**20]


def test_without_kernels_of_its_own_a_machine_reaches_what_it_has() -> None:
    program = partitioned(main("a: f32[512, 512]", "o: f32[512, 512]", "return exp(a) + a"))
    plain = dataclasses.replace(TPU_V3, kernels=None)
    assert sum(time.seconds for time in kernel_times(program, plain).values()) == pytest.approx(2**21 / 450e9)
    assert machine("host").kernels is None


def test_the_bodies_of_loops_have_kernels_of_their_own() -> None:
    text = """mesh (x=1)
def main(x: f32[64]) -> (y: f32[64]) {
  n, y = while(i = 0, v = x, trip_count=3) cond { return i < 3 } do { return i + 1, sin(cos(v)) }
  return tanh(exp(y))
}
"""
    program = spmdc.partition(spmdc.parse(text)).program
    taken = [op.name for op, time in kernel_times(program, TPU_V3).items() if time.seconds]
    assert sorted(taken) == ["add", "compare", "sine", "tanh"]


def test_a_barrier_of_several_values_is_a_view_of_each() -> None:
    found = kernels("""
        def main(a: f32[256, 8], b: f32[256, 8]) -> (r: f32[256, 8]) {
          c, d = optimization_barrier(a, exp(b))
          return c + d
        }""")
    assert sum(len(kernel.ops) for kernel in found) == 2
    assert all(kernel.ops[-1].name in ("add", "exp") for kernel in found)
