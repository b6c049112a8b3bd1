"""The simulator against devices computed one at a time: collectives, placement, and what it must refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ir.builder import RegionBuilder
from ir.diagnostics import InternalError, SpmdcError
from ir.mesh import AxisRef, Mesh
from ir.program import DeviceOrder, Program, Result, Value
from ir.sharding import DimSharding, ReductionKind, Sharding, local_shape
from ir.types import DTYPES, DType, TensorType, dtype_of, f32, pred, s32, u32
from lowering.reference import check_inputs, evaluate, simulate
from lowering.reference.shards import same_bits
from spmdc import parse, partition

Array = np.ndarray[Any, Any]
Body = Callable[..., Value | Sequence[Value]]
OneResult = Callable[[RegionBuilder, Value], Value]

MESH = Mesh((("x", 4), ("y", 2), ("z", 3)))
X, Y, Z = MESH.whole_axes()
X_MAJOR, X_MINOR = AxisRef("x", 1, 2), AxisRef("x", 2, 2)
EVERY = (X, Y, Z)


def program(
    inputs: Sequence[tuple[Array, Sharding]],
    body: Body,
    results: Sequence[tuple[Sharding, tuple[int, ...]]],
    *meshes: Mesh,
) -> Program:
    """An SPMD program that takes shards of the arrays and returns shards of tensors of the given shapes."""
    b = RegionBuilder()
    params = []
    for i, (array, sharding) in enumerate(inputs):
        whole = TensorType(array.shape, dtype_of(array.dtype))
        local = whole.with_shape(local_shape(array.shape, sharding.axes))
        params.append(b.param(f"p{i}", local, sharding, of=whole))
    returned = body(b, *params)
    values = (returned,) if isinstance(returned, Value) else tuple(returned)
    declared = tuple(
        Result(f"r{i}", v.type, sharding, v.type.with_shape(shape))
        for i, (v, (sharding, shape)) in enumerate(zip(values, results, strict=True))
    )
    return Program(meshes or (MESH,), {"main": b.function("main", values, declared)}, stage="spmd")


def split(mesh: Mesh, *dims: Sequence[AxisRef], partial: Sequence[tuple[AxisRef, ReductionKind]] = ()) -> Sharding:
    return Sharding(mesh, tuple(DimSharding(tuple(d)) for d in dims), tuple(partial))


def on_each_device(x: Array, body: OneResult, mesh: Mesh = MESH, *others: Mesh) -> Array:
    """`x[i]` is what the device at mesh position i holds; so is the result."""
    axes = mesh.whole_axes()

    def run(b: RegionBuilder, value: Value) -> Value:
        result = body(b, b.op("reshape", value, shape=x.shape[1:]))
        return b.op("reshape", result, shape=(1, *result.shape))

    place = split(mesh, axes, *[()] * (x.ndim - 1))
    probe = RegionBuilder()
    result = body(probe, probe.param("x", TensorType(x.shape[1:], dtype_of(x.dtype))))
    spread = split(mesh, axes, *[()] * result.type.rank)
    (got,) = simulate(program([(x, place)], run, [(spread, (mesh.size, *result.shape))], mesh, *others), x)
    return got


def digits(position: int, mesh: Mesh) -> dict[str, int]:
    """A device's coordinate on each axis."""
    found = {}
    for name, size in reversed(mesh.axes):
        found[name] = position % size
        position //= size
    return found


def along(position: int, axes: Sequence[AxisRef], mesh: Mesh = MESH) -> int:
    """A device's position along the axes, major first."""
    result = 0
    for axis in axes:
        weight = dict(mesh.axes)[axis.name] // axis.end
        result = result * axis.size + digits(position, mesh)[axis.name] // weight % axis.size
    return result


def group(position: int, axes: Sequence[AxisRef], mesh: Mesh = MESH) -> list[int]:
    """The devices that differ from this one along the axes only, in the axes' order."""

    def others(p: int) -> list[int]:
        rest = digits(p, mesh)
        for axis in axes:
            weight = dict(mesh.axes)[axis.name] // axis.end
            rest[axis.name] -= rest[axis.name] // weight % axis.size * weight
        return list(rest.values())

    members = [p for p in range(mesh.size) if others(p) == others(position)]
    return sorted(members, key=lambda p: along(p, axes, mesh))


