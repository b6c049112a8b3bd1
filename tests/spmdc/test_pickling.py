"""Programs and all that is made of them, and errors, can be sent to another process, and copied."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmdc
from ir.program import all_ops
from passes.factors import factor_rule

_PROGRAMS = {
    "a product": """
        mesh (x=4)
        def main(a: f32[8@x, 6], b: f32[6, 4] = normal(1)) -> (y: f32[8, 4]) {
          return einsum("ij,jk->ik", a, b)
        }
    """,
    "loops": """
        mesh (x=4)
        def main(a: f32[8, 8@x]) -> (y: f32[8, 8]) {
          n, y = while(i = 0, v = a, trip_count=2) cond { return i < 2 } do {
            product = einsum("ij,jk->ik", v, v)
            return i + 1, product
          }
          return y
        }
    """,
    "functions": """
        mesh (x=2, y=2)
        def twice(a: f32[8, 8]) -> f32[8, 8] {
          return einsum("ij,jk->ik", a, a)
        }
        def main(a: f32[8@x, 8@y]) -> (y: f32[8, 8]) {
          return twice(twice(a))
        }
    """,
}


def _sent(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


_copying = pytest.mark.parametrize("copied", [_sent, copy.deepcopy], ids=["pickle", "deepcopy"])


@_copying
@pytest.mark.parametrize("text", _PROGRAMS.values(), ids=_PROGRAMS)
def test_programs_and_what_is_made_of_them_are_copied(text: str, copied: Callable[[Any], Any]) -> None:
    program = spmdc.parse(text)
    propagated, plan, partitioned = spmdc.propagate(program), spmdc.plan(program), spmdc.partition(program)
    expected = partitioned.text()
    for original in (program, propagated, plan):
        assert spmdc.partition(copied(original)).text() == expected
    assert copied(propagated).why("a") == propagated.why("a")
    assert copied(plan).cost().seconds == plan.cost().seconds
    assert copied(partitioned).text() == expected
    inputs = spmdc.random_inputs(program, integers=True)
    np.testing.assert_array_equal(copied(spmdc.as_jax(program))(*inputs), spmdc.evaluate(program, *inputs)[0])


@_copying
def test_undecided_splits_are_decided_in_a_copy_as_in_the_original(copied: Callable[[Any], Any]) -> None:
    program = spmdc.parse(_PROGRAMS["loops"])
    undecided = spmdc.propagate(program, weigh=False)
    assert spmdc.partition(copied(undecided)).text() == spmdc.partition(undecided).text()


@_copying
def test_caches_are_not_copied(copied: Callable[[Any], Any]) -> None:
    program = spmdc.parse(_PROGRAMS["a product"])
    (op,) = all_ops(program)
    assert factor_rule(op) is not None
    assert op.signature is not None
    assert next(iter(all_ops(copied(program)))).signature is None


@_copying
def test_errors_are_copied_with_their_diagnostics_and_notes(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.parse("def main(x: f32[8]) -> f32[8] { return z + u }")
    caught.value.add_note("in layer 3")
    found = copied(caught.value)
    assert type(found) is spmdc.SpmdcError
    assert str(found) == str(caught.value)
    assert [d.to_json() for d in found.diagnostics] == [d.to_json() for d in caught.value.diagnostics]
    assert found.__notes__ == ["in layer 3"]


def test_what_runs_on_devices_is_its_own_copy_like_a_function() -> None:
    executable = spmdc.partition(spmdc.parse(_PROGRAMS["a product"])).to_jax()
    assert copy.deepcopy({"step": executable})["step"] is executable
