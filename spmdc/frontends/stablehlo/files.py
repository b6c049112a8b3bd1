"""Files of StableHLO and HLO text. XLA's own parser reads HLO and says it in StableHLO, which is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ir.diagnostics import Diagnostic, Source, Span, SpmdcError
from ir.garbage import uncollected
from ir.program import Program
from lowering.jax.versions import hlo_to_stablehlo
from spmdc.frontends.stablehlo.hlo_checks import check_hlo
from spmdc.frontends.stablehlo.importer import Settings, import_module
from spmdc.frontends.stablehlo.locations import Locations, instruction_lines
from spmdc.frontends.stablehlo.mlir_modules import HELP, make_static, parsed
from spmdc.frontends.stablehlo.shard_calls import MARKS

_PARTITIONS = re.compile(r"^HloModule .*\bnum_partitions=(\d+)", re.MULTILINE)
_REPLICAS = re.compile(r"^HloModule .*\breplica_count=(\d+)", re.MULTILINE)
_DYNAMIC = "dynamic_"
_PLACE = re.compile(r"was parsing (\d+):(\d+): error: (.*)")


@uncollected()
def from_mlir(text: str | bytes, name: str = "<mlir>") -> Program:
    """The program of a StableHLO module: its text or bytecode. Raises SpmdcError, E701 if it is no MLIR."""
    source = Source(name, text if isinstance(text, str) else None)
    with parsed(text, source) as module:
        if _any_in((_DYNAMIC,), text):
            make_static(module)
        settings = Settings(has_shard_calls=_any_in(MARKS, text))
        return import_module(module, Locations(source), settings)


@uncollected()
def from_hlo(text: str, name: str = "<hlo>") -> Program:
    """The program of a module of HLO text, values named as its instructions. Raises SpmdcError, E701 if it is none."""
    source = Source(name, text)
    check_hlo(text, source)
    partitions, replicas = _PARTITIONS.search(text), _REPLICAS.search(text)
    settings = Settings(
        names_from_locations=True,
        partitions=int(partitions[1]) if partitions is not None else None,
        replicas=int(replicas[1]) if replicas is not None else None,
        has_shard_calls=_any_in(MARKS, text),
    )
    lines = instruction_lines(text)
    with parsed(_to_stablehlo(text, source), source, "HLO", lines) as module:
        return import_module(module, Locations(source, lines), settings)


def _any_in(words: Iterable[str], text: str | bytes) -> bool:
    if isinstance(text, bytes):
        return any(word.encode() in text for word in words)
    return any(word in text for word in words)


def _to_stablehlo(text: str, source: Source) -> bytes:
    # XLA raises RuntimeErrors of different kinds for what it cannot parse and for what StableHLO cannot say.
    try:
        return hlo_to_stablehlo(text)
    except (RuntimeError, ValueError) as problem:
        raise SpmdcError(_problem(str(problem), source)) from None


def _problem(message: str, source: Source) -> Diagnostic:
    found = _PLACE.search(message)
    if found is None:
        told = f"{source.name} is no HLO that can be imported: {' '.join(message.split())}"
        return Diagnostic("E701", told, help=HELP["HLO"])
    line, column = int(found[1]), max(int(found[2]), 1)
    place = Span(source, line, column, line, column + 1)
    return Diagnostic("E701", f"this is not valid HLO: {found[3]}", place, help=HELP["HLO"])
