"""Compiling without the cyclic garbage collector.

A program is a large graph without cycles, which is needed until the compiler is done. As it grows, the collector
traverses it again and again, which takes as long as compiling itself, and frees nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Disables the collector, as a context or decorator. Unreachable objects are found when it runs again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
