"""Choices and functions of elements in the language, the verifier and the analysis of variance."""

from __future__ import annotations

import pytest

from ir.diagnostics import SpmdcError
from ir.program import Op, Program, Region, Value
from ir.types import TensorType, f32, s32
from ir.verify.program import check, verify
from spmdc.frontends.spmd import format_source, parse, print_program

TEXT = """
mesh (x=4)
const K = 3
def main(a: f32[8@x, 4], i: s32[], p: pred[]) -> (r: f32[8, 4], n: s32[], q: f32[8, 4@x], e: f32[8, 4]) {
  r: f32[8@x, 4], n = case(i) { return a, 0 } or { b = a + 1.0 return b, i } or { return -a, 7 }
  q = if (p) {
    c = if (p & (i > 2)) { return a } else { return 2.0 * a }
    return c
  } else {
    return 0.0
  }
  e = map(a, 2.0, function=scaled)
  return r, n, q, e
}
def scaled(v: f32[], by: f32[]) -> f32[] { return v * by }
"""


def test_choices_print_and_read_back() -> None:
    program = parse(TEXT, "t.spmd")
    check(program)
    for locations in (True, False):
        printed = print_program(program, locations=locations)
        assert print_program(parse(printed, "t.spmd"), locations=locations) == printed
        formatted = format_source(printed)
        assert print_program(parse(formatted, "t.spmd"), locations=locations) == printed


def test_choices_are_formatted_block_by_block() -> None:
    formatted = format_source(TEXT)
    assert format_source(formatted) == formatted
    assert "  r: f32[8@x, 4], n = case(i) {\n    return a, 0\n  } or {\n    b = a + 1.0\n    return b, i\n" in formatted
    assert "  q = if (p) {\n    c = if (p & (i > 2)) {\n      return a\n    } else {\n" in formatted
    without = print_program(parse(TEXT), locations=False)
    assert print_program(parse(formatted), locations=False) == without


def test_a_choice_is_one_op_with_a_region_for_each_block() -> None:
    body = parse(TEXT).main.body
    cases = [op for op in body.ops if op.name == "case"]
    assert [len(op.regions) for op in cases] == [3, 2]
    assert [v.name for v in cases[0].results] == ["r", "n"]
    assert cases[0].results[0].sharding is not None


def test_if_takes_its_first_block_where_the_condition_is_1() -> None:
    op = next(op for op in parse(TEXT).main.body.ops if op.name == "case" and op.results[0].name == "q")
    on_false, on_true = op.regions
    assert [o.name for o in on_false.ops] == ["constant"]
    assert [o.name for o in on_true.ops if o.name != "constant"] == ["compare", "and", "convert", "case"]


def choice(text: str) -> list[str]:
    program = parse(f"const K = 3\ndef main(a: f32[4]) -> (b: f32[4]) {{ b = {text} return b }}")
    return [op.name for op in program.main.body.ops]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("if (K > 2) { return -a } else { return nowhere }", ["negate"]),
        ("if (K > 3) { return nowhere } else { return exp(a) }", ["exponential"]),
        ("case(K - 2) { return nowhere } or { return -a } or { return nowhere }", ["negate"]),
        ("case(9) { return nowhere } or { return -a }", ["negate"]),
        ("case(-1) { return nowhere } or { return -a }", ["negate"]),
    ],
)
def test_a_choice_known_at_compile_time_leaves_only_what_it_chooses(text: str, names: list[str]) -> None:
    assert choice(text) == names


def test_a_number_in_one_branch_takes_the_type_of_the_tensor_in_another() -> None:
    blocks = "{ return 0 } or { return a } or { return 1.5 }"
    text = f"def main(a: f32[4], i: s32[]) -> (b: f32[4]) {{ b = case(i) {blocks} return b }}"
    op = next(op for op in parse(text).main.body.ops if op.name == "case")
    assert op.result.type == TensorType((4,), f32)


