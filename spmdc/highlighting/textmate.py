"""A TextMate grammar of the language, for VS Code, Sublime Text and others.

`python -m spmdc.highlighting.textmate` prints it, as in docs/editors/spmd.tmLanguage.json.
"""

from __future__ import annotations

import json

from spmdc.highlighting.patterns import PATTERNS, Kind

_SCOPES: dict[Kind, str] = {
    "comment": "comment.line.number-sign",
    "string": "string.quoted",
    "number": "constant.numeric",
    "keyword": "keyword.control",
    "constant": "constant.language",
    "type": "storage.type",
    "axes": "storage.modifier.axes",
    "builtin": "support.function",
    "function": "entity.name.function",
    "name": "variable.other",
    "operator": "keyword.operator",
}


def grammar() -> str:
    """The grammar as JSON."""
    patterns = [{"name": f"{_SCOPES[kind]}.spmd", "match": pattern} for kind, pattern in PATTERNS]
    made = {"name": "spmd", "scopeName": "source.spmd", "fileTypes": ["spmd"], "patterns": patterns}
    return json.dumps(made, indent=2) + "\n"


if __name__ == "__main__":
    print(grammar(), end="")
