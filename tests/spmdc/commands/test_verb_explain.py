"""`spmdc explain`: every code has a text."""

from __future__ import annotations

from command_line import Run

from ir.explanations import EXPLANATIONS
from spmdc.commands import explain
from spmdc.commands.shared.options import Options


def test_explain_knows_every_code(spmdc: Run) -> None:
    assert all(explain.run(Options(), code=code) == 0 for code in EXPLANATIONS)
    everything = spmdc("explain").out
    assert all(code in everything for code in EXPLANATIONS)
    assert spmdc("explain", "e201").out == spmdc("explain", "E201").out
    assert "did you mean E20" in spmdc("explain", "E20").err


def test_explain_reports_as_json(spmdc: Run) -> None:
    found = spmdc("explain", "e201", "--json").json
    assert (found["code"], found["text"]) == ("E201", EXPLANATIONS["E201"])
    listed = spmdc("explain", "--json").json["codes"]
    assert {entry["code"]: entry["text"] for entry in listed} == EXPLANATIONS
    ended = spmdc("explain", "E999", "--json")
    assert (ended.status, [d["code"] for d in ended.json["diagnostics"]]) == (2, ["E601"])
