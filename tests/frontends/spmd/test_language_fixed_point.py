"""Over random programs: printing and parsing again changes nothing, nor does formatting; damage gives diagnostics."""

from __future__ import annotations

import re

from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.diagnostics import Diagnostic, SpmdcError
from ir.verify.program import check
from spmdc.frontends.spmd import format_source, parse, print_program

SIGNATURE = "(a: f32[4@x, 6] = normal(N / 8.0), b: f32[4, 6] = 0, i: s32[4], p: pred[4, 6], k: u32[2])"
HEAD = "const N = 4, M = N + 2\nmesh (x=4, y=2)\nmesh other (u=8) devices=[7, 6, 5, 4, 3, 2, 1, 0]\n"


def unary(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    forms = ["relu({})", "-{}", "softmax({}, dim=1)", "({} + 1) ** 2", "exp({})", "gelu({})", "cumsum({}, -1)",
             "replicate({})", "split({}, 0, x)", "split({}, 1, 2)", "layer_norm({})", "transpose(transpose({}))",
             "reshape({}, [-1, 3])[:8, :3] - ones([8, 3])", "{}[::1, 0:M]", "call({}, function=half)", "half({})",
             "shard({}, [[3, 2, 1, 0]])", "einsum(\"ij->ji\", {})"]  # fmt: skip
    square = [f for f in forms if "reshape" not in f and "->ji" not in f]
    return st.builds(lambda form, x: form.format(f"({x})"), st.sampled_from(square), inner)


def binary(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    forms = ["({}) + ({})", "({}) * ({})", "where(p, {}, {})", "maximum({}, {})", "({}) - ({}) / 2",
             "einsum(\"ij,kj->ik\", {}, {})[:, 0] * ones([4, 6])[:, 1] * 0 + ones([6, 4])"]  # fmt: skip
    return st.builds(lambda form, x, y: form.format(x, y), st.sampled_from(forms[:-1]), inner, inner)


def expressions(names: list[str]) -> st.SearchStrategy[str]:
    """Expressions of type f32[4, 6]."""
    leaves = st.sampled_from([*names, "ones([N, M])", "uniform(k, f32[N, M])", "full([4, 6], -1.5)"])
    return st.recursive(leaves, lambda inner: unary(inner) | binary(inner), max_leaves=5)


@st.composite
def programs(draw: st.DrawFn) -> str:
    names = ["a", "b"]
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from(["h", "h.1", "value", "h.2.3", "_t", "mesh", "of", "cond", "x1"]))
        if name in names:
            continue
        kind = draw(st.sampled_from(["plain", "typed", "placed", "while", "repeat", "loop", "checkpoint", "several"]))
        value = draw(expressions(names))
        if kind == "while":
            body = draw(expressions([*names, "acc"]))
            limit = draw(st.integers(0, 3))
            lines.append(
                f"n.{len(lines)}, {name} = while(j = 0, acc: f32[N@?, 6] = {value}) cond {{ return j < {limit} }} "
                f"do {{ t = {body} return j + 1, t }}"
            )
        elif kind == "repeat":
            body = draw(expressions([*names, "acc"]))
            lines.append(f"{name} = repeat l < {draw(st.integers(0, 3))} (acc = {value}) {{ t = {body} return t * l }}")
        elif kind == "loop":
            body = draw(expressions([*names, "acc"]))
            head = f"loop l < {draw(st.integers(0, 3))} (acc: f32[N@?, 6] = {value})"
            lines.append(f"{name} = {head} {{ t = {body} return t * f32(i[l]) + ones([N, 6])[l] }}")
        elif kind == "checkpoint":
            body = draw(expressions(names))
            lines.append(f"{name} = checkpoint {{ t = {value} return t * {body} }}")
        elif kind == "several":
            lines.append(f"{name}, rest.{len(lines)} = both({value})")
        else:
            type = {"plain": "", "typed": ": f32[N, 6]", "placed": ": f32[4@x, 6@(y)]{replicated}"}[kind]
            lines.append(f"{name}{type} = {value}")
        names.append(name)
    result = draw(expressions(names))
    return (
        f"{HEAD}def main{SIGNATURE} -> (out: f32[4, 6@y]) {{\n  "
        + "\n  ".join(lines)
        + f"\n  return {result}\n}}\n"
        + "def half(v: f32[4, 6]) -> f32[4, 6] { return v / 2 }\n"
        + "def both(v: f32[4, 6]) -> (f32[4, 6], f32[4]) { w = -v return w, sum(w, dim=1) }\n"
    )


@settings(max_examples=examples(40))
@given(programs())
def test_printing_and_parsing_again_gives_the_same_text(text: str) -> None:
    program = parse(text, "t.spmd")
    check(program)
    for locations in (True, False):
        printed = print_program(program, locations=locations)
        again = parse(printed, "t.spmd")
        check(again)
        assert print_program(again, locations=locations) == printed
        assert print_program(parse(format_source(printed), "t.spmd"), locations=locations) == printed


@settings(max_examples=examples(40))
@given(programs(), st.data())
def test_formatting_keeps_the_program_and_every_comment(text: str, data: st.DataObject) -> None:
    tokens = re.split(r"( +|\n)", text)
    gaps = [i for i, t in enumerate(tokens) if t.strip() == "" and t]
    for n, i in enumerate(data.draw(st.lists(st.sampled_from(gaps), max_size=4, unique=True))):
        tokens[i] = data.draw(st.sampled_from([f" # note {n}\n", f"\n\n# note {n}\n", "\n", "  \n\n\n  "]))
    messy = "".join(tokens)
    formatted = format_source(messy)
    assert format_source(formatted) == formatted
    assert re.findall("# note .", formatted) == re.findall("# note .", messy)
    assert print_program(parse(formatted), locations=False) == print_program(parse(text), locations=False)


@settings(max_examples=examples(40))
@given(programs(), st.data())
def test_a_damaged_program_is_read_or_refused_with_diagnostics(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        i = data.draw(st.integers(0, len(text)))
        piece = data.draw(
            st.sampled_from(["", "(", ")", "{", "}", "[", "]", ",", "=", ":", "@", '"', "return ", "a", "1", "#"])
        )
        text = text[:i] + piece + text[i + data.draw(st.integers(0, 4)) :]
    diagnostics: tuple[Diagnostic, ...] = ()
    try:
        printed = print_program(parse(text, "t.spmd"))
    except SpmdcError as e:
        diagnostics = e.diagnostics
    else:
        assert print_program(parse(printed)) == printed
    lines = [d.span.line for d in diagnostics if d.span]
    assert lines == sorted(lines)
