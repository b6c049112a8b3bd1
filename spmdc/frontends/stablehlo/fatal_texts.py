"""Finds text that MLIR's parser accepts but that makes jaxlib's bindings abort the process when they access it, in the
text of a module, or in the text that MLIR prints of its bytecode."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VALUE_IS_PLACE = re.compile(r"[{,]\s*[\w.$]+ *= *(?:loc\(|#loc)")
"""An attribute whose value is a location."""

_STRING = re.compile(r'(?:= *"(?:[^"\\\n]|\\.)*")|("(?:[^"\\\n]|\\.)*")')
"""Group 1 matches a string that is not the value of an attribute."""

_ESCAPED = re.compile(rb"\\(?:([0-9A-Fa-f]{2})|.)")
_BEYOND_ASCII = re.compile(r"\\[89A-Fa-f][0-9A-Fa-f]")


@dataclass(frozen=True)
class FatalText:
    """The text that was found, its range, and its replacement."""

    message: str
    start: int
    end: int
    help: str = ""


def fatal_text(text: str) -> FatalText | None:
    """The first attribute that is a location, or the first name that is not UTF-8, such as that of a file. The values
    of attributes may be any bytes, such as the code of a kernel."""
    found = _VALUE_IS_PLACE.search(text)
    if found is not None:
        return FatalText("the value of an attribute is a location", found.start(), found.end())
    if _BEYOND_ASCII.search(text) is None:
        return None
    for found in _STRING.finditer(text):
        named = _ESCAPED.sub(lambda e: bytes.fromhex(e[1].decode()) if e[1] else e[0], (found[1] or "").encode())
        try:
            named.decode()
        except UnicodeDecodeError:
            help = r"name the bytes of each character, as in \"\C3\A9\", or write the character itself"
            return FatalText(f"the name {found[0]} is not UTF-8", found.start(), found.end(), help)
    return None