def test_case_and_if_remain_names_where_no_block_follows() -> None:
    text = """
def main(case: f32[4], or: f32[4]) -> (else: f32[4]) { if = case + or return if }
def case(a: f32[]) -> f32[] { return a }
"""
    assert [op.name for op in parse(text).main.body.ops] == ["add"]


def body(line: str) -> str:
    return f"mesh (x=4)\ndef main(a: f32[8, 4], i: s32[], p: pred[]) -> (r: f32[8, 4]) {{\n{line}\nreturn a }}\n"


ERRORS = [
    ("E203 3:5", "b = case(i)"),
    ("E001 3:24", "b = if (p) { return a }"),
    ("E001 3:10", "b = relu(if (p) { return a } else { return a })"),
    ("E101 3:22", "b = case(i) { return c } or { return a }"),
    ("E202 3:10", "b = case(a) { return a } or { return a }"),
    ("E202 3:10", "b = case(p) { return a } or { return a }"),
    ("E202 3:9", "b = if (i) { return a } else { return a }"),
    ("E207 3:10", "b = case(1.5) { return a } or { return a }"),
    ("E401 3:5", "b = case(i) { return a } or { c = a }"),
    ("E405 3:38", "b = case(i) { return a } or { return i }"),
    ("E405 3:31", "b = case(i) { return a } or { return a, a }"),
    ("E203 3:1", "b, c = case(i) { return a } or { return a }"),
    ("E203 3:5", "b = map(a, i)"),
    ("E103 3:5", "b = map(a, function=nowhere)"),
]


@pytest.mark.parametrize(("place", "line"), ERRORS)
def test_wrong_choices_and_maps_are_reported(place: str, line: str) -> None:
    with pytest.raises(SpmdcError) as caught:
        parse(body(line))
    (found,) = caught.value.diagnostics
    assert found.span is not None
    assert f"{found.code} {found.span.line}:{found.span.column}" == place


CHOOSERS = [
    ("case", "i: f32[]", "s32(i)"),
    ("case", "i: f32[8]", "s32(i[0])"),
    ("case", "i: s32[2, 3]", "i[0, 0]"),
    ("case", "i: pred[]", "s32(i)"),
    ("if", "x: f32[]", "x > 0"),
    ("if", "x: s32[8]", "x[0] > 0"),
    ("if", "x: pred[2, 3]", "x[0, 0]"),
]


@pytest.mark.parametrize(("what", "param", "wanted"), CHOOSERS)
def test_the_help_says_what_a_choice_can_depend_on(what: str, param: str, wanted: str) -> None:
    text = f"def main({param}, a: f32[2]) -> (r: f32[2]) {{ return {what} (%s) {{ return a }} {{}} {{ return a }} }}"
    text = text.replace("{}", "or" if what == "case" else "else")
    with pytest.raises(SpmdcError) as caught:
        parse(text % param[0])
    (found,) = caught.value.diagnostics
    assert found.help == f"make it a scalar of that type, as {wanted}"
    check(parse(text % wanted))


MAPPED = [
    ("f(v: f32[]) -> f32[]", "return v", "E203", "b = map(a, a, function=f)"),
    ("f(v: f32[4]) -> f32[4]", "return v", "E202", "b = map(a, function=f)"),
    ("f(v: s32[]) -> s32[]", "return v", "E202", "b = map(a, function=f)"),
    ("f(v: f32[]) -> f32[]", "return v", "E207", "b = map(1.0, function=f)"),
    (
        "f(v: f32[]) -> f32[]",
        "w = while(w = v) cond { return w < 9.0 } do { return w + 1.0 } return w",
        "E405",
        "b = map(a, function=f)",
    ),
    ("f(v: f32[]) -> f32[]", "return sum(broadcast_to(v, [3]))", "E405", "b = map(a, function=f)"),
    ("f(v: f32[]) -> f32[2]", "return broadcast_to(v, [2])", "E202", "b = map(a, function=f)"),
]


