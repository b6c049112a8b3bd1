"""What may be a name in a program."""

from __future__ import annotations

import re

RESERVED = frozenset({"def", "return"})
"""Words that never name anything. Other keywords are keywords only where they cannot be names."""

NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
"""A pattern, for regular expressions of ASCII."""

_NAME = re.compile(NAME, re.ASCII)


def is_name(text: str) -> bool:
    """Whether a program can name something so."""
    return _NAME.fullmatch(text) is not None and text not in RESERVED
