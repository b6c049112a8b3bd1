"""infeed, outfeed, and what is sent to the host or received from it: arguments and results of the program."""

from __future__ import annotations

import numpy as np
import pytest

import spmdc

HOST = "is_host_transfer=true"
WAYS = {
    "feeds": """
  i = ((f32[8,8], s32[8]), token[]) infeed(t), sharding={{devices=[2,4]<=[8]}, {replicated}, {maximal device=0}}
  j = (f32[8,8], s32[8]) get-tuple-element(i), index=0
  k = token[] get-tuple-element(i), index=1
  a = f32[8,8] get-tuple-element(j), index=0
  b = s32[8] get-tuple-element(j), index=1
  s = f32[8,8] multiply(p, a)
  c = s32[8] negate(b)
  u = (f32[8,8], s32[8]) tuple(s, c)
  o = token[] outfeed(u, k)""",
    "messages": f"""
  i = (f32[8,8], u32[], token[]) recv(t), channel_id=1, {HOST}
  j = (f32[8,8], token[]) recv-done(i), channel_id=1, {HOST}
  a = f32[8,8] get-tuple-element(j), index=0
  k = token[] get-tuple-element(j), index=1
  l = (s32[8], u32[], token[]) recv(k), channel_id=2, {HOST}
  m = (s32[8], token[]) recv-done(l), channel_id=2, {HOST}
  b = s32[8] get-tuple-element(m), index=0
  n = token[] get-tuple-element(m), index=1
  s = f32[8,8] multiply(p, a)
  q = (f32[8,8], u32[], token[]) send(s, n), channel_id=3, {HOST}
  v = token[] send-done(q), channel_id=3, {HOST}
  c = s32[8] negate(b)
  w = (s32[8], u32[], token[]) send(c, v), channel_id=4, {HOST}
  x = token[] send-done(w), channel_id=4, {HOST}""",
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_taken_is_an_argument_and_what_is_handed_over_a_result(way: str) -> None:
    program = spmdc.from_hlo(
        "HloModule m, num_partitions=8\n\nENTRY e {\n"
        "  p = f32[8,8] parameter(0), sharding={devices=[4,2]<=[8]}\n"
        f"  t = token[] after-all(){WAYS[way]}\n  ROOT r = f32[8,8] add(p, a)\n}}\n"
    )
    p, a, b = spmdc.random_inputs(program, seed=3)
    for results in (spmdc.evaluate(program, p, a, b), spmdc.partition(program).simulate(p, a, b)):
        for have, want in zip(results, (p + a, p * a, -b), strict=True):
            np.testing.assert_array_equal(have, want)


LOOP = """HloModule m

body {
  p = (s32[], f32[8], token[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[8] get-tuple-element(p), index=1
  t = token[] get-tuple-element(p), index=2
  o = token[] outfeed(x, t)
  c = s32[] constant(1)
  n = s32[] add(i, c)
  ROOT r = (s32[], f32[8], token[]) tuple(n, x, o)
}

test {
  p = (s32[], f32[8], token[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  c = s32[] constant(3)
  ROOT r = pred[] compare(i, c), direction=LT
}

ENTRY e {
  z = s32[] constant(0)
  x = f32[8] parameter(0)
  t = token[] after-all()
  p = (s32[], f32[8], token[]) tuple(z, x, t)
  w = (s32[], f32[8], token[]) while(p), condition=test, body=body
  ROOT r = f32[8] get-tuple-element(w), index=1
}
"""


def test_what_a_loop_hands_over_is_refused_at_its_line() -> None:
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.from_hlo(LOOP)
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "E704"
    assert diagnostic.span is not None
    assert LOOP.splitlines()[diagnostic.span.line - 1].startswith("  o = token[] outfeed")
