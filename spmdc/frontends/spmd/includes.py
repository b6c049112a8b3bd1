"""Programs of several files: `include "gating.spmd"` includes the functions of another file.

An included file may be a program by itself, with consts of its own. The including program keeps its mesh and its
`main`, and its consts override those of the other file and of files that this includes. A file is included once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ir.diagnostics import Diagnostics, Source, SpmdcError, error
from spmdc.files import decode, read_bytes
from spmdc.frontends.spmd.items import Faults
from spmdc.frontends.spmd.syntax import nodes as s
from spmdc.frontends.spmd.syntax.parser import parse_text

ENTRY = "main"


def with_included(module: s.Module, source: Source, found: Diagnostics, folder: Path) -> s.Module:
    """The module with the definitions of other files, in that folder, in place of its includes. Errors are added to
    `found`: E005 for files that cannot be read, E002 for those that are not text, E406 for plans and SPMD programs."""
    if not any(isinstance(item, s.Include) for item in module.items):
        return module
    before = len(found.items)
    seen = {os.path.realpath(folder / Path(source.name).name): source}
    items = tuple(_expanded(module, folder, found, _consts(module), seen))
    _, *included = seen.values()
    return replace(module, items=items, is_incomplete=len(found.items) > before, included=tuple(included))


def _consts(module: s.Module) -> frozenset[str]:
    return frozenset(const.name for item in module.items if isinstance(item, tuple) for const in item)


def _expanded(
    module: s.Module, folder: Path, found: Diagnostics, own: frozenset[str], seen: dict[str, Source]
) -> Iterator[s.Item]:
    for item in module.items:
        if isinstance(item, s.Include):
            items: list[s.Item] = []
            faults = Faults()
            with faults:
                items.extend(_included(item, folder, found, own, seen))
            found.extend(faults.diagnostics)
            yield from items
        else:
            yield item


def _included(
    item: s.Include, folder: Path, found: Diagnostics, own: frozenset[str], seen: dict[str, Source]
) -> Iterator[s.Item]:
    """The functions of a file except its main one, its precision, and those consts that no including file defines."""
    path = Path(os.path.normpath(folder / item.path))
    real = os.path.realpath(path)
    if real in seen:
        return
    seen[real] = Source(str(path))
    other = seen[real] = Source(str(path), _read(item, path))
    module = parse_text(other, found)
    for each in _expanded(module, path.parent, found, own | _consts(module), seen):
        if isinstance(each, s.Stage):
            what = "a plan" if each.stage == "plan" else "an SPMD program"
            raise error("E406", f"{path} is {what}", item.span, help="include the program that it was made of")
        if isinstance(each, tuple):
            consts = tuple(const for const in each if const.name not in own)
            yield from [consts] * bool(consts)
        elif isinstance(each, s.DefaultPrecision) or (isinstance(each, s.FunctionItem) and each.name != ENTRY):
            yield each


def _read(item: s.Include, path: Path) -> str:
    if path.exists() and not path.is_file():
        raise error("E005", f"cannot read {path}: it is no file", item.span, help="include a file of functions")
    try:
        return decode(read_bytes(path), str(path))
    except SpmdcError as problem:
        (first,) = problem.diagnostics
        raise SpmdcError(first if first.span is not None else replace(first, span=item.span)) from None
