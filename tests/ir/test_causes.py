"""Causes: why a pass put an op into a program."""

from __future__ import annotations

from typing import get_args

import pytest

from ir.builder import RegionBuilder
from ir.causes import Cause, CauseKind, read_cause
from ir.diagnostics import Source, Span
from ir.program import Op
from ir.types import TensorType, f32

SPAN = Span(Source("a.spmd"), 3, 1, 3, 9)
STATED = [
    Cause("annotation", "shard", name="h"),
    Cause("argument", "call", name="x.2", function="layer"),
    Cause("branch", "case", name="r"),
    Cause("caller", values=("logged",)),
    Cause("candidates", "top_k", name="best", axes=("x", "y:(2)4")),
    Cause("carried", "while", name="total"),
    Cause("condition", "while", name="go"),
    Cause("even_result", name="out"),
    Cause("halo", "concatenate", values=("a", "b"), axes=("x",)),
    Cause("index", "case"),
    Cause("initial", "while", name="total"),
    Cause("invariant", "while", name="w"),
    Cause("manual_operand", "manual", name="k"),
    Cause("manual_result", "manual", name="k"),
    Cause("mask", "reduce", name="total", values=("a",)),
    Cause("operand", "dot_general", 1, "h.1"),
    Cause("remark", text="as we found it in the paper, of course"),
    Cause("result", name="out", function="main"),
    Cause("totals", "cumsum", name="s", axes=("x",)),
    Cause("windowed_einsum", values=("b",), axes=("d",)),
    Cause("written"),
]


def test_every_kind_is_stated_below() -> None:
    assert [cause.kind for cause in STATED] == sorted(set(get_args(CauseKind)) - {"joined"})


@pytest.mark.parametrize("cause", STATED, ids=lambda cause: cause.kind)
@pytest.mark.parametrize(("source", "target"), [("", ""), ("[-, (x,y)] partial(z,w) on tree", "[(2,x), -]")])
def test_a_cause_is_read_from_its_sentence(cause: Cause, source: str, target: str) -> None:
    moved = Cause(cause.kind, cause.op, cause.operand, cause.name, cause.function, cause.values, source, target,
                  cause.axes, text=cause.text)  # fmt: skip
    read = read_cause(str(moved))
    assert str(read) == str(moved)
    if cause.kind != "remark":
        assert read == moved


def test_what_is_sent_as_one_says_two_of_its_causes() -> None:
    parts = [Cause("result", name=name, function="main") for name in "aabc"]
    joined = Cause("joined", parts=tuple(parts))
    assert str(joined) == "4 in one: result a of main; result b of main and 1 more"
    assert str(read_cause(str(joined))) == str(joined)
    assert read_cause(str(joined)).kind == "joined"


def test_only_what_is_said_is_in_json() -> None:
    cause = Cause("operand", "add", 0, "y", values=("x",), source="[x]", target="[-]")
    assert cause.to_json() == {
        "kind": "operand", "op": "add", "operand": 0, "name": "y", "values": ("x",), "source": "[x]", "target": "[-]"
    }  # fmt: skip
    assert Cause("joined", parts=(Cause("index", "case"),)).to_json() == {
        "kind": "joined", "parts": [{"kind": "index", "op": "case"}]
    }  # fmt: skip


def test_within_at_ops_are_there_for_a_cause_and_behind_it_for_the_one_before() -> None:
    b, first, second = RegionBuilder(), Cause("index", "case"), Cause("remark", text="my own")
    x = b.param("x", TensorType((), f32))
    with b.at(SPAN, first):
        b.op("negate", x)
        b.op("negate", x, cause=second)
        with pytest.raises(ZeroDivisionError), b.at(None, second):
            raise ZeroDivisionError
        b.op("negate", x)
    b.op("negate", x)
    assert [(op.span, op.cause) for op in b.ops] == [(SPAN, first), (SPAN, second), (SPAN, first), (None, None)]


def test_an_op_is_called_by_its_first_result_if_it_has_one() -> None:
    b = RegionBuilder()
    b.op("iota", name="i", type=TensorType((2,), f32), dim=0)
    assert [b.ops[0].label, Op("await_callbacks", (), ()).label] == ["i", "await_callbacks"]
