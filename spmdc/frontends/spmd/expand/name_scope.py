"""The names of a function, and the results of its blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

from ir.builder import Names
from ir.diagnostics import Span
from spmdc.frontends.spmd.items import Item


@dataclass
class NameScope:
    """The names of one function. Those in the text are reserved for the values that it binds to them."""

    written: set[str]
    names: Names = field(default_factory=Names)
    taken: set[str] = field(default_factory=set[str])
    bound: frozenset[str] = frozenset()
    """The names that statements bind."""

    def __post_init__(self) -> None:
        self.names.used |= self.written

    def reserve(self, name: str) -> str:
        """Reserves a free name for a later value, which then claims it."""
        if name not in self.names.used:
            self.written.add(name)
            self.names.used.add(name)
        return name

    def claim(self, name: str) -> str:
        """`name` itself for the first value bound to it, and a numbered variant for later ones."""
        if name in self.written and name not in self.taken:
            self.taken.add(name)
            return name
        return self.names.fresh(name)


@dataclass(frozen=True, slots=True)
class Returned:
    """The results of a block: items, each with its span."""

    items: tuple[tuple[Item, Span], ...]
    span: Span
