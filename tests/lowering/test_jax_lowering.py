"""Generated JAX modules compute what the reference computes, on eight devices, with `check_vma` on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from new_process import in_a_new_process

import spmdc
from ir.builder import RegionBuilder
from ir.causes import read_cause
from ir.diagnostics import Source, Span, SpmdcError
from ir.mesh import AxisRef, Mesh
from ir.program import DeviceOrder, Function, Program, Result, Value
from ir.sharding import REDUCTION_KINDS, DimSharding, ReductionKind, Sharding, local_shape
from ir.types import DType, TensorType, f32, pred, s8, s32, s64, u32
from lowering import jax as lowering_jax
from lowering.reference import evaluate, simulate
from spmdc.frontends.spmd import parse

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.usefixtures("devices")

MESH = Mesh((("x", 4), ("y", 2)))
X, Y = MESH.whole_axes()
X0, X1 = AxisRef("x", 1, 2), AxisRef("x", 2, 2)
SHUFFLED = Mesh((("a", 2), ("b", 4)), devices=(3, 6, 1, 0, 7, 2, 5, 4), name="other")


def placed(shape: Sequence[int], *dims: Sequence[AxisRef], mesh: Mesh = MESH) -> Sharding:
    """Dim d split over dims[d]; the dims that are left out stay whole."""
    every = (*dims, *((),) * (len(shape) - len(dims)))
    return Sharding(mesh, tuple(DimSharding(tuple(d)) for d in every))


def pending(sharding: Sharding, kind: ReductionKind, *axes: AxisRef) -> Sharding:
    return Sharding(sharding.mesh, sharding.dims, tuple((a, kind) for a in axes))


class Spmd:
    """Builds an SPMD program from global types and shardings."""

    def __init__(self, mesh: Mesh = MESH, *others: Mesh) -> None:
        self.b = RegionBuilder()
        self.meshes = (mesh, *others)
        self.functions: dict[str, Function] = {}

    def param(self, name: str, shape: Sequence[int], *dims: Sequence[AxisRef], dtype: DType = f32) -> Value:
        return self.of(name, TensorType(tuple(shape), dtype), placed(shape, *dims, mesh=self.meshes[0]))

    def of(self, name: str, whole: TensorType, sharding: Sharding) -> Value:
        local = whole.with_shape(local_shape(whole.shape, sharding.axes))
        return self.b.param(name, local, sharding, of=whole)

    def program(self, *results: tuple[Value, Sequence[int], Sharding]) -> Program:
        declared = [Result(v.name, v.type, s, of=TensorType(tuple(n), v.dtype)) for v, n, s in results]
        main = self.b.function("main", [v for v, _, _ in results], declared)
        return Program(self.meshes, {**self.functions, "main": main}, "spmd")


def same(ours: Sequence[Any], wanted: Sequence[Any], rtol: float = 0) -> None:
    assert len(ours) == len(wanted)
    for got, want in zip(map(np.asarray, ours), map(np.asarray, wanted), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if rtol:
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=rtol)
        else:
            np.testing.assert_array_equal(got, want)


def check(program: Program, *arrays: Array | np.generic) -> list[Array]:
    """Runs the program in JAX and compares with the simulator."""
    ours = lowering_jax.compile(program)(*arrays)
    same(ours, simulate(program, *arrays))
    return [np.asarray(x) for x in ours]


def numbers(shape: Sequence[int], dtype: DType = f32, seed: int = 0) -> Array:
    """Small integers, so that sums are exact."""
    drawn = np.random.default_rng(seed).integers(0 if dtype.kind in ("unsigned", "pred") else -4, 5, tuple(shape))
    return np.asarray(drawn).astype(dtype.numpy)


AXES: list[tuple[AxisRef, ...]] = [(X,), (Y,), (X, Y), (Y, X), (X1, X0), (X0,), (X1,), (X0, Y, X1)]


@pytest.mark.parametrize("axes", AXES)
def test_all_gather_and_back(axes: tuple[AxisRef, ...]) -> None:
    p = Spmd()
    shape = (16, 3)
    v = p.param("v", shape, axes)
    whole = p.b.op("all_gather", v, axes=axes, dim=0)
    x = numbers(shape)
    (got,) = check(p.program((whole, shape, placed(shape))), x)
    same([got], [x])


@pytest.mark.parametrize("kind", REDUCTION_KINDS)
@pytest.mark.parametrize("axes", [(X,), (Y, X), (X1,)])
def test_all_reduce_and_reduce_scatter_agree_for_every_kind(kind: str, axes: tuple[AxisRef, ...]) -> None:
    p = Spmd()
    n = int(np.prod([a.size for a in axes]))
    dtypes = (f32, s8, u32) if kind in ("sum", "prod") else (s32, pred) if kind in ("and", "or") else (f32, s8, pred)
    params = [p.param(f"v{t}", (n * 8, 2), axes, dtype=t) for t in dtypes]
    outputs: list[tuple[Value, Sequence[int], Sharding]] = []
    for v in params:
        outputs.append((p.b.op("all_reduce", v, axes=axes, kind=kind), (8, 2), placed((8, 2))))
        scattered = p.b.op("reduce_scatter", v, axes=axes, kind=kind, dim=0)
        outputs.append((scattered, (8, 2), placed((8, 2), axes)))
    arrays = [numbers((n * 8, 2), t) for t in dtypes]
    results = check(p.program(*outputs), *arrays)
    same(results[::2], results[1::2])
    if kind == "sum":
        same([results[0]], [arrays[0].reshape(n, 8, 2).sum(0)])


@pytest.mark.parametrize("axes", AXES)
def test_all_to_all_moves_a_split_from_dim_to_dim(axes: tuple[AxisRef, ...]) -> None:
    p = Spmd()
    v = p.param("v", (16, 8), axes)
    moved = p.b.op("all_to_all", v, axes=axes, split=1, concat=0)
    x = numbers((16, 8))
    (got,) = check(p.program((moved, (16, 8), placed((16, 8), (), axes))), x)
    same([got], [x])


def test_all_reduce_of_a_value_that_is_equal_along_an_axis_counts_every_device() -> None:
    p = Spmd()
    v = p.param("v", (8,), (X,))
    total = p.b.op("all_reduce", v, axes=(X, Y))
    x = numbers((8,))
    (got,) = check(p.program((total, (2,), placed((2,)))), x)
    same([got], [2 * x.reshape(4, 2).sum(0)])


@pytest.mark.parametrize("axes", AXES)
def test_axis_index_is_the_place_along_the_axes(axes: tuple[AxisRef, ...]) -> None:
    p = Spmd()
    index = p.b.op("broadcast_in_dim", p.b.op("axis_index", axes=axes), shape=(1,), dims=())
    n = int(np.prod([a.size for a in axes]))
    (got,) = check(p.program((index, (n,), placed((n,), axes))))
    same([got], [np.arange(n, dtype=np.int32)])


@pytest.mark.parametrize(
    ("target", "source"),
    [((Y, X), (X, Y)), ((X1, X0), (X0, X1)), ((Y, X0), (X0, Y)), ((X1,), (Y,)), ((X,), (X,)), ((X0, Y), (Y, X1))],
)
def test_collective_permute_within_the_mesh(target: tuple[AxisRef, ...], source: tuple[AxisRef, ...]) -> None:
    p = Spmd()
    v = p.param("v", (16, 2), (X, Y))
    moved = p.b.op("collective_permute", v, target=DeviceOrder(MESH, target), source=DeviceOrder(MESH, source))
    check(p.program((moved, (16, 2), placed((16, 2), (X, Y)))), numbers((16, 2)))


@pytest.mark.parametrize(
    ("target", "source"), [((X,), (X,)), ((Y, X), (Y, X)), ((X1,), (X1,)), ((Y, X0), (X0, Y)), ((X0, Y), (Y, X1))]
)
def test_a_shifted_collective_permute_counts_around(target: tuple[AxisRef, ...], source: tuple[AxisRef, ...]) -> None:
    p = Spmd()
    v = p.param("v", (16, 2), (X, Y))
    orders = DeviceOrder(MESH, target), DeviceOrder(MESH, source)
    moved = p.b.op("collective_permute", v, target=orders[0], source=orders[1], shift=-1)
    check(p.program((moved, (16, 2), placed((16, 2), (X, Y)))), numbers((16, 2)))


def test_a_collective_permute_between_device_orders_can_be_shifted() -> None:
    p = Spmd(MESH, SHUFFLED)
    a, b = SHUFFLED.whole_axes()
    v = p.of("v", TensorType((16, 2), f32), placed((16, 2), (b, a), mesh=SHUFFLED))
    orders = DeviceOrder(MESH, (Y, X)), DeviceOrder(SHUFFLED, (b, a))
    moved = p.b.op("collective_permute", v, target=orders[0], source=orders[1], shift=3)
    check(p.program((moved, (16, 2), placed((16, 2), (Y, X)))), numbers((16, 2)))


def test_collective_permute_between_device_orders() -> None:
    p = Spmd(MESH, SHUFFLED)
    a, b = SHUFFLED.whole_axes()
    x = numbers((16, 2))
    v = p.of("v", TensorType((16, 2), f32), placed((16, 2), (b, a), mesh=SHUFFLED))
    moved = p.b.op("collective_permute", v, target=DeviceOrder(MESH, (Y, X)), source=DeviceOrder(SHUFFLED, (b, a)))
    (got,) = check(p.program((moved, (16, 2), placed((16, 2), (Y, X)))), x)
    same([got], [x])


def test_parameters_and_results_on_a_mesh_in_another_device_order() -> None:
    p = Spmd(MESH, SHUFFLED)
    a, b = SHUFFLED.whole_axes()
    b0, b1 = AxisRef("b", 1, 2), AxisRef("b", 2, 2)
    whole = TensorType((15, 6), f32)
    v = p.of("v", whole, placed(whole.shape, (b1, a), (b0,), mesh=SHUFFLED))
    w = p.of("w", whole, pending(placed(whole.shape, (a,), mesh=SHUFFLED), "sum", b))
    v2, w2 = p.b.op("add", v, v), p.b.op("add", w, w)
    x, y = numbers(whole.shape), numbers(whole.shape, seed=1)
    assert v.sharding is not None
    assert w.sharding is not None
    program = p.program((v2, whole.shape, v.sharding), (w2, whole.shape, w.sharding))
    same(check(program, x, y), [2 * x, 2 * y])


@pytest.mark.parametrize("devices", [None, SHUFFLED.devices])
def test_collectives_along_the_axes_of_another_mesh(devices: tuple[int, ...] | None) -> None:
    other = Mesh((("a", 2), ("b", 4)), devices=devices, name="other")
    p = Spmd(MESH, other)
    a, b = other.whole_axes()
    v = p.of("v", TensorType((16, 8), f32), placed((16, 8), (b,), (a,), mesh=other))
    gathered = p.b.op("all_gather", v, axes=(a,), dim=1)
    total = p.b.op("all_reduce", gathered, axes=(b,), kind="max")
    index = p.b.op("broadcast_in_dim", p.b.op("axis_index", axes=(b, a)), shape=(1,), dims=())
    program = p.program(
        (gathered, (16, 8), placed((16, 8), (b,), mesh=other)),
        (total, (4, 8), placed((4, 8), mesh=other)),
        (index, (8,), placed((8,), (b, a), mesh=other)),
    )
    x = numbers((16, 8))
    same(check(program, x), [x, x.reshape(4, 4, 8).max(0), np.arange(8, dtype=np.int32)])


def test_the_default_mesh_may_have_a_device_order() -> None:
    mesh = Mesh((("x", 4), ("y", 2)), devices=(7, 3, 5, 1, 0, 2, 4, 6))
    p = Spmd(mesh)
    v = p.of("v", TensorType((8, 6), f32), placed((8, 6), (Y, X), mesh=mesh))
    whole = p.b.op("all_gather", v, axes=(X,), dim=0)
    x = numbers((8, 6))
    program = p.program((whole, (8, 6), placed((8, 6), (Y,), mesh=mesh)))
    same(check(program, x), [x])
    run = lowering_jax.compile(program)
    (shards,) = ({s.device.id: s.index[0].start for s in run(x)[0].addressable_shards},)
    assert [shards[i] or 0 for i in (7, 3, 5, 1)] == [0, 4, 0, 4]


@pytest.mark.parametrize("shape", [(15, 5), (3, 1), (1, 9), (0, 4)])
def test_uneven_inputs_and_results(shape: tuple[int, int]) -> None:
    p = Spmd()
    v = p.param("v", shape, (X,), (Y,))
    doubled = p.b.op("add", v, v)
    x = numbers(shape)
    same(check(p.program((doubled, shape, placed(shape, (X,), (Y,)))), x), [2 * x])


@pytest.mark.parametrize("kind", REDUCTION_KINDS)
def test_partial_parameters_and_results(kind: ReductionKind) -> None:
    dtype = s32 if kind in ("and", "or") else f32
    p = Spmd()
    v = p.of("v", TensorType((5, 3), dtype), pending(placed((5, 3), (X0,)), kind, Y, X1))
    reduced = p.b.op("all_reduce", v, axes=(X1,), kind=kind)
    x = numbers((5, 3), dtype)
    assert v.sharding is not None
    program = p.program(
        (v, (5, 3), v.sharding),
        (reduced, (5, 3), pending(placed((5, 3), (X0,)), kind, Y)),
        (p.b.op("all_reduce", v, axes=(Y, X1), kind=kind), (5, 3), placed((5, 3), (X0,))),
    )
    same(check(program, x), [x, x, x])


def counted_loop(b: RegionBuilder, trips: Value, step: Callable[[RegionBuilder, Value], Value], start: Value) -> Value:
    """`step` applied `trips` times."""
    zero = b.op("constant", value=0, type=TensorType((), s32))
    cond, body = RegionBuilder(b.names), RegionBuilder(b.names)
    i = cond.param("i", zero.type)
    cond.param("v", start.type)
    test = cond.region(cond.op("compare", i, trips, direction="LT"))
    i, v = body.param("i", zero.type), body.param("v", start.type)
    one = body.op("constant", value=1, type=TensorType((), s32))
    turn = body.region(body.op("add", i, one), step(body, v))
    return b.append("while", (zero, start), {}, names=("n", "v"), regions=(test, turn))[1]


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_while_in_a_global_program(trips: int) -> None:
    b = RegionBuilder()
    n, v = b.param("n", TensorType((), s32)), b.param("v", TensorType((4,), f32))
    result = counted_loop(b, n, lambda body, x: body.op("add", x, v), v)
    program = Program((), {"main": b.function("main", [result])})
    x = numbers((4,))
    same(lowering_jax.compile(program)(np.int32(trips), x), [(trips + 1) * x])


def test_while_carries_values_that_come_to_vary_and_loops_nest() -> None:
    p = Spmd()
    n = p.param("n", (), dtype=s32)
    v, w = p.param("v", (8,), (X,)), p.param("w", (4,), (Y,))

    def inner(body: RegionBuilder, x: Value) -> Value:
        return body.op("add", x, body.op("all_reduce", body.op("add", x, v), axes=(X,)))

    def outer(body: RegionBuilder, x: Value) -> Value:
        return counted_loop(body, n, inner, body.op("add", x, w))

    zero = p.b.op("constant", value=0.0, type=TensorType((2,), f32))
    result = counted_loop(p.b, n, outer, zero)
    gathered = p.b.op("all_gather", result, axes=(Y,), dim=0)
    check(p.program((gathered, (4,), placed((4,)))), np.int32(2), numbers((8,)), numbers((4,), seed=1))


def test_a_loop_of_one_carried_value_whose_turns_differ_between_devices() -> None:
    p = Spmd()
    zero = p.b.op("constant", value=0, type=TensorType((), s32))
    limit = p.b.op("axis_index", axes=(X,))
    cond, body = RegionBuilder(p.b.names), RegionBuilder(p.b.names)
    test = cond.region(cond.op("compare", cond.param("i", zero.type), limit, direction="LT"))
    i = body.param("i", zero.type)
    turn = body.region(body.op("add", i, body.op("constant", value=1, type=zero.type)))
    (count,) = p.b.append("while", (zero,), {}, names=("count",), regions=(test, turn))
    spread = p.b.op("broadcast_in_dim", count, shape=(1,), dims=())
    (got,) = check(p.program((spread, (4,), placed((4,), (X,)))))
    same([got], [np.arange(4, dtype=np.int32)])


def test_calls_of_one_function_with_values_that_vary_differently() -> None:
    p = Spmd()
    f = RegionBuilder()
    a, c = f.param("a", TensorType((2,), f32)), f.param("c", TensorType((), f32))
    spread = f.op("broadcast_in_dim", c, shape=(2,), dims=())
    p.functions["lambda"] = f.function("lambda", [f.op("add", a, spread), f.op("multiply", a, spread)])
    v, w, c = p.param("v", (8,), (X,)), p.param("w", (2,)), p.param("c", ())
    types = [TensorType((2,), f32)] * 2
    _, first = p.b.append("call", (v, c), {"function": "lambda"}, types=types)
    second, _ = p.b.append("call", (w, c), {"function": "lambda"}, types=types)
    x, y = numbers((8,)), numbers((2,))
    program = p.program((first, (8,), placed((8,), (X,))), (second, (2,), placed((2,))))
    same(check(program, x, y, np.float32(3)), [3 * x, y + 3])
    text = lowering_jax.jax_source(program)
    assert "pcast" not in text
    assert "KEPT_SPECS" not in text


def test_a_call_on_whole_values_gives_whole_values_through_other_calls_and_loops() -> None:
    p, twice, outer = Spmd(), RegionBuilder(), RegionBuilder()
    a = twice.param("a", TensorType((2,), f32))
    p.functions["twice"] = twice.function("twice", [twice.op("add", a, a)])
    turns, start = outer.param("turns", TensorType((), s32)), outer.param("start", TensorType((2,), f32))

    def doubled(body: RegionBuilder, x: Value) -> Value:
        return body.append("call", (x,), {"function": "twice"}, types=[x.type])[0]

    p.functions["outer"] = outer.function("outer", [counted_loop(outer, turns, doubled, start)])
    n, v, w = p.param("n", (), dtype=s32), p.param("v", (8,), (X,)), p.param("w", (2,))
    split, whole = (p.b.append("call", (n, x), {"function": "outer"}, types=[x.type])[0] for x in (v, w))
    program = p.program((split, (8,), placed((8,), (X,))), (whole, (2,), placed((2,))))
    x, y = numbers((8,)), numbers((2,))
    same(check(program, np.int32(3), x, y), [8 * x, 8 * y])
    text = lowering_jax.jax_source(program)
    assert [text.count(f"def {name}(") for name in ("twice", "twice_1", "outer", "outer_1")] == [1, 1, 1, 1]
    assert "pcast" not in text


def test_results_that_jax_cannot_prove_equal_are_returned_without_communication() -> None:
    p = Spmd()
    v = p.param("v", (8,))
    swapped = p.b.op("collective_permute", v, target=DeviceOrder(MESH, (Y, X)), source=DeviceOrder(MESH, (X, Y)))
    program = p.program((swapped, (8,), placed((8,))))
    x = numbers((8,))
    same(check(program, x), [x])
    text = lowering_jax.jax_source(program)
    assert text.count("lax.ppermute") == 1
    assert not any(name in text for name in ("psum", "pmax", "all_gather", "taken"))


def test_of_results_that_jax_cannot_prove_equal_each_device_keeps_its_own() -> None:
    """Also where they are split over another axis and padded, and where numbers are not what they are equal to."""
    p = Spmd()
    v, w = p.param("v", (7, 2), (X,)), p.param("w", (8,), (X,))
    around = DeviceOrder(MESH, (Y,))
    moved = p.b.op("collective_permute", v, target=around, source=around, shift=1)
    program = p.program((moved, (7, 2), placed((7, 2), (X,))), (w, (8,), placed((8,), (X,))))
    x, y = np.array([[-0.0, np.nan]] * 7, np.float32), numbers((8,))
    results = lowering_jax.compile(program)(x, y)
    same([r.view(np.uint32) for r in map(np.asarray, results)], [x.view(np.uint32), y.view(np.uint32)])


def test_64_bit_programs_are_exact_and_leave_32_bit_programs_alone() -> None:
    p = Spmd()
    v = p.param("v", (8,), (X,), dtype=s64)
    program = p.program((p.b.op("all_reduce", v, axes=(X,)), (2,), placed((2,))))
    x = np.full(8, 2**40, np.int64)
    same(check(program, x), [np.full(2, 2**42, np.int64)])
    assert jnp.arange(3).dtype == np.int32


def test_names_of_the_program_do_not_hide_python_or_jax() -> None:
    b = RegionBuilder()
    names = ("lambda", "jax", "lax", "np", "jnp", "print", "main", "mesh", "h.1", "h_1", "reduce_arg", "int")
    params = [b.param(name, TensorType((2,), f32)) for name in names]
    total = params[0]
    for v in params[1:]:
        total = b.op("add", total, v, name="pad_to")
    program = Program((), {"main": b.function("main", [total])})
    arrays = [numbers((2,), seed=i) for i in range(len(names))]
    same(lowering_jax.compile(program)(*arrays), [sum(arrays)])


@pytest.mark.parametrize("name", ["carry", "seen", "moving", "fixed"])
def test_loops_see_values_that_have_the_names_of_what_their_turns_are_given(name: str) -> None:
    program = parse(f"""
