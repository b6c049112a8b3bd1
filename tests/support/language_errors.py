"""The errors of texts in the language of programs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ir.diagnostics import Diagnostic, SpmdcError
from spmdc.frontends.spmd import parse


def errors(text: str, defines: Mapping[str, float] | None = None) -> list[Diagnostic]:
    """The diagnostics of a text that has errors."""
    with pytest.raises(SpmdcError) as caught:
        parse(text, "t.spmd", defines)
    return list(caught.value.diagnostics)


def places(text: str) -> list[str]:
    """Codes and places: `E101 3:7`."""
    return [f"{d.code} {d.span.line}:{d.span.column}" if d.span else d.code for d in errors(text)]


def body(*lines: str, head: str = "mesh (x=4, y=2)") -> str:
    """A program whose line 3 is the first of these lines, at column 1."""
    return "\n".join([head, "def main(a: f32[8, 4], n: s32[8]) -> (r: f32[8, 4]) {", *lines, "return a }"])