def integers(*shape: int, dtype: DType = f32, seed: int = 0) -> Array:
    low, high = (0, 2) if dtype.kind == "pred" else (1, 4) if dtype.kind == "unsigned" else (-3, 4)
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype.numpy)


AXES = [(X,), (Y,), (Z, X), (X_MINOR,), (X_MAJOR, Z), (X_MINOR, X_MAJOR), (Z, X_MINOR, Y), (X, Y, Z)]
along_axes = pytest.mark.parametrize("axes", AXES, ids=lambda axes: "_".join(MESH.spell(a) for a in axes))


def number(b: RegionBuilder, n: int) -> Value:
    return b.op("constant", value=n, type=TensorType((), s32))


def count(axes: Sequence[AxisRef]) -> int:
    return int(np.prod([a.size for a in axes]))


@along_axes
def test_axis_index(axes: tuple[AxisRef, ...]) -> None:
    got = on_each_device(integers(24, dtype=s32), lambda b, x: b.op("axis_index", axes=axes))
    np.testing.assert_array_equal(got, [along(p, axes) for p in range(24)])


@along_axes
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "and", "or"])
def test_all_reduce(kind: str, axes: tuple[AxisRef, ...]) -> None:
    x = integers(24, 3, dtype=s32)
    got = on_each_device(x, lambda b, v: b.op("all_reduce", v, axes=axes, kind=kind))
    ufuncs: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    ufuncs |= {"and": np.bitwise_and, "or": np.bitwise_or}
    reduced = [ufuncs[kind].reduce(x[group(p, axes)], axis=0, dtype=np.int32) for p in range(24)]
    np.testing.assert_array_equal(got, reduced)


@along_axes
def test_all_gather(axes: tuple[AxisRef, ...]) -> None:
    x = integers(24, 2, 3)
    got = on_each_device(x, lambda b, v: b.op("all_gather", v, axes=axes, dim=1))
    np.testing.assert_array_equal(got, [np.concatenate([*x[group(p, axes)]], 1) for p in range(24)])


@along_axes
def test_reduce_scatter(axes: tuple[AxisRef, ...]) -> None:
    n = count(axes)
    x = integers(24, 3, 2 * n)
    got = on_each_device(x, lambda b, v: b.op("reduce_scatter", v, axes=axes, dim=1))
    sums = [x[group(p, axes)].sum(0) for p in range(24)]
    np.testing.assert_array_equal(got, [np.split(s, n, 1)[along(p, axes)] for p, s in enumerate(sums)])


@along_axes
@pytest.mark.parametrize(("cut", "concat"), [(0, 1), (1, 0), (1, 1), (2, 0)])
def test_all_to_all(cut: int, concat: int, axes: tuple[AxisRef, ...]) -> None:
    n = count(axes)
    shape = [2, 3, 2]
    shape[cut] *= n
    x = integers(24, *shape)
    got = on_each_device(x, lambda b, v: b.op("all_to_all", v, axes=axes, split=cut, concat=concat))
    want = [np.concatenate([np.split(x[q], n, cut)[along(p, axes)] for q in group(p, axes)], concat) for p in range(24)]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("axes", [(X,), (X, Y), (X, Y, Z), (X_MAJOR, Z, X_MINOR)], ids=str)
def test_collective_permute_to_another_order_of_the_same_axes(axes: tuple[AxisRef, ...]) -> None:
    source = tuple(reversed(axes))
    x = integers(24, 2)
    orders = DeviceOrder(MESH, axes), DeviceOrder(MESH, source)
    got = on_each_device(x, lambda b, v: b.op("collective_permute", v, target=orders[0], source=orders[1]))
    for p in range(24):
        (sender,) = (q for q in group(p, axes) if along(q, source) == along(p, axes))
        np.testing.assert_array_equal(got[p], x[sender])


