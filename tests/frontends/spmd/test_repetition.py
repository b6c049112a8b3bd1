"""Assignments like an earlier one are expanded as if they were the only one."""

from __future__ import annotations

import pytest

from ir.diagnostics import Diagnostics, Source, SpmdcError
from ir.program import Program
from spmdc.frontends.spmd import parse, print_program
from spmdc.frontends.spmd.syntax import nodes as s
from spmdc.frontends.spmd.syntax.lexer import tokenize
from spmdc.frontends.spmd.syntax.parser import parse_text

LINES = [
    "  {a}: f32[4@d, 8]{{partial: x}} = add({b}, {c}, dims=[0, 1.5e3], n=0x1F)  # f.py:3  a reason for {a}",
    "# {a} is {b}",
    "{a}.1 = {b}[{c}, :2] + -{c} ** 2 -> @ ? ~ ! <= !=;",
    "\t{a}=f( {b} ,{c})\r",
    "{a} = f({b}, [",
    "]) {a} = [1, 2], {b}",
    "{a} = while ({b} = {c}) cond {{",
    "{a} = constant(value=[1, 2], type={b})",
    '{a} = f("{b} {c}")',
    "{a} = 8x{b}",
    "{a} .{b}",
    "{a} 1.{b}",
    "{a} = 5.e3 + .5e3 + 1e-5 + {b}",
    "",
]
TWO = "def main(x: f32[4, 8], y: f32[8, 4]) -> f32[4, 8]"


def ops(program: Program) -> list[str]:
    """The ops of the entry as `name: type = op(operands)`, with the places of their texts."""
    return [
        f"{op.result.name}: {op.result.type} = {op.name}({', '.join(v.name for v in op.operands)}) at {op.span}"
        for op in program.main.body.ops
    ]


@pytest.mark.parametrize("line", LINES)
def test_lines_of_one_form_have_the_tokens_that_each_has_by_itself(line: str) -> None:
    names = [("a", "b", "c"), ("x1", "y", "kind"), ("h", "h", "h"), ("long_name.1", "b.2", "c"), ("def", "of", "value")]
    lines = [line.format(a=a, b=b, c=c) for a, b, c in names]

    def parts(text: str, first: int) -> list[object]:
        cut = tokenize(Source("a", text))
        tokens = [(t.type, t.text, t.line + first, t.column, t.end_column, t.literal) for t in cut.tokens]
        comments = [(c.line + first, c.column, c.text, c.trailing) for c in cut.comments]
        errors = [(d.message, d.span.line + first, d.span.column) for d in cut.diagnostics if d.span is not None]
        return [*tokens, *comments, *errors]

    alone = [part for i, each in enumerate(lines) for part in parts(each, i)]
    assert sorted(map(str, parts("\n".join(lines), 0))) == sorted(map(str, alone))


def assignments(body: str) -> list[str]:
    """The kinds of the assignments in the body of a function."""
    found = Diagnostics()
    module = parse_text(Source("a", f"{TWO} {{\n{body}\nreturn x }}"), found)
    assert not found.items
    (item,) = module.items
    assert isinstance(item, s.FunctionItem)
    assert item.body is not None
    return [type(each).__name__ for each in item.body[:-1]]


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("a = add(x, y)", "b = add(a, x)", "Repeated"),
        ("a: f32[4, 8] = tanh(x)", "b: f32[4, 8] = tanh(a)", "Repeated"),
        ("a = reduce(x, dims=[1], kind=sum)", "b = reduce(y, dims=[1], kind=sum)", "Repeated"),
        ("a = reduce(x, dims=[1], kind=sum)", "b = reduce(y, dims=[0], kind=sum)", "Assign"),
        ("a = reduce(x, dims=[1], kind=sum)", "b = reduce(y, dims=[1], kind=max)", "Assign"),
        ("a = add(x, neg(y))", "b = add(y, neg(x))", "Assign"),
        ("a: f32[4, 8] = tanh(x)", "b: f32[8, 4] = tanh(y)", "Assign"),
        ("a = x + y", "b = a + y", "Assign"),
        ("a = add(x, y) + x", "b = add(a, y) + x", "Assign"),
        ("a = x[0]", "b = y[0]", "Assign"),
        ("a, c = top_k(x, 1)", "b, d = top_k(y, 1)", "Assign"),
    ],
)
def test_an_assignment_is_repeated_if_it_has_the_tokens_of_another_but_for_the_target_and_arguments(
    first: str, second: str, kind: str
) -> None:
    assert assignments(f"{first}\n{second}") == ["Assign", kind]


