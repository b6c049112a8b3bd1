"""The functions in `runtime/` as text, so that a generated module contains those that it uses."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files

from ir.closure import reached
from lowering.jax import runtime


@dataclass(frozen=True)
class Helper:
    """A function's text and the names that it uses."""

    text: str
    mentions: frozenset[str]


_FILES = (
    "shards.py", "collectives.py", "control.py", "ops.py", "ordering.py", "random_bits.py", "host.py", "lapack.py"
)  # fmt: skip


@functools.cache
def helpers() -> dict[str, Helper]:
    """Every helper by name, in the order of the files."""
    found: dict[str, Helper] = {}
    for file in _FILES:
        text = files(runtime).joinpath(file).read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                names = frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
                found[node.name] = Helper("\n".join(lines[node.lineno - 1 : node.end_lineno]), names)
    return found


def needed(used: Iterable[str]) -> list[Helper]:
    """The helpers of these names and those that they call, in the order of the files."""
    known = helpers()
    names = set(reached(used, lambda name: known[name].mentions & known.keys()))
    return [helper for name, helper in known.items() if name in names]