def test_collective_permute_that_names_an_axis_in_one_order_only_swaps_the_two() -> None:
    mesh = Mesh((("a", 3), ("b", 2), ("c", 3)))
    a, _, c = mesh.whole_axes()
    to, come_from = DeviceOrder(mesh, (a,)), DeviceOrder(mesh, (c,))
    x = integers(18, 2)
    got = on_each_device(x, lambda b, v: b.op("collective_permute", v, target=to, source=come_from), mesh)
    np.testing.assert_array_equal(got.reshape(3, 2, 3, 2), x.reshape(3, 2, 3, 2).transpose(2, 1, 0, 3))


@pytest.mark.parametrize("shift", [1, -1, 5])
@pytest.mark.parametrize("axes", [(X,), (Z, X), (X_MINOR, Y)], ids=str)
def test_a_shifted_collective_permute_counts_around(axes: tuple[AxisRef, ...], shift: int) -> None:
    order = DeviceOrder(MESH, axes)
    x = integers(24, 2)
    got = on_each_device(x, lambda b, v: b.op("collective_permute", v, target=order, source=order, shift=shift))
    for p in range(24):
        (sender,) = (q for q in group(p, axes) if along(q, axes) == (along(p, axes) + shift) % count(axes))
        np.testing.assert_array_equal(got[p], x[sender])


PERMUTED = Mesh((("x", 3), ("y", 2)), (4, 1, 3, 0, 5, 2))
OTHER = Mesh((("a", 2), ("b", 3)), (2, 0, 1, 5, 3, 4), "m1")


def test_collective_permute_between_meshes_goes_by_device_id() -> None:
    to, come_from = DeviceOrder(OTHER, OTHER.whole_axes()), DeviceOrder(PERMUTED, PERMUTED.whole_axes())
    x = integers(6, 2)
    got = on_each_device(x, lambda b, v: b.op("collective_permute", v, target=to, source=come_from), PERMUTED, OTHER)
    held = dict(zip(PERMUTED.device_ids, x, strict=True))
    received = {target: held[source] for target, source in zip(OTHER.device_ids, PERMUTED.device_ids, strict=True)}
    np.testing.assert_array_equal(got, [received[i] for i in PERMUTED.device_ids])


def test_a_collective_along_axes_of_another_mesh_groups_its_devices() -> None:
    a = OTHER.axis("a")
    x = integers(6, 2)
    got = on_each_device(x, lambda b, v: b.op("all_reduce", v, axes=(a,)), PERMUTED, OTHER)
    held = dict(zip(PERMUTED.device_ids, x, strict=True))
    for i, id_ in enumerate(PERMUTED.device_ids):
        members = group(OTHER.device_ids.index(id_), (a,), OTHER)
        np.testing.assert_array_equal(got[i], sum(held[OTHER.device_ids[m]] for m in members))


SPLITS = [((), ()), ((X,), ()), ((Y, X), (Z,)), ((X_MINOR,), (Z, X_MAJOR)), ((), EVERY), ((Z, Y, X), ())]


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=str)
@pytest.mark.parametrize("shape", [(24, 24), (7, 5), (1, 2), (0, 3)], ids=str)
def test_what_is_cut_into_shards_is_put_together_again(shape: tuple[int, ...], dtype: DType) -> None:
    x = integers(*shape, dtype=dtype)
    for dims in SPLITS:
        place = split(MESH, *dims)
        (got,) = simulate(program([(x, place)], lambda b, v: v, [(place, shape)]), x)
        assert same_bits(got, x)
        assert got.dtype == x.dtype


def test_uneven_shards_are_ceil_n_over_p_and_the_last_hold_padding() -> None:
    x = np.arange(1, 10, dtype=np.float32)
    place, spread = split(MESH, (X, Y)), split(MESH, (X, Y), ())
    cut = program([(x, place)], lambda b, v: b.op("reshape", v, shape=(1, 2)), [(spread, (8, 2))])
    nan = np.nan
    want = np.array([[1, 2], [3, 4], [5, 6], [7, 8], [9, nan], [nan, nan], [nan, nan], [nan, nan]])
    np.testing.assert_array_equal(simulate(cut, x)[0], want)
    np.testing.assert_array_equal(simulate(cut, x, poison=False)[0], np.nan_to_num(want))


