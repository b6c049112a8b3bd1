"""Programs of floats of 8 and 4 bits and integers of 4 and 2, on the simulator and on JAX's devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from short_types import EACH_SHORT, SHORT

import spmdc
from ir.program import Program
from ir.types import DTYPES, DType
from lowering import jax as lowering_jax
from lowering.jax.xla_faults import MOVED_AS_BITS
from spmdc.testing import check_equivalence

_ANY = (
    ("replicated", "replicate(a)", "T[8, 6]"),
    ("turned", "split(a, 1, 2)", "T[8, 6]"),
    ("uneven", "replicate(u)", "T[7, 3]"),
    ("joined", "concatenate(u, u, dim=0)", "T[14, 3]"),
    ("cut", "a[1:6]", "T[5, 6]"),
    ("largest", "max(u, dim=0)", "T[3]"),
    ("smallest", "min(u, dim=0)", "T[3]"),
    ("where", "argmax(u, dim=0)", "s32[3]"),
    ("ordered", "sort(u, dim=1, descending=true)", "T[7, 3]"),
    ("best", "two", "T[7, 2]"),
    ("places", "places_of_two", "s32[7, 2]"),
    ("running", "cummax(u, dim=0)", "T[7, 3]"),
    ("taken", "take(u, i, dim=0)", "T[4, 3]"),
    ("backward", "reverse(u, dims=[0])", "T[7, 3]"),
    ("wide", "convert(a, dtype=f32)", "f32[8, 6]"),
    ("chosen", "select(u > reverse(u, dims=[0]), u, reverse(u, dims=[0]))", "T[7, 3]"),
    ("padded", "pad(u, u[0, 0], low=[1, 0], high=[1, 0])", "T[9, 3]"),
    ("windows", "reduce_window(u, window=[3, 1], kind=max)", "T[5, 3]"),
)
_SUMS = (
    ("product", "dot_general(a, b, lhs_contract=[1], rhs_contract=[0])", "T[8, 5]"),
    ("wide_product", "dot_general(a, b, lhs_contract=[1], rhs_contract=[0], dtype=WIDE)", "WIDE[8, 5]"),
    ("partial_product", 'einsum("ij,ik->jk", a, a)', "T[6, 6]"),
    ("total", "sum(u, dim=0)", "T[3]"),
    ("prefixes", "cumsum(u, dim=0)", "T[7, 3]"),
    ("twice", "a + a", "T[8, 6]"),
    ("square", "a * a", "T[8, 6]"),
)
_INTEGERS = (
    ("common", "reduce(u, dims=[0], kind=and)", "T[3]"),
    ("ones", "popcnt(u)", "T[7, 3]"),
    ("powers", "u ** u", "T[7, 3]"),
)


def _program(dtype: DType) -> Program:
    lines = [*_ANY, *(_SUMS if dtype.has_zero else ()), *(_INTEGERS if dtype.is_integer else ())]
    lines += [("magnitude", "abs(u)", "T[7, 3]")] if dtype.kind == "signed" else []
    body = "  two, places_of_two = top_k(u, 2)\n" + "\n".join(f"  {name} = {text}" for name, text, _ in lines)
    results = ", ".join(f"{name}: {type}" for name, _, type in lines)
    text = (
        f"mesh (x=4, y=2)\ndef main(a: T[8@x, 6], b: T[6, 5@y], u: T[7@x, 3], i: s32[4]) -> ({results}) {{\n{body}\n"
        f"  return {', '.join(name for name, _, _ in lines)}\n}}\n"
    )
    return spmdc.parse(text.replace("WIDE", "f32" if dtype.is_float else "s32").replace("T[", f"{dtype}["))


def _same(program: Program, got: Sequence[npt.ArrayLike], wanted: Sequence[npt.ArrayLike]) -> None:
    for result, ours, want in zip(program.main.results, map(np.asarray, got), map(np.asarray, wanted), strict=True):
        assert ours.dtype == want.dtype, result.name
        assert ((ours == want) | ((ours != ours) & (want != want))).all(), (result.name, ours, want)


@pytest.mark.parametrize("dtype", EACH_SHORT)
def test_partitioned_as_unpartitioned(dtype: DType) -> None:
    program = _program(dtype)
    inputs = spmdc.random_inputs(program, 1, integers=True)
    wanted = spmdc.evaluate(program, *inputs)
    partitioned = spmdc.partition(program)
    for seed in range(3):
        _same(program, partitioned.simulate(*inputs, seed=seed), wanted)
    _same(program, partitioned.to_jax()(*inputs), wanted)


@pytest.mark.optimised
def test_every_number_is_sorted_with_nan_at_the_end_and_largest_among_the_first() -> None:
    """XLA sorts a NaN that has the bits of a negative zero as if it were below all numbers."""
    floats = [t for t in SHORT if t.is_float]
    names = ("up", "down", "first", "places")
    params, results, lines = [], [], []
    for i, t in enumerate(floats):
        n = 2**t.bits
        params.append(f"a{i}: {t}[{n}]")
        results += [f"{name}{i}: {'s32' if name == 'places' else t}[{n}]" for name in names]
        lines += [f"  up{i} = sort(a{i}, dim=0)", f"  down{i} = sort(a{i}, dim=0, descending=true)"]
        lines += [f"  first{i}, places{i} = top_k(a{i}, {n})"]
    returned = ", ".join(f"{name}{i}" for i in range(len(floats)) for name in names)
    body = "\n".join([*lines, f"  return {returned}"])
    program = spmdc.parse(f"def main({', '.join(params)}) -> ({', '.join(results)}) {{\n{body}\n}}")
    every = [np.random.default_rng(0).permutation(2**t.bits).astype(np.uint8).view(t.numpy) for t in floats]
    _same(program, lowering_jax.compile(program)(*every), spmdc.evaluate(program, *every))


@pytest.mark.parametrize(
    "dtype",
    [*(t for t in SHORT if t not in MOVED_AS_BITS), *(DTYPES[name] for name in ("f32", "bf16", "s32", "u32"))],
    ids=str,
)
def test_the_largest_are_found_with_what_goes_with_them(dtype: DType) -> None:
    """On CPUs by top_k, not by sorting."""
    text = """
    mesh (x=2)
    def main(a: T[4@x, 9], b: s32[4@x, 9]) -> (v: T[4@x, 5], w: s32[4@x, 5]) {
      v, w = sort(a, b, dim=1, descending=true, first=5)
      return v, w
    }"""
    program = spmdc.parse(text.replace("T[", f"{dtype}["))
    for seed in range(3):
        check_equivalence(program, jax=True, seed=seed, anything=True)


@pytest.mark.optimised
@pytest.mark.parametrize("dtype", [t for t in SHORT if t.is_float], ids=str)
def test_extremes_over_devices_are_of_all_numbers_and_keep_nan(dtype: DType) -> None:
    """Each number meets another one on another device. XLA takes the smallest of f8e8m0fnu for zero."""
    every = np.arange(0 if dtype.has_zero else 1, 2**dtype.bits, dtype=np.uint8).view(dtype.numpy)
    pairs = np.stack([every, np.roll(every, 5)])
    text = f"mesh (x=2)\ndef main(a: T[2@x, {len(every)}]) -> (high: T[{len(every)}], low: T[{len(every)}]) {{\n"
    text += "  return max(a, dim=0), min(a, dim=0)\n}\n"
    program = spmdc.parse(text.replace("T[", f"{dtype}["))
    got = spmdc.partition(program).to_jax()(pairs)
    wanted = spmdc.evaluate(program, pairs)
    _same(program, got, wanted)
    for ours, want in zip(map(np.asarray, got), wanted, strict=True):
        assert (np.signbit(ours[want == 0]) == np.signbit(want[want == 0])).all()