def main({name}: f32[4], w: f32[3, 4], n: s32[]) -> (f32[4], f32[4]) {{
  y, z = loop l < 3 (h = {name}, k = w[0]) {{ return h + w[l] * {name}, k * {name} }}
  i, j = while(i = 0, v = y) cond {{ return i < n }} do {{ return i + 1, v * {name} + z }}
  return j, z
}}
""")
    arrays = numbers((4,)), numbers((3, 4), seed=1), np.array(2, np.int32)
    wanted = evaluate(program, *arrays)
    same(lowering_jax.compile(program)(*arrays), wanted)
    same(spmdc.as_jax(program)(*arrays), wanted)


def test_programs_without_parameters_or_results() -> None:
    p = Spmd()
    c = p.b.op("constant", value=3, type=TensorType((2,), s32))
    same(check(p.program((c, (2,), placed((2,))))), [np.array([3, 3], np.int32)])
    assert lowering_jax.compile(Spmd().program())() == ()


def test_axes_of_size_one_do_nothing() -> None:
    mesh = Mesh((("x", 1), ("y", 2)))
    x_axis, y_axis = mesh.whole_axes()
    p = Spmd(mesh)
    v = p.of("v", TensorType((4,), f32), placed((4,), (x_axis, y_axis), mesh=mesh))
    moved = p.b.op("all_to_all", p.b.op("all_reduce", v, axes=(x_axis,)), axes=(x_axis,), split=0, concat=0)
    x = numbers((4,))
    same(check(p.program((moved, (4,), placed((4,), (x_axis, y_axis), mesh=mesh))), x), [x])


def test_collectives_of_nothing() -> None:
    p = Spmd()
    v = p.param("v", (0, 8), (X,))
    gathered = p.b.op("all_gather", v, axes=(X,), dim=0)
    moved = p.b.op("all_to_all", v, axes=(X,), split=1, concat=0)
    total = p.b.op("all_reduce", v, axes=(X,), kind="prod")
    scattered = p.b.op("reduce_scatter", v, axes=(X,), kind="max", dim=0)
    split = placed((0, 8), (X,))
    program = p.program(
        (gathered, (0, 8), placed((0, 8))),
        (moved, (0, 8), placed((0, 8), (), (X,))),
        (total, (0, 8), placed((0, 8))),
        (scattered, (0, 8), split),
    )
    check(program, np.zeros((0, 8), np.float32))


def test_text_from_elsewhere_cannot_end_a_comment_or_docstring() -> None:
    source = Source('folder/a"""\n\\b.spmd')
    b = RegionBuilder()
    v = b.param('v"""\\', TensorType((2,), f32))
    out = b.op("add", v, v, name="a\nb", span=Span(source, 1, 1, 1, 2), cause=read_cause("two\nlines\x0c\u2028more"))
    program = Program((), {"main": b.function("main", [out])}, source=source)
    same(lowering_jax.compile(program)(numbers((2,))), [2 * numbers((2,))])


