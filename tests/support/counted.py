"""Measures work by the number of Python bytecode instructions, which is the same in each run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any


def instructions(work: Callable[[], object]) -> int:
    """The number of Python bytecode instructions that the call executes; a call of a C function counts as one."""
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
    """The growth of the work on prepared inputs of two sizes, relative to the sizes: 1.0 if it is linear, and their
    ratio if it is quadratic. Each is run once before it is counted, because the first run fills caches, and Python 3.13
    does not report all instructions of code that it traces for the first time."""
    _, small, large = (instructions(work(size)) for size in (sizes[0], *sizes))
    return large / small * sizes[0] / sizes[1]
