"""Manual regions in the language: how they read and print, and every way in which one can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import spmdc
from ir.builder import RegionBuilder
from ir.diagnostics import Diagnostic, SpmdcError
from ir.manual import NOWHERE, contexts, has_manual, ops_within
from ir.mesh import AxisRef
from ir.program import Op, Program, Region, Value, all_ops
from ir.sharding import Sharding
from ir.verify.program import verify
from spmdc.frontends.spmd import format_source, parse, print_program

HEAD = "mesh (d=4, m=2)\nmesh ring (r=8)\n"


def program(*lines: str, result: str = "f32[8, 6]", more: str = "") -> str:
    """A text whose line 4 is the first of these lines, at column 1."""
    body = "\n".join(lines)
    return f"{HEAD}def main(x: f32[8, 6], n: s32[]) -> {result} {{\n{body}\n}}\n{more}"


def errors(text: str) -> list[Diagnostic]:
    """The diagnostics of a text that has errors."""
    with pytest.raises(SpmdcError) as caught:
        spmdc.parse(text, "t.spmd")
    return list(caught.value.diagnostics)


def places(text: str) -> list[str]:
    return [f"{d.code} {d.span.line}:{d.span.column}" if d.span else d.code for d in errors(text)]


def region_of(text: str) -> Op:
    return next(op for op in all_ops(spmdc.parse(text)) if op.name == "manual")


class TestWhatIsLeftOutFollows:
    def test_the_type_of_a_shard_follows_from_the_tensor_and_its_sharding(self) -> None:
        lines = "y: f32[8@d, 6] = manual(v of f32[8@d, 6@m] = x) { return all_gather(v, axes=(m), dim=1) }", "return y"
        op = region_of(program(*lines))
        (param,) = op.regions[0].params
        assert (str(param.type), str(param.of)) == ("f32[2, 3]", "f32[8, 6]")

    def test_a_free_axis_does_not_cut_the_type_of_a_shard(self) -> None:
        op = region_of(
            program("y: f32[8@(d,m), 6] = manual(v of f32[8@(d,m), 6] = x, axes=(d)) { return v }", "return y")
        )
        assert str(op.regions[0].params[0].type) == "f32[2, 6]"

    def test_without_axes_all_axes_of_the_default_mesh_are_manual(self) -> None:
        op = region_of(program("y: f32[8@d, 6] = manual(v of f32[8@d, 6] = x) { return v }", "return y"))
        assert op.attrs["axes"] == (AxisRef("d", 1, 4), AxisRef("m", 1, 2))

    def test_what_is_passed_without_a_type_comes_whole_and_open(self) -> None:
        op = region_of(program("y = manual(x = x, n = n, k = 2, axes=(d)) { return x * f32(n + k) }", "return y"))
        x, n, k = op.regions[0].params
        assert [str(v.type) for v in (x, n, k)] == ["f32[8, 6]", "s32[]", "s32[]"]
        assert x.sharding is not None
        assert [d.open for d in x.sharding.dims] == [True, True]

    def test_a_region_may_stand_behind_return_and_give_several_values(self) -> None:
        text = program("return manual(v of f32[8@d, 6] = x) { return all_gather(v, axes=(d), dim=0), 3 }",
                       result="(f32[8, 6], s32[])")  # fmt: skip
        assert [str(v.type) for v in region_of(text).results] == ["f32[8, 6]", "s32[]"]

    def test_consts_and_numbers_are_seen_inside_a_region(self) -> None:
        text = "const K = 2\n" + program(
            "j = 3", "y: f32[8@d, 6] = manual(v of f32[8@d, 6] = x) { return v * K * j }", "return y"
        )
        assert region_of(text).name == "manual"

    def test_a_value_may_be_called_manual(self) -> None:
        assert not has_manual(spmdc.parse(program("manual = x + x", "return manual")))


NESTED = program(
    "y: f32[8@(d,?), 6@?] = manual(v: f32[2, 6] of f32[8@(d,?), 6@?] = x, n = n, axes=(d)) {",
    "  z: f32[2@m, 6] = manual(w of f32[2@m, 6] = v, axes=(m)) {",
    "    return w * f32(axis_index(axes=(d, m)))",
    "  }",
    "  return z",
    "}",
    "return y",
)


class TestPrinting:
    def test_a_printed_region_reads_back_as_it_stands(self) -> None:
        for locations in (True, False):
            text = print_program(spmdc.parse(NESTED, "t.spmd"), locations=locations)
            assert print_program(parse(text), locations=locations) == text

    def test_so_does_one_whose_placements_have_been_propagated(self) -> None:
        propagated = spmdc.propagate(spmdc.parse(NESTED)).program
        text = print_program(propagated, locations=False)
        assert print_program(spmdc.parse(text), locations=False) == text

    def test_a_region_is_formatted_as_the_other_blocks_are(self) -> None:
        text = program("y:f32[8@d,6]=manual( v  of f32[8@d,6]=x,axes=( d ) ){return v}", "return y")
        formatted = format_source(text)
        assert "  y: f32[8@d, 6] = manual(v of f32[8@d, 6] = x, axes=(d)) {\n    return v\n  }\n" in formatted
        assert format_source(formatted) == formatted


REGION = "y: f32[8@d, 6] = manual(v of f32[8@d, 6] = x, axes=(d)) {"

FAULTS = [
    ("E404 4:66", "y: f32[8@d, 6] = manual(v of f32[8@d, 6] = x, axes=(d)) { return x }"),
    ("E409 4:28", "y: f32[8@d, 6] = manual(v: f32[4, 6] of f32[8@d, 6] = x, axes=(d)) { return v }"),
    ("E410 4:28", "y: f32[8@d, 6] = manual(v: f32[8@d, 6] = x, axes=(d)) { return v }"),
    ("E303 4:28", "y: f32[8@d, 6] = manual(v: f32[2, 6@m] of f32[8@d, 6] = x, axes=(d)) { return v }"),
    ("E202 4:44", "y: f32[8@d, 6] = manual(v of f32[8@d, 5] = x, axes=(d)) { return v }"),
    ("E405 4:66", "y: f32[8@d, 6] = manual(v of f32[8@d, 6] = x, axes=(d)) { return v[:1] }"),
    ("E203 4:1", "y: f32[8@d, 6] = manual(v of f32[8@d, 6] = x, axes=(d)) { return v, v }"),
    ("E301 4:53", "y: f32[8@d, 6] = manual(v of f32[8@d, 6] = x, axes=(q)) { return v }"),
    ("E203 4:52", "y: f32[8@d, 6] = manual(v of f32[8@d, 6] = x, axes=[1]) { return v }"),
    ("E410 4:16", "y: f32[8, 6] = manual(v of f32[8@r, 6] = x, axes=(r)) { return all_gather(v, axes=(r), dim=0) }"),
    ("E410 4:16", "y: f32[8, 6] = manual(v of f32[8, 6] = x, axes=(d:(1)2)) { return v }"),
    ("E410 4:25", "y: f32[8@d, 6] = manual(v of f32[8@(m,d), 6] = x, axes=(d)) { return v }"),
    ("E410 4:25", "y: f32[8@d, 6] = manual(v of f32[8@r, 6] = x, axes=(d)) { return v[:2] }"),
    ("E406 4:5", "a = all_reduce(x, axes=(d))\n" + REGION + " return v }"),
    ("E411 5:5", REGION + "\na = all_reduce(v, axes=(m))\nreturn a }"),
    ("E411 5:18", REGION + "\na: f32[2@d, 6] = relu(v)\nreturn a }"),
    ("E411 5:18", REGION + "\na: f32[2@r, 6] = relu(v)\nreturn a }"),
    ("E410 5:18", REGION + "\na: f32[2, 6@d] = manual(w of f32[2, 6@d] = v, axes=(d)) { return w }\nreturn a }"),
    ("E407 4:18", "y: f32[8@m, 6] = manual(v of f32[8@d, 6] = x, axes=(d)) { return concatenate([v, v, v, v]) }"),
    (
        "E408 6:8",
        REGION + "\na = while(h = v) cond { return sum(h) < 3 } do {\nreturn all_reduce(h, axes=(d)) }\nreturn a }",
    ),
]


@pytest.mark.parametrize(("place", "lines"), FAULTS)
def test_a_fault_is_told_at_its_place(place: str, lines: str) -> None:
    assert places(program(lines, "return y")) == [place]


def test_a_region_needs_a_mesh() -> None:
    assert places("def main(x: f32[4]) -> f32[4] {\ny = manual(v = x) { return v }\nreturn y }") == ["E306 2:5"]


def test_a_region_has_no_place_in_an_spmd_program() -> None:
    head = "spmd\nmesh (d=2)\ndef main(x: f32[4] of f32[8@d]) -> f32[4] of f32[8@d] {\n"
    assert places(head + "y = manual(v = x) { return v }\nreturn y }") == ["E406 4:5"]


def test_regions_stand_on_the_right_of_an_assignment() -> None:
    assert places(program("y = relu(manual(v = x) { return v })", "return y")) == ["E001 4:10"]


class TestFunctionsThatRegionsCall:
    CALL = "y: f32[8@d, 6] = manual(v of f32[8@d, 6] = x, axes=(d)) { return f(v) }\nreturn y"

    def test_such_a_function_may_communicate(self) -> None:
        more = "def f(v: f32[2, 6]) -> f32[2, 6] { return all_reduce(v, axes=(d)) }"
        assert verify(spmdc.parse(program(self.CALL, more=more))) == []

    def test_along_the_axes_that_are_manual_there(self) -> None:
        more = "def f(v: f32[2, 6]) -> f32[2, 6] { return all_reduce(v, axes=(m)) }"
        assert places(program(self.CALL, more=more)) == ["E411 7:43"]

    def test_if_nothing_else_calls_it(self) -> None:
        more = "def f(v: f32[2, 6]) -> f32[2, 6] { return all_reduce(v, axes=(d)) }"
        assert places(program("z = f(x[:2])\n" + self.CALL, more=more)) == ["E406 8:43"]

    def test_its_signature_names_no_manual_axes(self) -> None:
        more = "def f(v: f32[2@d, 6]) -> f32[2, 6] { return v }"
        assert places(program(self.CALL, more=more)) == ["E411 7:7"]

    def test_what_it_returns_counts_as_varying(self) -> None:
        call = "y: f32[8@m, 6] = manual(v of f32[8@d, 6] = x, axes=(d)) { return f(v) }\nreturn y"
        more = "def f(v: f32[2, 6]) -> f32[8, 6] { return concatenate([v, v, v, v]) }"
        assert places(program(call, more=more)) == ["E407 4:18"]

    def test_a_region_cannot_be_mapped_over_elements(self) -> None:
        more = "def f(v: f32[]) -> f32[] {\nw = manual(v = v) { return v }\nreturn w }"
        assert [d.code for d in errors(program("return map(x, function=f)", more=more))] == ["E405"]

    def test_contexts_are_the_axes_manual_around_the_calls(self) -> None:
        found = contexts(
            spmdc.parse(program("z = f(x[:2])\n" + self.CALL, more="def f(v: f32[2, 6]) -> f32[2, 6] { return v }"))
        )
        assert found == {"main": {NOWHERE}, "f": {NOWHERE, frozenset({"d"})}}


def test_ops_within_know_the_axes_of_all_regions_around_them() -> None:
    found = [(op.name, "".join(sorted(axes))) for op, axes in ops_within(spmdc.parse(NESTED).main.body, NOWHERE)]
    assert found[:2] == [("manual", ""), ("manual", "d")]
    assert ("axis_index", "dm") in found


class TestVerifying:
    """What the language cannot say, but a pass could get wrong."""

    def changed(self, change: Callable[[Op], Op]) -> list[str]:
        good = spmdc.parse(program(REGION + " return v }", "return y"))
        op = change(good.main.body.ops[0])
        main = replace(good.main, body=Region(good.main.params, (op,), op.results))
        return [d.code for d in verify(Program(good.meshes, {"main": main}))]

    def with_param(self, change: Callable[[Value], Value]) -> list[str]:
        def changed(op: Op) -> Op:
            param = change(op.regions[0].params[0])
            return replace(op, regions=(Region((param,), (), (param,)),))

        return self.changed(changed)

    def test_the_program_is_right_as_it_is(self) -> None:
        assert self.changed(lambda op: op) == []

    def test_a_parameter_says_of_what_it_is_a_shard(self) -> None:
        assert self.with_param(lambda v: replace(v, of=None)) == ["E409"]
        assert self.with_param(lambda v: replace(v, sharding=None)) == ["E409"]

    def test_a_parameter_has_the_type_of_a_shard(self) -> None:
        found = self.with_param(lambda v: replace(v, type=v.type.with_shape((3, 6))))
        assert found == ["E409", "E405"]

    def test_a_parameter_is_a_shard_of_its_operand(self) -> None:
        assert self.with_param(lambda v: replace(v, of=(v.of or v.type).with_shape((7, 6)))) == ["E405"]

    def test_each_operand_has_a_parameter_and_each_result_a_value(self) -> None:
        assert self.changed(lambda op: replace(op, operands=())) == ["E405"]
        assert self.changed(lambda op: replace(op, regions=())) == ["E203"]

    def test_results_say_how_their_shards_lie(self) -> None:
        ring = spmdc.parse(program("return x")).meshes[1]
        assert self.changed(lambda op: replace(op, results=(replace(op.result, sharding=None),))) == ["E409"]
        foreign = Sharding.of(ring, "r", None)
        assert self.changed(lambda op: replace(op, results=(replace(op.result, sharding=foreign),))) == ["E410", "E405"]

    def test_values_around_a_region_are_not_seen_inside(self) -> None:
        def capturing(op: Op) -> Op:
            b = RegionBuilder()
            b.op("negate", op.operands[0], name="captured")
            region = op.regions[0]
            return replace(op, regions=(Region(region.params, tuple(b.ops), region.results),))

        assert self.changed(capturing) == ["E404"]
