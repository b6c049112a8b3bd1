"""The collector of cyclic garbage rests while a program is compiled, and works afterwards."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import spmdc
from ir.garbage import uncollected

_PROGRAMS = Path(__file__).parents[1] / "programs"


def test_the_collector_rests_inside_and_works_again_behind_also_after_an_error() -> None:
    @uncollected()
    def fail() -> None:
        raise ValueError(f"enabled: {gc.isenabled()}")

    with pytest.raises(ValueError, match="enabled: False"):
        fail()
    assert gc.isenabled()


def test_a_collector_that_the_user_stopped_stays_stopped() -> None:
    gc.disable()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["loop_adds_partial_results_nested", "pad_multiple_hops_right_shift"])
def test_partitioning_leaves_nothing_to_the_collector(name: str) -> None:
    program = spmdc.load(_PROGRAMS / f"{name}.spmd")
    spmdc.partition(program)
    gc.collect()
    with uncollected():
        spmdc.partition(program)
        assert gc.collect() == 0
