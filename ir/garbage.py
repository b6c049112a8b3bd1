"""Compiling without the collector of cyclic garbage.

A program is a large graph without cycles, all of which lives until the compiler is done, and mostly longer. The
collector walks it again and again as it grows, which takes as long as the compiling itself, and finds nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Rests the collector, also as a decorator. What was made counts as old behind it, or the collector would walk all
    of it at once, and soon again: what is unreachable is found when it next looks at everything."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        _age()
        gc.enable()


def _age() -> None:
    """Counts all objects as old. Where the user has frozen some, there is no way to."""
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()
