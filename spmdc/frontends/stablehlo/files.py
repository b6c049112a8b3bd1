"""Imports files of StableHLO and HLO text. jaxlib's own parsers read them in a separate process, which returns the
module as StableHLO bytecode."""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ir.diagnostics import Diagnostic, Source, Span, SpmdcError, error
from ir.garbage import uncollected
from ir.program import Program
from ir.spelling.hlo_groups import MESH_GROUPS, groups_on_mesh
from passes.propagation.device_orders import in_the_order_of_most
from spmdc.frontends.stablehlo import parser_child
from spmdc.frontends.stablehlo.by_hand import WORDS
from spmdc.frontends.stablehlo.fatal_texts import fatal_text
from spmdc.frontends.stablehlo.hlo_words import OUT_OF_REGION, in_calls, one_by_one
from spmdc.frontends.stablehlo.importer import Settings, import_module
from spmdc.frontends.stablehlo.locations import Locations, instruction_lines
from spmdc.frontends.stablehlo.mlir_modules import BUFFER, opened
from spmdc.frontends.stablehlo.parser_child import VALID
from spmdc.frontends.stablehlo.parser_process import PARSER_PROCESS
from spmdc.frontends.stablehlo.sharding_faults import ModuleText, in_our_words
from spmdc.isolation.process import last_words
from spmdc.isolation.server import DONE, ENDED, FAILED, REFUSED, STOPPED

_PARTITIONS = re.compile(r"^HloModule .*\bnum_partitions=(\d+)", re.MULTILINE)
_REPLICAS = re.compile(r"^HloModule .*\breplica_count=(\d+)", re.MULTILINE)
_SYNTAX_ERROR = re.compile(r"was parsing (\d+):(\d+): error: (.*)")
_ENDS = MappingProxyType(
    {
        REFUSED: "refuses this",
        FAILED: "fails over this",
        ENDED: "ends its process over this",
        STOPPED: "was stopped over this",
    }
)


@dataclass(frozen=True)
class _Language:
    """The language of a text: its name for the parsing process, its name for people, and its parser."""

    key: bytes
    name: str
    parser: str
    help: str


_HLO = _Language(
    parser_child.HLO, "HLO", "XLA", "the text is read by XLA's parser: give a whole module, as XLA prints it"
)
_MLIR = _Language(
    parser_child.MLIR,
    "MLIR",
    "MLIR",
    "the text is read by MLIR's parser: give a whole module, as jax.jit(f).lower(x).as_text() prints it",
)
_TERMINATOR = re.compile(r'\s*(?:"?[\w.]*return"?\b|\})')
_NO_LINES: Mapping[str, int] = MappingProxyType({})
_SCHEDULED = re.compile(r"^HloModule [^\n]*\bis_scheduled=true", re.MULTILINE)
_LEFT_OUT = re.compile(r'(?<= )constant\([^"\n(]*\{\.\.\.\}')
_RESULT = re.compile(r"%[\w$.\-]+[#:]\d{7,}(?!\w)")
"""A result with a number that no op has, or that many results."""
_TO_ALL_OF_SEVERAL = re.compile(r"= \(.*\ball-to-all(?:-start)?\(")
_GROUPS = "write device_ids=([2,4]T(1,0)) or a list of each device once, and name axes of the mesh; or list the groups"


@uncollected()
def from_mlir(text: str | bytes, name: str) -> Program:
    """The program of a StableHLO module in text or bytecode. Raises SpmdcError, E701 if it is not MLIR."""
    source = Source(name, text if isinstance(text, str) else None)
    if isinstance(text, str):
        _check_results(text, source)
        _check_spellings(text, source)
    with opened(_bytecode(_MLIR, text, source)) as module:
        settings = Settings(has_shard_calls=_any_in(OUT_OF_REGION, text), may_be_by_hand=_any_in(WORDS, text))
        return in_the_order_of_most(import_module(module, Locations(source), settings))


@uncollected()
def from_hlo(text: str, name: str) -> Program:
    """The program of a module in HLO text, with values named as its instructions. Raises SpmdcError, E701 if it is not
    HLO."""
    source = Source(name, text)
    _check_is_whole(text, source)
    partitions, replicas = _PARTITIONS.search(text), _REPLICAS.search(text)
    settings = Settings(
        names_from_locations=True,
        partitions=int(partitions[1]) if partitions is not None else None,
        replicas=int(replicas[1]) if replicas is not None else None,
        is_scheduled=_SCHEDULED.search(text) is not None,
        has_shard_calls=_any_in(OUT_OF_REGION, text),
        may_be_by_hand=_any_in(WORDS, text),
    )
    lines = instruction_lines(text)
    read = _with_listed_groups(one_by_one(in_calls(text)), source)
    with opened(_bytecode(_HLO, read, source, lines)) as module:
        return in_the_order_of_most(import_module(module, Locations(source, lines), settings))