def test_repeated_assignments_have_their_own_names_operands_and_places() -> None:
    program = parse(f"{TWO} {{\n  a = tanh(x)\n  bb = tanh(a)\n    c = tanh(bb)\n d = tanh(a)\n  return c\n}}")
    assert ops(program) == [
        "a: f32[4, 8] = tanh(x) at <string>:2:7",
        "bb: f32[4, 8] = tanh(a) at <string>:3:8",
        "c: f32[4, 8] = tanh(bb) at <string>:4:9",
        "d: f32[4, 8] = tanh(a) at <string>:5:6",
    ]


def test_repeated_assignments_to_tensors_of_other_types_have_results_of_other_types() -> None:
    program = parse(f"{TWO} {{ a = add(x, x) b = add(x, a) c = add(y, y) d = add(a, b) e = add(c, y) return d }}")
    assert [str(op.result.type) for op in program.main.body.ops] == [
        "f32[4, 8]", "f32[4, 8]", "f32[8, 4]", "f32[4, 8]", "f32[8, 4]",
    ]  # fmt: skip


def test_a_number_among_the_arguments_of_a_repeated_assignment_is_a_constant() -> None:
    program = parse(f"const N = 2\n{TWO} {{ a = add(x, x) b = add(x, a) c = add(b, N) return c }}")
    assert [op.name for op in program.main.body.ops] == ["add", "add", "constant", "add"]


def test_names_in_attributes_of_repeated_assignments_are_those_of_their_blocks() -> None:
    body = "c = repeat i < 2 (c = x) { d = reverse(c, dims=[i]) return d } return c"
    other = "a = reverse(x, dims=[i]) b = reverse(a, dims=[i]) e = reverse(b, dims=[i]) return e"
    program = parse(f"{TWO} {{ {body} }}\ndef g(x: f32[4, 8]) -> f32[4, 8] {{ i = 1 {other} }}")
    assert [op.attrs["dims"] for op in program.main.body.ops] == [(0,), (1,)]
    assert [op.attrs["dims"] for op in program.functions["g"].body.ops] == [(1,)] * 3


def test_repeated_assignments_in_a_block_of_another_precision_compute_in_it() -> None:
    inner = "p = precision(bf16) { c = add(a, b) d = add(c, b) return d }"
    program = parse(f"{TWO} {{ a = add(x, x) b = add(x, a) {inner} q = add(a, b) return q }}")
    added = [op for op in program.main.body.ops if op.name == "add"]
    assert [op.result.dtype.name for op in added] == ["f32", "f32", "bf16", "bf16", "f32"]


def test_annotations_of_repeated_assignments_are_kept() -> None:
    header = "mesh (d=2)\ndef main(x: f32[4, 8]) -> f32[4, 8]"
    program = parse(
        f"{header} {{ a: f32[4@d, 8] = tanh(x) b: f32[4@d, 8] = tanh(a) c: f32[4@d, 8] = tanh(b) return c }}"
    )
    first, *others = [op.result.sharding for op in program.main.body.ops]
    assert first is not None
    assert others == [first, first]


def test_repeated_assignments_have_the_locations_in_comments_behind_them() -> None:
    lines = [f"  {n}: f32[4, 8] = tanh({of})  # model.py:{line}" for n, of, line in ("ax1", "ba2", "cb3", "dc4")]
    program = parse(f"{TWO} {{\n" + "\n".join(lines) + "\n  return d\n}")
    assert [str(op.span) for op in program.main.body.ops] == [f"model.py:{i}:1" for i in range(1, 5)]


@pytest.mark.parametrize(
    ("third", "code", "place"),
    [
        ("c: f32[4, 8] = tanh(z)", "E101", 21),
        ("c: f32[4, 8] = tanh(y)", "E202", 4),
        ("b: f32[4, 8] = tanh(a)", "E102", 1),
    ],
)
def test_errors_of_repeated_assignments_are_at_their_own_places(third: str, code: str, place: int) -> None:
    with pytest.raises(SpmdcError) as raised:
        parse(f"{TWO} {{\na: f32[4, 8] = tanh(x)\nb: f32[4, 8] = tanh(a)\n{third}\nreturn b }}")
    (found,) = raised.value.diagnostics
    assert found.span is not None
    assert (found.code, found.span.line, found.span.column) == (code, 4, place)


def test_a_printed_program_of_many_layers_is_parsed_to_the_same_program() -> None:
    layer = "h = dot_general({x}, w, lhs_contract=[1], rhs_contract=[0]) {y} = tanh(h{n})"
    body = " ".join(
        layer.format(x=f"x{i}" if i else "x", y=f"x{i + 1}", n=i).replace("h =", f"h{i} =") for i in range(9)
    )
    program = parse(f"def main(x: f32[8, 8], w: f32[8, 8]) -> f32[8, 8] {{ {body} return x9 }}")
    text = print_program(program, locations=False)
    assert print_program(parse(text), locations=False) == text