def test_inputs_that_do_not_fit_are_reported_all_at_once() -> None:
    p = Spmd()
    v, w = p.param("v", (8,), (X,)), p.param("w", (4,))
    run = lowering_jax.compile(p.program((v, (8,), placed((8,), (X,))), (w, (4,), placed((4,)))))
    with pytest.raises(SpmdcError) as e:
        run(np.zeros(9, np.float32), np.zeros(4, np.int32))
    assert [d.code for d in e.value.diagnostics] == ["E501", "E501"]
    with pytest.raises(SpmdcError, match="E501"):
        run(np.zeros(8, np.float32))
    with pytest.raises(SpmdcError, match="E501"):
        run([[1.0], []], jax.random.key(0))


def test_results_are_arguments_again() -> None:
    p = Spmd()
    v = p.param("v", (7,), (X,))
    run = lowering_jax.compile(p.program((p.b.op("add", v, v), (7,), placed((7,), (X,)))))
    x = numbers((7,))
    same(run(*run(*run(x))), [8 * x])


def test_axes_cut_without_a_common_refinement_are_refused() -> None:
    mesh = Mesh((("x", 6),))
    p = Spmd(mesh)
    v = p.of("v", TensorType((6,), f32), placed((6,), (AxisRef("x", 1, 2),), mesh=mesh))
    w = p.of("w", TensorType((6,), f32), placed((6,), (AxisRef("x", 1, 3),), mesh=mesh))
    with pytest.raises(SpmdcError, match="E307"):
        lowering_jax.jax_source(p.program((v, (6,), v.sharding or placed(())), (w, (6,), w.sharding or placed(()))))