def _with_listed_groups(text: str, source: Source) -> str:
    """The text with lists of devices in place of groups along mesh axes that jaxlib does not read: those with an order
    of the mesh's devices, and those of an all-to-all of several operands.

    Raises SpmdcError (E701) if they are not valid groups.
    """

    def listed(match: re.Match[str]) -> str:
        line = text.rfind("\n", 0, match.start()) + 1
        if match[2] is None and _TO_ALL_OF_SEVERAL.search(text, line, match.start()) is None:
            return match[0]
        try:
            rows = groups_on_mesh(*match.groups()).tolist()
        except (ValueError, KeyError):
            place = _place_of(text, *match.span(), source)
            raise error("E701", f"{match[0]} are no groups of devices", place, help=_GROUPS) from None
        return f"replica_groups={{{','.join('{' + ','.join(map(str, row)) + '}' for row in rows)}}}"

    return MESH_GROUPS.sub(listed, text)


def _check_is_whole(text: str, source: Source) -> None:
    """Raises SpmdcError (E701) if the numbers of a constant are elided: XLA's parser would replace them by others."""
    left_out = _LEFT_OUT.search(text)
    if left_out is None:
        return
    raise error(
        "E701",
        "the numbers of a constant are left out of the text",
        _place_of(text, *left_out.span(), source),
        help="print it with its large constants: lowered.compiler_ir('hlo').as_hlo_text(print_large_constants=True); "
        "or give the StableHLO",
    )


def _check_results(text: str, source: Source) -> None:
    """Raises SpmdcError (E701) if there is a result for which the parser would make a list of more values than fit in
    memory."""
    found = _RESULT.search(text)
    if found is None:
        return
    message = f"no op of MLIR has as many results as {found[0]} says"
    raise error("E701", message, _place_of(text, *found.span(), source), help=_MLIR.help)


def _check_spellings(text: str, source: Source) -> None:
    """Raises SpmdcError (E701) if there is text for which jaxlib aborts the process that accesses it."""
    fatal = fatal_text(text)
    if fatal is not None:
        place = _place_of(text, fatal.start, fatal.end, source)
        raise error("E701", fatal.message, place, help=fatal.help or _MLIR.help)


def _place_of(text: str, start: int, end: int, source: Source) -> Span:
    """The span of text that was found in one line."""
    line, column = text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
    return Span(source, line, column, line, column + end - start)


def _any_in(words: Iterable[str], text: str | bytes) -> bool:
    if isinstance(text, bytes):
        return any(word.encode() in text for word in words)
    return any(word in text for word in words)


def _bytecode(language: _Language, text: str | bytes, source: Source, lines: Mapping[str, int] = _NO_LINES) -> bytes:
    """The module of a text, or of MLIR bytecode, as bytecode. `lines` has those of ops by name. Raises SpmdcError:
    E701, or for faulty shardings E301 to E305 and E409."""
    outcome, made = PARSER_PROCESS.read(language.key, text)
    if outcome == DONE and made.startswith(VALID):
        return made[1:]
    read = ModuleText(source.text or "")
    if outcome == DONE:
        problems = json.loads(made[1:])
        found = [_invalid(language, str(p["message"]), read, _found_at(p, source, lines)) for p in problems]
        raise SpmdcError([problem for problem in found if problem.code != "E701"] or found)
    syntax = _SYNTAX_ERROR.search(made.decode()) if outcome == REFUSED else None
    if syntax is not None:
        place = _character(source, int(syntax[1]), int(syntax[2]))
        raise SpmdcError([_invalid(language, syntax[3], read, place)])
    words = last_words(made)
    around = _place(language, text, source, outcome, words) if isinstance(text, str) else None
    message = f"{language.parser}'s parser {_ENDS[outcome]}: {words}"
    raise SpmdcError([in_our_words(words, read, around) or Diagnostic("E701", message, around, help=language.help)])


def _invalid(language: _Language, words: str, text: ModuleText, place: Span | None) -> Diagnostic:
    """The error that a parser finds in a module."""
    message = f"this is not valid {language.name}: {words}"
    return in_our_words(words, text, place) or Diagnostic("E701", message, place, help=language.help)


def _found_at(found: Mapping[str, Any], source: Source, lines: Mapping[str, int]) -> Span | None:
    """The position of an error that MLIR found."""
    if found.get("name") in lines:
        return _character(source, lines[found["name"]], 1)
    return _character(source, found["line"], found["column"]) if found.get("file") == BUFFER else None


def _character(source: Source, line: int, column: int) -> Span:
    line, column = max(line, 1), max(column, 1)
    return Span(source, line, column, line, column + 1)


def _place(language: _Language, text: str, source: Source, outcome: bytes, words: str) -> Span | None:
    """The last line of the shortest beginning of the text, with its brackets closed, that fails in the same way. None
    if that is the end of a function: then only the whole text fails."""
    if outcome == STOPPED:
        return None  # Each beginning would take as long again.
    lines = text.splitlines(keepends=True)

    def comes_to_it(count: int) -> bool:
        beginning = "".join(lines[:count])
        closed = beginning + "}" * (beginning.count("{") - beginning.count("}"))
        outcome_of_it, made = PARSER_PROCESS.read(language.key, closed)
        return (outcome_of_it, last_words(made)) == (outcome, words)

    line = bisect.bisect_left(range(len(lines) + 1), True, key=comes_to_it)
    if not 0 < line <= len(lines) or (language is _MLIR and _TERMINATOR.match(lines[line - 1])):
        return None
    return Span(source, line, 1, line, len(lines[line - 1].rstrip()) + 1)
