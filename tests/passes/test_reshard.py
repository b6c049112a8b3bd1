"""Reshards: every pair of layouts is connected, by plans that do what they say and obey the triangle inequality."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdc
from ir.builder import RegionBuilder
from ir.mesh import AxisRef, Mesh, without_minor
from ir.program import Program, Result
from ir.sharding import Sharding
from ir.types import TensorType, f32
from passes.atoms import find_atoms
from passes.partition.local import layout_of
from passes.partition.reshard import Resharder
from passes.partition.steps import AllToAll, Gather, Permute, Reduce, ReduceScatter, Slice, Step
from spmdc.api import PartitionedProgram, partition
from spmdc.testing import check_equivalence, divisions, meshes, shardings


def reshard_program(mesh: Mesh, shape: tuple[int, ...], source: Sharding, target: Sharding) -> Program:
    b = RegionBuilder()
    x = b.param("x", TensorType(shape, f32), source)
    return Program((mesh,), {"main": b.function("main", (x,), (Result("y", x.type, target),))})


def kinds(q: PartitionedProgram) -> list[str]:
    return [c.kind for c in q.collectives()]


@settings(max_examples=150)
@given(st.data())
def test_every_reshard_gives_every_device_its_shard(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    divided = data.draw(divisions(mesh))
    shape = tuple(data.draw(st.lists(st.sampled_from((1, 2, 3, 5, 8, 16, 13)), min_size=1, max_size=3)))
    source, target = (
        data.draw(shardings(mesh, TensorType(shape, f32), unclear=False, divided=divided)) for _ in range(2)
    )
    check_equivalence(reshard_program(mesh, shape, source, target))


@settings(max_examples=60)
@given(st.data())
def test_going_by_way_of_a_third_layout_with_shards_as_small_is_never_cheaper(data: st.DataObject) -> None:
    mesh = data.draw(meshes(max_axes=2, max_devices=16))
    divided = data.draw(divisions(mesh))
    shape = tuple(data.draw(st.lists(st.sampled_from((3, 8, 16)), min_size=2, max_size=2)))
    drawn = [data.draw(shardings(mesh, TensorType(shape, f32), unclear=False, divided=divided)) for _ in range(3)]
    programs = [reshard_program(mesh, shape, drawn[0], s) for s in drawn]
    atoms = find_atoms(programs[0])
    if any(find_atoms(p).cuts != atoms.cuts for p in programs):
        return
    a, b, c = (layout_of(s, atoms) for s in drawn)
    sizes = [math.prod(layout.local_shape(shape)) for layout in (a, b, c)]
    if sizes[1] > max(sizes[0], sizes[2]):
        return
    plan = Resharder(atoms).plan
    assert plan(shape, 4, a, c).seconds <= plan(shape, 4, a, b).seconds + plan(shape, 4, b, c).seconds + 1e-12


@pytest.mark.parametrize(
    ("source", "target", "steps"),
    [
        (("x", None), ("x", None), []),
        (("x", None), (None, None), [Gather]),
        ((None, None), ("x", None), [Slice]),
        (("x", None), (None, "x"), [AllToAll]),
        (("x", None), ("y", None), [Permute]),
        (("x", None), (None, "y"), [Slice, Gather]),
        ((("x", "y"), None), (("y", "x"), None), [Permute]),
        ((("x", "y"), None), ("x", None), [Gather]),
        ((("x", "y"), None), ("x", "y"), [AllToAll]),
    ],
)
def test_a_reshard_takes_the_fewest_steps(
    source: tuple[object, ...], target: tuple[object, ...], steps: list[type[Step]]
) -> None:
    mesh = Mesh((("x", 2), ("y", 2)))
    ends = [Sharding.of(mesh, *s) for s in (source, target)]  # type: ignore[arg-type]
    atoms = find_atoms(reshard_program(mesh, (8, 8), *ends))
    plan = Resharder(atoms).plan((8, 8), 4, *(layout_of(s, atoms) for s in ends))
    assert [type(step) for step, _ in plan.steps] == steps


def test_a_partial_value_that_is_wanted_split_is_reduce_scattered() -> None:
    mesh = Mesh((("x", 4),))
    x = mesh.axis("x")
    source = Sharding(mesh, Sharding.of(mesh, None, None).dims, ((x, "sum"),))
    atoms = find_atoms(reshard_program(mesh, (8, 8), source, Sharding.of(mesh, "x", None)))
    plan = Resharder(atoms).plan
    scattered = plan((8, 8), 4, layout_of(source, atoms), layout_of(Sharding.of(mesh, None, "x"), atoms))
    whole = plan((8, 8), 4, layout_of(source, atoms), layout_of(Sharding.of(mesh, None, None), atoms))
    assert [type(step) for step, _ in scattered.steps] == [ReduceScatter]
    assert [type(step) for step, _ in whole.steps] == [Reduce]


def test_another_device_order_costs_one_collective_permute() -> None:
    mesh = Mesh((("x", 4),))
    other = Mesh((("a", 2), ("b", 2)), (3, 1, 0, 2), "other")
    b = RegionBuilder()
    x = b.param("x", TensorType((8, 8), f32), Sharding.of(mesh, "x", None))
    y = b.op("shard", x, sharding=Sharding.of(other, ("a", "b"), None))
    program = Program((mesh, other), {"main": b.function("main", (y,))})
    assert kinds(partition(program)) == ["collective_permute"]
    check_equivalence(program)


def test_the_bytes_of_a_transposed_split_are_those_of_one_all_to_all() -> None:
    mesh = Mesh((("x", 8),))
    program = reshard_program(mesh, (64, 64), Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x"))
    (collective,) = partition(program).collectives()
    assert (collective.kind, collective.bytes) == ("all_to_all", 64 * 64 * 4 // 8 * 7 // 8)


def test_a_reshard_is_computed_once_for_all_its_users() -> None:
    mesh = Mesh((("x", 4),))
    b = RegionBuilder()
    x = b.param("x", TensorType((8, 8), f32), Sharding.of(mesh, "x", None))
    whole = [b.op("shard", x, sharding=Sharding.of(mesh, None, None)) for _ in range(2)]
    sums = [b.op("cumsum", w, dim=0, reverse=r) for w, r in zip(whole, (False, True), strict=True)]
    program = Program((mesh,), {"main": b.function("main", sums)})
    assert kinds(partition(program)) == ["all_gather"]


def test_size_zero_dims_move_nothing() -> None:
    mesh = Mesh((("x", 4),))
    program = reshard_program(mesh, (0, 8), Sharding.of(mesh, None, "x"), Sharding.of(mesh, "x", None))
    q = partition(program)
    assert kinds(q) == []
    (y,) = q.simulate(np.zeros((0, 8), np.float32))
    assert y.shape == (0, 8)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("f32[8@x:(1)3]", "f32[8@x:(3)2]"),
        ("f32[8@x:(1)2]", "f32[8@x:(2)3]"),
        ("f32[4@x:(1)3, 8@x:(3)2]", "f32[4, 8@x]"),
        ("f32[8@x:(1)3, 7@y]", "f32[8@y, 7@x:(1)3]"),
        ("f32[5@m:(1)3, 4]", "f32[5, 4@x:(1)2]"),
    ],
)
def test_parts_of_an_axis_of_two_primes_are_resharded_in_either_order(source: str, target: str) -> None:
    other = "mesh other (m=6, n=2) devices=[11, 3, 2, 1, 0, 4, 5, 6, 7, 8, 9, 10]"
    check_equivalence(spmdc.parse(f"mesh (x=6, y=2)\n{other}\ndef main(a: {source}) -> (b: {target}) {{ return a }}"))


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (1000, 1030)])
def test_no_tensor_is_gathered_to_be_split_again(rows: int, columns: int) -> None:
    """Where the partitioner in XLA fully rematerialises (openxla/xla 15207), no shard exceeds the larger end's."""
    mesh = Mesh((("x", 2), ("y", 4)))
    places: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
        (("x", "y"), ()), (("y", "x"), ()), ((), ("x", "y")), ((), ("y", "x")), (("x",), ("y",)), (("y",), ("x",))
    ]  # fmt: skip
    for source, target in itertools.permutations(places, 2):
        program = reshard_program(mesh, (rows, columns), Sharding.of(mesh, *source), Sharding.of(mesh, *target))
        assert "all_gather" not in kinds(partition(program)), (source, target)


