"""`spmdc plan`: what was decided, what it costs, and what else could be."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run


def test_a_plan_is_printed_with_its_costs_and_partitioned_from_its_text(spmdc: Run) -> None:
    ended = spmdc("plan", "p.spmd")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("plan\nmesh (x=4, y=2)\n")
    assert 'strategy="i=x, j=y"' in ended.out
    assert "bytes of memory at the peak" in ended.out.splitlines()[-1]
    Path("p.plan").write_text(ended.out)
    assert (
        spmdc("partition", "p.plan", "--json").json["collectives"]
        == (spmdc("partition", "p.spmd", "--json").json["collectives"])
    )
    assert spmdc("check", "p.plan").out.startswith("p.plan: ok")
    assert spmdc("run", "p.plan", "--check", "--integers").status == 0
    assert spmdc("lower", "p.plan", "--unpartitioned").status == 0


def test_a_plan_as_json_has_its_sums(spmdc: Run) -> None:
    figures = spmdc("plan", "p.spmd", "--json").json
    assert figures["received_bytes"] == spmdc("partition", "p.spmd", "--json").json["received_bytes"]
    assert 0 < figures["critical_seconds"] <= figures["seconds"]
    assert figures["text"].startswith("plan\n")


def test_a_plan_as_json_has_what_is_resharded_and_why(spmdc: Run) -> None:
    (reshard,) = spmdc("plan", "p.spmd", "--json").json["reshards"]
    assert (reshard["value"], reshard["from"], reshard["to"]) == ("total", "[]{partial: x, y}", "[]")
    assert reshard["cause"] == {"kind": "result", "name": "total", "function": "main"}
    assert reshard["location"].startswith("p.spmd:")


def test_what_an_op_could_have_done_is_explained(spmdc: Run) -> None:
    ended = spmdc("plan", "p.spmd", "--explain", "h")
    assert ended.out.startswith("h = dot_general: i k, k j -> i j  {k: reduction(sum)}\n* i=x, j=y: ")
    assert "computed whole on every device" in ended.out
    chosen = [c for c in spmdc("plan", "p.spmd", "--explain", "h", "--json").json["choices"] if c["is_chosen"]]
    assert [c["strategy"] for c in chosen] == ["i=x, j=y"]
    assert "error[E101]" in spmdc("plan", "p.spmd", "--explain", "nothing").err
    assert "did you mean total or" in spmdc("plan", "p.spmd", "--explain", "totl").err


def test_a_value_of_one_of_several_functions_is_explained(spmdc: Run) -> None:
    text = """
    mesh (x=2)
    def rows(a: f32[8, 4]) -> f32[4] {
      h = tanh(a)
      return sum(h, dim=0)
    }
    def main(a: f32[8@x, 4]) -> (r: f32[4]) {
      h = matmul(a, transpose(a))
      return rows(a) + sum(h)
    }
    """
    given = text.encode()
    assert spmdc("plan", "-", "--explain", "main.h", stdin=given).out.startswith("main.h = dot_general: ")
    assert "and the plan 'h.3' in its place" in spmdc("plan", "-", "--explain", "rows.h", stdin=given).err


@pytest.mark.parametrize(
    ("name", "became"),
    [
        ("again", "'again' is another name of 'a'"),
        ("half", "'half' is known at compile time"),
        ("N", "'N' is known at compile time"),
        ("unused", "no result depends on it"),
        ("a", "'a' is a parameter"),
        ("nothing", "spmdc plan FILE shows them all"),
    ],
)
def test_a_name_that_the_plan_has_no_op_for_is_explained(spmdc: Run, name: str, became: str) -> None:
    Path("q.spmd").write_text(
        "const N = 4\nmesh (x=4)\ndef main(a: f32[8@x]) -> (r: f32[8]) {\n"
        "  half = N // 2\n  again = a\n  unused = tanh(a)\n  return relu(again) * half\n}\n"
    )
    assert became in spmdc("plan", "q.spmd", "--explain", name).err
    if name in ("again", "half", "N"):
        assert became in spmdc("why", "q.spmd", name).err


def test_a_value_that_the_plan_computes_otherwise_leads_to_what_it_became(spmdc: Run) -> None:
    text = b"mesh (x=4)\ndef main(a: f32[64@x, 8]) -> (r: f32[64, 8@x]) {\n  return concatenate([a[3:], a[:3]], 0)\n}"
    (name,) = (
        line.split(":")[0].strip() for line in spmdc("plan", "-", stdin=text).out.splitlines() if "concat" in line
    )
    assert name != "r"
    assert f"the plan {name!r} in its place" in spmdc("plan", "-", "--explain", "r", stdin=text).err


def test_a_reshard_says_what_it_is_for(spmdc: Run) -> None:
    gathered = b"mesh (x=4)\ndef main(a: f32[8@x]) -> (o: f32[8]{replicated}) {\n  return tanh(a)\n}"
    ended = spmdc("plan", "-", "--explain", "o.1", stdin=gathered)
    assert ended.out.startswith("o.1 = reshard of o: [x] -> [-], result o of main\n* all_gather 0 (x) -> [-]: ")
    cause = spmdc("plan", "-", "--explain", "o.1", "--json", stdin=gathered).json["cause"]
    assert cause == {
        "kind": "result", "name": "o", "function": "main", "values": ["o"], "source": "[x]", "target": "[-]"
    }  # fmt: skip


def test_two_plans_are_compared(spmdc: Run) -> None:
    Path("q.spmd").write_text(Path("p.spmd").read_text().replace("x=4, y=2", "x=2, y=4"))
    ended = spmdc("plan", "p.spmd", "--diff", "q.spmd")
    assert [line[0] for line in ended.out.splitlines()[-2:]] == ["-", "+"]
    assert spmdc("plan", "p.spmd", "--diff", "p.spmd").out.startswith("the plans are the same\n")
    assert "text" in spmdc("plan", "p.spmd", "--diff", "q.spmd", "--json").json


def test_what_is_wrong_with_a_plan_is_reported_at_its_line(spmdc: Run) -> None:
    text = spmdc("plan", "p.spmd").out.replace('"i=x, j=y")  #', '"j=y")  #', 1)
    Path("p.plan").write_text(text)
    for verb in ("partition", "check"):
        ended = spmdc(verb, "p.plan")
        assert ended.status == 1
        assert ended.err.startswith(
            "error[E413]: operand a of dot_general is sharded [x, -], and must be [-, -]\n  --> p.plan:5:"
        )


def test_a_plan_is_no_program_to_propagate_differentiate_or_verify(spmdc: Run) -> None:
    Path("p.plan").write_text(spmdc("plan", "p.spmd").out)
    for arguments in (("propagate", "p.plan"), ("grad", "p.plan", "--wrt", "a"), ("verify", "p.plan")):
        assert "error[E406]" in spmdc(*arguments).err


def test_passes_are_named_printed_after_and_timed(spmdc: Run) -> None:
    planned = spmdc("partition", "p.spmd", "-p", "propagate,plan")
    assert planned.out.startswith("plan\n")
    written = spmdc("partition", "p.spmd", "-p", "propagate,plan,write")
    assert written.out.startswith("spmd\n")
    shown = spmdc("partition", "p.spmd", "--print-after", "plan", "--time-passes")
    assert shown.out.startswith("# after plan\nplan\n")
    assert "write" in shown.err
    assert "all_reduce" in spmdc("partition", "p.spmd", "-p", "propagate,plan,write", "--json").json["text"]


def test_passes_that_cannot_be_applied_are_refused(spmdc: Run) -> None:
    for arguments, message in (
        (("-p", "write"), "the pass 'write' is applied to a program that is global"),
        (("-p", "fold"), "there is no pass 'fold'"),
        (("--print-after", "fold"), "no pass 'fold' is applied, to print"),
        (("-p", "plan", "--stats"), "--stats counts the collectives of what all passes make"),
    ):
        ended = spmdc("partition", "p.spmd", *arguments)
        assert ended.status == 2
        assert message in ended.err


def test_alternatives_of_an_op_are_not_those_of_another_that_makes_a_value_of_that_name(spmdc: Run) -> None:
    Path("q.spmd").write_text(
        "mesh (x=4)\n"
        "def main(a: f32[64@x, 64], b: f32[64, 64@x]) -> (c: f32[64@x, 64], d: f32[64]) {\n"
        "  r = product(a, b)\n  return r, total(r)\n}\n"
        "def product(a: f32[64, 64], b: f32[64, 64]) -> (f32[64, 64]) {\n  o = matmul(a, b)\n  return o\n}\n"
        "def total(v: f32[64, 64]) -> (f32[64]) {\n  o = sum(v, dim=0)\n  return o\n}\n"
    )
    ended = spmdc("plan", "q.spmd", "--explain", "o")
    assert ended.status == 0
    assert "without reshards, the program" in ended.out
