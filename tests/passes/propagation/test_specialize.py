"""A function has a copy for each way in which its calls want it, and no more."""

from __future__ import annotations

import time

import pytest

import spmdc
from ir.program import all_ops
from passes.propagation.specialize import specialize
from spmdc.frontends.spmd import parse
from spmdc.testing import check_equivalence

LAYER = "def layer(v: f32[8, 8]) -> f32[8, 8] { return tanh(v) * 2 }"


def functions(text: str) -> list[str]:
    return list(specialize(parse(text)).functions)


def kinds(text: str) -> list[str]:
    q = spmdc.partition(spmdc.parse(text))
    check_equivalence(spmdc.parse(text))
    return [c.kind for c in q.collectives()]


def test_calls_with_different_shardings_get_a_copy_each() -> None:
    text = f"""
mesh (x=2, y=2)
def main(a: f32[8@x, 8], b: f32[8, 8@y]) -> (f32[8, 8], f32[8, 8]) {{ return layer(a), layer(b) }}
{LAYER}
"""
    assert functions(text) == ["main", "layer", "layer.1"]
    assert kinds(text) == []


def test_calls_that_want_the_same_share_a_function() -> None:
    text = f"""
mesh (x=2, y=2)
def main(a: f32[8@x, 8], b: f32[8, 8@y]) -> (f32[8, 8], f32[8, 8]) {{
  return layer(layer(layer(a))), layer(layer(b))
}}
{LAYER}
"""
    assert functions(text) == ["main", "layer", "layer.1"]


def test_a_function_whose_calls_all_want_the_same_stays_as_it_is() -> None:
    text = f"""
mesh (x=2)
def main(a: f32[8@x, 8]) -> f32[8, 8] {{ return layer(layer(a)) }}
{LAYER}
"""
    assert functions(text) == ["main", "layer"]


def test_what_copies_call_is_copied_with_them() -> None:
    text = """
mesh (x=2, y=2)
def main(a: f32[8@x, 8], b: f32[8, 8@y]) -> (f32[8, 8], f32[8, 8]) { return outer(a), outer(b) }
def outer(v: f32[8, 8]) -> f32[8, 8] { return inner(v) + inner(-v) }
def inner(v: f32[8, 8]) -> f32[8, 8] { return tanh(v) * 2 }
"""
    assert functions(text) == ["main", "outer", "outer.1", "inner", "inner.1"]
    assert kinds(text) == []


def test_calls_in_loops_and_branches_are_told_apart() -> None:
    text = f"""
mesh (x=2, y=2)
def main(a: f32[8@x, 8], b: f32[8, 8@y], k: s32[]) -> (f32[8, 8], f32[8, 8]) {{
  n, p, q = while(i = 0, p = a, q = b, trip_count=2) cond {{ return i < 2 }} do {{
    r = case(k) {{ return layer(q) }} or {{ return q }}
    return i + 1, layer(p), r
  }}
  return p, q
}}
{LAYER}
"""
    assert functions(text) == ["main", "layer", "layer.1"]
    assert kinds(text) == []


def test_annotations_of_a_function_hold_in_every_copy() -> None:
    text = """
mesh (x=2, y=2)
def main(a: f32[8@x, 8], b: f32[8, 8@y]) -> (f32[8, 8], f32[8, 8]) { return layer(a), layer(b) }
def layer(v: f32[8@x, 8]) -> f32[8, 8] { return tanh(v) * 2 }
"""
    propagated = spmdc.propagate(spmdc.parse(text)).program
    for name, function in propagated.functions.items():
        if name != "main":
            sharding = function.params[0].sharding
            assert sharding is not None
            assert [a.name for a in sharding.dims[0].axes] == ["x"], name


def test_functions_of_elements_and_functions_nobody_calls_stay() -> None:
    text = """
mesh (x=2)
def main(a: f32[8@x], b: f32[8]) -> (f32[8], f32[8]) { return map(a, function=f), map(b, function=f) }
def f(v: f32[]) -> f32[] { return g(v) + g(v) }
def g(v: f32[]) -> f32[] { return v * 2 }
def unused(v: f32[4]) -> f32[4] { return v }
"""
    assert functions(text) == ["main", "f", "g", "unused"]
    assert kinds(text) == []


