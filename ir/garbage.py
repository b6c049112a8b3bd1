"""Compiling without the collector of cyclic garbage.

A program is a large graph without cycles, all of which lives until the compiler is done. The collector walks it again
and again as it grows, which takes as long as the compiling itself, and finds nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Rests the collector, also as a decorator. What is unreachable is found when it runs again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
