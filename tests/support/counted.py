"""How much work something is: the instructions that Python executes for it, which are the same in each run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any


def instructions(work: Callable[[], object]) -> int:
    """How many of Python's instructions the call takes; what is written in C counts as one each time that it is
    called."""
    count = 0

    def step(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def growth(work: Callable[[int], Callable[[], object]], sizes: Sequence[int]) -> float:
    """By how much the work on something that is prepared of the larger size is more, relative to the sizes: 1.0 of what
    is linear, and as much as they differ by of what is quadratic. What the first run alone does counts for neither: it
    fills caches, and Python 3.13 does not report all instructions of code that it traces for the first time."""
    _, small, large = (instructions(work(size)) for size in (sizes[0], *sizes))
    return large / small * sizes[0] / sizes[1]
