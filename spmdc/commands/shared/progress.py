"""Progress of long steps, on stderr, if it is a terminal."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_PATIENCE = 1.0
"""The seconds before anything is shown."""


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Shows the step that runs inside, once it has taken a second, and its time. With a `total`, calls of the yielded
    function count what is done, may change the text and a line `below` it, and the remaining time is estimated. The
    display is removed at the end."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda what="", below=None: None
        return
    shown = _Shown(what, total)
    timer = threading.Timer(_PATIENCE, shown.begin)
    timer.daemon = True
    timer.start()
    try:
        yield shown.advance
    finally:
        timer.cancel()
        shown.end()


class _Shown:
    """The line that shows progress. It begins in another thread, possibly while the step ends."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what, self._total = what, total
        self._below = ""
        self._done = 0
        self._bar: Any = None
        self._ended = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._bar = _bar(self._total is not None)
            self._bar.below = self._below
            self._task = self._bar.add_task(self._what, total=self._total, completed=self._done)
            self._bar.start()

    def advance(self, what: str = "", below: str | None = None) -> None:
        with self._lock:
            self._done += 1
            self._what, self._below = what or self._what, self._below if below is None else below
            if self._bar is not None:
                self._bar.below = self._below
                self._bar.update(self._task, completed=self._done, description=self._what)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            if self._bar is not None:
                self._bar.stop()


def _bar(is_counted: bool) -> Any:
    # Imported late, because most commands end before it is needed.
    from rich.console import Console
    from rich.progress import (  # fmt: skip
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Visible(Console):
        """The cursor stays visible, because a command that is killed could not restore it."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    class WithLineBelow(Progress):
        """A line of any text, as far as the terminal is wide, is below the bar."""

        below = ""

        def get_renderables(self) -> Iterator[Any]:
            yield from super().get_renderables()
            if self.below:
                yield Text(self.below, no_wrap=True, overflow="ellipsis")

    words = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
    counted = [BarColumn(), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn()] if is_counted else []
    return WithLineBelow(*words, *counted, console=Visible(stderr=True), transient=True, redirect_stdout=False,
                         redirect_stderr=False)  # fmt: skip
