"""Each way in which a program can be malformed is found and has its code."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Sequence

import pytest

from ir.builder import RegionBuilder
from ir.diagnostics import SpmdcError
from ir.mesh import AxisRef, Mesh
from ir.program import Attr, DeviceOrder, Function, Op, Program, Region, Result, Stage, Value
from ir.sharding import DimSharding, Sharding
from ir.types import TensorType, f32, pred, s32, u8
from ir.verify.program import check, verify
from spmdc.frontends.spmd import parse

MESH = Mesh((("x", 4), ("y", 2)))
X, Y = MESH.whole_axes()
VECTOR = TensorType((8,), f32)
SCALAR = TensorType((), f32)
FLAG = TensorType((), pred)


def op(name: str, operands: Sequence[Value], *results: Value, regions: tuple[Region, ...] = (), **attrs: Attr) -> Op:
    return Op(name, tuple(operands), results, attrs, regions)


def function(name: str, params: Sequence[Value], ops: Sequence[Op], results: Sequence[Value]) -> Function:
    signature = tuple(Result(v.name, v.type, v.sharding, v.of) for v in results)
    return Function(name, Region(tuple(params), tuple(ops), tuple(results)), signature)


def program(*functions: Function, meshes: tuple[Mesh, ...] = (MESH,), stage: Stage = "global") -> Program:
    return Program(meshes, {f.name: f for f in functions}, stage)


def simple(*ops: Op, params: Sequence[Value] = (), stage: Stage = "global") -> Program:
    return program(function("main", params, ops, ()), stage=stage)


def codes(p: Program) -> list[str]:
    return [d.code for d in verify(p)]


def vector(name: str) -> Value:
    return Value(name, VECTOR)


def test_a_well_formed_program_has_no_faults() -> None:
    b = RegionBuilder()
    x = b.param("x", VECTOR, Sharding.of(MESH, "x"))
    y = b.op("add", x, x)
    p = program(b.function("main", [y]))
    assert verify(p) == []
    check(p)


def test_check_raises_every_fault_at_once() -> None:
    x = vector("x")
    with pytest.raises(SpmdcError) as caught:
        check(simple(op("add", (x,), vector("a")), op("nonsense", (), vector("b"))))
    assert [d.code for d in caught.value.diagnostics] == ["E404", "E203", "E103"]


class TestScopes:
    def test_a_value_must_be_defined_before_its_use(self) -> None:
        x, y, z = vector("x"), vector("y"), vector("z")
        assert codes(simple(op("negate", (y,), z), op("negate", (x,), y), params=[x])) == ["E404"]

    def test_a_returned_value_must_be_defined(self) -> None:
        assert codes(program(function("main", (), (), [vector("x")]))) == ["E404"]

    def test_a_value_of_another_function_is_not_visible(self) -> None:
        x = vector("x")
        other = function("other", [x], (), [x])
        assert codes(program(other, function("main", (), [op("negate", (x,), vector("y"))], ()))) == ["E404"]

    def test_a_value_of_a_region_is_not_visible_outside(self) -> None:
        p, inner = loop_program()
        leaked = op("negate", (inner,), Value("leak", inner.type))
        body = dataclasses.replace(p.main.body, ops=(*p.main.body.ops, leaked))
        assert codes(program(dataclasses.replace(p.main, body=body))) == ["E404"]

    def test_a_value_is_defined_once(self) -> None:
        x, y = vector("x"), vector("y")
        assert codes(simple(op("negate", (x,), y), op("negate", (x,), y), params=[x])) == ["E102"]

    def test_names_are_unique_in_a_function(self) -> None:
        x = vector("x")
        assert codes(simple(op("negate", (x,), vector("x")), params=[x])) == ["E102"]

    def test_the_condition_and_the_body_of_a_loop_may_name_their_parameters_alike(self) -> None:
        p, _ = loop_program()
        cond, body = p.main.body.ops[0].regions
        assert cond.params[0].name == body.params[0].name
        assert verify(p) == []


class TestOps:
    def test_an_op_must_exist(self) -> None:
        assert codes(simple(op("frobnicate", (), vector("x")))) == ["E103"]

    def test_a_collective_is_no_op_of_a_global_program(self) -> None:
        x = vector("x")
        assert codes(simple(op("all_reduce", (x,), vector("y"), axes=(X,), kind="sum"), params=[x])) == ["E406"]

    def test_an_annotation_is_no_op_of_an_spmd_program(self) -> None:
        c = op("constant", (), vector("c"), value=0.0, type=VECTOR)
        assert codes(simple(c, op("shard", c.results, vector("y")), stage="spmd")) == ["E406"]

    @pytest.mark.parametrize(
        "attrs",
        [
            {"dim": 0},
            {"dim": 0, "reverse": False, "extra": 1},
            {"dim": 0.0, "reverse": False},
            {"dim": True, "reverse": False},
            {"dim": 0, "reverse": 2},
        ],
    )
    def test_attributes_are_complete_known_and_of_their_kind(self, attrs: dict[str, Attr]) -> None:
        x = vector("x")
        assert codes(simple(Op("cumsum", (x,), (vector("y"),), attrs), params=[x])) == ["E203"]

    def test_a_word_is_one_of_its_choices(self) -> None:
        x = vector("x")
        y = Value("y", TensorType((8,), pred))
        assert codes(simple(op("compare", (x, x), y, direction="ABOVE"), params=[x])) == ["E203"]

    def test_operands_are_as_many_as_the_op_takes(self) -> None:
        x = vector("x")
        assert codes(simple(op("add", (x,), vector("y")), params=[x])) == ["E203"]

    def test_results_are_as_many_as_the_op_gives(self) -> None:
        x = vector("x")
        assert codes(simple(op("negate", (x,), vector("y"), vector("z")), params=[x])) == ["E203"]

    def test_regions_stand_only_in_ops_that_hold_them(self) -> None:
        x = vector("x")
        assert codes(simple(op("negate", (x,), vector("y"), regions=(Region((), (), ()),)), params=[x])) == ["E203"]

    def test_the_type_rule_must_accept_the_operands(self) -> None:
        x = Value("x", TensorType((8,), s32))
        assert codes(simple(op("tanh", (x,), Value("y", x.type)), params=[x])) == ["E201"]

    def test_an_op_is_checked_even_if_another_one_has_its_attributes_or_its_types(self) -> None:
        x, y, z, attrs = vector("x"), vector("y"), Value("z", SCALAR), dict[str, Attr]()
        fine, wrong = Op("negate", (x,), (y,), attrs), Op("negate", (x,), (z,), attrs)
        unknown = Op("negate", (x,), (vector("a"),), {"kind": 1})
        assert codes(simple(fine, wrong, unknown, params=[x])) == ["E202", "E203"]

    def test_recorded_types_are_those_that_the_type_rule_gives(self) -> None:
        x = vector("x")
        assert codes(simple(op("negate", (x,), Value("y", SCALAR)), params=[x])) == ["E202"]

    @pytest.mark.parametrize(
        ("value", "type"),
        [
            (256, TensorType((), u8)),
            (-1, TensorType((), u8)),
            (0.5, TensorType((1,), s32)),
            (2, FLAG),
            (math.nan, TensorType((), s32)),
            (math.inf, TensorType((), s32)),
            (((1, 300),), TensorType((1, 2), u8)),
        ],
    )
    def test_a_constant_is_a_value_of_its_type(self, value: Attr, type: TensorType) -> None:
        assert codes(simple(op("constant", (), Value("c", type), value=value, type=type))) == ["E201"]

    @pytest.mark.parametrize("value", [255, 0, 7.0])
    def test_a_constant_may_be_any_value_of_its_type(self, value: Attr) -> None:
        type = TensorType((2,), u8)
        assert codes(simple(op("constant", (), Value("c", type), value=value, type=type))) == []

    def test_sizes_are_not_negative(self) -> None:
        assert codes(simple(params=[Value("x", TensorType((-1,), f32))])) == ["E205"]

    @pytest.mark.parametrize(
        ("axes", "code"),
        [
            ((AxisRef("z", 1, 2),), "E301"),
            ((X, AxisRef("x", 1, 2)), "E302"),
            ((AxisRef("x", 1, 3),), "E303"),
        ],
    )
    def test_collectives_run_over_axes_of_a_mesh(self, axes: tuple[AxisRef, ...], code: str) -> None:
        x = vector("x")
        c = op("constant", (), x, value=0.0, type=VECTOR)
        reduced = op("all_reduce", (x,), vector("y"), axes=axes, kind="sum")
        assert codes(simple(c, reduced, stage="spmd")) == [code]

    def test_a_permute_runs_over_declared_meshes(self) -> None:
        x = vector("x")
        other = DeviceOrder(Mesh((("a", 8),), name="m1"), (AxisRef("a", 1, 8),))
        c = op("constant", (), x, value=0.0, type=VECTOR)
        here = DeviceOrder(MESH, (X, Y))
        moved = op("collective_permute", (x,), vector("y"), target=here, source=other, shift=0)
        assert codes(simple(c, moved, stage="spmd")) == ["E301"]


class TestFunctions:
    def test_the_entry_exists(self) -> None:
        assert codes(program(function("other", (), (), ()))) == ["E403"]

    def test_functions_are_listed_by_their_names(self) -> None:
        main = function("main", (), (), ())
        assert codes(Program((MESH,), {"main": dataclasses.replace(main, name="other")})) == ["E403"]

    def test_a_function_returns_as_many_values_as_it_declares(self) -> None:
        main = function("main", (), (), ())
        declared = dataclasses.replace(main, results=(Result("y", VECTOR),))
        assert codes(program(declared)) == ["E401"]

    def test_a_function_returns_the_types_it_declares(self) -> None:
        x = vector("x")
        main = dataclasses.replace(function("main", [x], (), [x]), results=(Result("y", SCALAR),))
        assert codes(program(main)) == ["E401"]

    def test_a_called_function_exists(self) -> None:
        assert codes(simple(op("call", (), function="nowhere"))) == ["E103"]

    def test_a_call_has_the_callee_s_types(self) -> None:
        x, y = vector("x"), vector("y")
        callee = function("callee", [y], (), [y])
        short = op("call", (), vector("a"), function="callee")
        other = op("call", (x,), Value("b", SCALAR), function="callee")
        assert codes(program(function("main", [x], [short, other], ()), callee)) == ["E203", "E202"]

    def test_a_function_must_not_call_itself(self) -> None:
        def caller(name: str, callee: str) -> Function:
            return function(name, (), [op("call", (), function=callee)], ())

        assert codes(program(caller("main", "main"))) == ["E402"]
        (found,) = verify(program(caller("main", "f"), caller("f", "g"), caller("g", "f")))
        assert found.code == "E402"
        assert "f → g → f" in found.message

    def test_calls_do_not_nest_without_end(self) -> None:
        names = ["main", *(f"f{i}" for i in range(300))]
        chain = [function(a, (), [op("call", (), function=b)], ()) for a, b in itertools.pairwise(names)]
        assert codes(program(*chain, function(names[-1], (), (), ()))) == ["E003"]

    def test_many_calls_of_one_function_are_fine(self) -> None:
        x, y = vector("x"), vector("y")
        calls = [op("call", (x,), vector(f"r.{i}"), function="f") for i in range(500)]
        assert verify(program(function("main", [x], calls, ()), function("f", [y], (), [y]))) == []


def loop_program(
    *, start: TensorType = SCALAR, cond_type: TensorType = FLAG, body_type: TensorType = SCALAR
) -> tuple[Program, Value]:
    init, total = Value("init", start), Value("total", start)
    i, again = Value("i", SCALAR), Value("i", SCALAR)
    go, more = Value("go", cond_type), Value("more", body_type)
    cond = Region((i,), (op("constant", (), go, value=0, type=cond_type),), (go,))
    body = Region((again,), (op("constant", (), more, value=0, type=body_type),), (more,))
    loop = op("while", (init,), total, regions=(cond, body), trip_count=None)
    return program(function("main", [init], [loop], [total])), more


class TestLoops:
    def test_the_condition_returns_a_flag(self) -> None:
        assert codes(loop_program(cond_type=SCALAR)[0]) == ["E405"]

    def test_the_body_returns_what_it_takes(self) -> None:
        assert codes(loop_program(body_type=FLAG)[0]) == ["E405"]

    def test_condition_and_body_take_what_is_carried(self) -> None:
        (cond, body, back) = verify(loop_program(start=VECTOR)[0])
        assert (cond.code, body.code, back.code) == ("E405", "E405", "E405")
        assert cond.message == "the loop's condition takes f32[], and must take f32[8]"

    def test_loops_do_not_nest_without_end(self) -> None:
        inner: tuple[Op, ...] = ()
        for level in range(150):
            go = Value(f"go.{level}", FLAG)
            cond = Region((), (op("constant", (), go, value=0, type=FLAG),), (go,))
            inner = (op("while", (), regions=(cond, Region((), inner, ())), trip_count=None),)
        assert codes(simple(*inner)) == ["E003"]


class TestShardings:
    @pytest.mark.parametrize(
        ("sharding", "code"),
        [
            (Sharding(MESH, (DimSharding((AxisRef("z", 1, 2),)),)), "E301"),
            (Sharding(MESH, (DimSharding((X, X)),)), "E302"),
            (Sharding(MESH, (DimSharding((X,)),), ((AxisRef("x", 2, 2), "sum"),)), "E302"),
            (Sharding(MESH, (DimSharding((AxisRef("x", 3, 2),)),)), "E303"),
            (Sharding(MESH, (DimSharding((X,)), DimSharding())), "E303"),
            (Sharding(MESH, (DimSharding(),), ((X, "or"),)), "E308"),
            (Sharding(MESH, (DimSharding(),), ((X, "sum"), (Y, "max"))), "E308"),
            (Sharding(Mesh((("a", 8),), name="m1"), (DimSharding(),)), "E301"),
        ],
    )
    def test_a_sharding_fits_the_mesh_and_the_tensor(self, sharding: Sharding, code: str) -> None:
        assert codes(simple(params=[Value("x", VECTOR, sharding)])) == [code]

    def test_parts_of_an_axis_have_a_common_refinement(self) -> None:
        mesh = Mesh((("x", 12),))
        clash = Sharding.of(mesh, (AxisRef("x", 1, 4), AxisRef("x", 6, 2)))
        main = function("main", [Value("x", VECTOR, clash)], (), ())
        assert codes(program(main, meshes=(mesh,))) == ["E307"]

    def test_every_value_with_a_wrong_sharding_is_reported(self) -> None:
        wrong = Sharding(MESH, (DimSharding((X, X)),))
        assert codes(simple(params=[Value("x", VECTOR, wrong), Value("y", VECTOR, wrong)])) == ["E302", "E302"]

    def test_a_program_without_a_mesh_has_no_shardings(self) -> None:
        main = function("main", [Value("x", VECTOR, Sharding.of(MESH, "x"))], (), ())
        assert codes(program(main, meshes=())) == ["E306"]
        assert codes(program(function("main", [vector("x")], (), ()), meshes=())) == []

    def test_an_spmd_program_has_a_mesh(self) -> None:
        assert codes(program(function("main", (), (), ()), meshes=(), stage="spmd")) == ["E306"]

    @pytest.mark.parametrize(
        "meshes",
        [
            (Mesh((("x", 0),)),),
            (Mesh((("x", 2), ("x", 2))),),
            (Mesh((("x", 2),), (0, 0)),),
            (Mesh((("x", 2),), (0, 2)),),
            (Mesh((("x", 2),), (1,)),),
            (MESH, Mesh((("a", 4),), name="m1")),
            (MESH, Mesh((("x", 8),), name="m1")),
            (MESH, Mesh((("a", 8),))),
        ],
    )
    def test_meshes_are_well_formed(self, meshes: tuple[Mesh, ...]) -> None:
        assert codes(program(function("main", (), (), ()), meshes=meshes)) == ["E304"]


class TestSpmdEntry:
    def entry(self, param: Value, result: Result | None = None) -> Program:
        declared = result or Result(param.name, param.type, param.sharding, param.of)
        main = dataclasses.replace(function("main", [param], (), [param]), results=(declared,))
        return program(main, stage="spmd")

    def test_a_shard_has_the_local_shape_of_its_tensor(self) -> None:
        sharding, whole = Sharding.of(MESH, "x"), TensorType((9,), f32)
        assert codes(self.entry(Value("x", TensorType((3,), f32), sharding, None, whole))) == []
        assert codes(self.entry(Value("x", TensorType((2,), f32), sharding, None, whole))) == ["E409", "E409"]

    def test_params_and_results_say_what_they_are_shards_of(self) -> None:
        assert codes(self.entry(vector("x"))) == ["E409", "E409"]

    def test_only_the_entry_has_shards(self) -> None:
        assert codes(simple(params=[Value("x", VECTOR, None, None, VECTOR)])) == ["E409"]

    def test_inner_values_carry_no_shardings(self) -> None:
        c = Value("c", VECTOR, Sharding.of(MESH, "x"))
        assert codes(simple(op("constant", (), c, value=0.0, type=VECTOR), stage="spmd")) == ["E406"]

    def test_a_sharding_is_checked_against_the_whole_tensor(self) -> None:
        wrong = Sharding(MESH, (DimSharding((X, X)),))
        found = codes(self.entry(Value("x", VECTOR, wrong, None, VECTOR)))
        assert found == ["E302", "E302"]


def test_verification_is_linear_in_the_program() -> None:
    b = RegionBuilder()
    x = b.param("x", VECTOR, Sharding.of(MESH, "x"))
    for _ in range(20_000):
        x = b.op("add", x, x, sharding=x.sharding)
    p = program(b.function("main", [x]))
    start = time.process_time()
    assert verify(p) == []
    assert time.process_time() - start < 4


def test_values_that_cut_an_axis_differently_are_told_with_their_places() -> None:
    text = """mesh (x=12)
def main(a: f32[12@x:(1)4], b: f32[12@x:(1)6], c: f32[12@x:(1)4]) -> (y: f32[12]) {
  d: f32[12@x:(1)6] = a + c
  e: f32[12@x] = relu(d)
  return e
}
"""
    found = verify(parse(text, "t.spmd"))
    assert [(d.code, d.span and (d.span.line, d.span.column)) for d in found] == [("E307", (2, 29))]
