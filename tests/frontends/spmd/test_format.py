"""The formatter: one layout, nothing lost, nothing changed in what the program means."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable

import pytest

import spmdc
from ir.diagnostics import SpmdcError
from spmdc.frontends.spmd import format_source, parse, print_program

PROGRAMS = sorted(
    (path for path in resources.files("spmdc.programs").iterdir() if path.name.endswith(".spmd")), key=lambda p: p.name
)


@pytest.mark.parametrize(
    ("written", "formatted"),
    [
        ("a=b+ - c*d", "a = b + -c * d"),
        ("a = x [ 0 : 4 , : , :: 2 ]", "a = x[0:4, :, ::2]"),
        ("a=f( x ,dim = 1 , k=[1,2] )", "a = f(x, dim=1, k=[1, 2])"),
        ("a:f32[8@( x,y:( 1 ) 2),4@?!2]{ partial:x,max y ; replicated:z }=f(b)",
         "a: f32[8@(x, y:(1)2), 4@?!2]{partial: x, max y; replicated: z} = f(b)"),
        ("a,b:s32[]=f(x) return a,b", "a, b: s32[] = f(x)\nreturn a, b"),
        ("a= ~ (x<3)|y**2", "a = ~(x < 3) | y ** 2"),
        ("a=(x)-(y)", "a = (x) - (y)"),
        ("a=f(- 1,(- 2))", "a = f(-1, (-2))"),
        ("return -  x", "return -x"),
        ("a=[ ]", "a = []"),
        ("a=constant(value=[[1,2],\n[3,4]],type=f32[2,2])", "a = constant(value=[[1, 2], [3, 4]], type=f32[2, 2])"),
        ("a=while(i=0,x:f32[ ]=b,trip_count=3)cond{return i<3}do{return i,x}",
         "a = while(i = 0, x: f32[] = b, trip_count=3) cond {\n  return i < 3\n} do {\n  return i, x\n}"),
        ("a=checkpoint(N>0){b=x return b}", "a = checkpoint(N > 0) {\n  b = x\n  return b\n}"),
        ("a=checkpoint{b=x return b}", "a = checkpoint {\n  b = x\n  return b\n}"),
        ("a=loop l<2*L(x=y){return x}", "a = loop l < 2 * L (x = y) {\n  return x\n}"),
        ("a=repeat l<2*L(x=y){return x}", "a = repeat l < 2 * L (x = y) {\n  return x\n}"),
        ("a=loop l<cdiv(2,-N)+S[ 0 ](x=y,z=(u)){return x}",
         "a = loop l < cdiv(2, -N) + S[0] (x = y, z = (u)) {\n  return x\n}"),
        ("a=f(x,axes=(x,y),target=m(a))", "a = f(x, axes=(x, y), target=m(a))"),
        ('a=einsum("ij , jk",b)', 'a = einsum("ij , jk", b)'),
        ("a=b\n\n\n\n# one\nc=d # two\n\n# three", "a = b\n\n# one\nc = d  # two\n\n# three"),
        ("a=f(b,  # why\nc)", "a = f(b,  # why\n    c)"),
        ("a=f(b,\n# own\nc)", "a = f(b,\n    # own\n    c)"),
    ],
)  # fmt: skip
def test_layout_of_a_body(written: str, formatted: str) -> None:
    text = format_source(f"def main() -> () {{ {written}\n }}", "t")
    lines = text.split("\n")
    assert "\n".join(line.removeprefix("  ") for line in lines[1:-2]) == formatted
    assert format_source(text) == text


def test_items_stand_apart_and_neighbouring_comments_in_one_column() -> None:
    text = """# head


