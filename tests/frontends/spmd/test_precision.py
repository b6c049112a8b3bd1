"""`precision(bf16) { … }` and `precision (bf16)`: where floats are converted, and where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ir.diagnostics import SpmdcError
from ir.program import Op, Program, all_ops
from ir.spelling.printer import print_program
from spmdc.frontends.spmd import parse
from spmdc.frontends.spmd.syntax.formatter import format_source

SHORT = "const A = bf16 precision (A) "


def converts(program: Program) -> list[tuple[str, str]]:
    """What is converted to what, in the order of the program."""
    return [(op.operands[0].dtype.name, op.result.dtype.name) for op in all_ops(program) if op.name == "convert"]


def made(text: str, name: str) -> Op:
    (op,) = [op for op in all_ops(parse(text)) if op.name == name]
    return op


def operand_types(op: Op) -> list[str]:
    return [str(v.type) for v in op.operands]


def body(statements: str, result: str, params: str = "a: f32[4, 4], b: bf16[4, 4], n: s32[4]") -> str:
    return f"def main({params}) -> {result} {{ {statements} }}"


def test_operands_of_arithmetic_are_converted_to_the_precision_of_the_block() -> None:
    text = body("r = precision(bf16) { return a * 2 + b } return r", "bf16[4, 4]")
    assert converts(parse(text)) == [("f32", "bf16")]
    assert operand_types(made(text, "multiply")) == ["bf16[4, 4]"] * 2


def test_a_block_inside_has_its_own_precision() -> None:
    inner = "c = precision(f32) { return b + b } return c, b + b"
    program = parse(body(f"r, s = precision(bf16) {{ {inner} }} return r, s", "(f32[4, 4], bf16[4, 4])"))
    assert [operand_types(op)[0] for op in all_ops(program) if op.name == "add"] == ["f32[4, 4]", "bf16[4, 4]"]


@pytest.mark.parametrize(
    ("expression", "kept"),
    [
        ("transpose(a)", True), ("a[1:, 0]", True), ("reshape(a, [16])", True), ("take(a, n, 0)", True),
        ("argmax(a)", True), ("top_k(a, 2)", True), ("sort(a)", True), ("zeros_like(a)", True), ("f32(b)", False),
        ("-a", False), ("exp(a)", False), ("exponential(a)", False), ("matmul(a, b)", False), ("sum(a)", False),
        ('einsum("ij,jk->ik", a, a)', False), ("softmax(a)", False), ("where(n > 0, a, b)", False),
        ("concatenate([a, b])", False), ("map(a, function=half)", True), ("cumsum(a, 0)", False), ("a ** 2", False),
    ],
)  # fmt: skip
def test_what_moves_or_chooses_elements_keeps_their_type(expression: str, kept: bool) -> None:
    text = f"""def main(a: f32[4, 4], b: bf16[4, 4], n: s32[4]) -> (n: s32[4]) {{
  r = precision(bf16) {{
    made = {expression}
    return n
  }}
  return r
}}
def half(x: f32[]) -> f32[] {{ return x / 2 }}"""
    if expression.startswith("top_k"):
        text = text.replace("made =", "made, places =")
    assert (converts(parse(text)) == []) == kept


def test_tensors_that_are_compared_are_converted_only_to_a_common_type() -> None:
    program = parse(body("r = precision(bf16) { p = a < 0.1 q = a < b return p & q } return r", "pred[4, 4]"))
    assert [operand_types(op)[0] for op in all_ops(program) if op.name == "compare"] == ["f32[4, 4]", "bf16[4, 4]"]


def test_sums_of_short_floats_accumulate_in_f32() -> None:
    program = parse(body("r = precision(bf16) { return sum(softmax(a)) } return r", "bf16[]"))
    sums = [op for op in all_ops(program) if op.name == "reduce" and op.attrs["kind"] == "sum"]
    assert [op.operands[0].dtype.name for op in sums] == ["f32", "f32"]


def test_what_is_made_without_an_element_type_has_that_of_the_precision() -> None:
    text = body(
        "r = precision(bf16) { return one_hot(n, 4) + zeros([4, 4]) + full([4, 4], 1) + ones(f32[4, 4]) } return r",
        "bf16[4, 4]",
    )
    assert [f for f, _ in converts(parse(text)) if f == "f32"] == ["f32"]


def test_a_weight_of_a_stack_is_converted_behind_its_subscript() -> None:
    text = SHORT + "def main(x: A[4, 4], w: f32[3, 4, 4]) -> A[4, 4] { return matmul(x, w[1]) }"
    convert = made(text, "convert")
    assert str(convert.operands[0].type) == "f32[4, 4]"


def test_where_a_type_is_written_floats_are_converted_to_it() -> None:
    text = (
        SHORT
        + """def main(x: A[4], s: f32[4]) -> (y: f32[4], z: A[4]) {
  h: f32[4] = x + s
  g = loop l < 2 (g: A[4] = s) { return g + layer(g, by=x) }
  return g, h
}
def layer(v: f32[4], by: A[4]) -> f32[4] { return v * by }"""
    )
    program = parse(text)
    assert [str(r.type) for r in program.main.results] == ["f32[4]", "bf16[4]"]
    (call,) = [op for op in all_ops(program) if op.name == "call"]
    assert operand_types(call) == ["f32[4]", "bf16[4]"]
    assert print_program(parse(print_program(program))) == print_program(program)


def test_outside_of_a_precision_types_must_agree() -> None:
    with pytest.raises(SpmdcError, match=r"declared f32\[4, 4\], and is bf16"):
        parse(body("r: f32[4, 4] = b return r", "f32[4, 4]"))


def test_a_precision_of_f32_changes_nothing_in_a_program_of_f32() -> None:
    text = "def main(x: f32[4, 4], w: f32[4, 4]) -> f32[] { return mean(softmax(matmul(x, w))) }"
    assert print_program(parse("precision (f32) " + text)) == print_program(parse(text))


@pytest.mark.parametrize(("short", "dtype"), [(0, "f32"), (1, "bf16")])
def test_a_const_may_be_an_element_type_that_another_const_decides(short: int, dtype: str) -> None:
    text = """const SHORT = 0, A = where(SHORT, bf16, f32), SIZE = where(SHORT > 0, 4, 8)
