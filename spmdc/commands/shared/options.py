"""The options that most verbs share. Imports nothing heavy, because the parser of the command line uses this."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from ir.names import is_name
from spmdc.byte_counts import BYTE_COUNTS, byte_count

_MAX_DIGITS = 100
_MAX_SHOWN = 60
_FLOAT = r"\s*[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?\s*"


@dataclass(frozen=True)
class Options:
    """The user's options: for the program, for the partitioner, and for reports.

    `defines` override consts; `devices` is the size of a mesh of one axis and `mesh` has the sizes of axes by name.
    `machine` is the name of one, or its file; `memory_limit`, in bytes, `windowed_einsum` and `recompute` are as for
    `spmdc.partition`.
    """

    verb: str = ""
    defines: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    devices: int | None = None
    mesh: Mapping[str, int] | None = None
    machine: str = "tpu-v3"
    memory_limit: int | None = None
    windowed_einsum: Literal["auto", "always", "never"] = "auto"
    recompute: Literal["auto", "never"] = "auto"
    seed: int = 0
    json: bool = False
    verbose: bool = False
    wide: bool = False

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the options."""
        return tuple(f.name for f in fields(cls))


def parse_define(text: str) -> tuple[str, float]:
    """`name=number`: an integer or a float. Raises ArgumentTypeError otherwise."""
    name, equals, value = text.partition("=")
    if not equals or not is_name(name.strip()):
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not NAME=NUMBER, as in -D E=64")
    if re.fullmatch(_FLOAT, value, re.ASCII) and len(value) <= _MAX_DIGITS:
        return name.strip(), float(value)
    return name.strip(), parse_integer(value, f"{name.strip()} in {_shown(text)}")


def parse_sweep(text: str) -> tuple[str, list[float]]:
    """`name=number` or `name=number,number`. Raises ArgumentTypeError otherwise."""
    name, equals, values = text.partition("=")
    if not equals:
        return parse_define(text)[0], []
    found = [parse_define(f"{name}={value}") for value in values.split(",")]
    return found[0][0], [value for _, value in found]


def parse_mesh(text: str) -> dict[str, int]:
    """`x=4,y=2`. Raises ArgumentTypeError otherwise."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not is_name(name):
            raise argparse.ArgumentTypeError(f"{_shown(text)} is not a mesh such as x=4,y=2")
        if name in sizes:
            raise argparse.ArgumentTypeError(f"axis {name!r} is given twice in {_shown(text)}")
        sizes[name] = parse_integer(value, f"the size of {name}")
        if sizes[name] < 1:
            raise argparse.ArgumentTypeError(f"axis {name!r} has at least one device, not {sizes[name]}")
    return sizes


def parse_bytes(text: str) -> int:
    """`4096`, `64MiB`, `1.5GB`. Raises ArgumentTypeError otherwise."""
    count = byte_count(text)
    if count is None:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a number of bytes such as {BYTE_COUNTS}")
    return count


def parse_integer(text: str, what: str) -> int:
    """An integer in decimal digits. Raises ArgumentTypeError otherwise, or if it is too long to be useful in any
    program."""
    if not re.fullmatch(r"\s*[+-]?\d+\s*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{what} is not an integer")
    if len(text) > _MAX_DIGITS:
        raise argparse.ArgumentTypeError(f"{what} has more than {_MAX_DIGITS} digits")
    return int(text)


def parse_positive(text: str) -> int:
    """An integer from 1 on. Raises ArgumentTypeError otherwise."""
    number = parse_integer(text, _shown(text))
    if number < 1:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a positive integer")
    return number


def parse_seed(text: str) -> int:
    """An integer from 0 on. Raises ArgumentTypeError otherwise."""
    number = parse_integer(text, _shown(text))
    if number < 0:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a seed: an integer from 0 on")
    return number


def parse_path(text: str) -> str:
    """The name of a file. Raises ArgumentTypeError if it is empty, which would stand for the folder."""
    if not text:
        raise argparse.ArgumentTypeError("a file has a name, and this one is empty")
    return text


def parse_names(text: str) -> list[str]:
    """`a,b`. Raises ArgumentTypeError if a name is missing."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a list of names between commas")
    return names


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")