const A=1 # one
const  LONGER = 22,B = A*3#two
mesh(x=A,y=2)
mesh m(a=2 , b=1)devices =[1,0] # order
def main(a:f32[A]) ->f32[A]{ return f(a) } # end
# about f
def f(x:f32[A])->( y : f32[A] ){# in
return x

# last
}
# eof"""
    expected = """# head

const A = 1                   # one
const LONGER = 22, B = A * 3  #two
mesh (x=A, y=2)
mesh m (a=2, b=1) devices=[1, 0]  # order

def main(a: f32[A]) -> f32[A] {
  return f(a)
}  # end

# about f
def f(x: f32[A]) -> (y: f32[A]) {  # in
  return x

  # last
}
# eof
"""
    assert format_source(text) == expected


def test_long_signatures_break_before_the_arrow_and_long_calls_behind_commas() -> None:
    params = ", ".join(f"input{i}: f32[8@x, 4]" for i in range(5))
    call = f"f({', '.join(['input0'] * 20)})"
    text = f"mesh (x=2)\ndef main({params}) -> (output: f32[8@x, 4]) {{ a = {call} return a }}"
    assert format_source(text).split("\n")[2:-2] == [
        "def main(input0: f32[8@x, 4], input1: f32[8@x, 4], input2: f32[8@x, 4], input3: f32[8@x, 4], "
        "input4: f32[8@x, 4])",
        "    -> (output: f32[8@x, 4]) {",
        "  a = f(input0, input0, input0, input0, input0, input0, input0, input0, input0, input0, input0, "
        "input0, input0, input0,",
        "      input0, input0, input0, input0, input0, input0)",
        "  return a",
    ]


def test_a_list_that_begins_on_a_new_line_keeps_the_lines_of_its_entries() -> None:
    text = """def main(
x: f32[2],y: f32[2],  # two
   z: f32[2]
)->(
      r: f32[2]) { a = f( [
1,2,
 3],
x) return a }
"""
    expected = """def main(
  x: f32[2], y: f32[2],  # two
  z: f32[2]
) -> (
  r: f32[2]
) {
  a = f([
    1, 2,
    3
  ], x)
  return a
}
"""
    assert format_source(text) == expected
    assert format_source(expected) == expected


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.name)
def test_shipped_programs_keep_their_meaning(path: Traversable) -> None:
    text = path.read_text("utf-8")
    formatted = format_source(text)
    assert format_source(formatted) == formatted
    with resources.as_file(path) as file:
        before, after = (parse(written, folder=str(file.parent)) for written in (text, formatted))
    assert print_program(after, locations=False) == print_program(before, locations=False)
    printed = print_program(before)
    assert print_program(parse(format_source(printed))) == printed


def test_comments_are_all_kept_in_order() -> None:
    text = "#1\nconst A = ( #2\n 1 + #3\n#4\n 2) #5\n#6\ndef main( #7\n a: f32[A] #8\n ) -> ( #9\n) #10\n"
    text += "{ #11\n return #12\n #13\n } #14\n#15"
    formatted = format_source(text)
    found = [line[line.index("#") + 1 :] for line in formatted.split("\n") if "#" in line]
    assert found == [str(i) for i in range(1, 16)]
    assert format_source(formatted) == formatted


def test_a_text_with_syntax_errors_is_not_formatted() -> None:
    with pytest.raises(SpmdcError, match="E001"):
        format_source("def main( { }")


def test_a_text_whose_errors_are_not_of_syntax_is_formatted() -> None:
    assert format_source("def main()->(){a=unknown(b) return}") == "def main() -> () {\n  a = unknown(b)\n  return\n}\n"


def test_nothing_is_formatted_to_nothing() -> None:
    assert format_source("\n \n") == ""


@pytest.mark.parametrize("stage", ["plan", "spmd"])
def test_comments_of_a_printed_stage_stay_in_their_column(stage: str) -> None:
    program = parse(
        "mesh (x=4)\ndef main(a: f32[8, 16@x], b: f32[16@x, 8]) -> (z: f32[8, 8]) {\n"
        '  y = einsum("ij,jk->ik", a, b)\n  c = y * 2\n  return tanh(c)\n}\n'
    )
    text = spmdc.partition(program).text() if stage == "spmd" else spmdc.plan(program).text()
    assert "  # " in text
    assert format_source(text) == text
