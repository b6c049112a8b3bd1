"""Checks the JSON output of verbs against its schema."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from spmdc.schemas import Schema, schema_of


def named(output: Any) -> Any:
    """The output, if it satisfies its schema, and has no fields that the schema does not define."""
    name = output["schema"].removeprefix("spmdc.").partition("/")[0]
    _validator(name).validate(output)
    return output


@cache
def _validator(name: str) -> Draft202012Validator:
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(_closed(schema))


def _closed(schema: Schema, here: bool = True) -> Schema:
    """The schema without room for undefined fields. Readers allow these, so that fields can be added later."""
    made = {key: _parts(key, of) for key, of in schema.items()}
    return {**made, "unevaluatedProperties": False} if here else made


def _parts(key: str, of: Any) -> Any:
    if key == "items":
        return _closed(of)
    if key in ("properties", "$defs"):
        return {name: _closed(part, key == "properties") for name, part in of.items()}
    return [_closed(part, False) for part in of] if key in ("oneOf", "anyOf") else of