def test_padding_that_reaches_a_sum_is_seen_and_padding_that_is_masked_is_not() -> None:
    x = integers(9)
    place, scalar = split(MESH, (X,)), split(MESH)

    def careless(b: RegionBuilder, v: Value) -> Value:
        return b.op("all_reduce", b.op("reduce", v, dims=(0,), kind="sum"), axes=(X,))

    def masked(b: RegionBuilder, v: Value) -> Value:
        first = b.op("multiply", b.op("axis_index", axes=(X,)), number(b, 3))
        iota = b.op("iota", type=TensorType((3,), s32), dim=0)
        index = b.op("add", iota, b.op("broadcast_in_dim", first, shape=(3,), dims=()))
        limit = b.op("constant", value=9, type=TensorType((3,), s32))
        zeros = b.op("constant", value=0.0, type=TensorType((3,), f32))
        return careless(b, b.op("select", b.op("compare", index, limit, direction="LT"), v, zeros))

    assert np.isnan(simulate(program([(x, place)], careless, [(scalar, ())]), x)[0])
    assert simulate(program([(x, place)], masked, [(scalar, ())]), x)[0] == x.sum()


def test_what_a_program_leaves_undefined_is_poisoned_as_padding_is() -> None:
    x = np.arange(1, 5, dtype=np.float32)
    place, padded = split(MESH, (X,)), split(MESH, (X,), ())

    def widened(b: RegionBuilder, v: Value) -> Value:
        fill = b.op("undefined", type=TensorType((), f32))
        return b.op("reshape", b.op("pad", v, fill, low=(0,), high=(1,)), shape=(1, 2))

    wide = program([(x, place)], widened, [(padded, (4, 2))])
    nan = np.full((4, 1), np.nan, np.float32)
    np.testing.assert_array_equal(simulate(wide, x)[0], np.hstack([x[:, None], nan]))
    np.testing.assert_array_equal(simulate(wide, x, poison=False)[0], np.hstack([x[:, None], np.zeros((4, 1))]))
    empty = program([], lambda b: b.op("undefined", type=TensorType((3,), s32)), [(split(MESH, ()), (3,))])
    np.testing.assert_array_equal(simulate(empty)[0], [s32.highest, s32.lowest, s32.highest])


def test_a_seed_draws_what_padding_holds() -> None:
    x = np.arange(1, 10, dtype=np.float32)
    cut = program(
        [(x, split(MESH, (X, Y)))], lambda b, v: b.op("reshape", v, shape=(1, 2)), [(split(MESH, (X, Y), ()), (8, 2))]
    )
    held = {repr(simulate(cut, x, seed=seed)[0].ravel()[9:].tolist()) for seed in range(20)}
    for number in ("nan", "inf", "-inf", "-0.0", "7.0"):
        assert any(f" {number}," in padding for padding in held), number
    assert simulate(cut, x, seed=3)[0].tobytes() == simulate(cut, x, seed=3)[0].tobytes()
    assert all((simulate(cut, x, seed=seed)[0].ravel()[:9] == x).all() for seed in range(5))


def test_a_sum_over_devices_of_negative_zeros_is_one() -> None:
    """XLA begins with what a device has; `reduce` begins with 0.0."""
    x = np.full(4, -0.0, np.float32)
    place, spread = split(MESH, ()), split(MESH, (X,))
    summed = program([(x, place)], lambda b, v: b.op("all_reduce", v, axes=(X,)), [(place, (4,))])
    scattered = program([(x, place)], lambda b, v: b.op("reduce_scatter", v, axes=(X,), dim=0), [(spread, (4,))])
    for found in (simulate(summed, x)[0], simulate(scattered, x)[0]):
        assert np.signbit(found).all()