@pytest.mark.parametrize(("signature", "inside", "code", "line"), MAPPED)
def test_only_functions_of_scalars_that_do_not_loop_are_mapped(
    signature: str, inside: str, code: str, line: str
) -> None:
    with pytest.raises(SpmdcError) as caught:
        check(parse(body(line) + f"def {signature} {{ {inside} }}"))
    assert code in [d.code for d in caught.value.diagnostics]


def test_a_function_that_leaves_a_reduction_pending_is_not_mapped() -> None:
    """Each element would be reduced by itself."""
    text = body("b = map(a, function=f)") + "def f(v: f32[]) -> (w: f32[]{partial: x}) { return v }\n"
    (found,) = verify(parse(text))
    assert (found.code, found.message) == ("E405", "f cannot be mapped over elements: it leaves a reduction pending")


def test_a_function_that_calls_one_that_loops_is_not_mapped() -> None:
    text = body("b = map(a, function=f)") + (
        "def f(v: f32[]) -> f32[] { return g(v) }\n"
        "def g(v: f32[]) -> f32[] { w = while(w = v) cond { return w < 9.0 } do { return w + 1.0 } return w }\n"
    )
    (found,) = verify(parse(text))
    assert (found.code, found.message) == ("E405", "f cannot be mapped over elements: it loops")


def _with(op: Op) -> Program:
    """The program with its first case replaced by `op` on the same values."""
    program = parse(
        "def main(a: f32[4], i: s32[]) -> (b: f32[4]) { b = case(i) { return a } or { return a } return b }"
    )
    main = program.main
    a, i = main.params
    (old,) = main.body.ops
    new = Op("case", op.operands or (i,), old.results, {}, tuple(Region(r.params, r.ops, (a,)) for r in op.regions))
    function = type(main)(main.name, Region(main.params, (new,), old.results), main.results)
    return Program(program.meshes, {"main": function})


def test_a_case_needs_a_branch_without_parameters_and_an_index() -> None:
    plain, extra = Region((), (), ()), Value("extra", TensorType((), s32))
    index = Value("index", TensorType((), f32))
    assert [d.code for d in verify(_with(Op("case", (), (), {}, (plain,))))] == []
    assert [d.code for d in verify(_with(Op("case", (), (), {}, ())))] == ["E203"]
    assert "E405" in [d.code for d in verify(_with(Op("case", (), (), {}, (Region((extra,), (), ()),))))]
    assert "E405" in [d.code for d in verify(_with(Op("case", (index,), (), {}, (plain,))))]


def spmd(line: str, result: str = "f32[2] of f32[8@x]") -> list[str]:
    params = "a: f32[2] of f32[8@x], i: s32[] of s32[]{replicated}"
    text = f"spmd\nmesh (x=4)\ndef main({params}) -> (b: {result}) {{\n{line}\nreturn b }}"
    return [d.code for d in verify(parse(text))]


ONES = "o: f32[2] = constant(value=1.0, type=f32[2]) return o"
ZEROS = "z: f32[2] = constant(value=0.0, type=f32[2]) return z"


def test_devices_that_may_take_different_branches_must_not_meet_there() -> None:
    branches = "{ c: f32[2] = all_reduce(a, axes=(x)) return c } or { return a }"
    assert spmd(f"b: f32[2] = case(i) {branches}") == []
    assert spmd(f"k: s32[] = axis_index(axes=(x)) b: f32[2] = case(k) {branches}") == ["E408"]


def test_a_choice_differs_between_devices_as_its_index_and_its_branches_do() -> None:
    whole = "f32[2] of f32[2]{replicated}"
    branches = f"{{ c: f32[2] = all_reduce(a, axes=(x)) return c }} or {{ {ZEROS} }}"
    assert spmd(f"b: f32[2] = case(i) {branches}", whole) == []
    assert spmd("b: f32[2] = case(i) { return a } or { return a }", whole) == ["E407"]
    constants = f"{{ {ONES} }} or {{ {ZEROS} }}"
    assert spmd(f"b: f32[2] = case(i) {constants}", whole) == []
    assert spmd(f"k: s32[] = axis_index(axes=(x)) b: f32[2] = case(k) {constants}", whole) == ["E407"]
