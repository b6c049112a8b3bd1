"""Words of the language may name values, functions, axes and meshes: what is printed of such programs reads back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import spmdc
import spmdc.frontends.spmd.syntax
from ir.names import RESERVED
from ir.program import Program
from spmdc.frontends.spmd import print_program
from spmdc.frontends.spmd.expand.constants import WORDS

GRAMMAR = Path(spmdc.frontends.spmd.syntax.__file__).with_name("grammar.lark").read_text()
WORDS_OF_IT = {*re.findall(r'"([a-z]+)"', GRAMMAR), *WORDS, "partial", "replicated", "strategy", "steps", "complex"}
NAMES = sorted({*WORDS_OF_IT, "f32", "s32", "add", "constant", "cumsum", "reduce", "softmax", "split"} - RESERVED)

VALUES = """\
mesh (x=4)

def main(a: f32[10@x, 4], NAME: f32[10, 4]) -> (NAME.1: f32[10, 4], r: f32[10], s: f32[2, 2]) {
  t = cumsum(pad(a, -inf, low=[0, 0], high=[0, 0]), 0, reverse=true, exclusive=true) + nan
  u = reduce(sort(t + NAME, dim=0), dims=[1], kind=max)
  v, w = while(v: s32[] = 0, w: f32[10, 4] = t) cond {
    return v < 3
  } do {
    return v + 1, convert(w, dtype=f32)
  }
  return t, u, constant(value=[[nan, -inf], [inf, 1.0]], type=f32[2, 2]) + w[0, 0]
}
"""
OTHERS = """\
mesh (NAME=2, y=2)
mesh NAME (p=4)

def main(a: f32[12@NAME, 4@y], b: f32[4@p, 4]) -> (NAME: f32[12, 4]) {
  c = call(a, function=NAME)
  return dot_general(c, b, lhs_contract=[1], rhs_contract=[0])
}

def NAME(NAME: f32[12, 4@p]) -> (f32[12, 4]) {
  return NAME + NAME
}
"""


def check_that_it_reads_back(program: Program) -> None:
    text = print_program(program)
    assert print_program(spmdc.parse(text)) == text


def test_what_names_values_reads_back() -> None:
    for name in NAMES:
        if name not in WORDS:
            check_that_it_reads_back(spmdc.parse(VALUES.replace("NAME.1", "n").replace("NAME", name)))


def test_what_names_axes_meshes_and_functions_reads_back() -> None:
    for name in NAMES:
        check_that_it_reads_back(spmdc.parse(OTHERS.replace("NAME", name)))


def test_words_for_numbers_mean_these_in_attributes_where_values_have_their_names() -> None:
    for name in WORDS:
        program = spmdc.parse(VALUES.replace("NAME.1", name).replace("NAME", "b"))
        plan = spmdc.plan(program)
        partitioned = spmdc.partition(plan)
        for stage in (program, spmdc.propagate(program).program, plan.program, partitioned.program):
            assert re.search(rf"\b{name}: f32", print_program(stage))
            check_that_it_reads_back(stage)


@pytest.mark.parametrize("word", sorted(RESERVED))
def test_reserved_words_are_refused(word: str) -> None:
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.parse(VALUES.replace("NAME.1", "n").replace("NAME", word))
    assert caught.value.diagnostics[0].code == "E001"