def test_an_spmd_program_without_a_mesh_is_refused() -> None:
    with pytest.raises(SpmdcError, match="E306"):
        lowering_jax.jax_source(Program((), {"main": RegionBuilder().function("main", [])}, "spmd"))


def test_too_few_devices_are_refused(devices: list[Any]) -> None:
    p = Spmd()
    program = p.program()
    with pytest.raises(SpmdcError, match="E502"):
        lowering_jax.compile(program, devices[:4])


def small_program() -> Program:
    """A dense layer whose contracting dim is split, with source lines."""
    source = Source("folder/dense.spmd")
    p = Spmd()
    x, w = p.param("x", (15, 8), (X,), (Y,)), p.param("w", (8, 16), (Y,))
    p.b.span = Span(source, 3, 3, 3, 9)
    h = p.b.op("dot_general", x, w, lhs_contract=(1,), rhs_contract=(0,), name="h.1")
    h = p.b.op("all_reduce", h, axes=(Y,), name="h", cause=read_cause("partial y → whole"))
    p.b.span = Span(source, 4, 3, 4, 9)
    zero = p.b.op("constant", value=0.0, type=TensorType((), f32), name="zero")
    zeros = p.b.op("broadcast_in_dim", zero, shape=(4, 16), dims=(), name="zeros")
    out = p.b.op("maximum", h, zeros, name="out")
    program = p.program((out, (15, 16), placed((15, 16), (X,))))
    return Program(program.meshes, program.functions, "spmd", source=source)


