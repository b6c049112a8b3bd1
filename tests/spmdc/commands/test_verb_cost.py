"""`spmdc cost`: what a program takes on a machine, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import Run

import spmdc as api
from spmdc.commands.shared.options import parse_sweep
from spmdc.commands.shared.parser import COSTS_BY
from spmdc.reports.cost_text import seconds_text
from spmdc.reports.groups import BY

PRODUCT = b"""const D = 4
mesh (d=D)
def main(a: f32[64, 256@d], b: f32[256@d, 32]) -> (o: f32[64, 32]) {
  c = matmul(a, b)
  return tanh(c)
}
"""
TWO = b"""mesh (x=2, y=2)
def main(a: f32[64@x, 64@y]) -> (o: f32[64, 64]) {
  return replicate(exp(a))
}
"""


def test_each_row_has_its_seconds_and_what_bounds_them(spmdc: Run) -> None:
    """On a device: 2 * 64 * 32 * 64 operations on 4 * (64 * 64 + 64 * 32 + 64 * 32) bytes; then an all_reduce of 8 KiB,
    which receives 2 * 3/4 of that; and one operation for each of 2048 elements."""
    ended = spmdc("cost", "-", stdin=PRODUCT)
    assert (ended.status, ended.err) == (0, "")
    assert {line.split()[0] for line in ended.out.splitlines() if line} >= {"<stdin>:4", "<stdin>:5"}
    found = spmdc("cost", "-", "--by", "kind", "--json", stdin=PRODUCT).json
    rows = {row["what"]: row for row in found["rows"]}
    product, reduced = rows["dot_general"], rows["all_reduce"]
    assert product["flops"] == 2 * 64 * 32 * 64
    assert product["compute"] == pytest.approx(product["flops"] / 61e12)
    assert product["touched"] == 4 * (64 * 64 + 2 * 64 * 32)
    assert product["memory"] == pytest.approx(product["touched"] / 450e9)
    assert (product["bound"], product["received"]) == ("overhead", 0)
    assert product["seconds"] == pytest.approx(product["memory"] + product["overhead"])
    assert product["share"] == pytest.approx(product["compute"] / product["seconds"])
    assert reduced["received"] == 2 * 8192 * 3 // 4
    assert reduced["network"] == pytest.approx(reduced["received"] / 70e9 + 2e-7)
    assert reduced["bound"] == "network"
    assert found["seconds"] == pytest.approx(found["total"]["seconds"]) == pytest.approx(found["critical_seconds"])


def test_rows_are_of_lines_ops_or_kinds_and_the_dearest_come_first(spmdc: Run) -> None:
    kinds = spmdc("cost", "-", "--by", "kind", stdin=PRODUCT).out.splitlines()
    assert [line.split()[0] for line in kinds[1:5]] == ["dot_general", "all_reduce", "tanh", "total"]
    ops = spmdc("cost", "-", "--by", "op", "--top", "1", stdin=PRODUCT).out.splitlines()
    assert "= dot_general" in ops[1]
    assert ops[2].startswith("total")
    assert ops[-1].startswith("critical path")


LAYERS = b"""mesh (x=2, y=2)
def main(a: f32[64@x, 64@y], w: f32[64@x, 64@y], v: f32[64@y, 64]) -> (o: f32[64@x, 64], b: f32[64]) {
  k, h = while(k = 0, h: f32[64@x, 64@y] = a, trip_count=5) cond { return k < 5 } do { return k + 1, layer(h, w) }
  return matmul(h, v), sum(replicate(reverse(w, [0])), dim=0)
}
def layer(h: f32[64, 64], w: f32[64, 64]) -> f32[64, 64] {
  return tanh(matmul(h, w))
}
"""


def test_rows_are_of_axes_values_loops_or_functions(spmdc: Run) -> None:
    def rows(by: str) -> dict[str, Any]:
        return {row["what"]: row for row in spmdc("cost", "-", "--by", by, "--json", stdin=LAYERS).json["rows"]}

    sent = {c["name"]: c for c in spmdc("partition", "-", "--json", stdin=LAYERS).json["collectives"]}
    over_y = sum(c["bytes"] * c["count"] for c in sent.values() if c["axes"] == "y")
    assert rows("axis")["y"]["received"] == over_y > 0
    assert {what.partition("  ")[2] for what in rows("loop")} == {"<stdin>:3", ""}
    assert rows("function").keys() == {"main", "layer"}
    assert rows("function")["layer"]["flops"] == 5 * 64 * 64 * 64 * 2 // 4 + 5 * 32 * 32
    moved = {value for c in sent.values() for value in c["cause"]["values"]}
    assert rows("value").keys() == {*moved, "(nothing is sent)"}


def test_the_values_at_the_peak_are_listed(spmdc: Run) -> None:
    cost = spmdc("cost", "-", "--json", stdin=PRODUCT).json
    assert [(each["value"], each["type"]) for each in cost["alive"]][:2] == [("a", "f32[64, 64]"), ("b", "f32[64, 32]")]
    assert cost["alive"][0]["bytes"] == 64 * 128 * 4, "rows are stored in whole tiles of 128"
    lines = spmdc("cost", "-", "--alive", "--top", "1", stdin=PRODUCT).out.splitlines()
    assert lines[-3].split() == ["alive", "at", "the", "peak", "type", "bytes"]
    rest = sum(each["bytes"] for each in cost["alive"][1:])
    assert [line.split()[0] for line in lines[-2:]] == ["a", "others"]
    assert lines[-1].split()[-1] == f"{rest:,}"


def test_collectives_beside_the_critical_path_are_named(spmdc: Run) -> None:
    """Gathers of weights wait for nothing, those of activations for the ops that make them."""
    block = str(Path(api.__file__).with_name("programs") / "transformer_block.spmd")
    cost = spmdc("cost", block, "--json").json
    weights = ("wq", "wk", "wv", "wo", "w_in", "w_out")
    assert [each["value"] for each in cost["beside_it"]] == [f"{name}.1" for name in weights]
    assert all(each["seconds"] > 0 for each in cost["beside_it"])
    assert not {each["value"] for each in cost["beside_it"]} & {*cost["critical_path"]}
    assert "devices could compute: wq.1, wk.1, wv.1, wo.1" in spmdc("cost", block).out


def test_times_that_round_to_the_next_unit_are_in_that() -> None:
    times = (999.4e-9, 999.6e-9, 0.99996e-3, 2.5, 0.0)
    assert [*map(seconds_text, times)] == ["999 ns", "1 us", "1 ms", "2.5 s", "0 ns"]


def test_the_command_line_knows_all_groups() -> None:
    assert COSTS_BY == BY


def test_several_sizes_and_machines_make_one_table(spmdc: Run) -> None:
    ended = spmdc("cost", "-", "-D", "D=4,8", "--machine", "tpu-v3", "--machine", "h100", stdin=PRODUCT)
    assert ended.status == 0
    table = [line.split() for line in ended.out.splitlines()]
    assert table[0][:3] == ["machine", "D", "time"]
    assert [row[:2] for row in table[1:]] == [["tpu-v3", "4"], ["tpu-v3", "8"], ["h100", "4"], ["h100", "8"]]
    meshes = spmdc("cost", "-", "--mesh", "x=2,y=2", "--mesh", "x=4,y=1", "--json", stdin=TWO).json["points"]
    assert [each["point"]["mesh"] for each in meshes] == ["x=2,y=2", "x=4,y=1"]
    assert [each["cost"]["total"]["received"] for each in meshes] == [3 * 4096, 3 * 4096]


def test_what_is_asked_for_of_each_combination_is_below_their_table(spmdc: Run) -> None:
    several = "--mesh", "x=2,y=2", "--mesh", "x=4,y=1"
    assert "alive at the peak" not in spmdc("cost", "-", *several, stdin=TWO).out
    shown = spmdc("cost", "-", *several, "--by", "kind", "--top", "1", "--alive", stdin=TWO).out
    each = shown.split("\nmesh x=")
    assert len(each) == 3
    for mesh, part in zip(("2,y=2", "4,y=1"), each[1:], strict=True):
        alone = spmdc("cost", "-", "--mesh", f"x={mesh}", "--by", "kind", "--top", "1", "--alive", stdin=TWO).out
        assert part.strip() == f"{mesh}\n{alone}".strip()


def test_a_program_that_is_partitioned_is_costed_as_it_is(spmdc: Run) -> None:
    written = spmdc("partition", "-", stdin=PRODUCT).out.encode()
    one, other = (spmdc("cost", "-", "--by", "kind", "--json", stdin=text).json for text in (PRODUCT, written))
    assert one["rows"] == other["rows"]


def test_ops_in_loops_and_functions_count_as_often_as_they_run(spmdc: Run) -> None:
    text = b"""mesh (d=2)