def test_slicing_a_split_dim_further_moves_only_what_crosses_the_new_boundaries() -> None:
    mesh = Mesh((("x", 2), ("y", 4)))
    program = reshard_program(mesh, (1000, 1030), Sharding.of(mesh, None, "x"), Sharding.of(mesh, None, ("x", "y")))
    assert sum(c.bytes for c in partition(program).collectives()) == 4000
    check_equivalence(
        reshard_program(mesh, (10, 13), Sharding.of(mesh, None, "x"), Sharding.of(mesh, None, ("x", "y")))
    )


def test_slicing_within_a_shard_starts_at_the_shard_of_the_minor_axis() -> None:
    mesh = Mesh((("x", 2), ("y", 4)))
    check_equivalence(reshard_program(mesh, (32,), Sharding.of(mesh, "x"), Sharding.of(mesh, ("x", "y"))))


def test_a_reshard_that_ends_on_parts_of_axes_knows_what_split_its_dim_before() -> None:
    """A path over parts of axes may end with a slice over a part of y and more, within shards over the rest of y."""
    mesh = "mesh (x=3, y=4, z=2)"
    check_equivalence(spmdc.parse(f"{mesh}\ndef main(a: f32[3, 3@x, 1]) -> (b: f32[3@(y,x,z), 3, 1]) {{ return a }}"))


def test_what_is_left_of_axes_without_minor_parts() -> None:
    x, y = AxisRef("x", 1, 4), AxisRef("y", 1, 3)
    halves = AxisRef("x", 1, 2), AxisRef("x", 2, 2)
    assert without_minor((y, x), (halves[1],)) == (y, halves[0])
    assert without_minor((x, y), (halves[1], y)) == (halves[0],)
    assert without_minor((x, y), (x, y)) == ()
    assert without_minor((y, *halves), (x,)) == (y,)
    with pytest.raises(ValueError, match="do not end in"):
        without_minor((y, x), (halves[0],))
