"""Groups of tensors sharded alike, and barriers to propagation: read from Shardy and HLO, printed, and obeyed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec

import spmdc
from ir.program import Program
from spmdc.frontends.spmd import print_program

P: Any = PartitionSpec
TENSOR = "tensor<8x6xf32>"


def module(body: str) -> Program:
    split = '{sdy.sharding = #sdy.sharding<@m, [{"x"}, {?}]>}'
    return spmdc.from_mlir(
        f'module {{\nsdy.mesh @m = <["x"=4, "y"=2]>\nfunc.func @main(%x: {TENSOR} {split}, %y: {TENSOR}) '
        f"-> ({TENSOR}, {TENSOR}) {{\n{body}\n}}\n}}"
    )


def placed(program: Program, name: str) -> str:
    """How a value is sharded after propagation."""
    lines = spmdc.propagate(program).text().splitlines()
    return next(line.split("=")[0].strip() for line in lines if line.strip().startswith(f"{name}: "))


def check_runs(program: Program) -> None:
    arrays = spmdc.random_inputs(program)
    found = spmdc.partition(program).simulate(*arrays)
    for have, want in zip(found, spmdc.evaluate(program, *arrays), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-6)
    text = print_program(program)
    assert print_program(spmdc.parse(text)) == text


def test_tensors_of_a_group_are_sharded_alike() -> None:
    program = module(
        f"  %0 = stablehlo.sine %x : {TENSOR}\n  sdy.sharding_group %0 group_id=7 : {TENSOR}\n"
        f"  %1 = stablehlo.cosine %y : {TENSOR}\n  sdy.sharding_group %1 group_id=7 : {TENSOR}\n"
        f"  return %0, %1 : {TENSOR}, {TENSOR}"
    )
    assert placed(program, "cosine") == "cosine: f32[8@x, 6]"
    assert "sharding group 7" in spmdc.propagate(program).why("cosine")
    check_runs(program)


def test_tensors_of_a_group_have_one_shape() -> None:
    with pytest.raises(spmdc.SpmdcError, match=r"E303|E701"):
        module(
            f"  %0 = stablehlo.transpose %x, dims = [1, 0] : ({TENSOR}) -> tensor<6x8xf32>\n"
            f"  sdy.sharding_group %0 group_id=7 : tensor<6x8xf32>\n  sdy.sharding_group %y group_id=7 : {TENSOR}\n"
            f"  return %x, %y : {TENSOR}, {TENSOR}"
        )


@pytest.mark.parametrize(
    ("direction", "before", "behind"),
    [("NONE", False, False), ("FORWARD", False, True), ("BACKWARD", True, False)],
)
def test_a_barrier_lets_propagation_through_in_its_direction_only(direction: str, before: bool, behind: bool) -> None:
    program = module(
        f"  %0 = stablehlo.sine %y : {TENSOR}\n"
        f"  %1 = sdy.propagation_barrier %0 allowed_direction={direction} : {TENSOR}\n"
        f"  %2 = stablehlo.add %1, %x : {TENSOR}\n  %3 = stablehlo.cosine %x : {TENSOR}\n"
        f"  %4 = sdy.propagation_barrier %3 allowed_direction={direction} : {TENSOR}\n"
        f"  %5 = stablehlo.tanh %4 : {TENSOR}\n  return %2, %5 : {TENSOR}, {TENSOR}"
    )
    assert ("@x" in placed(program, "sine")) == before
    assert ("@x" in placed(program, "tanh")) == behind
    check_runs(program)


def test_shard_alike_as_jax_wrote_it() -> None:
    """JAX had `shard_alike` until 0.10, and lowered it to calls of @Sharding that name a group."""

    def alike(value: str, result: str) -> str:
        sharding = 'mhlo.sharding = "{unknown shard_as 0}"'
        return f"{result} = stablehlo.custom_call @Sharding({value}) {{{sharding}}} : ({TENSOR}) -> {TENSOR}"

    program = module(
        f"  %0 = stablehlo.sine %x : {TENSOR}\n  %1 = stablehlo.cosine %y : {TENSOR}\n"
        f"  {alike('%0', '%2')}\n  {alike('%1', '%3')}\n  return %2, %3 : {TENSOR}, {TENSOR}"
    )
    assert placed(program, "cosine") == "cosine: f32[8@x, 6]"
    check_runs(program)


@pytest.mark.parametrize("word", ["shard_as", "shard_like"])
def test_groups_in_hlo(word: str) -> None:
    program = spmdc.from_hlo(
        "HloModule m, num_partitions=8\n\nENTRY main {\n"
        f"  x = f32[8,6] parameter(0), sharding={{devices=[8,1]<=[8] {word} 1}}\n"
        f"  y = f32[8,6] parameter(1), sharding={{unknown {word} 1}}\n"
        f"  s = f32[8,6] sine(y)\n  c = f32[8,6] cosine(x)\n"
        "  ROOT t = (f32[8,6], f32[8,6]) tuple(s, c)\n}\n"
    )
    assert placed(program, "s") == "s: f32[8@x, 6]"
    check_runs(program)


def test_a_group_and_a_barrier_written_in_the_language() -> None:
    program = spmdc.parse(
        "mesh (x=4)\ndef main(a: f32[8@x], b: f32[8]) -> (out: f32[8], other: f32[8]) {\n"
        "  c = shard(sine(a), group=0)\n  d = shard(cosine(b), group=0)\n"
        "  e = shard(d, passes=none)\n  return c + 1.0, tanh(e)\n}\n"
    )
    assert placed(program, "d") == "d: f32[8@x]"
    assert placed(program, "other") == "other: f32[8]{replicated}"
    check_runs(program)


def test_tensors_of_different_shapes_in_a_group_are_refused() -> None:
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.parse(
            "mesh (x=4)\ndef main(a: f32[8@x], b: f32[4]) -> (f32[8], f32[4]) {\n"
            "  return shard(a, group=0), shard(b, group=0)\n}\n"
        )
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "E303"
    assert diagnostic.span is not None
    assert diagnostic.span.line == 3
