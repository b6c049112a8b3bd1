"""What small meshes and tame numbers hide: where a shard of a shard begins, what fills padding, who speaks first."""

from __future__ import annotations

import itertools
import operator

import numpy as np
import pytest
from hypothesis import given

import spmdc
from ir.mesh import AxisRef, prime_factors, split_axis
from ir.ops.reduction import identity_of
from ir.program import Program, Value, all_ops
from ir.sharding import Sharding
from ir.spelling.printer import print_type
from ir.types import DTYPES, DType
from passes.optimize.fold.simplify import use_known_indices
from spmdc.testing import programs


def propagated(text: str) -> dict[str, str]:
    """The type of each value of main after propagation, as printed."""
    program = spmdc.propagate(spmdc.parse(text)).program
    return {v.name: print_type(v.type, v.sharding) for v in _values(program)}


def _values(program: Program) -> list[Value]:
    return [*program.main.params, *(v for op in all_ops(program) for v in op.results)]


@pytest.mark.parametrize(
    ("mesh", "before", "after"),
    [
        ("x=2, y=4", "x", "(x,y)"),
        ("x=4, y=3", "x", "(x,y)"),
        ("x=12", "x:(1)3", "x"),
        ("x=12", "x:(3)4", "(x:(3)4,x:(1)3)"),
        ("x=2, y=4, z=2", "(z,x)", "(z,x,y)"),
    ],
)
@pytest.mark.parametrize("n", [48, 37])
def test_a_shard_is_cut_from_where_it_begins_in_the_old_shard(mesh: str, before: str, after: str, n: int) -> None:
    program = spmdc.parse(
        f"mesh ({mesh})\ndef main(a: f32[{n}@{before}]) -> (y: f32[{n}@{after}]) {{ return a }}",
    )
    x = np.arange(n, dtype=np.float32)
    (y,) = spmdc.partition(program).simulate(x)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.is_integer], ids=str)
def test_the_identity_of_and_keeps_every_bit_of_an_integer(dtype: DType) -> None:
    ends = np.array([dtype.lowest, dtype.highest], dtype.numpy)
    np.testing.assert_array_equal(ends & np.array(identity_of("and", dtype), dtype.numpy), ends)


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if d.is_ordered and d.name != "pred"], ids=str)
def test_the_identities_of_max_and_min_change_no_number(dtype: DType) -> None:
    numbers = np.array([dtype.lowest, dtype.highest, 0 if dtype.has_zero else 1], dtype.numpy)
    low, high = (np.array(identity_of(kind, dtype), dtype.numpy) for kind in ("max", "min"))
    np.testing.assert_array_equal(np.maximum(numbers, low), numbers)
    np.testing.assert_array_equal(np.minimum(numbers, high), numbers)


@pytest.mark.parametrize("kind", ["and", "or", "max", "min"])
@pytest.mark.parametrize("dtype", ["s8", "s32", "u8", "u32"])
@pytest.mark.parametrize("end", ["lowest", "highest"])
def test_padding_does_not_reach_a_reduction_of_extreme_integers(kind: str, dtype: str, end: str) -> None:
    program = spmdc.parse(
        f"mesh (d=4)\ndef main(x: {dtype}[7@d, 2]) -> (y: {dtype}[2]) {{ return reduce(x, dims=[0], kind={kind}) }}"
    )
    x = np.full((7, 2), getattr(DTYPES[dtype], end), DTYPES[dtype].numpy)
    (y,) = spmdc.partition(program).simulate(x)
    np.testing.assert_array_equal(y, x[0])


def test_an_op_is_split_as_its_inputs_even_where_a_split_of_its_result_comes_first() -> None:
    """GShard, section 3.2: `split` after an op reshards; it does not reach back while the inputs can still speak."""
    found = propagated(
        """
        mesh (d=4)
        def main(a: f32[8@d, 4, 8], b: f32[8@d, 4, 2]) -> (y: f32[8, 8, 2]) {
          a2 = neg(a)
          local = einsum("GSE,GSM->EGM", a2, b)
          scaled = neg(local)
          y = split(scaled, 0, 4)
          return y
        }
        """
    )
    assert (found["a2"], found["local"], found["scaled"]) == ("f32[8@d, 4, 8]", "f32[8, 8@d, 2]", "f32[8, 8@d, 2]")
    assert found["y"] == "f32[8@d, 8, 2]"


def test_a_split_reaches_back_where_nothing_else_says_how_to_split() -> None:
    found = propagated("mesh (d=4)\ndef main(a: f32[8, 4]) -> (y: f32[8, 4]) { b = neg(a)\n return split(b, 0, 4) }")
    assert (found["a"], found["b"]) == ("f32[8@d, 4]", "f32[8@d, 4]")


def test_elementwise_ops_speak_before_products() -> None:
    """The weight's split would reach the product's columns first if all ops spoke at once."""
    found = propagated(
        """
        mesh (d=4)
        def main(a: f32[64, 8], w: f32[8, 16@d], r: f32[64@d, 16]) -> (y: f32[64, 16]) {
          h = einsum("ij,jk->ik", a, w)
          y = h + r
          return y
        }
        """
    )
    assert found["h"] == "f32[64@d, 16]"


@pytest.mark.parametrize(("said", "found"), [("(x,?)", "(x,y,z)"), ("(x,y,?)", "(x,y,z)"), ("(z,?)", "z")])
def test_new_axes_come_minor_to_those_of_an_annotation_or_not_at_all(said: str, found: str) -> None:
    signature = "def main(a: f32[16@(x,y,z)]) -> (y: f32[16])"
    forward = f"mesh (x=2, y=2, z=2)\n{signature} {{ b: f32[16@{said}] = neg(a)\n return b }}"
    assert propagated(forward)["b"] == f"f32[16@{found}]"


@pytest.mark.parametrize(("columns", "found"), [(12, "f32[8@d, 4, 12]"), (16, "f32[8, 4, 16@d]")])
def test_batch_dims_speak_before_a_larger_operand_unless_their_own_is_gathered_for_less(
    columns: int, found: str
) -> None:
    """Either 256 elements are gathered, or a fourth of the other operand's, 192 or 256, is moved."""
    program = f"""
        mesh (d=4)
        def main(a: f32[8@d, 4, 8], b: f32[8, 8, {columns}@d]) -> (y: f32[8, 4, {columns}]) {{
          y = einsum("bij,bjk->bik", a, b)
          return y
        }}
        """
    assert propagated(program)["y"] == found


def _devices(sharding: Sharding, dim: int) -> list[AxisRef]:
    """The axes of a dim in parts that cannot be cut further, major first."""
    found: list[AxisRef] = []
    for axis in sharding.dims[dim].axes:
        ends = itertools.accumulate(prime_factors(axis.size), operator.mul, initial=axis.pre)
        found += split_axis(axis, ends)
    return found


def _named(program: Program) -> dict[tuple[str, str], Value]:
    """The values of every function, without those inside loops and choices."""
    return {
        (f.name, v.name): v
        for f in program.functions.values()
        for v in (*f.params, *(v for op in f.body.ops for v in op.results))
    }


@given(programs(max_ops=6))
def test_propagation_only_adds_axes_and_only_minor_ones_to_open_dims(program: Program) -> None:
    after = _named(spmdc.propagate(program).program)
    for name, value in _named(use_known_indices(program)).items():
        said, found = value.sharding, after[name].sharding
        if said is None or found is None or said.mesh != found.mesh:
            continue
        for dim, placed in enumerate(said.dims):
            before, now = _devices(said, dim), _devices(found, dim)
            assert now[: len(before)] == before
            assert placed.open or now == before
