"""The collector of cyclic garbage rests while a program is compiled, and works afterwards."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

import spmdc
from ir.garbage import uncollected

_PROGRAMS = Path(__file__).parents[1] / "programs"


class _Knot:
    """Garbage for the collector alone to find, once nobody has it."""

    def __init__(self) -> None:
        self.knot = self


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


def test_what_was_made_inside_is_collected_with_what_is_old() -> None:
    with uncollected():
        knot = weakref.ref(_Knot())
    gc.collect(1)
    assert knot() is not None
    gc.collect()
    assert knot() is None


def test_what_the_user_has_frozen_stays_so() -> None:
    gc.freeze()
    try:
        with uncollected():
            knot = weakref.ref(_Knot())
        assert gc.get_freeze_count() > 0
        gc.collect(1)
        assert knot() is None
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("name", ["loop_adds_partial_results_nested", "pad_multiple_hops_right_shift"])
def test_partitioning_leaves_nothing_to_the_collector(name: str) -> None:
    program = spmdc.load(_PROGRAMS / f"{name}.spmd")
    spmdc.partition(program)
    gc.collect()
    with uncollected():
        spmdc.partition(program)
        assert gc.collect() == 0