@pytest.mark.parametrize("poison", [True, False])
@pytest.mark.parametrize("dtype", ["pred", "s8", "u32", "s64", "bf16"])
def test_padding_of_every_type_is_stripped(dtype: str, poison: bool) -> None:
    x = integers(7, 3, dtype=DTYPES[dtype])
    place = split(MESH, (X, Z), (Y,))
    got = simulate(program([(x, place)], lambda b, v: b.op("not", b.op("not", v)) if v.dtype == pred else v,
                           [(place, x.shape)]), x, poison=poison)  # fmt: skip
    np.testing.assert_array_equal(got[0], x)


def test_a_sharding_on_another_mesh_places_shards_by_device_id() -> None:
    x = integers(6, 2)
    source, target = split(OTHER, OTHER.whole_axes(), ()), split(PERMUTED, PERMUTED.whole_axes(), ())
    (got,) = simulate(program([(x, source)], lambda b, v: v, [(target, x.shape)], PERMUTED, OTHER), x)
    held = dict(zip(OTHER.device_ids, x, strict=True))
    np.testing.assert_array_equal(got, [held[i] for i in PERMUTED.device_ids])
    (back,) = simulate(program([(x, source)], lambda b, v: v, [(source, x.shape)], PERMUTED, OTHER), x)
    np.testing.assert_array_equal(back, x)


PARTIAL: list[tuple[ReductionKind, str]] = [
    *(("sum", t) for t in ("s8", "s32", "u64", "bf16", "f16", "f32", "f64")),
    *(("prod", t) for t in ("s8", "u32", "f32")),
    *((k, t) for k in ("max", "min") for t in ("pred", "s8", "u8", "s64", "bf16", "f32")),
    *((k, t) for k in ("and", "or") for t in ("pred", "s32", "u8")),
]


@pytest.mark.parametrize(("kind", "dtype"), PARTIAL, ids=str)
def test_a_partial_input_combines_to_the_array_and_its_parts_differ(kind: ReductionKind, dtype: str) -> None:
    t = DTYPES[dtype]
    ends = [np.array([end], np.float64 if t.is_float else t.numpy).astype(t.numpy) for end in (t.lowest, t.highest)]
    x = np.concatenate([integers(24, dtype=t), *ends, integers(4, dtype=t)])
    pending = split(MESH, (Z,), partial=((X_MINOR, kind), (Y, kind)))
    (got,) = simulate(program([(x, pending)], lambda b, v: v, [(pending, x.shape)]), x)
    np.testing.assert_array_equal(got, x)
    reduced = program(
        [(x, pending)], lambda b, v: b.op("all_reduce", v, axes=(X_MINOR, Y), kind=kind), [(split(MESH, (Z,)), x.shape)]
    )
    np.testing.assert_array_equal(simulate(reduced, x)[0], x)
    y = x[:24]
    parts = on_partial_devices(y, pending)
    differing = [p for p in range(4) if not np.array_equal(parts[p], parts[(p + 1) % 4])]
    assert len(differing) >= 3


def on_partial_devices(x: Array, pending: Sharding) -> Array:
    """What each device along the partial axes holds."""
    axes = tuple(a for a, _ in pending.partial)
    spread = split(MESH, axes, *pending.axes)

    def body(b: RegionBuilder, v: Value) -> Value:
        return b.op("reshape", v, shape=(1, *v.shape))

    return simulate(program([(x, pending)], body, [(spread, (count(axes), *x.shape))]), x)[0]


def test_a_partial_sum_of_fractions_lies_on_the_first_device() -> None:
    x = np.array([0.5, np.nan, np.inf, 3], np.float32)
    parts = on_partial_devices(x, split(MESH, (), partial=((Y, "sum"),)))
    np.testing.assert_array_equal(parts, [x, [0, 0, 0, 0]])


