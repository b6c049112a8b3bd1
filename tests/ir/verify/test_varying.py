"""Where devices may differ, and whether the program admits it: missing reductions, and collectives not all reach."""

from __future__ import annotations

import itertools

import pytest
from drawn import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ir.axis_sets import AxisSets, SubAxisCuts
from ir.builder import Names, RegionBuilder
from ir.diagnostics import Diagnostic
from ir.mesh import AxisRef, Mesh
from ir.program import DeviceOrder, Function, Program, Result, Value
from ir.sharding import Sharding, local_shape
from ir.types import TensorType, f32, pred, s32
from ir.verify.program import verify

MESH = Mesh((("x", 4), ("y", 4)))
X, Y = MESH.whole_axes()
X_MAJOR, X_MINOR = AxisRef("x", 1, 2), AxisRef("x", 2, 2)
COUNT = TensorType((), s32)


def spmd(*functions: Function, meshes: tuple[Mesh, ...] = (MESH,)) -> list[Diagnostic]:
    return verify(Program(meshes, {f.name: f for f in functions}, stage="spmd"))


def param(b: RegionBuilder, sharding: Sharding, shape: tuple[int, ...] = (16, 16)) -> Value:
    local = TensorType(local_shape(shape, sharding.axes), f32)
    return b.param("p", local, sharding, of=TensorType(shape, f32))


def returning(b: RegionBuilder, value: Value, sharding: Sharding) -> Function:
    """The entry, which returns the value as a shard under that sharding."""
    sizes = tuple(n * _parts(axes) for n, axes in zip(value.shape, sharding.axes, strict=True))
    result = Result("out", value.type, sharding, TensorType(sizes, value.dtype))
    return b.function("main", [value], [result])


def _parts(axes: tuple[AxisRef, ...]) -> int:
    size = 1
    for axis in axes:
        size *= axis.size
    return size


def whole(rank: int = 2) -> Sharding:
    return Sharding.replicate(MESH, rank)


def partial_product() -> tuple[RegionBuilder, Value]:
    b = RegionBuilder()
    lhs, rhs = param(b, Sharding.of(MESH, None, "x")), param(b, Sharding.of(MESH, "x", None))
    return b, b.op("dot_general", lhs, rhs, lhs_contract=(1,), rhs_contract=(0,))


def test_a_missing_all_reduce_is_found() -> None:
    b, product = partial_product()
    (found,) = spmd(returning(b, product, whole()))
    assert found.code == "E407"
    assert "along x" in found.message
    assert "(x)" in found.help


def test_an_all_reduce_makes_devices_agree() -> None:
    b, product = partial_product()
    assert spmd(returning(b, b.op("all_reduce", product, axes=(X,)), whole())) == []


def test_an_all_reduce_over_part_of_an_axis_leaves_the_rest() -> None:
    b, product = partial_product()
    (found,) = spmd(returning(b, b.op("all_reduce", product, axes=(X_MINOR,)), whole()))
    assert "along x:(1)2," in found.message


def test_two_reductions_over_the_parts_of_an_axis_reduce_it() -> None:
    b, product = partial_product()
    reduced = b.op("all_reduce", b.op("all_reduce", product, axes=(X_MINOR,)), axes=(X_MAJOR,))
    assert spmd(returning(b, reduced, whole())) == []


def test_a_partial_result_may_differ_along_its_partial_axes() -> None:
    b, product = partial_product()
    assert spmd(returning(b, product, Sharding(MESH, whole().dims, ((X, "sum"),)))) == []


def test_a_reduce_scatter_splits_its_result() -> None:
    b, product = partial_product()
    scattered = b.op("reduce_scatter", product, axes=(X,), dim=0)
    assert spmd(returning(b, scattered, Sharding.of(MESH, "x", None))) == []
    assert [d.code for d in spmd(returning(b, scattered, Sharding.of(MESH, "y", None)))] == ["E407"]


