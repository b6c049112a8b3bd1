"""The grammar: what is read as what. Trees are compared through the programs that they make."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ir.diagnostics import Diagnostics, Source, SpmdcError
from ir.mesh import AxisRef, Mesh
from ir.program import DeviceOrder, Program
from ir.sharding import DimSharding, Sharding
from ir.types import TensorType, f32, s32
from spmdc.frontends.spmd import parse, print_program
from spmdc.frontends.spmd.syntax import nodes as s
from spmdc.frontends.spmd.syntax.formatter import format_source
from spmdc.frontends.spmd.syntax.lexer import tokenize
from spmdc.frontends.spmd.syntax.parser import parse_text


def const(expression: str) -> object:
    """The value of a compile-time expression."""
    program = parse(f"def main(a: s32[99]) -> s32[] {{ b = {expression}  return a[b] }}")
    (op, _) = program.main.body.ops
    assert isinstance(op.attrs["start"], tuple)
    return op.attrs["start"][0]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 - 2 - 1", 4),
        ("64 // 8 / 2", 4),
        ("2 ** 3 ** 1", 8),
        ("2 ** 2 ** 2", 16),
        ("50 - -2 ** 2", 54),
        ("10 + (-3) ** 2", 19),
        ("-3 % 5", 2),
        ("7 // 2 + -7 // 2 + 5", 4),
        ("~0 + 5", 4),
        ("6 & 3 | 8 ^ 1", 11),
        ("max(1, 2, 3) + min([4, 5])", 7),
        ("cdiv(7, 2) + log2(8) + gcd(12, 18)", 13),
        ("[10, 20, 30][-1] + 0x10", 46),
        ("4.0 * 2", 8),
        ("1 + 2 # a comment\n + 3", 6),
    ],
)
def test_compile_time_arithmetic(expression: str, value: int) -> None:
    assert const(expression) == value


@pytest.mark.parametrize(
    ("expression", "grouped"),
    [
        ("a + b * a ** 2", "a + (b * (a ** 2))"),
        ("a - b - a", "(a - b) - a"),
        ("-a ** 2", "-(a ** 2)"),
        ("a ** -b", "a ** (-b)"),
        ("2.0 ** -a ** b", "2.0 ** (-(a ** b))"),
        ("~(a < b) | a < b & b < a", "(~(a < b)) | ((a < b) & (b < a))"),
        ("-a[0:1]", "-(a[0:1])"),
        ("a * -b + a", "(a * (-b)) + a"),
        ("a + b == b + a", "(a + b) == (b + a)"),
    ],
)
def test_precedence(expression: str, grouped: str) -> None:
    def printed(text: str) -> str:
        program = f"def main(a: f32[4], b: f32[4]) -> (f32[4]) {{ c = {text}  return a }}"
        return print_program(parse(program), locations=False)

    assert printed(expression) == printed(grouped)


def test_newlines_do_not_matter() -> None:
    lines = parse("def main(a: f32[4])\n->\nf32[4]\n{\nb\n=\na\n+\na\nreturn\nb\n}")
    one = parse("def main(a: f32[4]) -> f32[4] { b = a + a return b }")
    assert print_program(lines, locations=False) == print_program(one, locations=False)


@pytest.mark.parametrize(
    "name",
    [
        "mesh",
        "const",
        "spmd",
        "while",
        "repeat",
        "loop",
        "checkpoint",
        "precision",
        "cond",
        "do",
        "of",
        "partial",
        "replicated",
        "h.1",
        "f32x",
        "true_",
    ],
)
def test_keywords_are_names_where_they_cannot_be_keywords(name: str) -> None:
    program = parse(f"def main({name}: f32[4]) -> f32[4] {{ b = {name} * {name} {name}.2 = b return {name}.2 }}")
    assert program.main.params[0].name == name


def test_meshes_in_an_order_of_devices_and_by_name() -> None:
    program = parse("const N = 2 mesh (x=2 * N) mesh m (a=2, b=N) devices=[3, 2, 1, 0] def main() -> () { return }")
    assert program.meshes == (Mesh((("x", 4),)), Mesh((("a", 2), ("b", 2)), (3, 2, 1, 0), "m"))


def test_a_program_without_a_mesh_has_one_of_a_single_device() -> None:
    assert parse("def main() -> () { return }").mesh == Mesh(())


MESH = Mesh((("x", 4), ("y", 2)))
X, Y = AxisRef("x", 1, 4), AxisRef("y", 1, 2)


@pytest.mark.parametrize(
    ("type", "sharding"),
    [
        ("f32[8, 4]", None),
        ("f32[8@x, 4]", Sharding(MESH, (DimSharding((X,)), DimSharding()))),
        ("f32[8@(x, y), 4@?]", Sharding(MESH, (DimSharding((X, Y)), DimSharding(open=True)))),
        ("f32[8@(x,?)!1, 4@()]", Sharding(MESH, (DimSharding((X,), True, 1), DimSharding()))),
        ("f32[8@x:(1)2, 4@(y, x:(2)2)]",
         Sharding(MESH, (DimSharding((AxisRef("x", 1, 2),)), DimSharding((Y, AxisRef("x", 2, 2)))))),
        ("f32[8, 4]{replicated}", Sharding(MESH, (DimSharding(), DimSharding()))),
        ("f32[8@x, 4]{partial: y}", Sharding(MESH, (DimSharding((X,)), DimSharding()), ((Y, "sum"),))),
        ("f32[8, 4]{partial: max x, max y}", Sharding(MESH, (DimSharding(),) * 2, ((X, "max"), (Y, "max")))),
        ("f32[8, 4@?]{replicated: x}", Sharding(MESH, (DimSharding(), DimSharding(open=True)), (), (X,))),
        ("f32[8, 4]{partial: min x; replicated: y}", Sharding(MESH, (DimSharding(),) * 2, ((X, "min"),), (Y,))),
    ],
)  # fmt: skip
def test_type_annotations(type: str, sharding: Sharding | None) -> None:
    program = parse(f"mesh (x=4, y=2) def main(a: {type}) -> (r: {type}) {{ return a }}")
    assert program.main.params[0].type == TensorType((8, 4), f32)
    assert program.main.params[0].sharding == sharding
    assert program.main.results[0].sharding == sharding


def test_braces_behind_a_type_are_reported_from_a_body() -> None:
    program = parse(
        "mesh (x=4) def main(partial: f32[4], x: f32[4]) -> f32[4] { replicated: f32[4] = x return replicated }"
    )
    assert program.main.results[0].sharding is None


def test_an_spmd_program_has_local_types_and_says_of_what() -> None:
    program = parse(
        """spmd
