"""The text of programs, against the language as it is specified."""

from __future__ import annotations

import math
import time

import pytest

from ir.builder import RegionBuilder
from ir.causes import read_cause
from ir.diagnostics import Source, Span
from ir.mesh import AxisRef, Mesh
from ir.program import DeviceOrder, Op, Program, Region, Result, Value
from ir.sharding import DimSharding, Sharding
from ir.spelling.printer import (
    print_literal,
    print_location,
    print_mesh,
    print_program,
    print_sharding,
    print_type,
)
from ir.types import TensorType, f32, pred, s32

MESH = Mesh((("x", 4), ("y", 2)))
X, Y = MESH.whole_axes()
SPAN = Span(Source("moe.spmd"), 11, 5, 11, 30)


def tensor(*shape: int) -> TensorType:
    return TensorType(shape, f32)


def matmul_program() -> Program:
    b = RegionBuilder()
    lhs = b.param("inputs", tensor(16, 64), Sharding.of(MESH, "x", None))
    rhs = b.param("w", tensor(64, 8), Sharding.of(MESH, None, ("x", "y")))
    partial = Sharding(MESH, (DimSharding((X,)), DimSharding()), ((Y, "sum"),))
    h = b.op(
        "dot_general",
        lhs,
        rhs,
        name="h",
        sharding=partial,
        span=SPAN,
        lhs_contract=(1,),
        rhs_contract=(0,),
        cause=read_cause("why"),
    )
    main = b.function("main", [h], [Result("out", h.type, Sharding.of(MESH, "x", None))])
    return Program((MESH,), {"main": main})


def test_a_program_prints_as_the_language_says() -> None:
    line = "  h: f32[16@x, 8]{partial: y} = dot_general(inputs, w, lhs_contract=[1], rhs_contract=[0])"
    assert print_program(matmul_program()) == (
        "mesh (x=4, y=2)\n"
        "\n"
        "def main(inputs: f32[16@x, 64], w: f32[64, 8@(x,y)]) -> (out: f32[16@x, 8]) {\n"
        f"{line}  # moe.spmd:11  why\n"
        "  return h\n"
        "}\n"
    )


def test_locations_can_be_left_out() -> None:
    assert "#" not in print_program(matmul_program(), locations=False)


def test_short_lines_have_their_comments_in_one_column() -> None:
    b = RegionBuilder()
    x = b.param("x", tensor(2))
    for name in ("short", "a_longer_name"):
        b.op("negate", x, name=name, span=SPAN)
    program = Program((MESH,), {"main": b.function("main", [x])})
    columns = {line.index("#") for line in print_program(program).splitlines() if "#" in line}
    assert len(columns) == 1


@pytest.mark.parametrize(
    ("dims", "text"),
    [
        ((DimSharding((X,)), DimSharding()), "f32[8@x, 4]"),
        ((DimSharding((X, Y)), DimSharding()), "f32[8@(x,y), 4]"),
        ((DimSharding((X, AxisRef("y", 1, 1))), DimSharding()), "f32[8@(x,y:(1)1), 4]"),
        ((DimSharding((AxisRef("x", 2, 2),)), DimSharding()), "f32[8@x:(2)2, 4]"),
        ((DimSharding(open=True), DimSharding((X,), open=True)), "f32[8@?, 4@(x,?)]"),
        ((DimSharding((X,), open=True, priority=1), DimSharding((Y,), priority=2)), "f32[8@(x,?)!1, 4@y!2]"),
        ((DimSharding(open=True, priority=3), DimSharding()), "f32[8@?!3, 4]"),
        ((DimSharding(), DimSharding()), "f32[8, 4]{replicated}"),
    ],
)
def test_dims_print_the_axes_that_split_them(dims: tuple[DimSharding, ...], text: str) -> None:
    assert print_type(tensor(8, 4), Sharding(MESH, dims)) == text


