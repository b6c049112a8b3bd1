"""What became of a name in a text that no value of its program has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ir.diagnostics import Source, SpmdcError
from ir.names import NAME
from ir.program import Program, Value
from spmdc.frontends.spmd import read


@contextmanager
def looking_for(name: str, program: Program) -> Iterator[None]:
    """A context in which a value of the program is looked for: an error that there is none says what the program's text
    calls so, if it is something else."""
    try:
        yield
    except SpmdcError as problem:
        found = _what_is_called(name, program.source)
        raise SpmdcError([replace(d, help=found or d.help) for d in problem.diagnostics]) from None


def _what_is_called(name: str, source: Source | None) -> str:
    """What a text binds the name to, in words; empty if that has the name itself, or is not known."""
    if source is None or source.text is None:
        return ""
    lines = source.text.split("\n")
    for (line, column), item in read(source.text, source.name).bound.items():
        written = re.compile(NAME, re.ASCII).match(lines[line - 1], column - 1)
        if written is None or written[0] != name:
            continue
        if not isinstance(item, Value):
            return f"{name!r} is known at compile time, and is no tensor"
        return f"{name!r} is another name of {item.name!r}" if item.name != name else ""
    return ""
