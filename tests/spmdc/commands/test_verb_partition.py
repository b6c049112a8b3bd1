"""`spmdc partition`: the program of one device, and over which mesh."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run


def test_partition_prints_the_program_of_one_device(spmdc: Run) -> None:
    ended = spmdc("partition", "p.spmd")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("spmd\nmesh (x=4, y=2)\n")
    assert "f32[4, 32] of f32[16@x, 32]" in ended.out
    assert "all_reduce(" in ended.out


def test_partition_tells_what_is_communicated(spmdc: Run) -> None:
    ended = spmdc("partition", "p.spmd", "--stats", "--verbose")
    table = ended.out.split("\n\n")[-1].splitlines()
    assert table[0].split() == ["collective", "axes", "bytes", "count", "source", "reason"]
    assert table[1].startswith("all_reduce  x, y      7      1  p.spmd:")
    assert "received by the worst device" in table[2]
    assert "propagate" in ended.err
    (collective,) = spmdc("partition", "p.spmd", "--json").json["collectives"]
    assert (collective["kind"], collective["bytes"], collective["count"]) == ("all_reduce", 7, 1)


def test_partition_over_another_mesh(spmdc: Run) -> None:
    ended = spmdc("partition", "p.spmd", "--mesh", "x=2,y=1")
    assert ended.status == 0
    assert "mesh (x=2, y=1)" in ended.out
    ended = spmdc("partition", "p.spmd", "--mesh", "z=2")
    assert ended.status == 1
    assert "error[E301]" in ended.err


CROSSED = b"""
mesh (d=4)
def main(a: f32[64@d, 32], b: f32[32, 64@d]) -> (out: f32[64@d, 64]) {
  return einsum("ij,jk->ik", a, b)
}
"""


def test_a_memory_limit_keeps_operands_from_being_gathered(spmdc: Run) -> None:
    whole = spmdc("partition", "-", "--json", stdin=CROSSED).json
    parts = spmdc("partition", "-", "--json", "--memory-limit", "13.5 KiB", stdin=CROSSED).json
    assert [c["kind"] for c in whole["collectives"]] == ["all_gather"]
    assert [(c["kind"], c["count"]) for c in parts["collectives"]] == [("collective_permute", 3)]
    assert "windowed einsum: parts of b travel along d" in parts["collectives"][0]["reason"]
    assert parts["peak_bytes"] <= 13.5 * 1024 < whole["peak_bytes"]
    ended = spmdc("partition", "-", "--memory-limit", "1", stdin=CROSSED)
    assert ended.status == 0
    assert "warning[W002]: dot_general takes" in ended.err


def test_einsums_are_windowed_when_asked(spmdc: Run) -> None:
    flag = ("--windowed-einsum", "always")
    assert "lax.while_loop" in spmdc("lower", "-", *flag, stdin=CROSSED).out
    assert "lax.while_loop" not in spmdc("lower", "-", stdin=CROSSED).out
    assert spmdc("run", "-", "--check", "--integers", *flag, stdin=CROSSED).status == 0


def test_a_machine_is_asked_for_by_name(spmdc: Run) -> None:
    usual, named = spmdc("partition", "-", stdin=CROSSED), spmdc("partition", "-", "--machine", "tpu-v3", stdin=CROSSED)
    assert usual.status == named.status == 0
    assert usual.out == named.out
    unknown = spmdc("partition", "-", "--machine", "abacus", stdin=CROSSED)
    assert unknown.status == 2
    assert "error[E603]: there is no machine 'abacus'" in unknown.err
    assert "tpu-v3" in unknown.err


def test_a_machine_has_a_shape_or_a_file(spmdc: Run, tmp_path: Path) -> None:
    shaped = spmdc("partition", "-", "--machine", "tpu-v4:2x2x1", stdin=CROSSED)
    assert shaped.status == 0
    unfit = spmdc("partition", "-", "--machine", "tpu-v4:3x3x3", stdin=CROSSED)
    assert unfit.status == 1
    assert "error[E604]: the mesh (d=4) does not lie on the network (x=3 x y=3 x z=3)" in unfit.err
    assert "the mesh has 4 devices and the network 27" in unfit.err
    own = tmp_path / "own.toml"
    own.write_text('name = "own"\n[device]\nflops = -1\n')
    wrong = spmdc("partition", "-", "--machine", str(own), stdin=CROSSED)
    assert wrong.status == 1
    assert f"--> {own}:3:1" in wrong.err


def test_devices_sizes_a_mesh_of_one_axis(spmdc: Run) -> None:
    text = b"mesh (d=8)\ndef main(a: f32[12@d]) -> (f32[12]) {\n  return a + a\n}\n"
    assert "f32[4] of f32[12@d]" in spmdc("partition", "-", "--devices", "3", stdin=text).out


def test_a_program_without_a_mesh_takes_one_from_the_command_line(spmdc: Run) -> None:
    text = b"def main(a: f32[12]) -> (f32[12]) {\n  return a + a\n}\n"
    assert spmdc("check", "-", stdin=text).out == "-: ok (1 op, no mesh)\n"
    assert "mesh ()" in spmdc("partition", "-", stdin=text).out
    assert "mesh (x=2)" in spmdc("partition", "-", "--mesh", "x=2", stdin=text).out
    assert "mesh (d=2)" in spmdc("partition", "-", "--devices", "2", stdin=text).out


def test_defines_override_consts(spmdc: Run) -> None:
    text = b"const N = 8, M = 2\nmesh (d=M)\ndef main(a: f32[N@d]) -> (f32[N]) {\n  return a + a\n}\n"
    assert "f32[4] of f32[12@d]" in spmdc("partition", "-", "-D", "N=12", "-D", "M=3", stdin=text).out
    ended = spmdc("partition", "-", "-D", "K=12", stdin=text)
    assert ended.status == 1
    assert "error[E104]" in ended.err


def test_a_mesh_of_a_million_devices_costs_nothing_to_partition_for(spmdc: Run) -> None:
    ended = spmdc("partition", "p.spmd", "--stats", "--mesh", "x=500000,y=2")
    assert ended.status == 0
    assert "a: f32[1, 32] of f32[16@x, 32]" in ended.out
    assert "500000" in spmdc("lower", "p.spmd", "--mesh", "x=500000,y=2").out


@pytest.mark.parametrize("mesh", ["x=1000000000000000003,y=2", "x=524289,y=2"])
def test_a_mesh_larger_than_any_is_refused_at_once(spmdc: Run, mesh: str) -> None:
    ended = spmdc("partition", "p.spmd", "--mesh", mesh)
    assert ended.status == 1
    assert "error[E304]" in ended.err
    assert "1,048,576" in ended.err


@pytest.mark.parametrize(
    ("verb", "code"),
    [
        (("run", "--backend", "jax"), "E502"),
        (("compare",), "E502"),
    ],
)
def test_where_each_device_counts_a_mesh_larger_than_any_machine_is_refused(
    spmdc: Run, verb: tuple[str, ...], code: str
) -> None:
    ended = spmdc(*verb, "p.spmd", "--mesh", "x=500000,y=2")
    assert ended.status == 1
    assert f"error[{code}]" in ended.err
    assert "smaller mesh" in ended.err


def test_a_gather_is_warned_of_and_does_not_fail(spmdc: Run) -> None:
    text = b"mesh (x=2)\ndef main(a: f32[8@x]) -> (r: f32[8]) {\n  return running(a)\n}\n" + (
        b"def running(a: f32[8]) -> (f32[8]) {\n  return sort(a, dim=0)\n}\n"
    )
    for verb in (("partition", "-"), ("run", "-"), ("lower", "-")):
        ended = spmdc(*verb, stdin=text)
        assert ended.status == 0
        assert "warning[W001]: sort gathers a" in ended.err
        assert "--> <stdin>:6:10" in ended.err
    (warning,) = spmdc("partition", "-", "--json", stdin=text).json["diagnostics"]
    assert (warning["code"], warning["severity"]) == ("W001", "warning")