def test_a_type_without_sharding_differs_from_a_replicated_one() -> None:
    assert print_type(tensor(8)) == "f32[8]"
    assert print_type(tensor(8), Sharding.replicate(MESH, 1)) == "f32[8]{replicated}"
    assert print_type(tensor(), Sharding.unknown(MESH, 0)) == "f32[]{replicated}"


def test_partial_and_replicated_axes_stand_in_braces() -> None:
    z = AxisRef("z", 1, 2)
    mesh = Mesh((*MESH.axes, ("z", 2)))
    sharding = Sharding(mesh, (DimSharding(),), ((X, "sum"), (Y, "max")), (z,))
    assert print_type(tensor(8), sharding) == "f32[8]{partial: x, max y; replicated: z}"


def test_a_sharding_alone_names_its_dims() -> None:
    sharding = Sharding(MESH, (DimSharding((X,)), DimSharding(), DimSharding(open=True)), ((Y, "sum"),))
    assert print_sharding(sharding) == "[x, -, ?]{partial: y}"
    assert print_sharding(Sharding.replicate(MESH, 1)) == "[-]"


def test_meshes_print_names_and_devices() -> None:
    assert print_mesh(MESH) == "mesh (x=4, y=2)"
    assert print_mesh(Mesh((("a", 2),), (1, 0), "m1")) == "mesh m1 (a=2) devices=[1, 0]"
    assert print_mesh(Mesh((("a", 2),), (0, 1))) == "mesh (a=2)"


@pytest.mark.parametrize("value", [0.1, 1e-300, -0.0, 1e16, 3.4028234663852886e38, math.inf, -math.inf, 5e-324])
def test_floats_print_so_that_they_read_back(value: float) -> None:
    text = print_literal(value)
    assert float(text) == value
    assert math.copysign(1, float(text)) == math.copysign(1, value)


def test_literals_print_as_nested_lists() -> None:
    assert print_literal(((1, 2.0), (True, math.nan))) == "[[1, 2.0], [true, nan]]"
    assert print_literal(()) == "[]"


def test_attributes_equal_to_their_default_are_left_out() -> None:
    b = RegionBuilder()
    x = b.param("x", tensor(8, 4))
    forward = b.op("cumsum", x, dim=0)
    backward = b.op("cumsum", x, dim=0, reverse=True)
    program = Program((MESH,), {"main": b.function("main", [forward, backward])})
    text = print_program(program)
    assert "cumsum(x, dim=0)\n" in text
    assert "cumsum(x, dim=0, reverse=true)\n" in text


def test_constants_print_value_and_type() -> None:
    b = RegionBuilder()
    b.op("constant", name="c", value=-math.inf, type=tensor(16, 8))
    program = Program((MESH,), {"main": b.function("main", [])})
    assert "  c: f32[16, 8] = constant(value=-inf, type=f32[16, 8])\n  return\n" in print_program(program)


def test_several_results_are_separated_by_commas() -> None:
    b = RegionBuilder()
    x, i = b.param("x", tensor(4)), b.param("i", TensorType((4,), s32))
    results = b.multi("reduce", x, i, names=("m", "at"), dims=(0,), kind="argmax")
    program = Program((MESH,), {"main": b.function("main", results)})
    assert "  m: f32[], at: s32[] = reduce(x, i, dims=[0], kind=argmax)" in print_program(program)


def test_device_orders_name_meshes_other_than_the_default() -> None:
    other = Mesh((("a", 8),), tuple(reversed(range(8))), "m1")
    b = RegionBuilder()
    x = b.param("x", tensor(4))
    target, source = DeviceOrder(MESH, (X, Y)), DeviceOrder(other, other.whole_axes())
    y = b.op("collective_permute", x, name="y", target=target, source=source)
    z = b.op("all_reduce", y, name="z", axes=(X, AxisRef("y", 1, 1)), kind="max")
    g = b.op("all_gather", z, name="g", axes=(Y,), dim=0)
    program = Program((MESH, other), {"main": b.function("main", [g])}, stage="spmd")
    text = print_program(program)
    assert text.startswith("spmd\nmesh (x=4, y=2)\nmesh m1 (a=8) devices=[7, 6, 5, 4, 3, 2, 1, 0]\n\n")
    assert "collective_permute(x, target=(x, y), source=m1(a))" in text
    assert "all_reduce(y, axes=(x, y:(1)1), kind=max)" in text
    assert "all_gather(z, axes=(y), dim=0)" in text