def towers(levels: int) -> str:
    """Functions each of which calls the next twice: unfolded, the last is called 2 ** levels times."""
    floors = "\n".join(
        f"def f{n}(v: f32[8, 8]) -> f32[8, 8] {{ return f{n + 1}(v) + f{n + 1}(v * 2) }}" for n in range(levels)
    )
    return f"""
mesh (x=2, y=2)
def main(a: f32[8@x, 8], b: f32[8, 8@y]) -> (f32[8, 8], f32[8, 8]) {{ return f0(a), f0(b) }}
{floors}
def f{levels}(v: f32[8, 8]) -> f32[8, 8] {{ return tanh(v) }}
"""


def test_calls_that_unfold_without_end_are_copied_within_bounds() -> None:
    start = time.process_time()
    program = specialize(parse(towers(25)))
    assert time.process_time() - start < 20
    assert sum(1 for _ in all_ops(program)) < 3 * sum(1 for _ in all_ops(parse(towers(25))))


def test_reasons_and_lines_survive_in_copies() -> None:
    text = f"""
mesh (x=2, y=2)
def main(a: f32[8@x, 8], b: f32[8, 8@y]) -> (f32[8, 8], f32[8, 8]) {{ return layer(a), layer(b) }}
{LAYER}
"""
    q = spmdc.partition(spmdc.parse(text))
    assert "dim 1 is split over y" in q.why("layer.1.v")
    assert "b dim 1: annotated  at <string>:3:" in q.why("layer.1.v")
    assert "<string>:4" in q.text()


@pytest.mark.parametrize("calls", [1, 2, 30])
def test_a_small_function_is_written_where_it_is_called(calls: int) -> None:
    body = "\n".join(f"  a{n + 1} = layer(a{n})" for n in range(calls))
    program = spmdc.parse(
        f"mesh (x=2)\ndef main(a0: f32[8@x, 8]) -> f32[8, 8] {{\n{body}\n  return a{calls}\n}}\n{LAYER}"
    )
    assert list(spmdc.partition(program).program.functions) == ["main"]


STEPS = "\n".join(f"  v{n + 1} = tanh(v{n}) * 2 + v{n}" for n in range(6))
LARGE = f"def layer(v0: f32[8, 8]) -> f32[8, 8] {{\n{STEPS}\n  return v6\n}}"


def test_a_large_function_is_written_once_for_each_way_of_calling_it() -> None:
    calls = "\n".join(f"  a{n + 1} = layer(a{n})\n  b{n + 1} = layer(b{n})" for n in range(40))
    program = spmdc.parse(f"""
mesh (x=2, y=2)
def main(a0: f32[8@x, 8], b0: f32[8, 8@y]) -> (f32[8, 8], f32[8, 8]) {{
{calls}
  return a40, b40
}}
{LARGE}
""")
    q = spmdc.partition(program)
    assert list(q.program.functions) == ["main", "layer", "layer.1"]
    assert sum(1 for _ in all_ops(q.program)) < 2 * (40 + 30)


def test_small_functions_that_call_one_another_do_not_multiply() -> None:
    q = spmdc.partition(spmdc.parse(towers(12)))
    assert sum(1 for _ in all_ops(q.program)) < 400


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_the_work_for_many_split_outputs_grows_with_their_number(in_a_loop: bool) -> None:
    def steps_and_ops(count: int) -> tuple[int, int]:
        numbers = range(count)
        params = ", ".join(f"w{i}: f32[8@x, 8]" for i in numbers)
        results = ", ".join(f"o{i}: f32[8, 8@x]" for i in numbers)
        body = "\n".join(f"u{i} = w{i} + matmul(w{i}, h)" for i in numbers)
        returned = ", ".join(f"u{i}" for i in numbers)
        carried = ", ".join(f"w{i} = w{i}" for i in numbers)
        if in_a_loop:
            outer = ", ".join(f"v{i}" for i in numbers)
            head = f"n, {outer} = while(i = 0, {carried}) cond {{ return i < 2 }} do {{"
            body = f"{head}\n{body}\nreturn i + 1, {returned}\n}}"
            returned = outer
        q = spmdc.partition(
            spmdc.parse(
                f"mesh (x=4)\ndef main(h: f32[8, 8], {params}) -> ({results}) {{\n{body}\nreturn {returned}\n}}"
            )
        )
        return q.propagated.steps, sum(1 for _ in all_ops(q.program))

    few, many = steps_and_ops(28), steps_and_ops(112)
    assert many[0] < 5 * few[0]
    assert many[1] < 5 * few[1]
