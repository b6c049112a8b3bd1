"""The names that a program may use."""

from __future__ import annotations

import re

RESERVED = frozenset({"def", "return"})
"""Words that never name anything. Other keywords are keywords only where they cannot be names."""

NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
"""The pattern of a name, for ASCII regular expressions."""

_NAME = re.compile(NAME, re.ASCII)


def is_name(text: str) -> bool:
    """Whether this is a valid name."""
    return _NAME.fullmatch(text) is not None and text not in RESERVED
