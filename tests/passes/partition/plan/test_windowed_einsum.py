"""Windowed einsums: when parts travel, what is sent, what it takes of memory, and that it computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdc
from ir.builder import RegionBuilder
from ir.diagnostics import SpmdcError
from ir.mesh import AxisRef, Mesh, merge_axes
from ir.program import Program, Result, all_ops
from ir.sharding import DimSharding, Sharding
from ir.types import DType, TensorType, bf16, c64, f32, s8, s32
from passes.cost.machine import TPU_V3
from passes.cost.model import seconds_of
from spmdc.testing import check_equivalence, meshes

CLASHES = {
    "result_like_lhs": ("lhs: f32[16@d, 8], rhs: f32[8, 16@d]", "f32[16@d, 16]", 3 * 8 * 4 * 4),
    "result_like_rhs": ("lhs: f32[16@d, 8], rhs: f32[8, 16@d]", "f32[16, 16@d]", 3 * 4 * 8 * 4),
    "contracted_on_one_side": ("lhs: f32[16@d, 8], rhs: f32[8@d, 16]", "f32[16@d, 16]", 3 * 2 * 16 * 4),
    "sums_wanted_split": ("lhs: f32[16, 8@d], rhs: f32[8@d, 16]", "f32[16@d, 16]", 3 * 4 * 16 * 4),
    "sums_wanted_split_as_rhs": ("lhs: f32[16, 8@d], rhs: f32[8@d, 16]", "f32[16, 16@d]", 3 * 16 * 4 * 4),
}
"""Parameters, result, and the bytes that an all_gather or a reduce_scatter over four devices receives."""


def product(params: str, result: str, mesh: str = "(d=4)", equation: str = "ij,jk->ik") -> Program:
    body = f'return einsum("{equation}", lhs, rhs)'
    return spmdc.parse(f"mesh {mesh}\ndef main({params}) -> (out: {result}) {{ {body} }}")


def kinds(q: spmdc.PartitionedProgram) -> list[str]:
    return [c.kind for c in q.collectives()]


def ring(q: spmdc.PartitionedProgram) -> spmdc.Collective:
    """The one collective, which is that of a windowed einsum."""
    (found,) = q.collectives()
    assert found.kind == "collective_permute"
    assert found.reason.startswith("windowed einsum: ")
    return found


@pytest.mark.parametrize("clash", CLASHES)
def test_parts_that_travel_are_as_many_bytes_as_one_collective(clash: str) -> None:
    params, result, nbytes = CLASHES[clash]
    program = product(params, result)
    whole = spmdc.partition(program, windowed_einsum="never")
    parts = spmdc.partition(program, windowed_einsum="always")
    assert whole.received_bytes() == parts.received_bytes() == nbytes
    assert kinds(whole) in (["all_gather"], ["reduce_scatter"])
    assert ring(parts).count == 3
    assert ring(parts).bytes == nbytes // 3
    assert ring(parts).source.endswith(":2")
    check_equivalence(program, windowed_einsum="always")


@pytest.mark.parametrize("clash", CLASHES)
def test_the_loop_has_the_same_size_for_any_number_of_devices(clash: str) -> None:
    params, result = (text.replace("8", "2048").replace("16", "4096") for text in CLASHES[clash][:2])
    programs = [spmdc.partition(product(params, result, f"(d={d})"), windowed_einsum="always") for d in (4, 16, 64)]
    sizes = {sum(op.name != "constant" for op in all_ops(q.program)) for q in programs}
    assert len(sizes) == 1


@pytest.mark.parametrize("clash", CLASHES)
def test_small_products_are_not_computed_in_parts(clash: str) -> None:
    params, result, _ = CLASHES[clash]
    q = spmdc.partition(product(params, result))
    assert q.text() == spmdc.partition(product(params, result), windowed_einsum="never").text()


def test_a_gather_that_takes_as_long_as_the_product_is_hidden_behind_it() -> None:
    """Where a device computes while parts travel, as one of a v3 does not."""
    overlaps = replace(TPU_V3, asynchronous=True)
    program = product("lhs: bf16[8192@d, 8192], rhs: bf16[8192, 32768@d]", "bf16[8192@d, 32768]", "(d=8)")
    assert ring(spmdc.partition(program, machine=overlaps)).count == 7
    whole, parts = (
        spmdc.partition(program, machine=overlaps, windowed_einsum=word).program for word in ("never", "always")
    )
    assert seconds_of(overlaps, parts.main.body.ops, {}) < 0.95 * seconds_of(overlaps, whole.main.body.ops, {})
    assert kinds(spmdc.partition(program)) == kinds(spmdc.partition(program, windowed_einsum="never"))


def test_a_gather_of_what_products_round_is_of_fewer_bytes_than_parts_that_travel() -> None:
    assert TPU_V3.kernels is not None
    rounds = replace(TPU_V3, asynchronous=True)
    reads_all = replace(rounds, kernels=replace(TPU_V3.kernels, narrow=False))
    program = product("lhs: f32[12288@d, 8192], rhs: f32[8192, 32768@d]", "f32[12288@d, 32768]", "(d=8)")
    assert ring(spmdc.partition(program, machine=reads_all)).count == 7
    assert "collective_permute" not in kinds(spmdc.partition(program, machine=rounds))


def test_what_several_ops_multiply_with_is_gathered_once() -> None:
    text = """
    mesh (d=8)
    def main(x: bf16[65536@d, 8192], y: bf16[65536@d, 8192], w: bf16[8192, 32768@d])
        -> (a: bf16[65536@d, 32768], b: bf16[65536@d, 32768]) {
      return einsum("ij,jk->ik", x, w), einsum("ij,jk->ik", y, w)
    }
    """
    assert kinds(spmdc.partition(spmdc.parse(text))) == ["all_gather"]
    limited = spmdc.partition(spmdc.parse(text), memory_limit=1000 * 2**20)
    assert kinds(limited) == ["collective_permute"] * 2


def test_what_all_turns_of_a_loop_multiply_with_is_gathered_before_it() -> None:
    text = """
    mesh (d=8)
    def main(x: bf16[65536@d, 8192], w: bf16[8192, 8192@d]) -> (out: bf16[65536@d, 8192]) {
      n = constant(value=0, type=s32[])
      i: s32[], y: bf16[65536@d, 8192] = while(i: s32[] = n, y: bf16[65536@d, 8192] = x, trip_count=1000) cond {
        last = constant(value=1000, type=s32[])
        go = compare(i, last, direction=LT)
        return go
      } do {
        one = constant(value=1, type=s32[])
        return add(i, one), einsum("ij,jk->ik", y, w)
      }
      return y
    }
    """
    q = spmdc.partition(spmdc.parse(text))
    assert [(c.kind, c.count) for c in q.collectives()] == [("all_gather", 1)]


def test_a_gathered_operand_beyond_the_memory_limit_is_not_gathered() -> None:
    """Shards of 2,048 and 2,048 bytes, a result of 4,096; gathered, the rhs takes 8,192 more, in parts 2 · 2,048 and a
    part of the result."""
    program = product("lhs: f32[64@d, 32], rhs: f32[32, 64@d]", "f32[64@d, 64]")
    assert kinds(spmdc.partition(program, memory_limit=16_384)) == ["all_gather"]
    limited = spmdc.partition(program, memory_limit=14_000)
    assert ring(limited).bytes == 2_048
    assert limited.peak_bytes() <= 14_000 < spmdc.partition(program).peak_bytes()
    assert limited.warnings == ()
    check_equivalence(program, windowed_einsum="always")


def test_partial_results_beyond_the_memory_limit_are_not_made() -> None:
    """Shards of 2,048 and 2,048 bytes and a result of 1,024; the partial product takes 16,384."""
    program = product("lhs: f32[64, 128@d], rhs: f32[128@d, 64]", "f32[64@d, 64]", "(d=16)")
    assert kinds(spmdc.partition(program)) == ["reduce_scatter"]
    limited = spmdc.partition(program, memory_limit=8_000)
    assert ring(limited).bytes == 1_024
    assert limited.peak_bytes() <= 8_000 < spmdc.partition(program).peak_bytes()


def test_what_goes_beyond_the_memory_limit_in_every_way_is_warned_of() -> None:
    program = product("lhs: f32[64@d, 32], rhs: f32[32, 64@d]", "f32[64@d, 64]")
    q = spmdc.partition(program, memory_limit=10_000)
    assert ring(q).bytes == 2_048
    (warning,) = q.warnings
    assert warning.code == "W002"
    assert warning.message == "dot_general takes 13,312 bytes on each device, and the limit is 10,000"
    assert warning.span is not None
    check_equivalence(program)


def test_the_memory_limit_holds_for_other_ops_too() -> None:
    """Added where the result is wanted, an operand is gathered; split, the sum is gathered instead."""
    program = spmdc.parse("mesh (d=4) def main(a: f32[64@d], b: f32[64@d]) -> (c: f32[64@d]) { return a + b }")
    assert spmdc.partition(program, memory_limit=3 * 16 * 4).warnings == ()
    assert [w.code for w in spmdc.partition(program, memory_limit=3 * 16 * 4 - 1).warnings] == ["W002"]


@pytest.mark.parametrize("limit", [-1, -(2**40)])
def test_a_memory_limit_is_not_negative(limit: int) -> None:
    with pytest.raises(SpmdcError) as found:
        spmdc.partition(product(*CLASHES["result_like_lhs"][:2]), memory_limit=limit)
    assert [d.code for d in found.value.diagnostics] == ["E601"]


def test_only_three_words_say_when_einsums_are_windowed() -> None:
    options: Any = {"windowed_einsum": "often"}
    with pytest.raises(SpmdcError) as found:
        spmdc.partition(product(*CLASHES["result_like_lhs"][:2]), **options)
    assert [d.code for d in found.value.diagnostics] == ["E601"]


HARD = {
    "uneven": product("lhs: f32[10@d, 7], rhs: f32[7, 9@d]", "f32[10@d, 9]"),
    "uneven_contracted": product("lhs: f32[10@d, 7], rhs: f32[7@d, 9]", "f32[10@d, 9]"),
    "uneven_sums": product("lhs: f32[10, 7@d], rhs: f32[7@d, 9]", "f32[10@d, 9]"),
    "shards_of_padding": product("lhs: f32[2@d, 3], rhs: f32[3@d, 5]", "f32[2@d, 5]", "(d=8)"),
    "batch": product("lhs: f32[8@d, 4, 6], rhs: f32[8, 6, 4@d]", "f32[8, 4, 4@d]", equation="bij,bjk->bik"),
    "batch_of_sums": product("lhs: f32[5, 4, 6@d], rhs: f32[5, 6@d, 4]", "f32[5@d, 4, 4]", equation="bij,bjk->bik"),
    "two_contracted": product("lhs: f32[8@d, 3, 5], rhs: f32[3, 5@d, 8]", "f32[8@d, 8]", equation="ijk,jkl->il"),
    "two_axes": product("lhs: f32[9@(x,y), 5], rhs: f32[5, 7@(y,x)]", "f32[9@(x,y), 7]", "(x=2, y=3)"),
    "a_part_of_an_axis": product("lhs: f32[9@x:(2)2, 5], rhs: f32[5, 7@x:(2)2]", "f32[9@x:(2)2, 7]", "(x=8)"),
    "split_further": product("lhs: f32[6@y, 5], rhs: f32[5, 6@(x,y)]", "f32[6@y, 6@x]", "(x=2, y=2)"),
    "contracted_split_further": product("lhs: f32[6@y, 6@x], rhs: f32[6@(x,y), 5]", "f32[6@y, 5]", "(x=2, y=2)"),
    "batch_split_further": product(
        "lhs: f32[6@(x,y), 5, 3], rhs: f32[6@x, 3, 5@y]", "f32[6@x, 5, 5@y]", "(x=2, y=2)", "bij,bjk->bik"
    ),
    "an_order_of_devices": product("lhs: f32[9@d, 5], rhs: f32[5@d, 7]", "f32[9@d, 7]", "(d=4) devices=[2, 0, 3, 1]"),
    "integers": product("lhs: s8[9@d, 50], rhs: s8[50@d, 7]", "s8[9@d, 7]"),
    "sixteen_bits": product("lhs: bf16[9@d, 50], rhs: bf16[50@d, 7]", "bf16[9@d, 7]"),
    "sixteen_bits_of_sums": product("lhs: bf16[9, 50@d], rhs: bf16[50@d, 7]", "bf16[9@d, 7]"),
    "complex": product("lhs: c64[9@d, 5], rhs: c64[5@d, 7]", "c64[9@d, 7]"),
}


@pytest.mark.parametrize("case", HARD)
def test_a_loop_computes_what_one_device_would(case: str) -> None:
    q = spmdc.partition(HARD[case], windowed_einsum="always")
    assert any("windowed einsum" in c.reason for c in q.collectives()), q.text()
    check_equivalence(HARD[case], windowed_einsum="always")


@pytest.mark.parametrize("case", ["uneven_contracted", "two_axes", "batch_of_sums", "an_order_of_devices"])
def test_a_loop_computes_the_same_on_jax(case: str) -> None:
    check_equivalence(HARD[case], jax=True, windowed_einsum="always")


def test_sums_of_16_bits_are_rounded_once() -> None:
    """256 + 1 + … + 1 is 256 in bf16 if every turn rounds."""
    for case in ("sixteen_bits", "sixteen_bits_of_sums"):
        program = HARD[case]
        left, right = (np.ones(p.type.shape, bf16.numpy) for p in program.main.params)
        left[:, 0] = 256
        (got,) = spmdc.partition(program, windowed_einsum="always").simulate(left, right)
        (want,) = spmdc.evaluate(program, left, right)
        assert want.max() == 304
        np.testing.assert_array_equal(got, want)


@dataclass(frozen=True)
class Roles:
    """The sizes of an einsum's factors: batch, lhs free, rhs free, contracted."""

    batch: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    contracted: tuple[int, ...]

    def sizes(self) -> tuple[int, ...]:
        return (*self.batch, *self.left, *self.right, *self.contracted)

    def factors(self) -> tuple[range, range, range, range]:
        """The numbers of the factors of each role."""
        ends = [0]
        for sizes in (self.batch, self.left, self.right, self.contracted):
            ends.append(ends[-1] + len(sizes))
        batch, left, right, contracted = (range(a, b) for a, b in pairwise(ends))
        return batch, left, right, contracted


