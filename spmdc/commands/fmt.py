"""`spmdc fmt`: formats programs in the standard layout."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ir.diagnostics import Diagnostic, InternalError, Source, SpmdcError
from spmdc.commands.shared.failures import print_diagnostics
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.programs import read_stdin
from spmdc.commands.shared.terminal import print_json
from spmdc.files import decode, read_bytes, write_text
from spmdc.frontends.spmd import format_source, print_program
from spmdc.frontends.spmd.syntax.lexer import tokenize
from spmdc.reading import language_of, read


@dataclass(frozen=True)
class _Layout:
    """A file's text, and its text in the standard layout."""

    name: str
    before: str
    after: str
    is_changed: bool
    is_shown: bool = False
    """Whether the result goes to standard output: for standard input, and for a file in another language."""

    def diff(self) -> str:
        """The changes, as a unified diff."""
        lines = difflib.unified_diff(
            self.before.splitlines(True), self.after.splitlines(True), self.name, f"{self.name} formatted"
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def run(options: Options, *, files: Sequence[str], check: bool, diff: bool) -> int:
    """Rewrites each file that is not in the standard layout; a file with errors stays as it is.

    With `check` or `diff` nothing is written, and the exit status is 1 if something would change.
    """
    problems: list[Diagnostic] = []
    reports: list[dict[str, object]] = []
    changed = 0
    for file in files:
        try:
            layout = _layout(file)
            if layout.is_changed and not layout.is_shown and not (check or diff):
                write_text(file, layout.after)
        except SpmdcError as found:
            problems.extend(found.diagnostics)
            reports.append({"file": file, "ok": False})
            continue
        changed += layout.is_changed
        reports.append({"file": file, "ok": True, "changed": layout.is_changed})
        if options.json and (diff or layout.is_shown):
            reports[-1]["diff" if diff else "text"] = layout.diff() if diff else layout.after
        elif not options.json:
            _show(layout, check, diff)
    if options.json:
        print_json(options.verb, {"files": reports}, problems)
    else:
        print_diagnostics(problems)
    return 1 if problems or (changed and (check or diff)) else 0


def _layout(file: str) -> _Layout:
    data = read_stdin() if file == "-" else read_bytes(file)
    name = "<stdin>" if file == "-" else file
    if language_of(data, name) != "spmd":
        return _Layout(name, "", print_program(read(data, name)), is_changed=False, is_shown=True)
    before = decode(data, name)
    after = format_source(before, name)
    if _content(before) != _content(after):
        raise InternalError(f"formatting {name} would change more than its layout")
    return _Layout(name, before, after, after.encode() != data, is_shown=file == "-")


def _show(layout: _Layout, check: bool, diff: bool) -> None:
    if layout.is_shown and not layout.before and (check or diff):
        return
    if diff:
        sys.stdout.write(layout.diff())
    elif check:
        if layout.is_changed:
            print(f"would reformat {layout.name}")
    elif layout.is_shown:
        sys.stdout.write(layout.after)
    elif layout.is_changed:
        print(f"reformatted {layout.name}")


def _content(text: str) -> tuple[list[str], list[str]]:
    """The contents of a text apart from its layout."""
    cut = tokenize(Source("", text))
    return [t.text for t in cut.tokens], [c.text for c in cut.comments]
