"""The names that a function has, and what its blocks return."""

from __future__ import annotations

from dataclasses import dataclass, field

from ir.builder import Names
from ir.diagnostics import Span
from spmdc.frontends.spmd.items import Item


@dataclass
class NameScope:
    """The names of one function. Those that the text writes are kept for the values that it binds to them."""

    written: set[str]
    names: Names = field(default_factory=Names)
    taken: set[str] = field(default_factory=set[str])
    bound: frozenset[str] = frozenset()
    """The names that statements bind."""

    def __post_init__(self) -> None:
        self.names.used |= self.written

    def reserve(self, name: str) -> str:
        """Keeps a free name for a value still to come, which then claims it."""
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
    """What a block returns: items, each with its place."""

    items: tuple[tuple[Item, Span], ...]
    span: Span
