"""What the verbs print with --json, as JSON Schemas (dialect 2020-12): a file for each verb, in `common.json` what they
share, and `errors.json` and `bug.json` for any verb that cannot print its own.

Each output says in `schema` what it is, as in `spmdc.cost/1`. The number becomes another when a field goes or means
something else, so a reader that knows a number can rely on it; fields may come without that, and readers pass over
those that they do not know. The files are the one place where names and numbers stand.
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
    """What an output says that it is: `spmdc.cost/1`."""
    return str(_read(name)["properties"]["schema"]["const"])


def schema_of(name: str) -> Schema:
    """The schema of an output, whole: with the shared definitions that it needs in its own `$defs`."""
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
