"""Reshards: every pair of layouts is connected, by plans that do what they say and obey the triangle inequality."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from bounds import reshard_lower_bound
from drawn import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reshards import every_place, reshard_program

import spmdc
from ir.builder import RegionBuilder
from ir.mesh import AxisRef, Mesh, prime_parts, without_minor
from ir.program import Program
from ir.sharding import ReductionKind, Sharding
from ir.types import TensorType, f32
from passes.cost.machine import TPU_V3
from passes.cost.network import Link
from passes.partition.closed_sharding import ClosedSharding, closed_sharding_of
from passes.partition.options import PartitionOptions
from passes.partition.plan.functions import plan_program
from passes.partition.plan.planner import Planner
from passes.partition.reshard import sweep
from passes.partition.reshard.planner import Resharder
from passes.partition.reshard.search import Search, stepwise_plan
from passes.partition.reshard.steps import AllToAll, Gather, Permute, Reduce, ReduceScatter, Slice, Step, Task
from passes.partition.reshard.sweep import direct_plan
from passes.propagation.propagate import propagate
from passes.sub_axes import find_sub_axes
from spmdc.api import PartitionedProgram, partition
from spmdc.testing import check_equivalence, divisions, meshes, other_meshes, shardings

Split = str | tuple[str, ...] | None
"""The axes of a dim, as `Sharding.of` takes them."""


def kinds(q: PartitionedProgram) -> list[str]:
    return [c.kind for c in q.collectives()]


@settings(max_examples=examples(150))
@given(st.data())
def test_every_reshard_gives_every_device_its_shard(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    divided = data.draw(divisions(mesh))
    shape = tuple(data.draw(st.lists(st.sampled_from((1, 2, 3, 5, 8, 16, 13)), min_size=1, max_size=3)))
    source, target = (
        data.draw(shardings(mesh, TensorType(shape, f32), unclear=False, divided=divided)) for _ in range(2)
    )
    check_equivalence(reshard_program(shape, source, target))


@settings(max_examples=examples(60))
@given(st.data())
def test_going_by_way_of_a_third_layout_with_shards_as_small_is_never_cheaper(data: st.DataObject) -> None:
    mesh = data.draw(meshes(max_axes=2, max_devices=16))
    divided = data.draw(divisions(mesh))
    shape = tuple(data.draw(st.lists(st.sampled_from((3, 8, 16)), min_size=2, max_size=2)))
    drawn = [data.draw(shardings(mesh, TensorType(shape, f32), unclear=False, divided=divided)) for _ in range(3)]
    programs = [reshard_program(shape, drawn[0], s) for s in drawn]
    sub_axes = find_sub_axes(programs[0])
    if any(find_sub_axes(p).cuts != sub_axes.cuts for p in programs):
        return
    a, b, c = (closed_sharding_of(s, sub_axes) for s in drawn)
    sizes = [math.prod(layout.local_shape(shape)) for layout in (a, b, c)]
    if sizes[1] > max(sizes[0], sizes[2]):
        return
    plan = Resharder(sub_axes, TPU_V3).plan
    assert plan(shape, 4, a, c).seconds <= plan(shape, 4, a, b).seconds + plan(shape, 4, b, c).seconds + 1e-12


@settings(max_examples=examples(100))
@given(st.data())
def test_no_plan_takes_less_time_than_the_bound_by_which_choices_leave_plans_out(data: st.DataObject) -> None:
    mesh = data.draw(meshes(max_devices=24))
    divided = data.draw(divisions(mesh))
    shape = tuple(data.draw(st.lists(st.sampled_from((0, 1, 3, 7, 8, 48)), min_size=1, max_size=3)))
    ends = [data.draw(shardings(mesh, TensorType(shape, f32), unclear=False, divided=divided)) for _ in range(2)]
    sub_axes = find_sub_axes(reshard_program(shape, ends[0], ends[1]))
    source, target = (closed_sharding_of(s, sub_axes) for s in ends)
    slow = replace(TPU_V3, links=((mesh.names[0], Link(bandwidth=5e9, latency=5e-6)),))
    machine = data.draw(st.sampled_from((TPU_V3, slow, spmdc.machine("tpu-v2"), spmdc.machine("h100"))))
    machine = machine.laid_out([mesh])
    least = Resharder(sub_axes, machine).least_seconds(shape, 4, source, target)
    assert least <= Resharder(sub_axes, machine).plan(shape, 4, source, target).seconds * (1 + 1e-9)


@settings(max_examples=examples(100))
@given(st.data())
def test_a_reshard_of_one_step_is_planned_as_by_the_sweep(data: st.DataObject) -> None:
    mesh = data.draw(meshes(max_devices=24))
    divided = data.draw(divisions(mesh))
    shape = tuple(data.draw(st.lists(st.sampled_from((0, 1, 3, 7, 8, 48)), min_size=1, max_size=3)))
    drawn = data.draw(shardings(mesh, TensorType(shape, f32), unclear=False, divided=divided))
    sub_axes = find_sub_axes(reshard_program(shape, drawn, Sharding.replicate(mesh, len(shape))))
    fine = replace(closed_sharding_of(drawn, sub_axes), order=None)
    dim = data.draw(st.integers(0, len(shape) - 1))
    axes = fine.axes[dim]
    coarse = fine.with_dim(dim, axes[: data.draw(st.integers(0, len(axes)))])
    kind: ReductionKind = fine.partial[0][1] if fine.partial else "sum"
    owed = [*fine.partial, *((axis, kind) for axis in axes[len(coarse.axes[dim]) :])]
    pending = replace(coarse, partial=tuple(sorted(owed, key=lambda part: sub_axes.rank[part[0]])))
    ends = (fine, coarse), (coarse, fine), (pending, fine), (fine, fine.without_partial())
    source, target = data.draw(st.sampled_from(ends))
    assume(source != target)
    task = Task(TPU_V3, sub_axes, shape, 4, source, target)
    direct = direct_plan(task)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "_only_step", lambda _: None)
        swept = direct_plan(task)
    assert direct is not None
    assert direct == swept


def test_a_choice_plans_few_of_the_reshards_that_it_compares() -> None:
    params = "a: f32[13@(x,y), 48@z], b: f32[48@(y,x), 20@z:(1)2], c: f32[13@z:(2)2, 20@(y,z:(1)2)]"
    body = "{ return matmul(a, b) + c }"
    program = propagate(spmdc.parse(f"mesh (x=2, y=3, z=4)\ndef main({params}) -> (o: f32[13@y, 20@x]) {body}"))
    resharder = Resharder(find_sub_axes(program.program), TPU_V3)
    planner = Planner(program, resharder, PartitionOptions.on(TPU_V3))
    plan_program(planner)
    own = planner.selector.resharder
    assert len(resharder.plans) == len(own.plans) < 0.75 * len(own.bounds)


@pytest.mark.parametrize(
    ("source", "owed", "target"),
    [
        ((("x", "y", "z"), None), (), ("z", None)),
        (("x", "y"), (), (None, None)),
        ((None, None), ("x", "y", "z"), (None, None)),
        ((None, None), ("x", "y"), (None, ("x", "y", "z"))),
        (("z", None), ("x", "y"), ("z", None)),
    ],
)
def test_plans_that_none_can_beat_are_not_searched_for(
    source: tuple[Split, ...], owed: tuple[str, ...], target: tuple[Split, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(self: Search, bound: float) -> None:
        raise AssertionError(f"searched from {self.source} to {self.target}")

    monkeypatch.setattr(Search, "run", search)
    mesh, shape = Mesh((("x", 2), ("y", 2), ("z", 2))), (16, 16)
    ends = Sharding.of(mesh, *source), Sharding.of(mesh, *target)
    sub_axes = find_sub_axes(reshard_program(shape, *ends))
    have, wanted = (closed_sharding_of(end, sub_axes) for end in ends)
    partial = ClosedSharding(have.axes, tuple((mesh.axis(name), "sum") for name in owed))
    plan = Resharder(sub_axes, TPU_V3).plan(shape, 4, partial, wanted)
    assert plan.seconds == pytest.approx(Resharder(sub_axes, TPU_V3).least_seconds(shape, 4, partial, wanted), rel=0.02)


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
    source: tuple[Split, ...], target: tuple[Split, ...], steps: list[type[Step]]
) -> None:
    mesh = Mesh((("x", 2), ("y", 2)))
    ends = [Sharding.of(mesh, *s) for s in (source, target)]
    sub_axes = find_sub_axes(reshard_program((8, 8), *ends))
    plan = Resharder(sub_axes, TPU_V3).plan((8, 8), 4, *(closed_sharding_of(s, sub_axes) for s in ends))
    assert [type(step) for step, _ in plan.steps] == steps


def test_a_partial_value_that_is_wanted_split_is_reduce_scattered() -> None:
    mesh = Mesh((("x", 4),))
    x = mesh.axis("x")
    source = Sharding(mesh, Sharding.of(mesh, None, None).dims, ((x, "sum"),))
    sub_axes = find_sub_axes(reshard_program((8, 8), source, Sharding.of(mesh, "x", None)))
    plan = Resharder(sub_axes, TPU_V3).plan
    scattered = plan(
        (8, 8), 4, closed_sharding_of(source, sub_axes), closed_sharding_of(Sharding.of(mesh, None, "x"), sub_axes)
    )
    whole = plan(
        (8, 8), 4, closed_sharding_of(source, sub_axes), closed_sharding_of(Sharding.of(mesh, None, None), sub_axes)
    )
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
    program = reshard_program((64, 64), Sharding.of(mesh, "x", None), Sharding.of(mesh, None, "x"))
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
    program = reshard_program((0, 8), Sharding.of(mesh, None, "x"), Sharding.of(mesh, "x", None))
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


@pytest.mark.parametrize("shape", [(1024, 1024), (1000, 1030)])
def test_all_reshards_of_a_matrix_receive_what_the_devices_lack(shape: tuple[int, int]) -> None:
    """All 110 pairs on a 2 x 4 mesh; the partitioner in XLA receives 1.398 times that, measured by `make bench`."""
    pairs = list(itertools.permutations(every_place(Mesh((("x", 2), ("y", 4))), 2), 2))
    assert len(pairs) == 110
    bounds = [reshard_lower_bound(shape, 4, *pair) for pair in pairs]
    programs = [reshard_program(shape, *pair) for pair in pairs]
    received = [partition(program, verify=False).received_bytes() for program in programs]
    assert sum(received) <= 1.05 * sum(bounds)
    if shape == (1024, 1024):
        assert received == bounds


@pytest.mark.parametrize("mesh", [Mesh((("x", 4), ("y", 2))), Mesh((("x", 2), ("y", 2), ("z", 2)))], ids=str)
def test_reshards_of_three_dims_receive_what_the_devices_lack(mesh: Mesh) -> None:
    """Where the partitioner in XLA fully rematerialises: P('y', None, 'x') -> P(None, ('x', 'y'), None) and others."""
    shape = (512, 512, 512)
    ends = Sharding.of(mesh, "y", None, "x"), Sharding.of(mesh, None, ("x", "y"), None)
    others = list(itertools.permutations(every_place(mesh, 3), 2))[::37]
    ratios: list[float] = []
    for source, target in (ends, *others):
        sub_axes = find_sub_axes(reshard_program(shape, source, target))
        plan = Resharder(sub_axes, TPU_V3).plan(
            shape, 4, closed_sharding_of(source, sub_axes), closed_sharding_of(target, sub_axes)
        )
        bound = reshard_lower_bound(shape, 4, source, target)
        ratios.append(plan.received / bound if bound else 1.0 + plan.received)
    assert ratios[0] == 1.0
    assert max(ratios) <= 1.1
    assert sum(ratios) <= 1.02 * len(ratios)


@settings(max_examples=examples(100))
@given(st.sampled_from([(8,), (2, 4), (4, 4), (2, 2, 2), (4, 2, 4), (32,)]), st.data())
def test_parts_of_axes_are_resharded_at_the_lower_bound(sizes: tuple[int, ...], data: st.DataObject) -> None:
    mesh, shape = Mesh(tuple(zip("xyz", sizes, strict=False))), (1024, 2048)
    drawn = shardings(mesh, TensorType(shape, f32), partial=False, unclear=False)
    source, target = data.draw(drawn), data.draw(drawn)
    sub_axes = find_sub_axes(reshard_program(shape, source, target))
    plan = Resharder(sub_axes, TPU_V3).plan(
        shape, 4, closed_sharding_of(source, sub_axes), closed_sharding_of(target, sub_axes)
    )
    assert plan.received <= 1.05 * reshard_lower_bound(shape, 4, source, target)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(2, 16), min_size=1, max_size=3), st.booleans(), st.data())
def test_no_shard_on_the_way_is_larger_than_at_the_larger_end(
    sizes: list[int], even: bool, data: st.DataObject
) -> None:
    """So no tensor is gathered to be split again, whatever the mesh; where dims are uneven, padding is not counted."""
    mesh = Mesh(tuple(zip("xyz", sizes, strict=False)))
    shape = (mesh.size, 2 * mesh.size) if even else (1000, 1030)
    drawn = shardings(mesh, TensorType(shape, f32), unclear=False)
    ends = data.draw(drawn), data.draw(drawn)
    sub_axes = find_sub_axes(reshard_program(shape, *ends))
    layouts = [closed_sharding_of(s, sub_axes) for s in ends]
    plan = Resharder(sub_axes, TPU_V3).plan(shape, 4, layouts[0], layouts[1])
    largest = max(math.prod(layout.local_shape(shape)) for layout in layouts)
    for _, after in plan.steps:
        assert math.prod(after.local_shape(shape)) <= largest * (1 if even else 2)


def test_the_size_of_a_reshard_does_not_grow_with_the_mesh() -> None:
    sizes: list[int] = []
    for n in (4, 16, 32):
        mesh = Mesh((("x", n), ("y", n)))
        ends = Sharding.of(mesh, "x", "y"), Sharding.of(mesh, (), ("x", "y"))
        program = partition(reshard_program((4096, 4096), *ends), verify=False).program
        sizes.append(len(program.main.body.ops))
    assert sizes[2] <= sizes[1] <= 150


def test_a_plan_for_axes_of_many_primes_is_found_in_few_states() -> None:
    mesh = Mesh((("x", 16), ("y", 12), ("z", 9)))
    ends = Sharding.of(mesh, None, ("z", "x"), "y"), Sharding.of(mesh, "x", "y", "z")
    sub_axes = find_sub_axes(reshard_program((1728,) * 3, *ends))
    layouts = [closed_sharding_of(s, sub_axes) for s in ends]
    fine = [ClosedSharding(tuple(sub_axes.primes.split(a) for a in layout.axes)) for layout in layouts]
    known = stepwise_plan(Task(TPU_V3, sub_axes.primes, (1728,) * 3, 4, *fine))
    found = Resharder(sub_axes, TPU_V3).plan((1728,) * 3, 4, *layouts)
    assert found.received < known.received / 2


@settings(max_examples=examples(100))
@given(st.data())
def test_reshards_of_longer_dims_between_device_orders_give_every_device_its_shard(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    several = (mesh, data.draw(other_meshes(mesh))) if mesh.size > 1 else (mesh,)
    divided = data.draw(divisions(*several))
    shape = tuple(data.draw(st.lists(st.sampled_from((3, 8, 12, 16, 24)), min_size=1, max_size=3)))
    b = RegionBuilder()
    ends = [
        data.draw(shardings(m, TensorType(shape, f32), unclear=False, divided=divided)) for m in (mesh, several[-1])
    ]
    y = b.op("shard", b.param("x", TensorType(shape, f32), ends[0]), sharding=ends[1])
    check_equivalence(Program(several, {"main": b.function("main", (y,))}))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("f32[16, 16@x]", "f32[16@(x,y), 16]"),
        ("f32[16@x, 16@y]", "f32[16@y, 16@x]"),
        ("f32[16, 16@(x,y)]", "f32[16@x, 16]"),
        ("f32[16@y, 16@x]", "f32[16, 16@(y,x)]"),
        ("f32[13@x, 11@y]", "f32[13@y, 11@x]"),
        ("f32[13, 11@x]", "f32[13@(x,y), 11]"),
        ("f32[16, 16@x]{partial: y}", "f32[16@(y,x), 16]"),
        ("f32[16, 16]{partial: x, y}", "f32[16@y, 16@x]"),
    ],
)
@pytest.mark.usefixtures("devices")
def test_axes_at_any_place_run_in_jax_as_in_the_simulator(source: str, target: str) -> None:
    q = partition(spmdc.parse(f"mesh (x=2, y=4)\ndef main(a: {source}) -> (b: {target}) {{ return a }}"))
    (a,) = spmdc.random_inputs(q.source, integers=True)
    np.testing.assert_array_equal(np.asarray(q.to_jax()(a)[0]), a)
    np.testing.assert_array_equal(q.simulate(a)[0], a)


def test_slicing_a_split_dim_further_moves_only_what_crosses_the_new_boundaries() -> None:
    mesh = Mesh((("x", 2), ("y", 4)))
    program = reshard_program((1000, 1030), Sharding.of(mesh, None, "x"), Sharding.of(mesh, None, ("x", "y")))
    assert sum(c.bytes for c in partition(program).collectives()) == 4000
    check_equivalence(reshard_program((10, 13), Sharding.of(mesh, None, "x"), Sharding.of(mesh, None, ("x", "y"))))


def test_slicing_within_a_shard_starts_at_the_shard_of_the_minor_axis() -> None:
    mesh = Mesh((("x", 2), ("y", 4)))
    check_equivalence(reshard_program((32,), Sharding.of(mesh, "x"), Sharding.of(mesh, ("x", "y"))))


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


def test_reshards_over_axes_of_unlike_primes_are_found_near_the_lower_bound() -> None:
    """Dims are cut in 2, 3 and 4 parts that do not refine one another; each plan, and all together."""
    mesh, shape = Mesh((("x", 2), ("y", 3), ("z", 4))), (48, 48, 48)
    parts = [p for a in mesh.whole_axes() for p in prime_parts(a)]
    rng = random.Random(0)
    received = bound = 0.0
    for _ in range(20):
        ends: list[Sharding] = []
        for _ in range(2):
            dims: list[list[AxisRef]] = [[] for _ in range(4)]
            for axis in rng.sample(parts, len(parts)):
                dims[rng.randrange(4)].append(axis)
            ends.append(Sharding.of(mesh, *dims[:3]))
        sub_axes = find_sub_axes(reshard_program(shape, *ends))
        received += (
            Resharder(sub_axes, TPU_V3).plan(shape, 4, *(closed_sharding_of(s, sub_axes) for s in ends)).received
        )
        bound += reshard_lower_bound(shape, 4, *ends)
    assert received <= 1.45 * bound


@pytest.mark.parametrize("dtype", ["f32", "s32", "u8", "pred", "bf16", "c64"])
@pytest.mark.parametrize("target", ["f32[1, 6]{replicated}", "f32[1, 6@x]"])
def test_what_few_devices_hold_is_received_without_the_padding_of_the_others(dtype: str, target: str) -> None:
    text = f"mesh (x=8)\ndef main(a: f32[1@x, 6]) -> (b: {target}) {{ return a }}".replace("f32", dtype)
    for seed in range(6):
        check_equivalence(spmdc.parse(text), seed=seed, anything=True)


def test_one_row_is_broadcast_by_a_sum() -> None:
    q = partition(spmdc.parse("mesh (x=64)\ndef main(a: f32[1024@x, 512]) -> (b: f32[512]) { return a[0] }"))
    assert kinds(q) == ["all_reduce"]
    assert q.received_bytes() == 2 * 512 * 4 * 63 // 64
