"""Tables in docs/ that benches write: one row for each case, which takes the place of the row of that name."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

PAGE = Path("docs/tpu.md")

Row = tuple[str, ...]
"""Cells, the name of the case first."""


def versions(*packages: str) -> str:
    """What the figures come from: the versions of these packages, by default of the TPU compiler and of JAX."""
    named = (f"{name} {metadata.version(name)}" for name in packages or ("libtpu", "jax", "jaxlib"))
    return f"With {', '.join(named)}."


@dataclass(frozen=True)
class Table:
    """What stands on the page between two comments, `<!-- begin -->` and `<!-- end -->`: the `versions`, what it says
    of all its rows, and these under `head`, in the order of `names`."""

    begin: str
    end: str
    head: Row
    names: Sequence[str]
    summary: Callable[[Sequence[Row]], str]
    page: Path = PAGE
    versions: str = field(default_factory=versions)

    def put(self, rows: Iterable[Row]) -> None:
        """Writes the page with these rows. Those that other releases gave are dropped."""
        text = self.page.read_text()
        place = re.search(rf"(?<=<!-- {self.begin} -->\n).*?(?=<!-- {self.end} -->)", text, re.DOTALL)
        assert place is not None, f"{self.page} has no place for the table"
        old = place[0].splitlines()[4:] if releases(place[0]) == releases(self.versions) else []
        found = {row[0]: row for row in [*map(_read, old), *rows] if len(row) == len(self.head)}
        kept = [found[name] for name in self.names if name in found]
        lines = [f"{self.versions} {self.summary(kept)}", "", line(self.head), line(["---"] * len(self.head))]
        body = "\n".join([*lines, *map(line, kept)])
        self.page.write_text(text[: place.start()] + body + "\n" + text[place.end() :])


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _read(text: str) -> Row:
    return tuple(cell.strip() for cell in text.strip().removeprefix("|").removesuffix("|").split("|"))


def releases(text: str) -> list[tuple[str, int, int, int]]:
    """The releases that `versions` names at the head of a text. What follows three numbers is of the same release."""
    named = re.findall(r"(\w+) (\d+)\.(\d+)\.(\d+)", text.partition("\n")[0].partition(". ")[0])
    return [(name, int(major), int(minor), int(patch)) for name, major, minor, patch in named]


def asked(description: str | None, words: str, page: Path = PAGE) -> tuple[list[str], bool]:
    """The words of the command line, which say which rows, and whether these get into the page. Ends the process if
    there is no compiler to ask."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("words", nargs="*", help=words)
    options.add_argument("--write", action="store_true", help=f"put the rows into {page}")
    given = options.parse_args()
    try:
        metadata.version("libtpu")
    except metadata.PackageNotFoundError:
        sys.exit("the TPU compiler, libtpu, is not installed: pip install 'spmdc[tpu]'")
    return given.words, given.write
