"""Converts jaxlib's errors about faulty shardings and meshes to spmdc's diagnostics: with the code for such an error in
any language, a suggestion, and the span of the faulty word."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from ir.diagnostics import Diagnostic, Span
from spmdc.frontends.spmd.items import suggest

_DECLARED = re.compile(r'sdy\.mesh\s+@"?([\w$.-]+)"?\s*=\s*<\[([^\]]*)\]')
_NAMED_IN_HLO = re.compile(r"mesh\[([^\]]*)\]")
_AXIS = re.compile(r"""["']([^"']+)["']=(\d+)""")
_ONCE = "an entry for each dim, and each axis, or part of one, once"
_MESH = 'an axis has a name and a size, as in sdy.mesh @mesh = <["x"=4, "y"=2]>, and each device is listed once'
_TILES = "a sharding is over all devices: the tiles multiply to their number, copies included"

Meshes = Mapping[str, Mapping[str, int]]
"""The axes and their sizes of each mesh that a text declares."""


class ModuleText:
    """The text of a module, in which faulty words are located."""

    def __init__(self, text: str) -> None:
        self._text = text

    @functools.cached_property
    def lines(self) -> list[str]:
        return self._text.split("\n")

    @functools.cached_property
    def meshes(self) -> Meshes:
        return {name: {a: int(n) for a, n in _AXIS.findall(axes)} for name, axes in _DECLARED.findall(self._text)}


def in_our_words(words: str, text: ModuleText, span: Span | None) -> Diagnostic | None:
    """The diagnostic (E301 to E305, E409) for a parser's error at `span`; None if it is not about a sharding or a mesh.
    The parser's own message is a note."""
    for pattern, code, explain in _FAULTS:
        found = re.search(pattern, words)
        if found is not None:
            message, help = explain(found, text.meshes)
            place = _word(found.groupdict().get("word"), text, span)
            return Diagnostic(code, message, place, notes=(f"the parser says: {words}",), help=help)
    return None


def _word(word: str | None, text: ModuleText, span: Span | None) -> Span | None:
    """The span of a word in the line of a span, after its beginning, if the word occurs once as a name."""
    if word is None or span is None:
        return span
    line = text.lines[span.line - 1] if span.line <= len(text.lines) else ""
    found = list(re.compile(rf"(?<![\w$.-]){re.escape(word)}(?![\w$.-])").finditer(line, span.column - 1))
    if len(found) != 1:
        return span
    start, end = (column + 1 for column in found[0].span())
    return replace(span, column=start, end_line=span.line, end_column=end)


def _unknown_mesh(found: re.Match[str], meshes: Meshes) -> tuple[str, str]:
    name = found["word"]
    listed = ", ".join(f"@{mesh}" for mesh in meshes)
    help = suggest(name, meshes) or (f"the module declares {listed}" if listed else "declare an sdy.mesh")
    return f"a sharding is on mesh @{name}, which is not declared", help


def _unknown_axis(found: re.Match[str], meshes: Meshes) -> tuple[str, str]:
    inline = _NAMED_IN_HLO.search(found.string)
    known = {"": {a: int(n) for a, n in _AXIS.findall(inline[1])}} if inline is not None else meshes
    spelt = " or ".join(f"({', '.join(f'{a}={n}' for a, n in axes.items())})" for axes in known.values())
    names = dict.fromkeys(axis for axes in known.values() for axis in axes)
    where = f"in the mesh {spelt}" if spelt else "in the mesh"
    help = suggest(found["word"], names) or (f"name some of {', '.join(names)}" if names else "declare an sdy.mesh")
    return f"axis {found['word']!r} is not {where}", help


def _says(message: str, help: str) -> Callable[[re.Match[str], Meshes], tuple[str, str]]:
    def explain(found: re.Match[str], _: Meshes) -> tuple[str, str]:
        return message.format(*found.groups(), **found.groupdict()), help

    return explain


_FAULTS: tuple[tuple[str, str, Callable[[re.Match[str], Meshes], tuple[str, str]]], ...] = (
    (r"unknown mesh: @(?P<word>[^\s@]+)", "E301", _unknown_mesh),
    (r'unknown axis name: "(?P<word>[^"]*)"', "E301", _unknown_axis),
    (r"axis '(?P<word>[^']*)' is not a valid axis name or index in mesh", "E301", _unknown_axis),
    (r'duplicate axis ref: "([^"]*)"(\S*)', "E302", _says("axis '{0}{1}' is used twice", _ONCE)),
    (r"Axes cannot coexist or axes overlap", "E302", _says("an axis is used twice", _ONCE)),
    (
        r"sharding doesn't match tensor rank: (\d+) != (\d+)",
        "E303",
        _says("the sharding has {0} dims, the tensor has {1}", _ONCE),
    ),
    (
        r"""sub-axis next pre-size \d+ doesn't divide the size of the full axis (\d+): "([^"]*)"(\S*)""",
        "E303",
        _says("{1}{2} is no part of axis '{1}' of size {0}", "what is before a part, times its size, divides the axis"),
    ),
    (
        r"Sub-axis next_pre_size must divide the full axis size\. .*Axis size: (\d+)",
        "E303",
        _says("a part of an axis of size {0} is none of it", "what is before a part, times its size, divides the axis"),
    ),
    (
        r"sub-axis (?:pre-)?size\S* (?:must|is) .*: \"([^\"]*)\"(\S*)",
        "E303",
        _says("{0}{1} is no proper part of axis '{0}'", "a part has a size of 2 or more, and the axis more than that"),
    ),
    (
        r"operand dimension size (\d+) is not divisible by the manual axes size (\d+)",
        "E409",
        _says(
            "the manual axes split a dim of size {0} into {1} parts", "divide each dim by the sizes of its manual axes"
        ),
    ),
    (
        r"Expected local shape '([^']*)', actual local shape '([^']*)'",
        "E409",
        _says(
            "a shard that a manual region takes or returns is {0}, and the region says {1}",
            "divide each dim by the sizes of its manual axes",
        ),
    ),
    (
        r'duplicate axis name: "([^"]*)"|Duplicate axis name: (\w+)',
        "E304",
        lambda found, _: (f"the mesh has two axes {found[1] or found[2]!r}", "give each axis a name of its own"),
    ),
    (r"axis size must be at least 1, got: (-?\d+)", "E304", _says("an axis of the mesh has size {0}", _MESH)),
    (r"Mesh axis size must be positive", "E304", _says("an axis of the mesh has a size below 1", _MESH)),
    (r"device id must be non-negative, got: (-\d+)", "E304", _says("the mesh has a device {0}", _MESH)),
    (
        r"sorted device ids must be iota\(product\(axes\)\), got: ([\d, ]+)",
        "E304",
        _says("the mesh does not list each of its devices once, but, in order, {0}", _MESH),
    ),
    (
        r"total product of axis sizes must match total number of device ids, got: (\d+) != (\d+)",
        "E304",
        _says("the axes of the mesh make {0} devices, and it lists {1}", _MESH),
    ),
    (
        r"Expected (\d+) device_ids based on mesh axes, but got (\d+)",
        "E304",
        _says("the axes of the mesh make {0} devices, and it lists {1}", _MESH),
    ),
    (
        r"product_of_dimensions == product_of_iota_dimensions|does not match the tile assignment (?:dimensions|size)",
        "E305",
        _says("the tiles of a sharding are not as many as the devices that it lists", _TILES),
    ),
)
"""The pattern of a message, in MLIR's and Shardy's wording or XLA's; the code; the message and help."""
