"""The programs that ship with spmdc: what they communicate, and that they compute what they say."""

from __future__ import annotations

from collections import Counter
from importlib.resources import files

import numpy as np
import pytest

import spmdc
from ir.program import Program, all_ops
from spmdc.frontends.spmd import parse, print_program

PROGRAMS = files("spmdc") / "programs"
NAMES = sorted(p.name for p in PROGRAMS.iterdir() if p.name.endswith(".spmd"))


def shipped(name: str, **defines: int) -> Program:
    return spmdc.load(str(PROGRAMS / name), defines)


def kinds(q: spmdc.PartitionedProgram) -> Counter[str]:
    return Counter(c.kind for c in q.collectives())


@pytest.mark.parametrize("name", NAMES)
def test_simulated_and_on_jax_a_program_equals_its_unpartitioned_run(name: str) -> None:
    program = shipped(name)
    q = spmdc.partition(program)
    inputs = spmdc.random_inputs(program)
    expected = spmdc.evaluate(program, *inputs)
    for actual in (q.simulate(*inputs), q.to_jax()(*inputs)):
        for want, got in zip(expected, actual, strict=True):
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5 * np.abs(want).max(initial=0))


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_of_a_program_prints_and_parses_back(name: str) -> None:
    program = shipped(name)
    propagated = spmdc.propagate(program)
    for stage in (program, propagated.program, spmdc.partition(propagated).program):
        for locations in (False, True):
            text = print_program(stage, locations=locations)
            assert print_program(parse(text, name), locations=locations) == text


@pytest.mark.parametrize("name", NAMES)
def test_no_shipped_program_needs_a_gather_for_lack_of_a_partitioning(name: str) -> None:
    assert spmdc.partition(shipped(name)).warnings == ()


def test_the_moe_layer_communicates_twice_to_dispatch_and_combine_and_once_for_the_loss() -> None:
    q = spmdc.partition(shipped("moe_layer.spmd"))
    assert kinds(q) == {"all_to_all": 2, "all_reduce": 1}


def test_the_moe_layer_is_exact_to_1e_5() -> None:
    program = shipped("moe_layer.spmd")
    q = spmdc.partition(program)
    inputs = spmdc.random_inputs(program)
    expected = spmdc.evaluate(program, *inputs)
    for actual in (q.simulate(*inputs), q.to_jax()(*inputs)):
        for want, got in zip(expected, actual, strict=True):
            assert np.abs(np.asarray(got) - want).max() <= 1e-5


def test_the_moe_layer_has_the_same_ops_on_8_128_and_2048_devices() -> None:
    programs = [spmdc.partition(shipped("moe_layer.spmd", D=d)).program for d in (8, 128, 2048)]
    names = [[op.name for op in all_ops(p)] for p in programs]
    assert names[0] == names[1] == names[2]


def test_the_matmul_cases_communicate_as_table_4_says() -> None:
    """Two gathers are sent as one."""
    q = spmdc.partition(shipped("matmul_cases.spmd"))
    assert kinds(q) == {"all_to_all": 1, "all_reduce": 1, "all_gather": 1}


def test_the_transformer_block_gathers_weights_over_x_and_activations_over_y() -> None:
    """GShard (ICLR), appendix A.4."""
    q = spmdc.partition(shipped("transformer_block.spmd"))
    gathers = Counter(c.axes for c in q.collectives() if c.kind == "all_gather")
    assert gathers == {"x": 6, "y": 2}
    assert [c.axes for c in q.collectives() if c.kind == "reduce_scatter"] == ["y", "y"]


@pytest.mark.parametrize(
    ("consts", "weights"),
    [
        ({"LAYERS": 64, "M": 8192, "H": 65536, "N": 128, "B": 512}, 137_702_416_384),
        ({"LAYERS": 128, "M": 16384, "H": 131072, "N": 256, "B": 128}, 1_100_041_175_040),
    ],
)
def test_a_dense_transformer_has_the_weights_and_collectives_of_its_paper(consts: dict[str, int], weights: int) -> None:
    """GShard (ICLR), appendix A.4; the weights are those that its open source states for 128B and 1T. In each layer
    weights are gathered over x, activations over y, and the two sums arrive split over y."""
    sizes = {"X": 32, "Y": 64, "T": 1024, "K": 128, "V": 32000}
    program = shipped("dense_transformer.spmd", **sizes, **consts)
    assert sum(p.type.size for p in program.main.params if p.name in program.weights) == weights
    tensors = Counter[tuple[str, str]]()
    for each in spmdc.partition(program, machine="tpu-v3:32x32").collectives():
        if each.count == consts["LAYERS"] and (each.bytes or 0) > 2**20:
            tensors[each.kind, each.axes] += 1
    assert tensors == {("all_gather", "x"): 7, ("all_gather", "y"): 2, ("reduce_scatter", "y"): 2}