def test_a_gathered_param_agrees() -> None:
    b = RegionBuilder()
    p = param(b, Sharding.of(MESH, ("x", "y"), None))
    gathered = b.op("all_gather", p, axes=(Y,), dim=0)
    assert spmd(returning(b, gathered, Sharding.of(MESH, "x", None))) == []
    assert [d.code for d in spmd(returning(b, gathered, whole()))] == ["E407"]


def test_an_all_to_all_splits_over_its_axes() -> None:
    b = RegionBuilder()
    p = param(b, Sharding.of(MESH, "x", None))
    moved = b.op("all_to_all", p, axes=(X,), split=1, concat=0)
    assert spmd(returning(b, moved, Sharding.of(MESH, None, "x"))) == []
    assert [d.code for d in spmd(returning(b, moved, whole()))] == ["E407"]


def test_the_position_along_an_axis_differs_along_it() -> None:
    b = RegionBuilder()
    assert [d.code for d in spmd(returning(b, b.op("axis_index", axes=(X,)), whole(0)))] == ["E407"]


def test_a_barrier_does_not_mix_its_operands() -> None:
    b = RegionBuilder()
    split, same = param(b, Sharding.of(MESH, "x", None)), param(b, whole())
    _, after = b.multi("optimization_barrier", split, same)
    assert spmd(returning(b, after, whole())) == []


class TestPermutes:
    def permuted(self, sharding: Sharding, target: DeviceOrder, source: DeviceOrder) -> tuple[RegionBuilder, Value]:
        b = RegionBuilder()
        return b, b.op("collective_permute", param(b, sharding), target=target, source=source)

    def test_swapping_two_axes_swaps_the_split(self) -> None:
        b, moved = self.permuted(Sharding.of(MESH, "x", None), DeviceOrder(MESH, (Y, X)), DeviceOrder(MESH, (X, Y)))
        assert spmd(returning(b, moved, Sharding.of(MESH, "y", None))) == []
        assert [d.code for d in spmd(returning(b, moved, Sharding.of(MESH, "x", None)))] == ["E407"]

    def test_moving_to_another_axis_leaves_the_first(self) -> None:
        b, moved = self.permuted(Sharding.of(MESH, "x", None), DeviceOrder(MESH, (Y,)), DeviceOrder(MESH, (X,)))
        assert spmd(returning(b, moved, Sharding.of(MESH, "y", None))) == []

    def test_moving_to_an_axis_along_which_the_operand_differs_is_not_trusted(self) -> None:
        b, moved = self.permuted(Sharding.of(MESH, "x", "y"), DeviceOrder(MESH, (Y,)), DeviceOrder(MESH, (X,)))
        assert [d.code for d in spmd(returning(b, moved, Sharding.of(MESH, "y", None)))] == ["E407"]

    def test_a_shift_makes_a_part_of_the_order_differ_along_all_of_it(self) -> None:
        b = RegionBuilder()
        around = DeviceOrder(MESH, (X, Y))
        p, same = param(b, Sharding.of(MESH, "x", None)), param(b, whole())
        moved = b.op("collective_permute", p, target=around, source=around, shift=1)
        assert [d.code for d in spmd(returning(b, moved, Sharding.of(MESH, "x", None)))] == ["E407"]
        unmoved = b.op("collective_permute", same, target=around, source=around, shift=1)
        assert spmd(returning(b, unmoved, whole())) == []

    def test_a_shift_by_whole_minor_parts_leaves_those_as_they_are(self) -> None:
        b = RegionBuilder()
        around = DeviceOrder(MESH, (X, Y))
        p = param(b, Sharding.of(MESH, "x", None))
        moved = b.op("collective_permute", p, target=around, source=around, shift=Y.size)
        assert spmd(returning(b, moved, Sharding.of(MESH, "x", None))) == []

    def test_axes_that_the_orders_do_not_name_stay(self) -> None:
        b, moved = self.permuted(
            Sharding.of(MESH, "x", "y"), DeviceOrder(MESH, (X_MINOR, X_MAJOR)), DeviceOrder(MESH, (X_MAJOR, X_MINOR))
        )
        assert spmd(returning(b, moved, Sharding.of(MESH, (X_MINOR, X_MAJOR), "y"))) == []
        assert [d.code for d in spmd(returning(b, moved, Sharding.of(MESH, "x", None)))] == ["E407"]

    def test_another_mesh_maps_by_position(self) -> None:
        other = Mesh((("a", 2), ("b", 8)), tuple(reversed(range(16))), "m1")
        a, b_axis = other.whole_axes()
        b, moved = self.permuted(
            Sharding.of(other, "a", None), DeviceOrder(MESH, (X, Y)), DeviceOrder(other, (a, b_axis))
        )
        major = Sharding.of(MESH, (X_MAJOR,), None)
        assert spmd(returning(b, moved, major), meshes=(MESH, other)) == []
        (found,) = spmd(returning(b, moved, whole()), meshes=(MESH, other))
        assert "along x:(1)2," in found.message

    def test_two_names_for_one_order_of_devices_agree(self) -> None:
        same = Mesh((("a", 2), ("b", 8)), name="m1")
        b = RegionBuilder()
        p = param(b, Sharding.of(same, "a", None))
        assert spmd(returning(b, p, Sharding.of(MESH, (X_MAJOR,), None)), meshes=(MESH, same)) == []
        assert [d.code for d in spmd(returning(b, p, whole()), meshes=(MESH, same))] == ["E407"]

    def test_another_order_of_devices_agrees_nowhere(self) -> None:
        other = Mesh((("a", 2), ("b", 8)), tuple(reversed(range(16))), "m1")
        b = RegionBuilder()
        p = param(b, Sharding.of(other, "a", None))
        found = spmd(returning(b, p, Sharding.of(MESH, (X_MAJOR,), None)), meshes=(MESH, other))
        assert [d.code for d in found] == ["E407"]


