"""JSON Schemas (dialect 2020-12) of the verbs' output with --json: a file for each verb, `common.json` with shared
definitions, and `errors.json` and `bug.json` for any verb that fails.

Each output names its schema in the field `schema`, as in `spmdc.cost/1`. The number changes when a field is removed or
changes its meaning, so a reader that knows a number can rely on it. Fields may be added without a new number, and
readers must ignore unknown ones. Names and numbers are defined in these files only.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

Schema = dict[str, Any]
_COMMON = "common"


def schema_names() -> list[str]:
    """The outputs that have a schema: verbs, `errors` and `bug`."""
    files = (file.name for file in resources.files(__name__).iterdir())
    return sorted(stem for stem, dot, kind in (f.partition(".") for f in files) if kind == "json" and stem != _COMMON)


@cache
def schema_id(name: str) -> str:
    """The name of an output's schema: `spmdc.cost/1`."""
    return str(_read(name)["properties"]["schema"]["const"])


def schema_of(name: str) -> Schema:
    """The self-contained schema of an output: with the shared definitions that it uses in its own `$defs`."""
    shared = _read(_COMMON)["$defs"]
    schema = json.loads(json.dumps(_read(name)).replace(f"{_COMMON}.json#", "#"))
    needed: Schema = {}
    waiting = [schema]
    while waiting:
        text = json.dumps(waiting.pop())
        for key in sorted(shared):
            if key not in needed and f'"#/$defs/{key}"' in text:
                needed[key] = shared[key]
                waiting.append(shared[key])
    return {**schema, "$defs": needed} if needed else schema


def _read(name: str) -> Schema:
    found: Schema = json.loads(resources.files(__name__).joinpath(f"{name}.json").read_text("utf-8"))
    return found
