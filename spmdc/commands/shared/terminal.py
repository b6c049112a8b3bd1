"""Terminal output and its colours. Imports nothing heavy."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from ir.diagnostics import Diagnostic
from ir.records import strict_json
from spmdc.commands.shared.progress import progress
from spmdc.schemas import schema_id

_INTERRUPTED = 130


def use_color(stream: TextIO) -> bool:
    """Whether to colour text on the stream: only on a terminal, and not if NO_COLOR is set (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width_of(stream: TextIO) -> int | None:
    """The width of the stream's terminal in characters; None if it is no terminal, so that lines are not limited."""
    return shutil.get_terminal_size((100, 24)).columns if stream.isatty() else None


def write_error(text: str) -> None:
    """Writes a line to stderr. If that fails, the exit status still says how the command ended."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        drop(sys.stderr)


@contextmanager
def interruptible(last_words: Callable[[], str] | None = None) -> Iterator[None]:
    """Lets Ctrl-C end the process at once, with `last_words` on stderr. Python handles it only when native code
    returns, if ever; the words are said by a thread that the system's signal wakes."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = -1
    if last_words is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    else:
        waits, wakes = os.pipe()
        os.set_blocking(wakes, False)
        threading.Thread(target=_end_when_woken, args=(waits, last_words), daemon=True).start()
        signal.signal(signal.SIGINT, lambda number, frame: None)
        before = signal.set_wakeup_fd(wakes)
    try:
        yield
    finally:
        if last_words is not None:
            signal.set_wakeup_fd(before)
            os.close(wakes)
        signal.signal(signal.SIGINT, handler)


def _end_when_woken(waits: int, last_words: Callable[[], str]) -> None:
    """Ends the process after its last words if it is interrupted, and not if nobody can wake this thread any more."""
    while woken := os.read(waits, 1):
        if woken[0] == signal.SIGINT:
            write_error(f"\n{last_words()}")
            os._exit(_INTERRUPTED)
    os.close(waits)


def drop(stream: TextIO) -> None:
    """Redirects a stream that cannot be written to, so that the interpreter does not fail on it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_json(name: str, figures: Mapping[str, object], diagnostics: Sequence[Diagnostic] = ()) -> None:
    """Writes figures, and errors and warnings, to stdout as JSON with the schema of that name. Numbers that are not
    finite become strings."""
    whole = {"schema": schema_id(name), **figures, "diagnostics": [d.to_json() for d in diagnostics]}
    json.dump(strict_json(whole), sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    print()


@dataclass
class Stopwatch:
    """The seconds of each step, in order."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def step(self, name: str, total: int | None = None) -> Iterator[Callable[..., None]]:
        """Times what runs inside, and shows its progress, as `progress` does; steps of the same name add up."""
        start = time.perf_counter()
        try:
            with progress(name, total) as advance:
                yield advance
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def add(self, timings: Mapping[str, float]) -> None:
        """Adds timings that were measured elsewhere."""
        self.seconds.update(timings)

    def print(self) -> None:
        """Writes the times to stderr."""
        for name, seconds in self.seconds.items():
            write_error(f"{name:<15} {seconds:8.3f} s")