def test_a_product_with_split_contracting_dim_leaves_a_partial_sum() -> None:
    x, w = integers(6, 9), integers(9, 4, seed=1)
    sharded = program(
        [(x, split(MESH, (Y,), (Z,))), (w, split(MESH, (Z,), (X,)))],
        lambda b, a, c: b.op("dot_general", a, c, lhs_contract=(1,), rhs_contract=(0,)),
        [(split(MESH, (Y,), (X,), partial=((Z, "sum"),)), (6, 4))],
    )
    np.testing.assert_array_equal(simulate(sharded, x, w)[0], x @ w)


def test_devices_that_disagree_on_a_replicated_result_are_named() -> None:
    x = integers(8)
    place = split(MESH, (X,))
    wrong = program([(x, place)], lambda b, v: b.op("reduce", v, dims=(0,), kind="sum"), [(split(MESH), ())])
    with pytest.raises(InternalError, match="'r0'"):
        simulate(wrong, x)


def test_replicas_may_differ_in_nan_payload_and_padding_but_not_in_the_sign_of_zero() -> None:
    place, everywhere = split(MESH, (Y,)), split(MESH, ())

    def plain(_: RegionBuilder, v: Value) -> Value:
        return v

    nan = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert np.isnan(simulate(program([(nan, place)], plain, [(everywhere, (1,))]), nan)[0]).all()
    with pytest.raises(InternalError):
        simulate(program([(zeros := np.array([0.0, -0.0], np.float32), place)], plain, [(everywhere, (1,))]), zeros)
    longer = np.array([1, 2, 1, 3], np.float32)
    assert simulate(program([(longer, place)], plain, [(everywhere, (1,))]), longer)[0] == [1]


def test_each_device_slices_at_its_own_clamped_start() -> None:
    x = integers(24, 5, 6)

    def body(b: RegionBuilder, v: Value) -> Value:
        row, column = b.op("axis_index", axes=(X, Z)), b.op("axis_index", axes=(Y,))
        return b.op("dynamic_slice", v, b.op("subtract", row, number(b, 3)), column, sizes=(2, 4))

    got = on_each_device(x, body)
    for p in range(24):
        row, column = min(max(along(p, (X, Z)) - 3, 0), 3), along(p, (Y,))
        np.testing.assert_array_equal(got[p], x[p, row : row + 2, column : column + 4])


def test_a_slice_at_different_starts_of_a_replicated_tensor() -> None:
    x = integers(4, 3)
    sliced = program(
        [(x, split(MESH, (), ()))],
        lambda b, v: b.op("dynamic_slice", v, b.op("axis_index", axes=(X,)), number(b, 0), sizes=(1, 3)),
        [(split(MESH, (X,), ()), (4, 3))],
    )
    np.testing.assert_array_equal(simulate(sliced, x)[0], x)


def test_each_device_draws_its_part_of_the_same_random_bits() -> None:
    key = np.array([3, 9], np.uint32)
    whole = TensorType((10, 8), u32)
    b = RegionBuilder()
    drawn = b.op("random_bits", b.param("key", TensorType((2,), u32)), type=whole)
    (want,) = evaluate(Program((), {"main": b.function("main", (drawn,))}), key)

    def body(b: RegionBuilder, v: Value) -> Value:
        start = b.op("multiply", b.op("axis_index", axes=(X,)), number(b, 3))
        return b.op("random_bits", v, start, number(b, 0), type=TensorType((3, 8), u32), whole=(10, 8))

    place = split(MESH, (X,), ())
    np.testing.assert_array_equal(simulate(program([(key, split(MESH, ()))], body, [(place, (10, 8))]), key)[0], want)


def counting_loop(b: RegionBuilder, limit: Value, start: Value, *, reduce: bool) -> Value:
    """Adds 2 `limit` times to `start`; with `reduce`, over an all_reduce in the body."""
    zero = number(b, 0)
    condition = RegionBuilder(b.names)
    i = condition.param("i", zero.type)
    condition.param("x", start.type)
    go = condition.op("compare", i, limit, direction="LT")
    step = RegionBuilder(b.names)
    i, x = step.param("i", zero.type), step.param("x", start.type)
    one = step.op("constant", value=1, type=zero.type)
    two = step.op("constant", value=2.0, type=start.type)
    following = step.op("add", x, two)
    if reduce:
        following = step.op("all_reduce", following, axes=(Y,), kind="max")
    regions = (condition.region(go), step.region(step.op("add", i, one), following))
    return b.append("while", (zero, start), {}, regions=regions)[1]


