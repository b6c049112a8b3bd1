"""The names that a program may use."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

RESERVED = frozenset({"def", "return"})
"""Words that never name anything. Other keywords are keywords only where they cannot be names."""

NAME = r"[A-Za-z_]\w*(?:\.\w+)*"
"""The pattern of a name, for ASCII regular expressions."""

_NAME = re.compile(NAME, re.ASCII)


def is_name(text: str) -> bool:
    """Whether this is a valid name."""
    return _NAME.fullmatch(text) is not None and text not in RESERVED


def did_you_mean(name: str, known: Sequence[str], most: int = 3, cutoff: float = 0.6) -> str:
    """A question for the known names that are most like another one, as help for an error; empty if there are none."""
    close = difflib.get_close_matches(name, known, most, cutoff)
    return f"did you mean {' or '.join(close)}?" if close else ""