def main(x: A[SIZE]) -> (A[SIZE], A[2]) {
  half = A
  y: half[SIZE] = A(f32(x)) + convert(x, A) + A(1)
  return y, constant(value=[1, 2], type=A[2]) + zeros([2], A) + full(A[2], 0)
}"""
    program = parse(text, defines={"SHORT": short})
    assert [str(r.type) for r in program.main.results] == [f"{dtype}[{8 - 4 * short}]", f"{dtype}[2]"]


def test_each_file_has_its_own_precision(tmp_path: Path) -> None:
    (tmp_path / "gate.spmd").write_text("def gate(x: f32[4]) -> f32[4] { return x * x } def main() -> () { return }")
    (tmp_path / "dense.spmd").write_text("precision (bf16) def dense(x: f32[4]) -> f32[4] { return x + x }")
    text = 'include "gate.spmd" include "dense.spmd" precision (f16) '
    text += "def main(x: bf16[4]) -> f32[4] { return dense(gate(x)) - x }"
    program = parse(text, folder=str(tmp_path))
    kinds = {op.name: op.result.dtype.name for op in all_ops(program) if op.name in ("multiply", "add", "subtract")}
    assert kinds == {"multiply": "f32", "add": "bf16", "subtract": "f16"}


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("E207 1:12", "precision (s32) def main(a: f32[2]) -> f32[2] { return a }"),
        ("E207 1:47", "def main(a: f32[2]) -> f32[2] { c = precision(8) { return a } return c }"),
        ("E101 1:12", "precision (B) def main(a: f32[2]) -> f32[2] { return a }"),
        ("E102 1:18", "precision (bf16) precision (f32) def main(a: f32[2]) -> f32[2] { return a }"),
        ("E001 1:12", "precision () def main(a: f32[2]) -> f32[2] { return a }"),
        ("E101 1:25", "const A = 2 def main(a: A[2]) -> f32[2] { return a }"),
        ("E207 1:44", "def main(a: f32[2]) -> f32[2] { return a * where(a, 1, 2) }"),
        ("E406 1:1", "precision (bf16) spmd def main(a: f32[2]) -> (a: f32[2]) { return a }"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_precision_is_said_at_its_place(code: str, text: str) -> None:
    with pytest.raises(SpmdcError) as caught:
        parse(text)
    found = [f"{d.code} {d.span.line}:{d.span.column}" for d in caught.value.diagnostics if d.span is not None]
    assert found == [code]


def test_precision_is_a_name_like_any_other_where_no_block_follows() -> None:
    parse("def main(precision: f32[2]) -> f32[2] { return precision + precision[0] }")
    parse("def precision(a: f32[2]) -> f32[2] { return a } def main(a: f32[2]) -> f32[2] { return precision(a) }")


def test_precisions_are_laid_out_as_other_items_and_blocks() -> None:
    text = "precision(bf16)def main(a:f32[2])->f32[2]{b=precision( f32 ){c=a return c}return b}"
    assert (
        format_source(text)
        == """precision (bf16)

def main(a: f32[2]) -> f32[2] {
  b = precision(f32) {
    c = a
    return c
  }
  return b
}
"""
    )
