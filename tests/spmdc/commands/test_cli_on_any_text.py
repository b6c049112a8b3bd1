"""Whatever a text holds, it is run, or what is wrong is reported."""

from __future__ import annotations

import re

import pytest
from command_line import PROGRAM, UGLY, Run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SEEDS = (
    PROGRAM,
    UGLY,
    """\
const D = 4, N = 2 * D
mesh (d=D, e=2) devices=[7, 6, 5, 4, 3, 2, 1, 0]

def main(a: f32[N@d, 8@?], b: s32[3]{replicated}) -> (r: f32[N, 8@e], n: s32[]) {
  c: f32[N@(d,?), 8] = layer(split(a, 0, D), 0.5)   # a note
  i, x = while(i: s32[] = 0, x: f32[N, 8] = c, trip_count=3) cond {
    return i < 3
  } do {
    return i + 1, softmax(x, dim=-1) * 2.0
  }
  y = repeat k < 2 (y = x) {
    return concatenate(y[0:4], y[4:N], dim=0) + einsum("ij,jk->ik", y, ones([8, 8]))
  }
  return y, sum(b) + i
}

def layer(x: f32[N, 8], s: f32[]) -> (f32[N, 8]) {
  return where(x > s, relu(x), -x ** 2.0)
}
""",
)


PIECES = (
    *("", "(", ")", "[", "]", "{", "}", ",", ":", "@", "?", "=", "-", "->", "!1", "%", "#", '"', "\n", " ", "\0", "é"),
    *("0", "1", "7", "-1", "99999999999999999999", "1e999", "nan", "x", "a", "d", "D", "f32[]", "s32[2]", "d:(2)2"),
    *("def", "return", "mesh", "const", "while", "repeat", "spmd\n", "{partial: d}", "main(a)", "dim=9", "shape=[2]"),
    *("reshape", "reduce_window", "replicate", "layer", "einsum"),
)


WORD = re.compile(r"\w+|[^\w\s]")


@st.composite
def mistaken(draw: st.DrawFn) -> str:
    """A program with words exchanged for other words of it."""
    text = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 3))):
        words = list(WORD.finditer(text))
        old = draw(st.sampled_from(words))
        new = draw(st.sampled_from(words))
        text = text[: old.start()] + new[0] + text[old.end() :]
    return text


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A program with pieces put in and taken out."""
    text = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from((0, 0, 1, 2, 5, 20, 80))))
        text = text[:start] + draw(st.sampled_from(PIECES)) + text[end:]
    return text


@pytest.mark.parametrize("text", SEEDS)
def test_the_texts_to_damage_are_sound(spmdc: Run, text: str) -> None:
    assert spmdc("run", "-", "--check", "--integers", stdin=text.encode()).status == 0


@given(damaged() | mistaken())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_text_holds_it_is_run_or_told_what_is_wrong(spmdc: Run, text: str) -> None:
    ended = spmdc("check", "-", stdin=text.encode())
    assert ended.status in (0, 1), f"{text}\n{ended.err}"
    if ended.status:
        assert "error[E" in ended.err
        return
    ended = spmdc("partition", "-", stdin=text.encode())
    assert ended.status in (0, 1), f"{text}\n{ended.err}"
    assert spmdc("fmt", "-", stdin=text.encode()).status == 0, text
