"""The options that most verbs take. Imports nothing heavy: the parser of the command line uses this."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal


@dataclass(frozen=True)
class Options:
    """What the user said about the program, and about how to report.

    `defines` override consts; `devices` sizes a mesh of one axis and `mesh` gives the sizes of axes by name.
    `memory_limit`, in bytes, and `windowed_einsum` are as for `spmdc.partition`.
    """

    defines: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    devices: int | None = None
    mesh: Mapping[str, int] | None = None
    memory_limit: int | None = None
    windowed_einsum: Literal["auto", "always", "never"] = "auto"
    seed: int = 0
    json: bool = False
    verbose: bool = False

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the options."""
        return tuple(f.name for f in fields(cls))


def parse_define(text: str) -> tuple[str, int]:
    """`name=int`. Raises ArgumentTypeError otherwise."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not name=int, as in -D E=64")
    return name.strip(), _integer(value, f"{name.strip()} in {text!r}")


def parse_mesh(text: str) -> dict[str, int]:
    """`x=4,y=2`. Raises ArgumentTypeError otherwise."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise argparse.ArgumentTypeError(f"{text!r} is not a mesh such as x=4,y=2")
        if name in sizes:
            raise argparse.ArgumentTypeError(f"axis {name!r} is given twice in {text!r}")
        sizes[name] = _integer(value, f"the size of {name}")
        if sizes[name] < 1:
            raise argparse.ArgumentTypeError(f"axis {name!r} has at least one device, not {sizes[name]}")
    return sizes


_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_bytes(text: str) -> int:
    """`4096`, `64MiB`, `1.5GB`. Raises ArgumentTypeError otherwise."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(\w*)", text)
    units = {unit.lower(): size for unit, size in _UNITS.items()}
    if match is None or match[2].lower() not in units:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes such as 4096, 64MiB or 1.5GB")
    return int(float(match[1]) * units[match[2].lower()])


def _integer(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{what} is not an integer") from None
