"""`spmdc lsp`: the language server, for editors."""

from __future__ import annotations

import os
from importlib.util import find_spec

from ir.diagnostics import error
from spmdc.commands.shared.options import Options


def run(options: Options) -> int:
    """Serves an editor on standard input and output until it exits. Raises SpmdcError (E605) without pygls."""
    if find_spec("pygls") is None:
        raise error("E605", "the language server needs the package pygls", help="pip install 'spmdc[lsp]'")
    # Imported late, as the package is there only with the extra.
    from spmdc.lsp.server import SERVER

    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Output that libraries print is not part of the protocol.
    SERVER.start_io(questions, answers)
    return 0
