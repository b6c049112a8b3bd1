"""What a Python prompt shows of a program is a line, however large the program is."""

from __future__ import annotations

from hypothesis.vendor.pretty import pretty

import spmdc
from spmdc.comparison.compare import Comparison
from spmdc.frontends.spmd import parse, print_program


def test_programs_and_all_that_is_made_of_them_are_shown_in_a_short_line() -> None:
    ops = "\n".join(f"  v{k + 1} = tanh(v{k}) + v{k}" for k in range(200))
    program = spmdc.parse(f"mesh (x=4)\ndef main(v0: f32[8@x, 5]) -> (r: f32[8@x, 5]) {{\n{ops}\n  return v200\n}}")
    assert repr(program) == "<Program main of 400 ops on mesh (x=4), global>"
    propagated, plan, partitioned = spmdc.propagate(program), spmdc.plan(program), spmdc.partition(program)
    assert repr(partitioned) == "<PartitionedProgram main of 400 ops on mesh (x=4)>"
    body = program.main.body
    shown = [repr(each) for each in (propagated, plan, program.main, body, body.ops[0], body.params[0])]
    assert shown == [
        "<PropagatedProgram main of 400 ops on mesh (x=4)>",
        "<Plan main of 400 ops on mesh (x=4)>",
        "<Function main of 400 ops>",
        "<Region of 400 ops>",
        "<Op v1.1 = tanh(v0)>",
        "<Value v0: f32[8, 5]>",
    ]
    assert repr(partitioned.to_jax()) == f"<Executable {partitioned.with_even_results().program.summary}>"
    assert repr(Comparison((), 1024, 1024, (), 4096, 4096, ())) == "<Comparison: 1,024 bytes received, 4,096 by XLA>"


def test_a_sharding_is_shown_in_a_short_line() -> None:
    text = "def main(a: f32[8@x, 6, 4@(y, ?)], b: f32[6]{partial: y}, c: f32[4]{replicated}) -> f32[4] { return c }"
    shown = [repr(p.sharding) for p in parse(f"mesh (x=4, y=2)\n{text}").main.params]
    assert shown == [
        "<Sharding [x, -, y,?] on mesh (x=4, y=2)>",
        "<Sharding [-] partial over y on mesh (x=4, y=2)>",
        "<Sharding [-] on mesh (x=4, y=2)>",
    ]


def test_hypothesis_and_prompts_show_a_short_program_as_it_is_written() -> None:
    body = "".join(f"  v{i + 1} = tanh(v{i})\n" for i in range(120))
    long = parse(f"mesh (x=4)\ndef main(v0: f32[8@x]) -> f32[8] {{\n{body}  return v120\n}}")
    short = parse("mesh (x=4)\ndef main(a: f32[8@x]) -> f32[8] { return tanh(a) }")
    assert pretty(short) == print_program(short, locations=False).rstrip()
    assert pretty(long) == repr(long)
    assert pretty(short.main.params[0].sharding) == "<Sharding [x] on mesh (x=4)>"
