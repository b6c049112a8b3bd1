"""`spmdc explain`: prints the longer text of a diagnostic code."""

from __future__ import annotations

import difflib
import shutil
import textwrap

from ir.diagnostics import error
from ir.explanations import EXPLANATIONS
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.terminal import print_json

_WIDTH = 100


def run(options: Options, *, code: str | None) -> int:
    """Prints one explanation, or the explanations of all codes."""
    if code is None and options.json:
        print_json(
            options.verb, {"codes": [{"code": known, "text": text} for known, text in sorted(EXPLANATIONS.items())]}
        )
        return 0
    if code is None:
        for known, text in sorted(EXPLANATIONS.items()):
            print(textwrap.fill(text, _width(), initial_indent=f"{known}  ", subsequent_indent="      "))
        return 0
    text = EXPLANATIONS.get(code.upper(), "")
    if not text:
        begun = [known for known in sorted(EXPLANATIONS) if known.startswith(code.upper())] if code else []
        close = begun[:3] or difflib.get_close_matches(code.upper(), EXPLANATIONS, 3)
        help = f"did you mean {' or '.join(close)}?" if close else "`spmdc explain` lists all codes"
        raise error("E601", f"there is no code {code!r}", help=help)
    if options.json:
        print_json(options.verb, {"code": code.upper(), "text": text})
    else:
        print(textwrap.fill(text, _width()))
    return 0


def _width() -> int:
    """The terminal's width, limited to a readable length."""
    return max(20, min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns))
