"""`spmdc fmt`: programs in the standard layout."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from ir.diagnostics import Diagnostic, InternalError, Source, SpmdcError, error
from ir.text import format_source
from ir.text.tokens import tokenize
from spmdc.api import decode
from spmdc.commands.arrays import write_whole
from spmdc.commands.failures import print_diagnostics
from spmdc.commands.options import Options
from spmdc.commands.programs import read_stdin


def run(options: Options, *, files: Sequence[str], check: bool, diff: bool) -> int:
    """Rewrites each file that is not in the standard layout; a file with errors stays as it is.

    With `check` or `diff` nothing is written, and the exit status is 1 if something would change.
    """
    problems: list[Diagnostic] = []
    changed = 0
    for file in files:
        try:
            changed += _format(file, check, diff)
        except SpmdcError as found:
            problems.extend(found.diagnostics)
    print_diagnostics(problems)
    return 1 if problems or (changed and (check or diff)) else 0


def _format(file: str, check: bool, diff: bool) -> bool:
    """Whether the file changes."""
    data = read_stdin() if file == "-" else _read(file)
    name = "<stdin>" if file == "-" else file
    before = decode(data, name)
    after = format_source(before, name)
    if _content(before) != _content(after):
        raise InternalError(f"formatting {name} would change more than its layout")
    is_changed = after.encode() != data
    if diff:
        lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, f"{name} formatted")
        sys.stdout.writelines(line if line.endswith("\n") else f"{line}\n" for line in lines)
    elif check:
        if is_changed:
            print(f"would reformat {name}")
    elif file == "-":
        sys.stdout.write(after)
    elif is_changed:
        write_whole(file, lambda stream: stream.write(after.encode()))
        print(f"reformatted {file}")
    return is_changed


def _content(text: str) -> tuple[list[str], list[str]]:
    """What a text holds besides its layout."""
    cut = tokenize(Source("", text))
    return [t.text for t in cut.tokens], [c.text for c in cut.comments]


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as problem:
        raise error("E005", f"cannot read {file}: {problem.strerror or problem}") from None
