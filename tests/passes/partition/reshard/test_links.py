"""Where axes have different links, gathers begin and scatters end with the slow ones: little is sent along them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import spmdc
from ir.program import Program
from passes.cost.machine import TPU_V3
from passes.cost.network import Link
from spmdc.testing import check_equivalence

HOSTS = replace(TPU_V3, name="hosts", links=(("host", Link(bandwidth=5e9, latency=5e-6)),))
"""Within a host devices are joined as those of a TPU v3 are, and hosts by a network a fourteenth as fast."""


def gathered(n: int, axes: str) -> Program:
    return spmdc.parse(f"""
        mesh (host=2, chip=4)
        def main(a: f32[{n}@{axes}, 256]) -> (out: f32[{n}, 256]) {{
          return replicate(a)
        }}""")


def scattered(n: int, axes: str) -> Program:
    return spmdc.parse(f"""
        mesh (host=2, chip=4)
        def main(a: f32[{n}, 4096@{axes}], b: f32[4096@{axes}, 256]) -> (out: f32[{n}@{axes}, 256]) {{
          return dot(a, b)
        }}""")


def sent(program: Program, machine: spmdc.Machine) -> list[tuple[str, str, int]]:
    return [(c.kind, c.axes, c.bytes) for c in spmdc.partition(program, machine=machine).collectives()]


@pytest.mark.parametrize("axes", ["(host, chip)", "(chip, host)"])
def test_a_gather_begins_with_the_slow_axis(axes: str) -> None:
    """A shard is 8 rows of 1 KiB: one comes from the other host, and then three pairs from the other devices."""
    program = gathered(64, axes)
    assert sent(program, HOSTS) == [("all_gather", "host", 2**13), ("all_gather", "chip", 3 * 2**14)]
    assert sent(program, TPU_V3) == [("all_gather", axes[1:-1], 7 * 2**13)]


@pytest.mark.parametrize("axes", ["(host, chip)", "(chip, host)"])
def test_a_scatter_ends_with_the_slow_axis(axes: str) -> None:
    """Of sums of 64 KiB, three quarters come from devices of the host, and half of the rest from the other host."""
    program = scattered(64, axes)
    assert sent(program, HOSTS) == [("reduce_scatter", "chip", 3 * 2**14), ("reduce_scatter", "host", 2**13)]
    assert sent(program, TPU_V3) == [("reduce_scatter", axes[1:-1], 7 * 2**13)]


@pytest.mark.parametrize("n", [64, 60])
@pytest.mark.parametrize("axes", ["(host, chip)", "(chip, host)"])
def test_both_compute_the_same(n: int, axes: str) -> None:
    for program in (gathered(n, axes), scattered(n, axes)):
        check_equivalence(program, machine=HOSTS)
    check_equivalence(scattered(n, axes), machine=HOSTS, jax=True)