@st.composite
def clashing_products(draw: st.DrawFn) -> Program:
    """A dot_general of which an operand, or the result, is split along axes that it does not agree on with the rest."""
    mesh = draw(meshes(max_axes=3, max_devices=32).filter(lambda m: m.size > 1))
    count = st.integers(0, 1)
    size = st.sampled_from((3, 4, 1, 2, 5, 7, 8))
    roles = Roles(
        tuple(draw(size) for _ in range(draw(count))),
        tuple(draw(size) for _ in range(1 + draw(count))),
        tuple(draw(size) for _ in range(1 + draw(count))),
        tuple(draw(size) for _ in range(1 + draw(count))),
    )
    batch, left, right, contracted = roles.factors()
    tensors = {
        "lhs": (*batch, *left, *contracted),
        "rhs": (*contracted, *batch, *right),
        "out": (*batch, *left, *right),
    }
    moving = draw(st.sampled_from(("rhs", "lhs", "out")))
    travelling = draw(st.sampled_from(tensors[moving]))
    fixed = draw(st.sampled_from({"lhs": right, "rhs": left, "out": contracted}[moving]))
    parts = [part for axis in mesh.whole_axes() for part in cut(draw, axis) if part.size > 1]
    axes = list(draw(st.permutations(parts)))
    ring = [axes.pop() for _ in range(draw(st.integers(1, len(axes))))]
    split: dict[int, list[AxisRef]] = {}
    for axis in axes:
        where = draw(st.sampled_from([travelling, *range(len(roles.sizes())), None]))
        if where is not None:
            split.setdefault(where, []).append(axis)

    def sharding(name: str) -> Sharding:
        dims: list[DimSharding] = []
        for f in tensors[name]:
            mine = list(split.get(f, ()))
            if f == (travelling if name == moving else fixed):
                mine += ring
            dims.append(DimSharding(merge_axes(mine)))
        return Sharding(mesh, tuple(dims))

    return written(draw, mesh, roles, tensors, {name: sharding(name) for name in tensors})