def test_each_device_leaves_a_loop_when_it_is_done() -> None:
    x = integers(24)
    got = on_each_device(x, lambda b, v: counting_loop(b, b.op("axis_index", axes=(Z, X)), v, reduce=False))
    np.testing.assert_array_equal(got, [x[p] + 2 * along(p, (Z, X)) for p in range(24)])


def test_a_loop_that_all_devices_leave_together_may_communicate() -> None:
    x = integers(24)
    got = on_each_device(x, lambda b, v: counting_loop(b, number(b, 3), v, reduce=True))
    np.testing.assert_array_equal(got, [x[group(p, (Y,))].max() + 6 for p in range(24)])


def test_a_loop_that_devices_leave_one_by_one_must_not_communicate() -> None:
    with pytest.raises(InternalError, match="communicates"):
        on_each_device(integers(24), lambda b, v: counting_loop(b, b.op("axis_index", axes=(X,)), v, reduce=True))


def test_a_loop_that_runs_zero_times_returns_its_inits_and_loops_nest() -> None:
    b = RegionBuilder()
    n, x = b.param("n", TensorType((), s32)), b.param("x", TensorType((2,), f32))
    zero = b.op("constant", value=0, type=n.type)
    condition, step = RegionBuilder(b.names), RegionBuilder(b.names)
    i = condition.param("i", n.type)
    condition.param("y", x.type)
    go = condition.op("compare", i, n, direction="LT")
    i, y = step.param("i", n.type), step.param("y", x.type)
    inner = counting_loop(step, i, y, reduce=False)
    following = step.op("add", i, step.op("constant", value=1, type=n.type))
    _, out = b.append("while", (zero, x), {}, regions=(condition.region(go), step.region(following, inner)))
    nested = Program((), {"main": b.function("main", (out, x))})
    start = integers(2)
    for trips in range(5):
        got, unchanged = evaluate(nested, np.array(trips, np.int32), start)
        np.testing.assert_array_equal(got, start + 2 * sum(range(trips)))
        np.testing.assert_array_equal(unchanged, start)


def test_functions_may_be_called_several_times() -> None:
    inner = RegionBuilder()
    p, q = inner.param("p", TensorType((2,), f32)), inner.param("q", TensorType((2,), f32))
    layer = inner.function("layer", (inner.op("subtract", p, q), inner.op("add", p, q)))
    b = RegionBuilder()
    x, y = b.param("x", p.type), b.param("y", p.type)
    less, more = b.append("call", (x, y), {"function": "layer"}, types=(p.type, p.type))
    results = b.append("call", (more, less), {"function": "layer"}, types=(p.type, p.type))
    called = Program((), {"layer": layer, "main": b.function("main", results)})
    u, v = integers(2), integers(2, seed=1)
    np.testing.assert_array_equal(evaluate(called, u, v), [2 * v, 2 * u])


def test_all_wrong_inputs_are_named_at_once() -> None:
    b = RegionBuilder()
    for name, t in (("a", TensorType((2, 3), f32)), ("b", TensorType((), s32)), ("c", TensorType((1,), pred))):
        b.param(name, t)
    p = Program((), {"main": b.function("main", (b.params[0],))})
    with pytest.raises(SpmdcError) as raised:
        check_inputs(p, (np.zeros((3, 2), np.float32), np.array(1.5)))
    found = raised.value.diagnostics
    assert [d.code for d in found] == ["E501"] * 3
    assert [d.message.split("'")[1] for d in found] == ["a", "b", "c"]
    assert "f32[3, 2]" in found[0].message
    assert "f32[2, 3]" in found[0].message
    assert "int32" in found[1].help
    with pytest.raises(SpmdcError, match="takes 3"):
        evaluate(p, *[np.zeros((2, 3), np.float32), np.array(1, np.int32), np.array([True])] * 2)
    odd: Any
    for odd, said in (([[1], [1, 2]], "no array of numbers"), (None, "no array"), (1j, "c128")):
        with pytest.raises(SpmdcError, match=said):
            evaluate(p, odd, np.array(1, np.int32), np.array([True]))


