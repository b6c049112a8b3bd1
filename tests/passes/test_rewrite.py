"""Programs are rewritten by copies; what stays as it is stays the same object."""

from __future__ import annotations

from dataclasses import replace

import spmdc
from ir.program import Value
from ir.sharding import Sharding
from passes.rewrite import map_values


def test_ops_of_which_no_value_is_replaced_stay() -> None:
    program = spmdc.parse(
        """
        mesh (x=4)
        def main(a: f32[8], b: f32[8]) -> (r: f32[8]) {
          of_a = tanh(a)
          of_b = tanh(b)
          return of_a + of_b
        }
        """
    )

    def annotated(value: Value) -> Value:
        return replace(value, sharding=Sharding.unknown(program.mesh, 1)) if value.name == "a" else value

    after = map_values(program, annotated, lambda function, i: function.results[i]).main.body
    before = program.main.body
    assert [new is old for new, old in zip(after.ops, before.ops, strict=True)] == [False, True, True]
    assert after.params[0].sharding is not None
    assert after.ops[0].operands == after.params[:1]
