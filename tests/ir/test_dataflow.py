"""Who makes and who uses a value."""

from __future__ import annotations

import gc
import weakref

import spmdc
from ir.dataflow import last_uses, uses_of, uses_within
from ir.program import Value, all_ops, values_within

TEXT = """def main(x: f32[8], w: f32[8]) -> (y: f32[8], z: f32[8]) {
  s = w * w
  n, y = while(i = 0, v = x, trip_count=3) cond { return i < 3 } do {
    u = v * s
    return i + 1, u
  }
  z = double(y)
  return y, z
}
def double(a: f32[8]) -> (b: f32[8]) { return a + a }
"""


def test_each_use_counts_by_ops_inside_regions_and_by_regions_that_return_the_value() -> None:
    program = spmdc.parse(TEXT)
    uses = uses_of(program)
    named: dict[str, Value] = {v.name: v for f in program.functions.values() for v in values_within(f.body)}
    counts = {name: uses.count(named[name]) for name in ("x", "w", "s", "v", "u", "y", "z", "a", "b", "n")}
    assert counts == {"x": 1, "w": 2, "s": 1, "v": 1, "u": 1, "y": 2, "z": 1, "a": 2, "b": 1, "n": 0}
    assert [op.name for op in uses.users[named["w"]]] == ["multiply", "multiply"]
    assert uses.given[named["y"]] == 1
    assert {v: op for op in all_ops(program) for v in op.results} == uses.makers
    assert uses_within(program.functions["double"].body).users.keys() == {named["a"]}


def test_a_value_is_last_used_by_the_op_whose_region_uses_it() -> None:
    body = spmdc.parse(TEXT).main.body
    dying = {v.name: op.name for op, dead in zip(body.ops, last_uses(body), strict=True) for v in dead}
    assert {name: dying[name] for name in ("w", "s", "x", "n")} == {
        "w": "multiply", "s": "while", "x": "while", "n": "while"
    }  # fmt: skip
    assert not dying.keys() & {"y", "z"}


def test_what_is_found_is_found_once_and_forgotten_with_the_program() -> None:
    program = spmdc.parse(TEXT)
    assert uses_of(program) is uses_of(program)
    assert last_uses(program.main.body) is last_uses(program.main.body)
    gone = weakref.ref(program), weakref.ref(program.main.body)
    del program
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
