"""docs/json.md, a page of all that verbs print with --json, is what schemas say; `--update-golden` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spmdc.schemas import Schema, schema_id, schema_names, schema_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "json.md"
_EVERYWHERE = ("schema", "timings", "diagnostics")
"""What most outputs have: the head of the page says it."""

_HEAD = """\
# What commands print with `--json`

Each output is one JSON object on standard output, whose field `schema` names its schema: `"schema": "spmdc.cost/1"`.
The number changes when a field is removed or changes its meaning; fields may be added without a change of the number.
So a reader

- reads `schema` first, and stops at a number that it does not know (a newer spmdc may print `spmdc.cost/2`, with fields
  of another meaning);
- ignores fields that it does not know.

Errors and warnings are in `diagnostics` of every output. A command that has only errors to report prints
[`spmdc.errors/1`](#errors), with exit status 1 or 2. If spmdc itself fails, it prints [`spmdc.bug/1`](#bug), with exit
status 3.

`spmdc schema cost` prints the schema of one output (JSON Schema, 2020-12), and `spmdc schema` lists all schemas; they
are files in the package, in `spmdc/schemas`. The tests check every output against its schema, and write this page from
the schemas. A field with `?` may be missing; a field that is `… or null` is always present. Numbers that JSON cannot
express are `"inf"`, `"-inf"` and `"nan"`. Most outputs have `timings`, the seconds of each step by its name.
"""


def _page() -> str:
    shared: Schema = {}
    lines = [_HEAD]
    for name in schema_names():
        schema = schema_of(name)
        shared |= schema.get("$defs", {})
        lines += [f"## {name}", "", f"`{schema_id(name)}`: {schema['description']}", ""]
        lines += [*_fields(schema, 0), ""]
        for form in schema.get("oneOf", []):
            lines += [f"**{form['title']}**", "", *_form(form), ""]
    lines += ["## What they share", ""]
    for key in sorted(shared):
        if "properties" in shared[key]:
            lines += [f"### {key}", ""]
            lines += [*([shared[key]["description"], ""] if "description" in shared[key] else [])]
            lines += [*_fields(shared[key], 0), ""]
    return "\n".join(_without_doubled_blanks(lines)).rstrip() + "\n"


def _form(form: Schema) -> list[str]:
    return [f"A [{_name(form)}](#{_name(form)})."] if "$ref" in form else [*_fields(form, 0)]


def _fields(schema: Schema, depth: int) -> Iterator[str]:
    for name, of in schema.get("properties", {}).items():
        if depth == 0 and name in _EVERYWHERE:
            continue
        mark = "" if name in schema["required"] else "?"
        about = f": {of['description']}" if "description" in of else ""
        yield f"{'    ' * depth}- `{name}`{mark} ({_type(of)}){about}"
        for part in (of, of.get("items", {}), *of.get("anyOf", [])):
            yield from _fields(part, depth + 1)


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = _name(schema)
        return "number" if name == "number" else f"[{name}](#{name})"
    if "enum" in schema:
        return ", ".join(f'`"{word}"`' for word in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    kinds = schema.get("type", "any")
    words = [kinds] if isinstance(kinds, str) else kinds
    return " or ".join(_word(word, schema) for word in words)


def _word(kind: str, schema: Schema) -> str:
    if kind == "array":
        return f"array of {_type(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}s by name"
    return kind


def _name(schema: Schema) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _without_doubled_blanks(lines: list[str]) -> list[str]:
    return [line for before, line in zip(["", *lines], lines, strict=False) if line or before]


def test_the_page_of_outputs_is_what_the_schemas_say(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        PAGE.write_text(_page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == _page(), f"{PAGE} is old; --update-golden rewrites it"
