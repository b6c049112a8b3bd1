"""The op of a program that each instruction of its compiled module comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ir.ops.control import is_loop, runs_of_region
from ir.ops.declaration import COLLECTIVES
from ir.program import Op
from lowering.jax.running import Executable
from spmdc.reports.optimised_module import Instruction, OptimisedModule

_FRAME = re.compile(r"stack_frame_id=(\d+)")
_REDUCER = re.compile(r"\bto_apply=%?([\w.\-]+)")
_ENTRY = re.compile(r"^(\d+) (?:\{(.*)\}|\"(.*)\")$")
_NUMBER = re.compile(r"(\w+)=(\d+)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


class Origins:
    """The op that each instruction comes from: that of the innermost line of the generated module that made it."""

    def __init__(self, executable: Executable, text: str, module: OptimisedModule) -> None:
        self._computations = module.computations
        self._ops = executable.written.op_of_line()
        self._tables = _stack_tables(text)
        self._file = str(executable.module["__name__"])

    def of(self, instruction: Instruction) -> Op | None:
        reducer = _REDUCER.search(instruction.rest)
        if _FRAME.search(instruction.rest) is None and reducer is not None:
            return self._of_reducer(self._computations[reducer[1]].last)
        return next(self._around(instruction), None)

    def _of_reducer(self, reducer: Instruction) -> Op | None:
        """The collective that a reducer is from. The TPU compiler drops the lines of a reduce_scatter that it compiles
        as an all_reduce, but not those of its reducer. JAX traces each reducer once: the innermost of its lines are
        those of the first collective that had such a one, and its own is the outermost."""
        collectives = [op for op in self._around(reducer) if op.name in COLLECTIVES]
        return collectives[-1] if collectives else None

    def trips(self, loop: Instruction) -> int | None:
        """The trip count of one of the program's loops."""
        op = self.of(loop)
        return runs_of_region(op, 1) if op is not None and is_loop(op) else None

    def _around(self, instruction: Instruction) -> Iterator[Op]:
        """The ops of the lines that made an instruction, from the innermost outwards."""
        found = _FRAME.search(instruction.rest)
        frame = int(found[1]) if found is not None else 0
        while frame:
            place, frame = self._tables.frames[frame]
            file, line = self._tables.places[place]
            op = self._ops.get(line) if self._tables.files[file] == self._file else None
            if op is not None:
                yield op


@dataclass(frozen=True, slots=True)
class _Tables:
    """Files by number, lines in files by number, and stack frames: the location of each, and its parent frame, or 0."""

    files: Mapping[int, str]
    places: Mapping[int, tuple[int, int]]
    frames: Mapping[int, tuple[int, int]]


def _stack_tables(text: str) -> _Tables:
    """The tables at the head of an HLO module's text. They number parent frames from 1 on, or from 2 on."""
    sections: dict[str, dict[int, str]] = {name: {} for name in _TABLES}
    section: dict[int, str] | None = None
    for line in text.split("\n"):
        entry = _ENTRY.match(line)
        if entry is not None and section is not None:
            section[int(entry[1])] = entry[2] if entry[2] is not None else entry[3]
        elif line in sections:
            section = sections[line]
        elif line:
            section = None
            if line.endswith("{"):
                break
    rows = {name: {k: dict(_NUMBER.findall(row)) for k, row in rows.items()} for name, rows in sections.items()}
    parents = {k: int(row.get("parent_frame_id", 0)) for k, row in rows["StackFrames"].items()}
    shift = 1 if any(parent >= k for k, parent in parents.items()) else 0
    return _Tables(
        sections["FileNames"],
        {k: (int(row["file_name_id"]), int(row["line"])) for k, row in rows["FileLocations"].items()},
        {k: (int(row["file_location_id"]), parents[k] - shift) for k, row in rows["StackFrames"].items()},
    )
