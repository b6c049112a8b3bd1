"""The device order that a program is partitioned in."""

from __future__ import annotations

import numpy as np
import pytest

import spmdc
from ir.program import Program

_HLO = """HloModule m, num_partitions=4
ENTRY e {{
  lhs = f32[8,16] parameter(0), sharding={{devices=[1,4]1,3,0,2}}
  rhs = f32[16,8] parameter(1), sharding={{devices=[4,1]1,3,0,2}}
  ROOT dot = f32[8,8] dot(lhs, rhs), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, sharding={{{result}}}
}}"""


def equal_to_the_oracle(program: Program) -> spmdc.PartitionedProgram:
    inputs = [np.arange(v.type.size, dtype="f4").reshape(v.shape) % 7 for v in program.main.params]
    partitioned = spmdc.partition(program)
    for expected, found in zip(spmdc.evaluate(program, *inputs), partitioned.simulate(*inputs), strict=True):
        np.testing.assert_array_equal(found, expected)
    return partitioned


def test_an_order_that_operands_share_is_kept() -> None:
    """The all_reduce of 256 bytes among four devices: each receives 3/4 of it twice. No operand is sent."""
    program = spmdc.from_hlo(_HLO.format(result="replicated"))
    assert program.mesh.devices == (1, 3, 0, 2)
    assert len(program.meshes) == 1
    partitioned = equal_to_the_oracle(program)
    assert [c.kind for c in partitioned.collectives()] == ["all_reduce"]
    assert partitioned.received_bytes() == 2 * 256 * 3 // 4


def test_what_lies_in_another_order_than_most_is_moved() -> None:
    program = spmdc.from_hlo(_HLO.format(result="devices=[4,1]0,1,2,3"))
    kinds = [c.kind for c in equal_to_the_oracle(program).collectives()]
    assert kinds == ["reduce_scatter", "collective_permute"]


@pytest.mark.parametrize("order", ["1,3,0,2", "3,2,1,0"])
def test_a_program_in_an_order_of_its_own_prints_and_reads_back(order: str) -> None:
    program = spmdc.from_hlo(_HLO.format(result="devices=[4,1]0,1,2,3").replace("1,3,0,2", order))
    text = spmdc.propagate(program).text()
    assert spmdc.propagate(spmdc.parse(text)).text() == text