def cut(draw: st.DrawFn, axis: AxisRef) -> tuple[AxisRef, ...]:
    """The axis whole, or as a part of size 2 and the rest."""
    if axis.size < 4 or axis.size % 2 or draw(st.booleans()):
        return (axis,)
    return AxisRef(axis.name, 1, 2), AxisRef(axis.name, 2, axis.size // 2)


def written(
    draw: st.DrawFn, mesh: Mesh, roles: Roles, tensors: dict[str, tuple[int, ...]], placed: dict[str, Sharding]
) -> Program:
    dtype: DType = draw(st.sampled_from((f32, s32, s8, bf16, c64)))
    batch, _, _, contracted = roles.factors()
    b = RegionBuilder()

    def tensor(name: str) -> TensorType:
        return TensorType(tuple(roles.sizes()[f] for f in tensors[name]), dtype)

    def dims(name: str, factors: Sequence[int]) -> tuple[int, ...]:
        return tuple(tensors[name].index(f) for f in factors)

    lhs, rhs = (b.param(name, tensor(name), placed[name]) for name in ("lhs", "rhs"))
    out = b.op(
        "dot_general",
        lhs,
        rhs,
        lhs_batch=dims("lhs", batch),
        rhs_batch=dims("rhs", batch),
        lhs_contract=dims("lhs", contracted),
        rhs_contract=dims("rhs", contracted),
    )
    result = Result("out", out.type, placed["out"])
    return Program((mesh,), {"main": b.function("main", [out], [result])})


@settings(max_examples=examples(40))
@given(clashing_products())
def test_products_of_clashing_operands_in_a_loop_equal_the_oracle(program: Program) -> None:
    q = spmdc.partition(program, windowed_einsum="always")
    assert any("windowed einsum" in c.reason for c in q.collectives()), q.text()
    check_equivalence(program, windowed_einsum="always")


@settings(max_examples=examples(3))
@given(clashing_products())
def test_products_of_clashing_operands_in_a_loop_equal_the_oracle_on_jax(program: Program) -> None:
    if program.mesh.size <= 8:
        check_equivalence(program, jax=True, windowed_einsum="always")
