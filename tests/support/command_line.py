"""The fixture of the command line tests: a folder with a program, and a function that runs commands there."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from json_outputs import named

from spmdc.cli import main

PROGRAM = """\
mesh (x=4, y=2)

def main(a: f32[16@x, 32], w: f32[32, 8@y], b: f32[8]) -> (out: f32[16, 8], total: f32[]) {
  h = einsum("ij,jk->ik", a, w)
  g = relu(h + b)
  return g, reduce(g, dims=[0, 1], kind=sum)
}
"""
UGLY = "mesh (x=4,   y=2)\n\n\n\ndef  main(a: f32[16@x,32])->(out: f32[16,32]) { # why\n    return   a+a }\n"


@dataclass
class Ended:
    """The outcome of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The printed JSON, checked against its schema."""
        return named(json.loads(self.out))


Run = Callable[..., Ended]


@pytest.fixture
def spmdc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in a folder with PROGRAM as p.spmd."""
    monkeypatch.chdir(tmp_path)
    Path("p.spmd").write_text(PROGRAM)

    def run(*arguments: str, stdin: bytes | None = None) -> Ended:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        status = main(arguments)
        return Ended(status, *capsys.readouterr())

    return run
