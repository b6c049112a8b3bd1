"""Costs are those of the machine that is handed in: what a device can do, and what joins devices along each axis."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

import spmdc
from ir.mesh import Mesh
from passes.cost.machine import TPU_V3
from passes.cost.model import arithmetic_seconds, communication_seconds, latency_seconds, least_communication_seconds
from passes.cost.network import Link
from passes.partition.exchange.box_exchange import Box, exchange_seconds
from spmdc.testing import check_equivalence

SLOW_Y = replace(TPU_V3, name="slow y", links=(("y", Link(bandwidth=7e9, latency=1e-6)),), turn=1e-3)
"""Along y links carry a tenth as much, and a message takes ten times as long; and loops are slow to begin a turn."""
X, Y = Mesh((("x", 8), ("y", 4))).whole_axes()

TWO_WAYS = spmdc.parse("""
mesh (x=8, y=4)

def main(a: f32[1024@x, 64]) -> (by_column: f32[1024@y, 64], whole: f32[1024, 64]) {
  by_y: f32[1024@y, 64] = a
  return by_y, replicate(by_y)
}""")
CLASHING = spmdc.parse("""
mesh (d=4)

def main(a: f32[4096@d, 4096], b: f32[4096, 4096@d]) -> (out: f32[4096@d, 4096]) {
  return einsum("ij,jk->ik", a, b)
}""")


def sent(program: spmdc.PartitionedProgram) -> list[tuple[str, str, int]]:
    return [(c.kind, c.axes, c.bytes) for c in program.collectives()]


def test_two_machines_in_one_process_get_their_own_plans() -> None:
    """A shard over x is 32 KiB, and one over y 64 KiB.

    With equal links the halves of y's shards change places and are gathered, 64 KiB in all, and the whole comes from
    y's shards, of which 3 are lacking and not 7. Where y is slow nothing runs along it: parts of columns are exchanged
    along x, each device keeps the rows of its place in y and gathers them along x, and the whole comes from x's shards.
    The product's loop hides three parts of 16 MiB behind arithmetic, if a device computes while parts travel; a v3
    does not, and 4 turns of 1 ms each take longer anywhere.
    """
    part = 4096 * 1024 * 4
    for _ in range(2):
        usual, slow = (spmdc.partition(TWO_WAYS, machine=machine) for machine in (TPU_V3, SLOW_Y))
        assert sent(usual) == [
            ("collective_permute", "y, x", 2**15),
            ("all_gather", "x:(1)2", 2**15),
            ("all_gather", "y", 3 * 2**16),
        ]
        assert sent(slow) == [
            ("all_to_all", "x", 2**15 * 7 // 8),
            ("all_gather", "x", 7 * 2**16 // 8),
            ("all_gather", "x", 7 * 2**15),
        ]
        assert sent(spmdc.partition(CLASHING, machine=replace(TPU_V3, asynchronous=True))) == [
            ("collective_permute", "d", part)
        ]
        assert sent(spmdc.partition(CLASHING, machine=TPU_V3)) == [("all_gather", "d", 3 * part)]
        assert sent(spmdc.partition(CLASHING, machine=SLOW_Y)) == [("all_gather", "d", 3 * part)]


def test_a_plan_for_another_machine_computes_the_same() -> None:
    check_equivalence(TWO_WAYS, machine=SLOW_Y)


def test_an_exchange_takes_what_the_links_of_its_axis_take() -> None:
    """Each device gets the first of the 4 rows of the device behind it, of 1000 bytes."""
    for machine, axis in itertools.product((TPU_V3, SLOW_Y, TPU_V3), (X, Y, X)):
        link = machine.link(axis)
        seconds = exchange_seconds(machine, 4 * axis.size, (axis,), Box(0, 4, 5), 1000, 4)
        assert seconds == link.latency + 1000 / link.bandwidth


def test_bytes_pass_at_the_speed_of_the_slowest_link_and_messages_add_up() -> None:
    assert communication_seconds(SLOW_Y, "all_gather", (X,), 1000) == 3 * 1e-7 + 7000 / 70e9
    assert communication_seconds(SLOW_Y, "all_gather", (X, Y), 1000) == pytest.approx(3e-7 + 2e-6 + 31_000 / 7e9)
    assert latency_seconds(SLOW_Y, "collective_permute", (X, Y)) == pytest.approx(1e-7 + 1e-6)
    assert least_communication_seconds(SLOW_Y, (X, Y), 32, 1000) == pytest.approx(5e-7 + 1000 / 70e9)


def test_equal_links_cost_the_same_whether_named_or_usual() -> None:
    named = replace(TPU_V3, links=tuple((name, TPU_V3.usual_link) for name in "xy"))
    for kind in ("all_gather", "all_reduce", "all_to_all", "collective_permute", "reduce_scatter"):
        assert communication_seconds(named, kind, (X, Y), 12345) == communication_seconds(TPU_V3, kind, (X, Y), 12345)


def test_element_types_may_have_a_rate_of_their_own() -> None:
    text = "def main(a: {0}[64, 64]) -> (out: {0}[64, 64]) {{ return dot(a, a) }}"
    machine = replace(TPU_V3, rates=(("bf16", 2 * TPU_V3.flops),), memory_bandwidth=math.inf)
    f32, bf16 = (
        arithmetic_seconds(machine, spmdc.parse(text.format(dtype)).main.body.ops[0]) for dtype in ("f32", "bf16")
    )
    assert f32 == 2 * 64**3 / TPU_V3.flops == 2 * bf16
