"""The kinds of tokens to highlight, as regular expressions for both Python and Oniguruma, TextMate's engine.

The words come from the tables of the parser. If a word is a keyword only in some places, what follows it decides, as in
`spmdc.frontends.spmd.syntax.lexer`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ir.names import NAME, RESERVED
from ir.ops import OPS
from ir.types import DTYPES
from spmdc.frontends.spmd.expand.annotations import ANNOTATIONS
from spmdc.frontends.spmd.expand.constants import FUNCTIONS, WORDS
from spmdc.frontends.spmd.library import COMPOSITIONS
from spmdc.frontends.spmd.syntax.lexer import CONTEXTUAL

Kind = Literal[
    "comment", "string", "number", "keyword", "constant", "type", "axes", "builtin", "function", "name", "operator"
]

_FOLLOWED_BY = {
    "while": r"\s*\(", "case": r"\s*\(", "if": r"\s*\(", "manual": r"\s*\(",
    "repeat": rf"\s+{NAME}\s*<", "loop": rf"\s+{NAME}\s*<", "of": rf"\s+{NAME}\[",
    "cond": r"\s*\{", "do": r"\s*\{", "or": r"\s*\{", "else": r"\s*\{", "checkpoint": r"\s*[({]",
    "precision": r"\s*\(",
}  # fmt: skip
"""What follows contextual keywords. The others begin an item, at the beginning of a line."""
_INTEGER = r"0[xX][0-9a-fA-F]+|\d+"
_FLOAT = r"\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?"
_AXIS = rf"(?:{NAME}(?::\(\d+\)\d+)?|\?)"


def _word(words: Iterable[str]) -> str:
    """A pattern for whole words, longer ones first."""
    return rf"(?<![\w.])(?:{'|'.join(sorted(words, key=lambda word: (-len(word), word)))})(?![\w.])"


def _keywords() -> str:
    items = "|".join(sorted(CONTEXTUAL - _FOLLOWED_BY.keys()))
    contextual = [rf"{_word([word])}(?={behind})" for word, behind in _FOLLOWED_BY.items()]
    annotation = rf"{_word(('partial', 'replicated'))}(?=\s*[:;}}])"
    return "|".join([_word(RESERVED), rf"^(?:{items})(?![\w.])", *contextual, annotation])


PATTERNS: tuple[tuple[Kind, str], ...] = (
    ("comment", r"#.*"),
    ("string", r'"(?:[^"\\\n]|\\.)*"' + r"|'(?:[^'\\\n]|\\.)*'"),
    ("axes", rf"@\s*(?:{_AXIS}|\(\s*{_AXIS}(?:\s*,\s*{_AXIS})*\s*\))(?:\s*!\s*\d+)?"),
    ("keyword", _keywords()),
    ("function", rf"(?<=\bdef ){NAME}"),
    ("constant", _word(WORDS)),
    ("type", _word(DTYPES)),
    ("builtin", rf"{_word({*OPS, *COMPOSITIONS, *ANNOTATIONS, *FUNCTIONS})}(?=\s*\()"),
    ("function", rf"(?<![\w.]){NAME}(?=\s*\()"),
    ("number", rf"(?<![\w.])(?:{_FLOAT}|{_INTEGER})(?!\w)"),
    ("name", rf"(?<![\w.]){NAME}"),
    ("operator", r"->|\*\*|//|<=|>=|==|!=|[-+*/%<>=&|^~]"),
)
"""In order of precedence: if several match at one position, the first does."""
