"""The options that most verbs take. Imports nothing heavy: the parser of the command line uses this."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True)
class Options:
    """What the user said about the program, and about how to report.

    `defines` override consts; `devices` sizes a mesh of one axis and `mesh` gives the sizes of axes by name.
    """

    defines: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    devices: int | None = None
    mesh: Mapping[str, int] | None = None
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


def _integer(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{what} is not an integer") from None
