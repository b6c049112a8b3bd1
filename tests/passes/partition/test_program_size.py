"""Where shards and boxes differ much in size, too, the program is as large for a thousand devices as for some."""

from __future__ import annotations

import pytest

import spmdc
from ir.program import Program, all_ops
from spmdc.api import partition
from spmdc.testing import check_equivalence

MOVES = {
    "a few rows become one dim": ("f32[7@x, 4096]", "f32[28672@x]", "reshape(a, [28672])"),
    "a dim becomes a few rows": ("f32[28672@x]", "f32[7@x, 4096]", "reshape(a, [7, 4096])"),
    "the beginning of a dim is divided": ("f32[65536@x]", "f32[1000@x]", "a[300:1300]"),
    "the beginning of a dim is divided, the other way around": (
        "f32[65536@x]",
        "f32[1000@x]",
        "reverse(a[300:1300], [0])",
    ),
    "every third element of the beginning": ("f32[65536@x]", "f32[1000@x]", "a[301:3301:3]"),
    "every fourth element of the beginning": ("f32[65536@x]", "f32[1000@x]", "a[301:4301:4]"),
    "the beginning with holes": (
        "f32[65536@x]",
        "f32[1000@x]",
        "pad(a, 0.5, low=[-3001], high=[-192605], interior=[2])",
    ),
    "a dim with wide holes": ("f32[1000@x]", "f32[65536@x]", "pad(a, 0.5, low=[101], high=[4495], interior=[60])"),
    "a dim becomes the end of a larger one": ("f32[999@x]", "f32[65536@x]", "concatenate([zeros([64537]), a], dim=0)"),
    "windows over many shards": (
        "f32[1024@x, 2]",
        "f32[1024@x, 2]",
        "reduce_window(a, window=[512, 1], padding_low=[256, 0], padding_high=[255, 0], kind=max)",
    ),
}


def program(devices: int, source: str, target: str, value: str) -> Program:
    return spmdc.parse(f"mesh (x={devices})\ndef main(a: {source}) -> (r: {target}) {{ return {value} }}")


@pytest.mark.parametrize("move", MOVES)
def test_a_program_does_not_grow_with_the_devices(move: str) -> None:
    sizes = [sum(1 for _ in all_ops(partition(program(n, *MOVES[move])).program)) for n in (256, 1000, 1024, 2048)]
    assert max(sizes) <= 600


@pytest.mark.parametrize("devices", [150, 256])
@pytest.mark.parametrize("move", MOVES)
def test_elements_that_go_in_several_hops_arrive(move: str, devices: int) -> None:
    check_equivalence(program(devices, *MOVES[move]))


def test_on_the_way_a_device_receives_a_fraction_of_the_larger_shard_more() -> None:
    rows = partition(program(1024, *MOVES["a dim becomes a few rows"])).received_bytes()
    assert rows <= 4096 * 4 * 1.25


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize(("mesh", "bytes"), [("x=8", 56), ("x=24", 40 + 24), ("x=4, y=32", 56 + 56 + 8)])
def test_candidates_are_compared_a_few_devices_at_a_time(kind: str, mesh: str, bytes: int) -> None:
    axes = "(x, y)" if "y" in mesh else "x"
    program = spmdc.parse(f"mesh ({mesh})\ndef main(a: f32[1000@{axes}]) -> (i: s32[]) {{ return {kind}(a, dim=0) }}")
    check_equivalence(program)
    check_equivalence(program, anything=True)
    assert partition(program).received_bytes() == bytes


@pytest.mark.parametrize("op", ["cumsum(a, 0)", "cumsum(a, 0, reverse=true)", "cummax(a, 0)", "cumprod(a, 0)"])
@pytest.mark.parametrize(("mesh", "rows"), [("x=8", 7), ("x=24", 5 + 3), ("x=4, y=32", 7 + 7 + 1)])
def test_totals_of_scans_travel_a_few_devices_at_a_time(op: str, mesh: str, rows: int) -> None:
    axes = "(x, y)" if "y" in mesh else "x"
    types = f"f32[1000@{axes}, 3]"
    program = spmdc.parse(f"mesh ({mesh})\ndef main(a: {types}) -> (r: {types}) {{ return {op} }}")
    if "prod" not in op:
        check_equivalence(program)
    assert partition(program).received_bytes() == rows * 3 * 4


@pytest.mark.parametrize(("mesh", "devices"), [("x=8", 7), ("x=24", 5 + 3), ("x=4, y=32", 7 + 7 + 1)])
def test_the_largest_are_found_among_those_of_a_few_devices_at_a_time(mesh: str, devices: int) -> None:
    axes = "(x, y)" if "y" in mesh else "x"
    results = "(v: f32[3, 2], i: s32[3, 2])"
    program = spmdc.parse(f"mesh ({mesh})\ndef main(a: f32[3, 1000@{axes}]) -> {results} {{ return top_k(a, 2) }}")
    check_equivalence(program)
    check_equivalence(program, anything=True)
    assert partition(program).received_bytes() == devices * 3 * 2 * (4 + 4)


def test_more_are_asked_for_than_a_device_has() -> None:
    text = "def main(a: s32[100@x]) -> (v: s32[90], i: s32[90]) { return top_k(a, 90) }"
    check_equivalence(spmdc.parse(f"mesh (x=24)\n{text}"))


def test_the_collectives_of_functions_that_are_each_called_twice_are_listed_once() -> None:
    """There are as many calls as leaves of a tree; the table has a row for each op."""
    depth = 24
    doubled = "".join(
        f"def f{i}(a: f32[8, 8]) -> (f32[8, 8]) {{\n  b = f{i - 1}(a)\n  return f{i - 1}(b)\n}}\n"
        for i in range(1, depth)
    )
    text = (
        "mesh (x=4)\ndef f0(a: f32[8, 8]) -> (f32[8, 8]) { return tanh(matmul(a, a)) }\n"
        f"{doubled}def main(a: f32[8@x, 8]) -> (r: f32[8, 8]) {{ return f{depth - 1}(a) }}"
    )
    partitioned = spmdc.partition(spmdc.parse(text))
    found = partitioned.collectives()
    assert len(found) < 5 * depth
    assert max(c.count or 0 for c in found) > 2 ** (depth - 5)
    assert partitioned.received_bytes() == sum(c.bytes * (c.count or 0) for c in found)
    assert partitioned.cost().seconds > 0
