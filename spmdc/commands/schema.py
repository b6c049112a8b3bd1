"""`spmdc schema`: what verbs print with --json, as JSON Schemas."""

from __future__ import annotations

import json

from ir.diagnostics import error
from spmdc.commands.shared.options import Options
from spmdc.schemas import schema_id, schema_names, schema_of


def run(options: Options, *, name: str | None) -> int:
    """Prints the schema of one output, or the names of all."""
    if name is None:
        print("\n".join(map(schema_id, schema_names())))
        return 0
    if name not in schema_names():
        raise error("E601", f"{name!r} prints no JSON that has a schema", help=f"one of {', '.join(schema_names())}")
    print(json.dumps(schema_of(name), indent=2, ensure_ascii=False))
    return 0
