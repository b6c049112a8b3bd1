"""The language for Pygments, which finds this lexer by its entry point: in Sphinx, mkdocs, LaTeX and rich."""

from __future__ import annotations

import re
from typing import ClassVar

from pygments.lexer import RegexLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text, _TokenType

from spmdc.highlighting.patterns import PATTERNS, Kind

_TOKENS: dict[Kind, _TokenType] = {
    "comment": Comment.Single,
    "string": String,
    "number": Number,
    "keyword": Keyword,
    "constant": Keyword.Constant,
    "type": Keyword.Type,
    "axes": Name.Decorator,
    "builtin": Name.Builtin,
    "function": Name.Function,
    "name": Name,
    "operator": Operator,
}


class SpmdLexer(RegexLexer):
    """Colours `.spmd` programs."""

    name = "spmd"
    aliases: ClassVar = ["spmd"]
    filenames: ClassVar = ["*.spmd"]
    flags = re.MULTILINE | re.ASCII
    tokens: ClassVar = {
        "root": [
            (r"\s+", Text),
            *((pattern, _TOKENS[kind]) for kind, pattern in PATTERNS),
            (r"[(){}\[\],:;?!]", Punctuation),
        ]
    }