mesh (x=4, y=2)
mesh m (a=8)
def main(v: f32[4, 64] of f32[16@x, 64]) -> (r: f32[4, 64] of f32[16@x, 64]) {
  i: s32[] = axis_index(axes=(x, y:(1)2))
  w: f32[4, 64] = collective_permute(v, target=(y, x), source=m(a))
  u: f32[4, 64] = all_reduce(w, axes=(y), kind=max)
  return u
}"""
    )
    assert program.stage == "spmd"
    value = program.main.params[0]
    assert (value.type.shape, value.of, value.sharding) == (
        (4, 64), TensorType((16, 64), f32), Sharding(MESH, (DimSharding((X,)), DimSharding()))
    )  # fmt: skip
    index, permute, reduce = program.main.body.ops
    assert index.attrs["axes"] == (X, Y)
    assert permute.attrs["target"] == DeviceOrder(MESH, (Y, X))
    assert permute.attrs["source"] == DeviceOrder(program.meshes[1], (AxisRef("a", 1, 8),))
    assert reduce.attrs == {"axes": (Y,), "kind": "max"}


def test_attributes_of_every_kind() -> None:
    program = parse(
        """def main(k: u32[2]) -> () {
  a: f32[2, 2] = constant(value=[[1.5, -inf], [nan, 2]], type=f32[2, 2])
  b: pred[] = constant(value=true, type=pred[])
  c: s32[2] = iota(type=s32[2], dim=0)
  d: f16[2] = convert(c, dtype=f16)
  e: f16[2] = cumsum(d, dim=0, reverse=true)
  f: f32[] = constant(value=-0.0, type=f32[])
  return
}"""
    )
    a, b, _, d, e, f = program.main.body.ops
    assert str(a.attrs["value"]) == "((1.5, -inf), (nan, 2))"
    assert b.attrs["value"] is True
    assert str(d.attrs["dtype"]) == "f16"
    assert e.attrs == {"dim": 0, "reverse": True}
    assert str(f.attrs["value"]) == "-0.0"


def op_spans(program: Program) -> list[str]:
    return [f"{op.span} {op.cause or ''}".strip() for op in program.main.body.ops]


def test_a_trailing_comment_behind_an_op_in_printed_form_is_its_location() -> None:
    program = parse(
        """def main(a: f32[4]) -> f32[4] {
  b: f32[4] = add(a, a)      # moe layer.spmd:11
  c: f32[4] = add(b, b)      # moe.spmd:12:5  reshard [d,_]→[_,d]
  d: f32[4] = add(c, c)      #  only a note
  e: f32[4] = add(d,
    d)                       # <stdin>:3
  f: f32[4] = e + e          # moe.spmd:13
  g = add(f, f)              # moe.spmd:14
  h: f32[4] = add(g, g)
  return h
}""",
        "here",
    )
    assert op_spans(program) == [
        "moe layer.spmd:11:1",
        "moe.spmd:12:5 reshard [d,_]→[_,d]",
        "None only a note",
        "<stdin>:3:1",
        "here:7:15",
        "here:8:7",
        "None",
    ]


def test_a_comment_of_other_words_is_no_location() -> None:
    program = parse("def main(a: f32[4]) -> f32[4] {\n  b: f32[4] = add(a, a)  # just words: 15\n  return b\n}", "here")
    assert op_spans(program) == ["here:2:15"]


def test_the_location_of_a_loop_stands_behind_its_head() -> None:
    program = parse(
        """def main(a: s32[]) -> s32[] {
  b: s32[] = while(i: s32[] = a, trip_count=3) cond {  # loop.spmd:4  unrolled
    c: pred[] = compare(i, a, direction=LT)            # loop.spmd:5
    return c
  } do {
    return i
  }
  return b
}"""
    )
    (loop,) = program.main.body.ops
    assert (str(loop.span), str(loop.cause)) == ("loop.spmd:4:1", "unrolled")
    assert str(loop.regions[0].ops[0].span) == "loop.spmd:5:1"
    assert loop.attrs["trip_count"] == 3


def test_spans_are_those_of_the_innermost_expression() -> None:
    program = parse("def main(a: f32[4]) -> f32[4] {\n  b = relu(a + exp(\n    a))\n  return b }", "f")
    assert op_spans(program) == ["f:2:16", "f:2:12", "f:2:7", "f:2:7"]
    assert str(program.main.params[0].span) == "f:1:10"


def test_faulty_statements_keep_the_names_that_they_would_bind() -> None:
    found = Diagnostics()
    text = (
        "def main() -> () { a, b.1: f32[2] = ( + )  c = 1  d = while(i = 0) cond { e = = 1 return } do { } return + }"
    )
    (item,) = parse_text(Source("t", text), found).items
    assert isinstance(item, s.FunctionItem)
    assert item.body is not None
    first, second, loop, last = item.body
    assert isinstance(first, s.Faulty)
    assert first.names == ("a", "b.1")
    assert isinstance(second, s.Assign)
    assert isinstance(loop, s.Assign)
    assert isinstance(last, s.Faulty)
    assert last.returns
    assert len(found.items) == 3


def test_a_literal_of_many_numbers_is_read_at_once() -> None:
    rows = ", ".join(f"[{', '.join(str(i * j) for j in range(300))}]" for i in range(300))
    op = f"constant(value=[{rows}], type=s32[300, 300])"
    text = f"def main() -> s32[300, 300] {{\n  a: s32[300, 300] = {op}\n  return a\n}}"
    start = time.monotonic()
    program = parse(text)
    assert time.monotonic() - start < 2
    value = program.main.body.ops[0].attrs["value"]
    assert np.asarray(value)[299, 299] == 299 * 299
    assert print_program(program, locations=False).count("[0, 1, 2, 3,") == 1


def test_five_thousand_printed_ops_parse_in_seconds() -> None:
    line = (
        "  v.{}: f32[16@x, 8]{{partial: y}} = dot_general(v.{}, w, lhs_contract=[1], rhs_contract=[0])  # moe.spmd:11\n"
    )
    head = "mesh (x=4, y=2)\n\ndef main(v.0: f32[16@x, 8], w: f32[8@y, 8]) -> (r: f32[16, 8]) {\n"
    text = head + "".join(line.format(i + 1, i) for i in range(5000)) + "  return v.5000\n}\n"
    start = time.process_time()
    program = parse(text)
    assert time.process_time() - start < 6
    assert len(program.main.body.ops) == 5000


def test_chains_of_thousands_of_terms_are_read() -> None:
    program = parse(f"def main(a: f32[2]) -> f32[2] {{ return {' + '.join(['a'] * 2000)} }}")
    assert len(program.main.body.ops) == 1999


def test_consts_are_overridden_and_what_depends_on_them_follows() -> None:
    text = "const A = 4, B = 2 * A const C = A // B def main(a: f32[A, B]) -> f32[A, B] { return a }"
    assert parse(text).main.params[0].type == TensorType((4, 8), f32)
    assert parse(text, defines={"A": 6}).main.params[0].type == TensorType((6, 12), f32)
    assert parse(text, defines={"B": 3, "C": 0}).main.params[0].type == TensorType((4, 3), f32)


def test_a_byte_order_mark_and_windows_line_ends_are_read() -> None:
    program = parse("\ufeffdef main(a: s32[2]) -> s32[2] {\r\n  b = a + a\r\n  return b\r\n}\r\n", "f")
    assert program.main.params[0].type == TensorType((2,), s32)
    assert op_spans(program) == ["f:2:7"]


_MANY = ",\n  ".join(f"{i}, {i}.5" for i in range(2000))


@pytest.mark.parametrize("value", ["[{}]", "constant(type=f32[4000], value=[{}])"])
def test_a_long_list_over_many_lines_is_one_token_and_what_follows_keeps_its_place(value: str) -> None:
    text = f"def main() -> f32[4000] {{\n  a: f32[4000] = {value.format(_MANY)}  # all\n  b = -a $\n  return b\n}}"
    cut = tokenize(Source("<string>", text))
    (literal,) = (token for token in cut.tokens if token.type == "LITERAL")
    assert (literal.line, literal.end_line) == (2, 2001)
    assert [(c.line, c.trailing) for c in cut.comments] == [(2001, True)]
    with pytest.raises(SpmdcError) as refused:
        parse(text)
    (unknown,) = refused.value.diagnostics
    assert unknown.span is not None
    assert (unknown.code, unknown.span.line, unknown.span.column) == ("E002", 2002, 10)
    program = parse(text.replace(" $", ""))
    numbers = program.main.body.ops[0].attrs["value"]
    assert isinstance(numbers, tuple)
    assert numbers[:4] == (0.0, 0.5, 1.0, 1.5)
    laid_out = format_source(text.replace(" $", ""))
    assert format_source(laid_out) == laid_out
    assert laid_out.count("# all\n") == laid_out.count("1999.5") == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [("7, 8", "E201"), ("[7], 8", "E201"), ("1x, 8", "E001"), ("7 8", "E001"), ("x, 8", "E101")],
)
def test_what_is_wrong_in_a_long_list_is_said(change: str, code: str) -> None:
    rows = ",\n".join(f"[{', '.join(map(str, range(100)))}]" for _ in range(99))
    text = f"def main() -> s32[100, 100] {{\n  a: s32[100, 100] = [{rows},\n[{change}]]\n  return a\n}}"
    with pytest.raises(SpmdcError) as refused:
        parse(text)
    assert refused.value.diagnostics[0].code == code


def test_a_device_order_of_many_devices_is_read() -> None:
    ids = ", ".join(map(str, reversed(range(1 << 14))))
    mesh = parse(f"mesh (x={1 << 14}) devices=[{ids}]\ndef main() -> () {{ return }}").mesh
    assert mesh.device_ids[:2] == (16383, 16382)


def _checked(path: Path, pycache: Path, **environment: str) -> list[Path]:
    """The files with tables of the grammar, after a process that has read a program."""
    command = [sys.executable, "-m", "spmdc", "check", str(path)]
    variables = {**os.environ, "PYTHONPYCACHEPREFIX": str(pycache), "PYTHONDONTWRITEBYTECODE": "", **environment}
    subprocess.run(command, env=variables, check=True, capture_output=True)
    return [*pycache.rglob("grammar.*.tables")]


def test_the_tables_of_the_grammar_are_kept_where_compiled_modules_are(tmp_path: Path) -> None:
    program = tmp_path / "p.spmd"
    program.write_text("def main(x: f32[2]) -> (y: f32[2]) { return x + x }")
    (tables,) = _checked(program, tmp_path / "pycache")
    damaged = tables.read_bytes()[:9999]
    tables.write_bytes(damaged)
    assert _checked(program, tmp_path / "pycache") == [tables]
    mended = tables.read_bytes()
    assert mended != damaged
    _checked(program, tmp_path / "pycache")
    assert tables.read_bytes() == mended
    assert _checked(program, tmp_path / "none", PYTHONDONTWRITEBYTECODE="1") == []
