"""Files of StableHLO and HLO text. XLA's own parser reads HLO, in a process of its own, and says it in StableHLO, which
is imported."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from types import MappingProxyType

from ir.diagnostics import Source, Span, error
from ir.garbage import uncollected
from ir.program import Program
from passes.propagation.device_orders import in_the_order_of_most
from spmdc.frontends.stablehlo.by_hand import WORDS
from spmdc.frontends.stablehlo.hlo_child import ENDED, READ, REFUSED, STOPPED
from spmdc.frontends.stablehlo.hlo_process import HLO_PROCESS
from spmdc.frontends.stablehlo.importer import Settings, import_module
from spmdc.frontends.stablehlo.locations import Locations, instruction_lines
from spmdc.frontends.stablehlo.mlir_modules import HELP, make_static, parsed
from spmdc.frontends.stablehlo.shard_calls import MARKS

_PARTITIONS = re.compile(r"^HloModule .*\bnum_partitions=(\d+)", re.MULTILINE)
_REPLICAS = re.compile(r"^HloModule .*\breplica_count=(\d+)", re.MULTILINE)
_DYNAMIC = "dynamic_"
_SYNTAX_ERROR = re.compile(r"was parsing (\d+):(\d+): error: (.*)")
_FATAL = re.compile(r"^(?:F\d.*?\] |(?=LLVM ERROR))(.*?)(?=\n\*\*\*|\Z)", re.MULTILINE | re.DOTALL)
_ENDS = MappingProxyType(
    {REFUSED: "refuses this", ENDED: "ends its process over this", STOPPED: "was stopped over this"}
)


@uncollected()
def from_mlir(text: str | bytes, name: str = "<mlir>") -> Program:
    """The program of a StableHLO module: its text or bytecode. Raises SpmdcError, E701 if it is no MLIR."""
    source = Source(name, text if isinstance(text, str) else None)
    with parsed(text, source) as module:
        if _any_in((_DYNAMIC,), text):
            make_static(module)
        settings = Settings(has_shard_calls=_any_in(MARKS, text), may_be_by_hand=_any_in(WORDS, text))
        return in_the_order_of_most(import_module(module, Locations(source), settings))


@uncollected()
def from_hlo(text: str, name: str = "<hlo>") -> Program:
    """The program of a module of HLO text, values named as its instructions. Raises SpmdcError, E701 if it is none."""
    source = Source(name, text)
    partitions, replicas = _PARTITIONS.search(text), _REPLICAS.search(text)
    settings = Settings(
        names_from_locations=True,
        partitions=int(partitions[1]) if partitions is not None else None,
        replicas=int(replicas[1]) if replicas is not None else None,
        has_shard_calls=_any_in(MARKS, text),
        may_be_by_hand=_any_in(WORDS, text),
    )
    lines = instruction_lines(text)
    with parsed(_to_stablehlo(text, source), source, "HLO", lines) as module:
        return in_the_order_of_most(import_module(module, Locations(source, lines), settings))


def _any_in(words: Iterable[str], text: str | bytes) -> bool:
    if isinstance(text, bytes):
        return any(word.encode() in text for word in words)
    return any(word in text for word in words)


def _to_stablehlo(text: str, source: Source) -> bytes:
    outcome, made = HLO_PROCESS.read(text)
    if outcome == READ:
        return made
    found = _SYNTAX_ERROR.search(made.decode()) if outcome == REFUSED else None
    if found is None:
        words = _words(made)
        place = _place(text, source, outcome, words)
        raise error("E701", f"XLA's parser {_ENDS[outcome]}: {words}", place, help=HELP["HLO"])
    line, column = int(found[1]), max(int(found[2]), 1)
    place = Span(source, line, column, line, column + 1)
    raise error("E701", f"this is not valid HLO: {found[3]}", place, help=HELP["HLO"])


def _words(printed: bytes) -> str:
    """What XLA says: its last words, without the lines of a log around them, or all of a message."""
    text = printed.decode(errors="replace")
    fatal = _FATAL.search(text)
    return " ".join((fatal[1] if fatal is not None else text).split())


def _place(text: str, source: Source, outcome: bytes, words: str) -> Span | None:
    """The last line of the shortest beginning of the text, its brackets closed, that comes to the same end."""
    if outcome == STOPPED:
        return None  # Each beginning would take as long again.
    lines = text.splitlines(keepends=True)

    def comes_to_it(count: int) -> bool:
        beginning = "".join(lines[:count])
        outcome_of_it, made = HLO_PROCESS.read(beginning + "}" * (beginning.count("{") - beginning.count("}")))
        return (outcome_of_it, _words(made)) == (outcome, words)

    line = bisect.bisect_left(range(len(lines) + 1), True, key=comes_to_it)
    return Span(source, line, 1, line, len(lines[line - 1].rstrip()) + 1) if 0 < line <= len(lines) else None
