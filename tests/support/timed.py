"""Times of functions beside one another."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import jax

finish: Any = jax.block_until_ready


def least_times(rounds: int, *calls: Callable[[], Any]) -> list[float]:
    """Seconds from a call to its results, the least of each in so many rounds, in which they take turns."""
    best = [math.inf] * len(calls)
    for call in calls:
        finish(call())
    for _ in range(rounds):
        for which, call in enumerate(calls):
            start = time.perf_counter()
            finish(call())
            best[which] = min(best[which], time.perf_counter() - start)
    return best
