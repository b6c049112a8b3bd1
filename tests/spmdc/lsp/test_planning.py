"""The process that plans what is being written."""

from __future__ import annotations

import multiprocessing

import pytest

from ir.diagnostics import InternalError
from spmdc.lsp import planning

TEXT = "mesh (x=4)\ndef main(a: f32[8@x]) -> (o: f32[8]) {\n  o = a + 1\n  return o\n}\n"


def test_shardings_come_before_the_plan_and_reasons_behind_it() -> None:
    asked = planning.Planning(TEXT, "p.spmd")
    try:
        first, second = asked.facts()
        assert first.shardings["main", "o"] == "f32[8@x]"
        assert first.costs == {}
        assert second.costs.keys() == {3}
        assert "dim 0 is split over x" in asked.why(("main", "o"))
        assert asked.why(("main", "missing")) == ""
    finally:
        asked.end()
    assert asked.why(("main", "o")) == ""


def test_a_fault_of_planning_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*unused: object) -> None:
        raise AssertionError("a fault")

    monkeypatch.setattr(planning, "propagate", fails)
    ours, theirs = multiprocessing.Pipe()
    planning.serve(theirs, TEXT, "p.spmd")
    with pytest.raises(InternalError, match="a fault"):
        list(planning.facts_of(ours))
