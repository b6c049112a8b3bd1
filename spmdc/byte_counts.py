"""Numbers of bytes in human-readable form, on the command line and in files."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZES = {unit.lower(): size for unit, size in _UNITS.items()}

BYTE_COUNTS = "4096, 64MiB or 1.5GB"
"""Examples of them, for messages."""


def byte_count(text: str) -> int | None:
    """The number of bytes of a text such as `4096`, `64MiB` or `1.5GB`; None if it is no such number."""
    match = re.fullmatch(r"(\d{1,30}(?:\.\d{1,30})?) ?(\w*)", text, re.ASCII)
    if match is None or match[2].lower() not in _SIZES:
        return None
    return int(Fraction(match[1]) * _SIZES[match[2].lower()])
