"""Programs and words in colours, for terminals."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from pygments.token import Comment, Keyword, Name, String, _TokenType
from rich.style import Style

from ir.ops.collective import COLLECTIVES
from spmdc.highlighting.pygments_lexer import SpmdLexer

_STYLES: Mapping[_TokenType, str] = MappingProxyType(
    {
        Comment.Single: "bright_black",
        String: "green",
        Keyword: "magenta",
        Keyword.Type: "blue",
        Name.Decorator: "bold cyan",
    }
)
"""The styles of the tokens of programs; other tokens are not styled."""
_COMMUNICATES = "bold yellow"


def colored_code(line: str) -> str:
    """A line of a program."""
    tokens = ((token, text) for _, token, text in _lexer().get_tokens_unprocessed(line))
    styles = ((_COMMUNICATES if text in COLLECTIVES else _STYLES.get(token, ""), text) for token, text in tokens)
    return "".join(styled(text, style) if style else text for style, text in styles)


def styled(text: str, style: str) -> str:
    """A text in a style of rich's."""
    return _style(style).render(text)


@cache
def _lexer() -> SpmdLexer:
    return SpmdLexer()


@cache
def _style(name: str) -> Style:
    return Style.parse(name)
