"""Completions at the cursor, from the tokens before it, whether or not the rest of the text parses."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lsprotocol import types

from ir.diagnostics import Source, SpmdcError
from ir.names import RESERVED
from ir.ops import OPS, AttrDef
from ir.types import DTYPES
from spmdc.frontends.spmd.expand.annotations import ANNOTATIONS
from spmdc.frontends.spmd.expand.constants import FUNCTIONS, WORDS
from spmdc.frontends.spmd.library import COMPOSITIONS
from spmdc.frontends.spmd.names import Definition, Kind, Place, Word
from spmdc.frontends.spmd.syntax.lexer import CONTEXTUAL, OPENERS, Token, tokenize
from spmdc.lsp.documents import Analysis
from spmdc.lsp.problems import detail_of
from spmdc.lsp.words import about, signature

_CLOSERS = frozenset({"RPAR", "RSQB", "RBRACE"})
_ITEMS = ("def", "const", "mesh", "include", "precision")
_IN_NAMES = f"{string.ascii_letters}{string.digits}_."
_RECENT = 200
"""The most lines of a function that are examined: the statement at the cursor begins within them."""
_MOST = 300
"""The most names in scope that are proposed at once."""
_KINDS: dict[Kind, types.CompletionItemKind] = {
    "const": types.CompletionItemKind.Constant,
    "mesh": types.CompletionItemKind.Module,
    "axis": types.CompletionItemKind.EnumMember,
    "function": types.CompletionItemKind.Function,
    "parameter": types.CompletionItemKind.Variable,
    "result": types.CompletionItemKind.Variable,
    "value": types.CompletionItemKind.Variable,
}


@dataclass(frozen=True, slots=True)
class _Cursor:
    """The tokens before the cursor, without the unfinished word, and the open brackets."""

    tokens: Sequence[Token]
    opened: Sequence[int]

    def text(self, back: int) -> str:
        return self.tokens[-back].text if len(self.tokens) >= back else ""

    @property
    def is_in_function(self) -> bool:
        return any(self.tokens[i].type == "LBRACE" for i in self.opened)

    @property
    def called(self) -> tuple[str, int]:
        """The name that the innermost open bracket calls, and the position of the bracket; nothing if it is no call."""
        i = self.opened[-1] if self.opened else 0
        is_call = i > 0 and self.tokens[i].type == "LPAR" and self.tokens[i - 1].type == "NAME"
        return (self.tokens[i - 1].text, i) if is_call else ("", 0)

    @property
    def is_at_axes(self) -> bool:
        """Whether mesh axes are expected: after `@`, `@(`, or in the braces of a sharding."""
        i = self.opened[-1] if self.opened else 0
        is_listed = i > 0 and self.tokens[i].type == "LPAR" and self.tokens[i - 1].text == "@"
        return self.text(1) == "@" or is_listed or (bool(self.opened) and self._is_in_braces(i))

    def _is_in_braces(self, i: int) -> bool:
        behind = [t.text for t in self.tokens[i + 1 : i + 3]]
        return self.tokens[i].text == "{" and behind[:1] in (["partial"], ["replicated"]) and behind[1:] == [":"]

    @property
    def is_at_type(self) -> bool:
        """Whether a type is expected: after `name:`, `->` or `of`."""
        is_sliced = bool(self.opened) and self.tokens[self.opened[-1]].type in ("LSQB", "ANNOTATION")
        return (self.text(1) == ":" and not is_sliced) or self.text(1) in ("->", "of")


def complete(analysis: Analysis, before: str, place: Place) -> types.CompletionList:
    """The completions after `before`, the text up to a position; the analysis may be of an earlier text.

    If very many names are in scope, only those that match the unfinished word are proposed, the last ones first; the
    editor asks again when the word is longer.
    """
    visible = analysis.names.visible_at(place)
    fitting = visible
    if len(visible) > _MOST:
        word = before[len(before.rstrip(_IN_NAMES)) :]
        last = [name for name in reversed(list(visible)) if _may_become(word.lower(), name.lower())]
        fitting = {name: visible[name] for name in last[:_MOST]}
    return types.CompletionList(len(fitting) < len(visible), _proposed(analysis, before, fitting))


def _may_become(word: str, name: str) -> bool:
    """Whether the name has the letters of the word, in order, as editors match them."""
    rest = iter(name)
    return all(letter in rest for letter in word)


def _proposed(analysis: Analysis, before: str, visible: Mapping[str, Definition]) -> list[types.CompletionItem]:
    cursor = _cursor(before)
    if cursor is None:
        return []
    globals = [d for d in analysis.names.definitions if d.kind in ("axis", "mesh", "function")]
    axes = [_defined(analysis, d) for d in globals if d.kind == "axis"]
    if cursor.is_at_axes:
        return axes
    if cursor.is_at_type:
        return list(_dtypes())
    if not cursor.is_in_function and not cursor.opened:
        return [_keyword(word) for word in _ITEMS]
    name, bracket = cursor.called
    attr = _attribute(cursor, name)
    if attr is not None:
        return list(_values_of(analysis, attr, axes, globals, visible.values()))
    return [
        *_attributes(name, {t.text for t in cursor.tokens[bracket:]}),
        *(_defined(analysis, d) for d in visible.values() if d.kind not in ("axis", "mesh", "function")),
        *(_defined(analysis, d) for d in globals if d.kind == "function"),
        *(_called(word) for word in sorted({*OPS, *COMPOSITIONS, *ANNOTATIONS, *FUNCTIONS})),
        *_dtypes(),
        *(_keyword(word) for word in sorted({*RESERVED, *CONTEXTUAL, *WORDS}.difference(_ITEMS))),
    ]


def _cursor(before: str) -> _Cursor | None:
    """The tokens of the function that the cursor is in; None in a comment or a string."""
    lines = before[max(0, before.rfind("\ndef ")) :].split("\n")
    if len(lines) > _RECENT:
        lines = ["{", *lines[-_RECENT:]]
    try:
        cut = tokenize(Source("<cursor>", "\n".join(lines)))
    except SpmdcError:
        return None
    if cut.cut_short or (cut.comments and cut.comments[-1].line == len(lines)):
        return None
    tokens = cut.tokens
    if tokens and (tokens[-1].end_line, tokens[-1].end_column) == (len(lines), len(lines[-1]) + 1):
        is_word = tokens[-1].text[-1].isalnum() or tokens[-1].text[-1] == "_"
        tokens = tokens[:-1] if is_word else tokens
    opened: list[int] = []
    for i, token in enumerate(tokens):
        if token.type in OPENERS:
            opened.append(i)
        elif token.type in _CLOSERS and opened:
            opened.pop()
    return _Cursor(tokens, opened)


def _attribute(cursor: _Cursor, name: str) -> AttrDef | None:
    """The attribute of the op `name` whose value is at the cursor."""
    opdef = OPS.get(name)
    return opdef.attr(cursor.text(2)) if opdef is not None and cursor.text(1) == "=" else None


def _values_of(
    analysis: Analysis, attr: AttrDef, axes: Sequence[types.CompletionItem],
    globals: Iterable[Definition], visible: Iterable[Definition],
) -> Iterator[types.CompletionItem]:  # fmt: skip
    """The possible values of an attribute."""
    if attr.kind in ("axes", "order"):
        yield from axes
    elif attr.kind in ("dtype", "type"):
        yield from _dtypes()
    elif attr.kind == "function":
        yield from (_defined(analysis, d) for d in globals if d.kind == "function")
    elif attr.kind == "bool":
        yield from map(_keyword, ("true", "false"))
    elif attr.choices:
        yield from map(_keyword, attr.choices)
    else:
        yield from (_defined(analysis, d) for d in visible if d.kind == "const")


def _attributes(name: str, given: set[str]) -> Iterator[types.CompletionItem]:
    """The keyword arguments of a call: attributes of an op, or parameters of a composition."""
    composition, opdef = COMPOSITIONS.get(name), OPS.get(name)
    names = [a.name for a in opdef.attrs] if opdef is not None else []
    names += [p.name for p in composition.params] if composition is not None else []
    for each in dict.fromkeys(names):
        if each not in given:
            kind = types.CompletionItemKind.Property
            yield types.CompletionItem(
                f"{each}=", kind=kind, sort_text=f"0{each}", documentation=_markdown(Word(name, each))
            )


def _defined(analysis: Analysis, definition: Definition) -> types.CompletionItem:
    shown = detail_of(analysis, definition).lstrip(": =")
    return types.CompletionItem(
        definition.name, kind=_KINDS[definition.kind], detail=shown, sort_text=f"1{definition.name}"
    )


def _called(name: str) -> types.CompletionItem:
    kind = types.CompletionItemKind.Function
    return types.CompletionItem(
        name, kind=kind, detail=signature(name), sort_text=f"2{name}", documentation=_markdown(Word(name))
    )


def _dtypes() -> Iterator[types.CompletionItem]:
    for name in DTYPES:
        yield types.CompletionItem(name, kind=types.CompletionItemKind.TypeParameter, sort_text=f"3{name}")


def _keyword(word: str) -> types.CompletionItem:
    return types.CompletionItem(word, kind=types.CompletionItemKind.Keyword, sort_text=f"4{word}")


def _markdown(word: Word) -> types.MarkupContent:
    return types.MarkupContent(types.MarkupKind.Markdown, about(word))