def loop(b: RegionBuilder, start: Value, limit: Value, step: Value, *, reduce_over: tuple[AxisRef, ...] = ()) -> Value:
    """`while (i < limit) i = i + step`, with an all_reduce of the step in the body if asked for."""
    cond, body = RegionBuilder(b.names), RegionBuilder(b.names)
    i = cond.param("i", start.type)
    go = cond.op("compare", i, limit, direction="LT")
    j = body.param("j", start.type)
    grown = body.op("all_reduce", step, axes=reduce_over) if reduce_over else step
    following = body.op("add", j, grown)
    regions = (cond.region(go), body.region(following))
    (total,) = b.append("while", [start], {"trip_count": None}, regions=regions)
    return total


class TestLoops:
    def test_what_the_body_adds_reaches_the_result(self) -> None:
        b = RegionBuilder()
        zero = b.op("constant", value=0, type=COUNT)
        ten = b.op("constant", value=10, type=COUNT)
        agreeing = loop(b, zero, ten, ten)
        assert spmd(returning(b, agreeing, whole(0))) == []
        differing = loop(b, zero, ten, b.op("axis_index", axes=(X,)))
        (found,) = spmd(returning(b, differing, whole(0)))
        assert "along x," in found.message

    def test_a_condition_that_differs_makes_the_results_differ(self) -> None:
        b = RegionBuilder()
        zero = b.op("constant", value=0, type=COUNT)
        total = loop(b, zero, b.op("axis_index", axes=(Y,)), zero)
        (found,) = spmd(returning(b, total, whole(0)))
        assert "along y," in found.message

    def test_a_variance_needs_several_rounds_to_reach_the_first_value(self) -> None:
        b = RegionBuilder()
        zero = b.op("constant", value=0, type=COUNT)
        index = b.op("axis_index", axes=(X,))
        cond, body = RegionBuilder(b.names), RegionBuilder(b.names)
        cond_params = [cond.param("i", COUNT) for _ in range(4)]
        go = cond.op("constant", value=False, type=TensorType((), pred))
        params = [body.param("j", COUNT) for _ in range(4)]
        assert cond_params
        regions = (cond.region(go), body.region(*params[1:], params[3]))
        results = b.append("while", [zero, zero, zero, index], {"trip_count": None}, regions=regions)
        assert [d.code for d in spmd(returning(b, results[0], whole(0)))] == ["E407"]

    def test_a_collective_in_a_loop_that_devices_leave_apart_is_found(self) -> None:
        b = RegionBuilder()
        zero = b.op("constant", value=0, type=COUNT)
        index = b.op("axis_index", axes=(X,))
        total = loop(b, zero, index, zero, reduce_over=(X, Y))
        found = spmd(returning(b, total, whole(0)))
        assert [d.code for d in found] == ["E408", "E407"]
        assert "along x, in a loop" in found[0].message

    def test_a_collective_over_other_axes_than_the_condition_s_is_fine(self) -> None:
        b = RegionBuilder()
        zero = b.op("constant", value=0, type=COUNT)
        index = b.op("axis_index", axes=(X,))
        total = b.op("all_reduce", loop(b, zero, index, zero, reduce_over=(Y,)), axes=(X,))
        assert spmd(returning(b, total, whole(0))) == []

    def test_a_collective_in_a_function_called_from_such_a_loop_is_found(self) -> None:
        helper = RegionBuilder()
        h = helper.param("h", COUNT)
        reduced = helper.op("all_reduce", h, axes=(X,))
        b = RegionBuilder()
        zero = b.op("constant", value=0, type=COUNT)
        index = b.op("axis_index", axes=(X,))
        cond, body = RegionBuilder(b.names), RegionBuilder(b.names)
        go = cond.op("compare", cond.param("i", COUNT), index, direction="LT")
        (following,) = body.append("call", [body.param("j", COUNT)], {"function": "helper"}, types=[COUNT])
        regions = (cond.region(go), body.region(following))
        (total,) = b.append("while", [zero], {"trip_count": None}, regions=regions)
        once = b.op("all_reduce", total, axes=(X,))
        found = spmd(returning(b, once, whole(0)), helper.function("helper", [reduced]))
        assert [d.code for d in found] == ["E408"]

    def test_nested_loops_are_analysed_in_reasonable_time(self) -> None:
        names = Names()
        outer = RegionBuilder(names)
        zero = outer.op("constant", value=0, type=COUNT)
        ten = outer.op("constant", value=10, type=COUNT)
        index = outer.op("axis_index", axes=(X,))

        def nested(b: RegionBuilder, start: Value, depth: int) -> Value:
            if depth == 0:
                return b.op("add", start, index)
            cond, body = RegionBuilder(names), RegionBuilder(names)
            go = cond.op("compare", cond.param("i", COUNT), ten, direction="LT")
            again = nested(body, body.param("j", COUNT), depth - 1)
            regions = (cond.region(go), body.region(again))
            (total,) = b.append("while", [start], {"trip_count": None}, regions=regions)
            return total

        found = spmd(returning(outer, nested(outer, zero, 40), whole(0)))
        assert [d.code for d in found] == ["E407"]