@pytest.mark.parametrize("layers", [4, 36])
def test_the_moe_transformer_exchanges_tokens_twice_in_each_sparse_layer(layers: int) -> None:
    times = Counter[str]()
    for each in spmdc.partition(shipped("moe_transformer.spmd", LAYERS=layers)).collectives():
        times[each.kind] += each.count or 0
    assert times == {"all_to_all": 2 * layers, "all_reduce": 4}


def test_tokens_gathered_by_indices_give_what_the_one_hot_einsums_of_the_moe_layer_give() -> None:
    """GShard, section 3.2, "Mixing manual and automatic sharding"; half of the experts' room is too little here."""
    sizes = {"D": 4, "S": 32, "M": 16, "H": 24, "C": 9}
    einsums, gathers = shipped("moe_layer.spmd", **sizes), shipped("moe_gather.spmd", **sizes)
    for seed in range(3):
        inputs = spmdc.random_inputs(einsums, seed)
        expected = spmdc.evaluate(einsums, *inputs)
        assert (expected[0] == 0).all(axis=2).any()
        assert not (expected[0] == 0).all(axis=2).all()
        for actual in (spmdc.evaluate(gathers, *inputs), spmdc.partition(gathers).simulate(*inputs)):
            for want, got in zip(expected, actual, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_the_gather_dispatch_communicates_as_the_moe_layer_does_and_has_no_one_hot_einsums() -> None:
    by_einsum, by_gather = (spmdc.partition(shipped(name)) for name in ("moe_layer.spmd", "moe_gather.spmd"))
    assert kinds(by_gather) == kinds(by_einsum) == {"all_to_all": 2, "all_reduce": 1}
    assert by_gather.received_bytes() == by_einsum.received_bytes()
    largest = max(v.type.size for op in all_ops(shipped("moe_gather.spmd")) for v in op.results)
    assert largest == 16 * 8 * 16 * 512
    dots = [sum(op.name == "dot_general" for op in all_ops(q.program)) for q in (by_einsum, by_gather)]
    assert dots == [7, 3]


_BY_SLOTS = """
const D = 2, B = 4, T = 9, M = 8, N = 2, K = 4, H = 6, E = 4, G = 2, C = 7
mesh (d=D)
include "moe_translation.spmd"

def main(x: f32[B@d, T, M], wg: f32[M, E], wi: f32[E@d, M, H], wo: f32[E@d, H, M])
    -> (by_slots: f32[B@d, T, M], by_products: f32[B@d, T, M], aux: f32[], same: f32[], dropped: f32[], load: f32[E]) {
  by_slots, aux, dropped, load = experts(x, wg, wi, wo, key(1))
  by_products, same = mixture(x, wg, wi, wo, key(1))
  return by_slots, by_products, aux, same * E * E, dropped, load
}
"""


@pytest.mark.parametrize("random", [0, 1])
def test_the_translators_experts_are_those_of_the_transformer_without_one_hot_products(random: int) -> None:
    """Some of the experts' room is too little here, and each byte that has no place is counted."""
    program = parse(_BY_SLOTS, "by_slots", defines={"RANDOM": random}, folder=str(PROGRAMS))
    inputs = spmdc.random_inputs(program)
    for found in (spmdc.evaluate(program, *inputs), spmdc.partition(program).simulate(*inputs)):
        by_slots, by_products, aux, same, dropped, load = found
        np.testing.assert_allclose(by_slots, by_products, rtol=1e-5, atol=1e-5 * np.abs(by_products).max())
        np.testing.assert_allclose(aux, same, rtol=1e-5)
        lost = (by_products == 0).all(axis=2).mean()
        assert 0 < lost < 1
        np.testing.assert_allclose(dropped, lost, rtol=1e-5)
        assert load.max() == 1
