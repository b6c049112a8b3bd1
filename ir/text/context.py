"""What the whole program knows while its functions are expanded."""

from __future__ import annotations

from dataclasses import dataclass, field

from ir.diagnostics import Diagnostics, Source, Span
from ir.program import Result, Stage
from ir.sharding import Sharding
from ir.text.items import Scope
from ir.text.placement import Meshes
from ir.text.syntax import Location
from ir.types import TensorType


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """A parameter as its signature states it."""

    name: str
    type: TensorType
    sharding: Sharding | None
    of: TensorType | None
    span: Span


@dataclass(frozen=True, slots=True)
class Signature:
    """A function as its callers see it."""

    name: str
    params: tuple[ParamSpec, ...]
    results: tuple[Result, ...]
    span: Span


@dataclass
class Context:
    """Consts, meshes and signatures. A signature is None if it has an error of its own."""

    source: Source
    diagnostics: Diagnostics
    locations: dict[int, Location]
    stage: Stage = "global"
    meshes: Meshes = field(default_factory=Meshes)
    consts: Scope = field(default_factory=Scope)
    signatures: dict[str, Signature | None] = field(default_factory=dict[str, Signature | None])
    calls: dict[str, dict[str, Span]] = field(default_factory=dict[str, dict[str, Span]])
    """For each function, the functions it calls, and where first."""
    sources: dict[str, Source] = field(default_factory=dict[str, Source])

    def source_named(self, name: str) -> Source:
        """A file that a trailing comment names; of its text nothing is known."""
        return self.sources.setdefault(name, Source(name))
