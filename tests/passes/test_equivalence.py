"""The property that everything rests on: a partitioned program computes what the unpartitioned one computes."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from ir.program import Program
from spmdc.testing import check_equivalence, programs


@settings(max_examples=400)
@given(programs(), st.integers(0, 20))
def test_a_partitioned_program_equals_the_unpartitioned_one_bit_for_bit(program: Program, seed: int) -> None:
    check_equivalence(program, seed=seed)


@settings(max_examples=25)
@given(programs(max_ops=12, max_devices=8))
def test_a_partitioned_program_on_jax_devices_equals_the_oracle(program: Program) -> None:
    check_equivalence(program, jax=True)


@settings(max_examples=60)
@given(programs(max_ops=8), st.integers(0, 20))
def test_functions_that_are_not_written_where_they_are_called_compute_the_same(program: Program, seed: int) -> None:
    with patch("passes.partition.partitioner.inlined_functions", return_value=frozenset()):
        check_equivalence(program, seed=seed)
