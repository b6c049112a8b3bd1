"""Gives each test half a megabyte of Python's call stack in one piece.

Python allocates its stack of frames in chunks of 16 KB, and frees a chunk when the last frame in it returns. A loop
that calls functions just where a chunk ends has memory mapped and unmapped for every call, and takes several times as
long. What hypothesis calls is so deep in the stack that some loops are always there: planning one drawn program took 11
seconds instead of 5. The frame of `_with_room` does not fit into less than a megabyte, and leaves half of it to the
frames above it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

_MORE_THAN_HALF_A_MEGABYTE = 2**16 + 2**10
"""In pointers."""


def _with_room(call: Callable[[], None]) -> None:
    call()


_with_room.__code__ = _with_room.__code__.replace(co_stacksize=_MORE_THAN_HALF_A_MEGABYTE)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Runs the test above a frame that has room."""
    item.runtest = functools.partial(_with_room, item.runtest)  # type: ignore[method-assign]
