"""What follows from an op's name, attributes and types is found once for all ops that are alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import spmdc
from ir.mesh import Mesh
from ir.program import Op, Program
from passes.partition.context import OpContext
from passes.partition.plan.sides import StrategyQuery
from passes.partition.plan.strategies import StrategySelector
from passes.partition.strategy import Strategy
from passes.rewrite import copy_function
from passes.signatures import Signature, Signatures, signature_of
from spmdc.testing import check_equivalence


def _layers(n: int) -> Program:
    body = "".join(
        f"  h{i + 1} = tanh(matmul(h{i}, w{i}))\n  s{i + 1} = s{i} + sum(h{i + 1}, dims=[1])\n" for i in range(n)
    )
    weights = "".join(f", w{i}: f32[32, 32@y]" for i in range(n))
    return spmdc.parse(
        "mesh (x=4, y=2)\n"
        f"def main(h0: f32[64@x, 32], s0: f32[64@x]{weights}) -> (s: f32[64@x]) {{\n{body}  return s{n}\n}}"
    )


def _ops(program: Program) -> tuple[Op, ...]:
    return program.main.body.ops


def test_ops_alike_share_a_signature_and_others_do_not() -> None:
    signatures = Signatures()
    first, second = (_ops(_layers(1)), _ops(_layers(1)))
    assert [signatures.of(op) for op in first] == [signatures.of(op) for op in second]
    assert len({signatures.of(op) for op in first}) == len(first)


def test_numbers_that_are_equal_and_not_the_same_are_not_alike() -> None:
    text = """
    mesh (x=4)
    def main(a: f32[4@x]) -> (b: f32[4], c: f32[4]) {
      return a / constant(value=0.0, type=f32[4]), a / constant(value=-0.0, type=f32[4])
    }"""
    program = spmdc.parse(text)
    signatures = Signatures()
    zeros = [signatures.of(op) for op in _ops(program) if op.name == "constant"]
    assert len(set(zeros)) == 2
    check_equivalence(program)


def test_a_copy_has_the_signature_and_what_is_changed_has_not() -> None:
    function = _layers(1).main
    known = [signature_of(op) for op in function.body.ops]
    assert [op.signature for op in copy_function(function, "copy").body.ops] == known
    changed = replace(function.body.ops[1], name="exponential")
    assert changed.signature is None
    assert signature_of(changed) is not known[1]


def _looked_at(n: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """How many factor rules are found, strategies asked for, and local forms worked out, in a program of so many
    layers."""
    found: list[object] = []

    class Found(Signature):
        def __init__(self, op: Op) -> None:
            found.append(op.name)
            super().__init__(op)

    asked: list[object] = []
    choose = StrategySelector.choose

    def counted(selector: StrategySelector, query: StrategyQuery) -> Strategy:
        asked.append(query.op.name)
        return choose(selector, query)

    written: list[object] = []

    def context(mesh: Mesh, op: Op, *rest: Any) -> OpContext:
        written.append(op.name)
        return OpContext(mesh, op, *rest)

    monkeypatch.setattr("passes.signatures.Signature", Found)
    monkeypatch.setattr(StrategySelector, "choose", counted)
    monkeypatch.setattr("passes.partition.write.writer.OpContext", context)
    spmdc.partition(_layers(n))
    monkeypatch.undo()
    return len(found), len(asked), len(written)


def test_layers_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last differ from others: one has what is given, and what the other computes is only summed."""
    few, many = _looked_at(5, monkeypatch), _looked_at(15, monkeypatch)
    assert few == many
    assert min(few) > 0


def test_reasons_are_put_together_when_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    propagated = spmdc.propagate(_layers(1))

    def refuse(*_: object) -> None:
        raise AssertionError("nobody has asked")

    with monkeypatch.context() as watched:
        watched.setattr("passes.propagation.propagate.conflicts_at", refuse)
        spmdc.partition(propagated)
        with pytest.raises(AssertionError):
            propagated.why("h1")
    assert "annotated" in propagated.why("h1")