def test_an_spmd_entry_says_what_its_params_and_results_are_shards_of() -> None:
    b = RegionBuilder()
    sharding = Sharding.of(MESH, "x", None)
    x = b.param("x", tensor(4, 64), sharding, of=tensor(16, 64))
    result = Result("out", tensor(4, 64), sharding, tensor(16, 64))
    program = Program((MESH,), {"main": b.function("main", [x], [result])}, stage="spmd")
    assert "def main(x: f32[4, 64] of f32[16@x, 64]) -> (out: f32[4, 64] of f32[16@x, 64]) {" in print_program(program)


def counting_loop(cond_param: str) -> Program:
    scalar = TensorType((), s32)
    i, again = Value(cond_param, scalar), Value("i", scalar)
    zero, total, go, step = (
        Value("zero", scalar),
        Value("n", scalar),
        Value("go", TensorType((), pred)),
        Value("s", scalar),
    )
    cond = Region((i,), (Op("compare", (i, zero), (go,), {"direction": "LT"}),), (go,))
    body = Region((again,), (Op("add", (again, again), (step,)),), (step,))
    loop = Op("while", (zero,), (total,), {"trip_count": 3}, (cond, body), SPAN)
    b = RegionBuilder()
    b.params.append(zero)
    b.ops.append(loop)
    return Program((MESH,), {"main": b.function("main", [total])})


@pytest.mark.parametrize("cond_param", ["i", "i.1"])
def test_a_loop_names_its_carried_values_once(cond_param: str) -> None:
    program = counting_loop(cond_param)
    assert print_program(program, locations=False) == (
        f"{print_mesh(MESH)}\n\n"
        "def main(zero: s32[]) -> (n: s32[]) {\n"
        "  n: s32[] = while(i: s32[] = zero, trip_count=3) cond {\n"
        "    go: pred[] = compare(i, zero, direction=LT)\n"
        "    return go\n"
        "  } do {\n"
        "    s: s32[] = add(i, i)\n"
        "    return s\n"
        "  }\n"
        "  return n\n"
        "}\n"
    )
    header = next(line for line in print_program(program).splitlines() if "while" in line)
    assert header.split("#") == [header.split("#")[0], " moe.spmd:11"]
    assert "cond {" in header


@pytest.mark.parametrize(
    ("span", "reason", "text"),
    [
        (SPAN, "", "# moe.spmd:11"),
        (SPAN, "reshard\n x", "# moe.spmd:11  reshard x"),
        (None, "why", "#  why"),
        (None, " ", ""),
    ],
)
def test_a_location_is_one_comment(span: Span | None, reason: str, text: str) -> None:
    assert print_location(span, reason) == text


def test_printing_is_linear_in_the_program() -> None:
    x = Value("x", tensor(16, 8), Sharding.of(MESH, "x", None))
    ops: list[Op] = []
    last = x
    for i in range(20_000):
        last = Value(f"v.{i}", x.type, x.sharding)
        ops.append(Op("add", (ops[-1].result if ops else x, x), (last,), {}, (), SPAN, read_cause("remark")))
    b = RegionBuilder()
    b.params, b.ops = [x], ops
    program = Program((MESH,), {"main": b.function("main", [last])})
    start = time.process_time()
    text = print_program(program)
    assert time.process_time() - start < 2
    assert text.count("\n") == 20_000 + 5