def test_inputs_of_an_spmd_program_are_global_arrays() -> None:
    x = integers(8, 2)
    place = split(MESH, (X,), ())
    p = program([(x, place)], lambda b, v: v, [(place, x.shape)])
    with pytest.raises(SpmdcError, match=r"f32\[8, 2\]"):
        simulate(p, x[:2])


def test_parts_of_an_axis_that_have_no_common_refinement_are_refused() -> None:
    mesh = Mesh((("x", 12),))
    x = integers(12)
    four, six = split(mesh, (AxisRef("x", 1, 4),)), split(mesh, (AxisRef("x", 1, 6),))
    with pytest.raises(SpmdcError) as raised:
        simulate(program([(x, four), (x, six)], lambda b, u, v: (u, v), [(four, (12,)), (six, (12,))], mesh), x, x)
    assert raised.value.diagnostics[0].code == "E307"


def test_meshes_of_different_devices_are_refused() -> None:
    mesh, larger = Mesh((("x", 2),)), Mesh((("a", 4),), None, "m1")
    place = split(mesh, mesh.whole_axes())
    x = integers(2)
    with pytest.raises(SpmdcError) as raised:
        simulate(program([(x, place)], lambda b, v: v, [(place, (2,))], mesh, larger), x)
    assert raised.value.diagnostics[0].code == "E304"


def test_the_wrong_stage_is_refused() -> None:
    x = integers(8)
    place = split(MESH, (X,))
    p = program([(x, place)], lambda b, v: v, [(place, x.shape)])
    with pytest.raises(InternalError):
        evaluate(p, x)
    with pytest.raises(InternalError):
        simulate(Program((MESH,), p.functions), x)


def test_a_result_that_is_an_input_or_a_constant_or_given_twice() -> None:
    x = integers(8)
    place = split(MESH, (X,))

    def body(b: RegionBuilder, v: Value) -> tuple[Value, ...]:
        return v, v, b.op("constant", value=2.0, type=v.type)

    got = simulate(program([(x, place)], body, [(place, (8,)), (place, (8,)), (place, (8,))]), x)
    np.testing.assert_array_equal(got, [x, x, np.full(8, 2)])
    assert all(r.flags.writeable for r in got)


def test_hundreds_of_devices_store_what_is_replicated_once() -> None:
    mesh = Mesh((("d", 256),))
    (d,) = mesh.whole_axes()
    x, w = integers(512, 64), integers(64, 256, seed=1)

    def body(b: RegionBuilder, tokens: Value, weight: Value) -> Value:
        whole = b.op("all_gather", weight, axes=(d,), dim=1)
        product = b.op("dot_general", tokens, whole, lhs_contract=(1,), rhs_contract=(0,))
        return b.op("all_to_all", product, axes=(d,), split=1, concat=0)

    p = program(
        [(x, split(mesh, (d,), ())), (w, split(mesh, (), (d,)))], body, [(split(mesh, (), (d,)), (512, 256))], mesh
    )
    np.testing.assert_array_equal(simulate(p, x, w)[0], x @ w)


def test_more_dims_than_numpy_has_are_refused() -> None:
    """Axes that the mesh has are dims of the simulated arrays, too."""
    dims = ", ".join(["2@x", "2@y", *["1"] * 30])
    text = f"mesh (x=2, y=2)\ndef main(a: f32[{dims}]) -> (r: f32[{dims}]) {{\n  return a + a\n}}\n"
    with pytest.raises(SpmdcError) as caught:
        partition(parse(text)).simulate(np.ones((2, 2, *[1] * 30), np.float32))
    assert caught.value.diagnostics[0].code == "E505"