class TestCalls:
    def test_a_function_is_judged_by_each_call_s_operands(self) -> None:
        helper = RegionBuilder()
        h = helper.param("h", COUNT)
        function = helper.function("helper", [helper.op("add", h, h)])
        b = RegionBuilder()
        zero = b.op("constant", value=0, type=COUNT)
        index = b.op("axis_index", axes=(X,))
        (same,) = b.append("call", [zero], {"function": "helper"}, types=[COUNT])
        (other,) = b.append("call", [index], {"function": "helper"}, types=[COUNT])
        assert spmd(returning(b, same, whole(0)), function) == []
        assert [d.code for d in spmd(returning(b, other, whole(0)), function)] == ["E407"]


def test_cuts_without_a_common_refinement_are_found() -> None:
    mesh = Mesh((("x", 12),))
    b = RegionBuilder()
    p = b.param("p", TensorType((), f32), Sharding.replicate(mesh, 0), of=TensorType((), f32))
    four = b.op("all_reduce", p, axes=(AxisRef("x", 1, 4),))
    six = b.op("all_reduce", four, axes=(AxisRef("x", 1, 6),))
    found = spmd(b.function("main", [six], [Result("out", p.type, p.sharding, p.of)]), meshes=(mesh,))
    assert [d.code for d in found] == ["E307"]
    assert "cut at 6, and elsewhere at 4" in found[0].message


