"""rng_bit_generator: the bits that jax.lax draws, the same however the draw is split."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from one_device import compiled_and_run

import spmdc
from ir.builder import RegionBuilder, infer_types
from ir.diagnostics import SpmdcError
from ir.program import Attr, Program, Value
from ir.types import DTYPES, DType, TensorType, f32, s32, u8, u16, u32, u64
from lowering import jax as lowering_jax
from lowering.reference import evaluate
from spmdc.frontends.spmd import parse

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.usefixtures("devices")

STATE = np.array([2**40 + 17, 2**32 - 3], np.uint64)
SHAPES: list[tuple[int, ...]] = [(), (1,), (3,), (8,), (5, 3), (3, 4), (2, 5, 7), (3, 5, 5), (0, 4), (3, 0)]


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def by_jax(draws: list[tuple[tuple[int, ...], DType]], algorithm: str) -> list[Array]:
    """The advanced state and the bits of each draw, one after the other."""
    name = {"DEFAULT": "RNG_DEFAULT", "PHILOX": "RNG_PHILOX", "THREE_FRY": "RNG_THREE_FRY"}[algorithm]
    draw: Any = lax.rng_bit_generator
    kind = getattr(lax.RandomAlgorithm, name)
    results: Any = jax.jit(lambda s: [draw(s, shape, dtype.numpy, algorithm=kind) for shape, dtype in draws])(STATE)
    return [np.asarray(x) for pair in results for x in pair]


@pytest.mark.parametrize("algorithm", ["DEFAULT", "PHILOX", "THREE_FRY"])
def test_bits_and_state_are_those_of_jax(algorithm: str) -> None:
    draws = [(shape, dtype) for shape in SHAPES for dtype in (u8, u16, u32, u64)]
    b = RegionBuilder()
    state = b.param("state", TensorType((2,), u64))
    results: list[Value] = []
    for shape, dtype in draws:
        attrs: dict[str, Attr] = {"type": TensorType(shape, dtype), "algorithm": algorithm}
        results.extend(b.append("rng_bit_generator", [state], attrs))
    program = Program((), {"main": b.function("main", results)})
    wanted = by_jax(draws, algorithm)
    for found in (evaluate(program, STATE), lowering_jax.compile(program)(STATE)):
        for got, want in zip(map(np.asarray, found), wanted, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("algorithm", ["PHILOX", "THREE_FRY"])
@pytest.mark.parametrize("shape", ["3@x, 5@y", "6, 4@(x,y)", "7@y"])
def test_a_split_draw_gives_the_bits_of_the_whole_one(algorithm: str, shape: str) -> None:
    plain = re.sub(r"@(\(.*?\)|\w+)", "", shape)
    sizes = tuple(map(int, plain.split(", ")))
    program = parse(f"""
mesh (x=2, y=2)
def main(state: u64[2]) -> (next: u64[2], a: u8[{shape}], last: u64[2], b: u32[{shape}], c: u64[{shape}]) {{
  next, a = rng_bit_generator(state, type=u8[{plain}], algorithm={algorithm})
  other, b = rng_bit_generator(state, type=u32[{plain}], algorithm={algorithm})
  last, c = rng_bit_generator(state, type=u64[{plain}], algorithm={algorithm})
  return next, a, last, b, c
}}
""")
    partitioned = spmdc.partition(program)
    assert partitioned.collectives() == []
    next_state, a, _, b, last, c = by_jax([(sizes, u8), (sizes, u32), (sizes, u64)], algorithm)
    wanted = (next_state, a, last, b, c)
    for results in (spmdc.evaluate(program, STATE), partitioned.simulate(STATE), partitioned.to_jax()(STATE)):
        for got, want in zip(map(np.asarray, results), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


REFUSED: list[tuple[list[TensorType], TensorType]] = [
    ([TensorType((2,), u32)], TensorType((3,), u32)),
    ([TensorType((4,), u64)], TensorType((3,), u32)),
    ([TensorType((2,), u64)], TensorType((3,), f32)),
    ([TensorType((2,), u64), TensorType((), s32)], TensorType((3, 4), u32)),
]


@pytest.mark.parametrize(("types", "result"), REFUSED)
def test_other_states_and_types_are_refused(types: list[TensorType], result: TensorType) -> None:
    with pytest.raises(SpmdcError) as caught:
        infer_types("rng_bit_generator", types, {"type": result, "algorithm": "PHILOX"})
    assert caught.value.diagnostics[0].code == "E201"


def test_threefry_has_a_counter_of_one_word() -> None:
    attrs: dict[str, Attr] = {"type": TensorType((3,), u32), "algorithm": "THREE_FRY"}
    with pytest.raises(SpmdcError, match=r"must be u64\[2\], a key and a counter, and is u64\[3\]"):
        infer_types("rng_bit_generator", [TensorType((3,), u64)], attrs)


@pytest.mark.parametrize(
    "words", [(5, 2**64 - 2), (5, 2**64 - 2, 7), (2**40 + 17, 2**64 - 1, 2**64 - 1)], ids=["two", "three", "all carry"]
)
def test_a_counter_of_philox_counts_in_128_bits(words: tuple[int, ...]) -> None:
    """The upper word of a state without one is the key."""
    state, n = np.array(words, np.uint64), len(words)
    for dtype in ("u32", "u64"):
        text = (
            f"HloModule m, num_partitions=4\n\nENTRY e {{\n  s = u64[{n}] parameter(0)\n"
            f"  ROOT r = (u64[{n}], {dtype}[5,3]) rng-bit-generator(s), algorithm=rng_philox, "
            "sharding={{replicated}, {devices=[2,2]<=[4]}}\n}\n"
        )
        wanted = compiled_and_run(re.sub(r", sharding.*|, num_partitions=4", "", text), [state])
        program = spmdc.from_hlo(text)
        partitioned = spmdc.partition(program)
        for found in (spmdc.evaluate(program, state), partitioned.simulate(state), partitioned.to_jax()(state)):
            for got, want in zip(map(np.asarray, found), wanted, strict=True):
                np.testing.assert_array_equal(got, want)


def test_every_unsigned_type_is_drawn() -> None:
    assert [t for t in DTYPES.values() if t.kind == "unsigned" and not t.is_short] == [u8, u16, u32, u64]
