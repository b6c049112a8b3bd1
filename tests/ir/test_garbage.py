"""The collector of cyclic garbage rests while a program is compiled, and works afterwards."""

from __future__ import annotations

import gc

import pytest

from ir.garbage import uncollected


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