def twice(x: f32[64]) -> (y: f32[64]) { return exp(exp(x)) }
def main(x: f32[64@d]) -> (y: f32[64]) {
  n, y = while(i = 0, v = x, trip_count=3) cond { return i < 3 } do { return i + 1, twice(sin(twice(v))) }
  return twice(y)
}
"""
    rows = {row["what"]: row for row in spmdc("cost", "-", "--by", "kind", "--json", stdin=text).json["rows"]}
    assert rows["exponential"]["count"] == 3 * 4 + 2
    assert rows["sine"]["count"] == 3


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--machine", "tpu"), "E603"),
        (("--machine", "tpu-v4:3x3x3"), "E604"),
        (("-D", "D"), "E601"),
        (("-D", "D=1,x"), "E601"),
        (("-D", "Q=1"), "E104"),
        (("-D", f"D={','.join(['4'] * 1001)}"), "E601"),
        (("--by", "colour"), "E601"),
        (("--mesh", "d=4", "--devices", "4"), "E601"),
    ],
)
def test_what_cannot_be_costed_is_said(spmdc: Run, arguments: tuple[str, ...], code: str) -> None:
    ended = spmdc("cost", "-", *arguments, stdin=PRODUCT)
    assert ended.status in (1, 2)
    assert f"error[{code}]" in ended.err


def test_costs_are_in_python_too(spmdc: Run) -> None:
    partitioned = api.partition(api.parse(PRODUCT.decode(), "<stdin>"))
    found = partitioned.cost("kind").to_json()
    printed = spmdc("cost", "-", "--by", "kind", "--json", stdin=PRODUCT).json
    assert found == {name: printed[name] for name in found}
    assert partitioned.cost(machine=api.machine("h100")).machine == "h100"
    by: Any = "colour"
    with pytest.raises(api.SpmdcError, match="E601"):
        partitioned.cost(by)


def test_a_cost_says_where_the_mesh_lies(spmdc: Run) -> None:
    assert "mesh axes: d on x (4 of 8)" in spmdc("cost", "-", "--machine", "tpu-v5e:8x1", stdin=PRODUCT).out
    crossed = api.partition(api.parse(TWO.decode()), machine=api.machine("h100:2"))
    assert crossed.cost().layout == (("x", "gpu (2 of 8, 2 apart)"), ("y", "gpu (2 of 8)"))
    assert crossed.device_order() == (0, 1, 2, 3)
    assert api.partition(api.parse(TWO.decode())).device_order() is None


@pytest.mark.parametrize("trips", [", trip_count=3", ""])
def test_loops_of_unknown_length_are_told(spmdc: Run, trips: str) -> None:
    text = (
        "mesh (x=4)\ndef main(a: f32[8@x]) -> (b: f32[8@x]) {\n"
        f"  n, b = while(i = 0, b: f32[8@x] = a{trips}) cond {{ return i < 3 }} do {{ return i + 1, b * 2 }}\n"
        "  return b\n}"
    ).encode()
    for arguments in (("plan", "-"), ("cost", "-"), ("cost", "-", "--machine", "tpu-v3", "--machine", "tpu-v4")):
        assert ("loops of unknown length count 10 turns" in spmdc(*arguments, stdin=text).out) == (not trips)


def test_values_of_a_const_are_between_commas(spmdc: Run) -> None:
    assert parse_sweep("D=128, 512") == ("D", [128, 512])
    assert repr(parse_sweep("E=0.5,2, 1e-3")) == "('E', [0.5, 2, 0.001])"
    scaled = b"const E = 0.5\n" + TWO.replace(b"exp(a)", b"exp(a) * E")
    assert spmdc("cost", "-", "-D", "E=0.5,2", stdin=scaled).out.count("\n") == 3
    assert "error[E601]: argument -D: E in 'E=1e' is not" in spmdc("run", "p.spmd", "-D", "E=1e").err
