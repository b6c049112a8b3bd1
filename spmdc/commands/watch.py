"""`spmdc watch`: prints what a program communicates, and its errors, whenever its file is saved."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

import spmdc
from ir.diagnostics import Diagnostic, SpmdcError, error
from ir.program import all_ops
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import finish
from spmdc.commands.shared.programs import choices_of, load_program
from spmdc.commands.shared.terminal import Stopwatch
from spmdc.files import read_bytes
from spmdc.reports.collectives import Collective

_PAUSE = 0.2
"""Seconds between two checks of the file."""


@dataclass(frozen=True)
class State:
    """The result for one version of a file. Without collectives, it has errors."""

    diagnostics: tuple[Diagnostic, ...] = ()
    collectives: Counter[str] | None = None
    received: int = 0
    figures: dict[str, object] = field(default_factory=dict[str, object])
    included: frozenset[str] = frozenset()


def run(options: Options, *, file: str) -> int:
    """Prints the result for a file, and then at each save what has changed, until it is interrupted. Raises SpmdcError
    (E005) if there is no such file at the start."""
    if file == "-":
        raise error("E601", "only a file can be watched", help="spmdc watch layer.spmd")
    read_bytes(file)
    known, files = State(), {file}
    for _ in _saves(files):
        watch = Stopwatch()
        state = _state(file, options, watch)
        text = f"{time.strftime('%H:%M:%S')}  {changes(known, state)}"
        finish(options, watch, text, state.figures, state.diagnostics)
        # Piped output is buffered, and it is not known when the next one comes.
        print(end="", flush=True)
        known = state if state.collectives is not None else known
        files |= state.included
    return 0


def _saves(files: Set[str]) -> Iterator[None]:
    """Yields once at the start, and whenever one of the files, to which more may be added, has changed. Editors that
    replace a file remove it for a moment."""
    known = {file: _stamp(file) for file in files}
    while True:
        began = time.time_ns()
        yield
        changed = False
        while not changed:
            time.sleep(_PAUSE)
            for file in files:
                now = _stamp(file)
                if now is not None and now != known.get(file):
                    changed |= file in known or now[0] > began
                    known[file] = now


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _state(file: str, options: Options, watch: Stopwatch) -> State:
    try:
        program = load_program(file, options, watch)
        partitioned = spmdc.partition(program, **choices_of(options))
    except SpmdcError as problem:
        return State(problem.diagnostics, figures={"file": file, "ok": False})
    watch.add(partitioned.timings)
    collectives, received = partitioned.collectives(), partitioned.received_bytes()
    figures = {"file": file, "ok": True, "collectives": [c.to_json() for c in collectives], "received_bytes": received}
    included = frozenset(op.span.source.name for op in all_ops(program) if op.span is not None)
    return State(partitioned.warnings, Counter(map(_text, collectives)), received, figures, included)


def _text(c: Collective) -> str:
    """A collective without its line, which changes with any edit above it."""
    often = {1: "", None: " in each turn"}.get(c.count, f" {c.count} times")
    return f"{c.kind} over {c.axes}: {c.bytes:,} bytes{often}  {c.cause}"


def changes(before: State, after: State) -> str:
    """The changes between two versions: new collectives after `+`, removed ones after `-`."""
    if after.collectives is None:
        count = len(after.diagnostics)
        return f"{count} {'error' if count == 1 else 'errors'}"
    if before.collectives is None:
        return "\n".join([_sum(after), *_lines("  ", after.collectives)])
    gone, new = before.collectives - after.collectives, after.collectives - before.collectives
    was = f", was {before.received:,}" if before.received != after.received else ""
    if not gone and not new:
        return f"{_sum(after)}{was}, nothing else is sent"
    return "\n".join([f"{_sum(after)}{was}", *_lines("- ", gone), *_lines("+ ", new)])


def _sum(state: State) -> str:
    assert state.collectives is not None
    count = state.collectives.total()
    return f"ok: {count} {'collective' if count == 1 else 'collectives'}, {state.received:,} bytes received"


def _lines(mark: str, collectives: Counter[str]) -> Iterator[str]:
    for text, count in collectives.items():
        yield f"{mark}{f'{count} of ' if count > 1 else ''}{text}"