_BY_SIX = DeviceOrder(Mesh((("x", 3), ("y", 4))), (AxisRef("x", 1, 3), AxisRef("y", 1, 2), AxisRef("y", 2, 2)))
"""Shifted by 6 of 12, x changes by 1, and by 1 more where the major part of y is 1."""


@st.composite
def permutes(draw: st.DrawFn) -> tuple[Mesh, DeviceOrder, DeviceOrder, int, tuple[AxisRef, ...]]:
    """A mesh, two orders of the same or of other axes of equal size, a shift, and axes over which an operand varies."""
    sizes = draw(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3))
    mesh = Mesh(tuple((name, size) for name, size in zip("xyz", sizes, strict=False)))
    parts = [
        part
        for axis in mesh.whole_axes()
        for part in ((AxisRef(axis.name, 1, 2), AxisRef(axis.name, 2, 2)) if axis.size == 4 else (axis,))
    ]
    source = draw(st.permutations(parts))
    target = draw(st.permutations(parts))
    varying = draw(st.lists(st.sampled_from(parts), unique=True))
    shift = draw(st.sampled_from((0, 1, 2, mesh.size // 2)))
    return mesh, DeviceOrder(mesh, tuple(target)), DeviceOrder(mesh, tuple(source)), shift, tuple(varying)


@given(permutes())
@example((_BY_SIX.mesh, _BY_SIX, _BY_SIX, 6, (AxisRef("x", 1, 3),)))
@settings(max_examples=examples(150), deadline=None)
def test_a_permuted_tensor_varies_exactly_where_the_devices_that_send_differ(
    case: tuple[Mesh, DeviceOrder, DeviceOrder, int, tuple[AxisRef, ...]],
) -> None:
    """Against each device computed by itself. A coordinate that the analysis leaves out must not matter."""
    mesh, target, source, shift, varying = case
    cuts = SubAxisCuts((mesh,))
    for axis in (*target.axes, *source.axes, *varying):
        cuts.cut(axis.name, axis.pre)
        cuts.cut(axis.name, axis.end)
    cuts.align([(target.axes, source.axes)])
    axis_sets = AxisSets((mesh,), cuts)
    mask = axis_sets.permuted(axis_sets.mask(varying), target, source, shift)

    devices = [dict(zip(mesh.names, c, strict=True)) for c in itertools.product(*map(range, mesh.shape))]

    def digit(device: dict[str, int], axis: AxisRef) -> int:
        return device[axis.name] // (mesh.axis(axis.name).size // axis.end) % axis.size

    def position(device: dict[str, int], order: DeviceOrder) -> int:
        place = 0
        for axis in order.axes:
            place = place * axis.size + digit(device, axis)
        return place

    content = {position(d, source): tuple(digit(d, a) for a in varying) for d in devices}
    held = {tuple(d.items()): content[(position(d, target) + shift) % mesh.size] for d in devices}
    kept = axis_sets.axes(mask)
    groups: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for d in devices:
        groups.setdefault(tuple(digit(d, a) for a in kept), set()).add(held[tuple(d.items())])
    assert all(len(contents) == 1 for contents in groups.values())
    if not shift and len({a.size for a in target.axes}) <= 1:
        assert _parts(kept) == len(set(held.values()))


@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_mask_names_its_axes(axis: str) -> None:
    axis_sets = AxisSets((MESH,), SubAxisCuts((MESH,)))
    assert axis_sets.axes(axis_sets.mask([MESH.axis(axis)])) == (MESH.axis(axis),)