def test_the_module_of_a_small_program_reads_well(golden: Callable[[str, str], None]) -> None:
    golden("lowering/jax/dense.py.txt", lowering_jax.jax_source(small_program()))


@pytest.mark.parametrize(
    ("name", "dtype", "number"),
    [("multiply", f32, 3.0), ("maximum", f32, -0.0), ("power", f32, 2.0), ("and", s32, 6), ("divide", f32, 4.0)],
)
def test_of_a_constant_beside_an_array_only_the_number_is_written(name: str, dtype: DType, number: float) -> None:
    m = Spmd()
    a = m.param("a", (8, 3), (X,), dtype=dtype)
    filled = m.b.op("constant", value=number, type=a.type)
    found = [m.b.op(name, a, filled), m.b.op(name, filled, a)]
    program = m.program(*((v, (8, 3), placed((8, 3), (X,))) for v in found))
    assert "lax.broadcast" not in lowering_jax.jax_source(program)
    check(program, np.arange(-4, 20, dtype=dtype.numpy).reshape(8, 3))


def test_constants_are_arrays_for_who_needs_one() -> None:
    m = Spmd()
    a = m.param("a", (8, 3), (X,))
    returned, once, again, low = (m.b.op("constant", value=float(i), type=a.type) for i in range(4))
    sums = [m.b.op("add", a, returned), m.b.op("add", once, again), m.b.op("clamp", low, once, a)]
    quotients = [
        m.b.op("divide", m.b.op("constant", value=7, type=a.type.with_dtype(s32)), m.b.op("convert", a, dtype=s32))
    ]
    found = [returned, *sums, *quotients]
    program = m.program(*((v, (8, 3), placed((8, 3), (X,))) for v in found))
    assert lowering_jax.jax_source(program).count("lax.broadcast(") == 5
    check(program, np.arange(1, 25, dtype=np.float32).reshape(8, 3))


def test_a_module_runs_on_its_own() -> None:
    run = """
import jax
jax.config.update("jax_num_cpu_devices", 8)
x = np.arange(120, dtype=np.float32).reshape(15, 8) - 60
w = np.ones((8, 16), np.float32)
(out,) = main(x, w)
assert np.array_equal(out, np.maximum(x @ w, 0))
import sys
assert not any(m.split(".")[0] in ("ir", "lowering", "passes", "spmdc") for m in sys.modules)
"""
    in_a_new_process(lowering_jax.jax_source(small_program()) + run)
