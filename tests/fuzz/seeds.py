"""The programs that are damaged: those of the tests, modules of JAX's and of HLO, and what our passes print."""

from __future__ import annotations

import functools
from pathlib import Path

from other_inputs import bytecode_of, machine_files

import spmdc
from spmdc.frontends.spmd import print_program

_TESTS = Path(__file__).parents[1]
_FOLDERS = (_TESTS / "programs", _TESTS.parent / "spmdc" / "programs", _TESTS / "fuzz" / "seeds")
_HLO = _TESTS / "frontends" / "stablehlo" / "hlo"
_LONGEST = 6_000
"""Characters: longer programs take longer, and are not damaged in more ways."""


_INCLUDES = "\ninclude "
"""Programs of several files are left out: they are read from a folder."""


@functools.cache
def seeds(kind: str) -> tuple[str, ...]:
    """The texts of a kind: `spmd`, `propagated`, `plan`, `partitioned`, `hlo`, `mlir`, `bytecode`, or `machine`."""
    if kind in ("propagated", "plan", "partitioned"):
        return tuple(text for source in seeds("spmd") if len(text := _printed(source, kind)) < _LONGEST)
    if kind == "machine":
        return machine_files()
    if kind == "bytecode":
        return tuple(map(bytecode_of, seeds("mlir")))
    folders = (_HLO,) if kind == "hlo" else _FOLDERS
    texts = (path.read_text() for folder in folders for path in sorted(folder.glob(f"*.{kind}")))
    return tuple(text for text in texts if len(text) < _LONGEST and _INCLUDES not in text)


def _printed(source: str, kind: str) -> str:
    program = spmdc.parse(source)
    if kind == "propagated":
        return spmdc.propagate(program).text()
    plan = spmdc.plan(program, verify=False)
    return print_program(plan.program if kind == "plan" else spmdc.partition(plan, verify=False).program)
