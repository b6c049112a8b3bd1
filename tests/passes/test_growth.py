"""What passes do grows as programs do. The work is counted, not timed: in instructions that Python executes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from counted import growth

import spmdc
from passes.optimize.dce import eliminate_dead_code

Text = Callable[[int], str]


def loops_in_one_another(depth: int) -> str:
    lines = ["def main(a: f32[4]) -> (r: f32[4]) {"]
    around = "a"
    for i in range(depth):
        lines.append(f"n{i}, r{i} = while(i{i} = 0, v{i} = {around}) cond {{ return i{i} < 3 }} do {{")
        around = f"v{i}"
    lines += [f"r{depth} = tanh({around})", *(f"return i{i} + 1, r{i + 1} }}" for i in reversed(range(depth)))]
    return "\n".join([*lines, "return r0 }"])


def values_passed_around_in_a_loop(count: int) -> str:
    """Of which each turn hands every one to the next place: all are needed for the first."""
    given = ", ".join(f"v{i} = a" for i in range(count))
    passed = ", ".join(f"v{(i + 1) % count}" for i in range(count))
    results = ", ".join(f"r{i}" for i in range(count))
    return f"""
        def main(a: f32[4]) -> (r: f32[4]) {{
          n, {results} = while(i = 0, {given}) cond {{ return i < 3 }} do {{ return i + 1, {passed} }}
          return r0
        }}
        """


@pytest.mark.parametrize(("text", "sizes"), [(loops_in_one_another, (3, 6)), (values_passed_around_in_a_loop, (8, 32))])
def test_dead_code_is_found_in_time_linear_in_the_program(text: Text, sizes: tuple[int, int]) -> None:
    assert growth(lambda size: partial(eliminate_dead_code, spmdc.parse(text(size))), sizes) < 1.3
