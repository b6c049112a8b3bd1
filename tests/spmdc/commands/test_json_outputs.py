"""Each verb that has --json prints what its schema says, in each of the forms that the schema knows; those of `watch`
and of `machine measure` are in the tests of these verbs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import PROGRAM, Run
from command_line import spmdc as spmdc
from json_outputs import named
from jsonschema import Draft202012Validator, ValidationError
from training import written

from spmdc.commands.shared.parser import command_parser
from spmdc.schemas import schema_names, schema_of

COMMANDS = """
run p.spmd --check
check p.spmd wrong.spmd
check nothing.spmd
fmt --diff p.spmd
propagate p.spmd
plan p.spmd
plan p.spmd --explain h
plan p.spmd --diff q.spmd
partition p.spmd
partition p.spmd -p propagate,plan
cost p.spmd
cost p.spmd --machine tpu-v3 --machine h100
trace p.spmd
report p.spmd
why p.spmd h
why p.spmd all_reduce
visualize p.spmd h
verify p.spmd --examples 1
verify --rules add
lower p.spmd
compile p.spmd --target cpu
compare p.spmd
compare p.spmd --target cpu
grad p.spmd --wrt a
train train.toml
explain E201
explain
demo --no-jax
machine list
machine show h100
""".strip().splitlines()


def forms(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = schema.get("oneOf", [])
    return found


def test_every_output_is_of_its_schema_and_every_form_occurs(spmdc: Run) -> None:
    Path("q.spmd").write_text(PROGRAM.replace("16@x", "16"))
    Path("wrong.spmd").write_text("def main(")
    written(Path())
    outputs = {command: spmdc(*command.split(), "--json").json for command in COMMANDS}
    assert {command.split()[0] for command in COMMANDS} | {"watch"} == _verbs_with_json()
    assert all(output["schema"].startswith(f"spmdc.{command.split()[0]}/") for command, output in outputs.items())
    for name in _verbs_with_json() - {"watch"}:
        own = [output for command, output in outputs.items() if command.split()[0] == name]
        schema = schema_of(name)
        missing = [
            form["title"]
            for form in forms(schema)
            if not any(Draft202012Validator({**form, "$defs": schema.get("$defs", {})}).is_valid(o) for o in own)
        ]
        assert not [title for title in missing if "measure" not in title], name


def _verbs_with_json() -> set[str]:
    (verbs,) = (action for action in command_parser()._actions if action.dest == "verb")
    assert isinstance(verbs.choices, dict)
    return {name for name, verb in verbs.choices.items() if "--json" in verb._option_string_actions}


def test_every_schema_is_of_a_verb() -> None:
    assert {*schema_names()} == _verbs_with_json() | {"errors", "bug"}


def test_a_field_that_no_schema_names_is_noticed(spmdc: Run) -> None:
    output = spmdc("cost", "p.spmd", "--json").json
    for broken in ({**output, "colour": 1}, {**output, "rows": [{**output["rows"][0], "colour": 1}]}):
        with pytest.raises(ValidationError, match="colour"):
            named(broken)
    with pytest.raises(ValidationError, match="seconds"):
        named({key: value for key, value in output.items() if key != "seconds"})


def test_a_reader_with_the_schema_takes_fields_that_came_later(spmdc: Run) -> None:
    output = spmdc("plan", "p.spmd", "--json").json
    Draft202012Validator(schema_of("plan")).validate({**output, "later": 1})


def test_errors_are_an_output_of_their_own(spmdc: Run) -> None:
    for arguments in (("plan", "nothing.spmd"), ("nonsense",)):
        assert spmdc(*arguments, "--json").json["schema"] == "spmdc.errors/1"


def test_the_schema_verb_prints_schemas_that_stand_alone(spmdc: Run) -> None:
    schema = json.loads(spmdc("schema", "why").out)
    assert "common.json" not in str(schema)
    assert {"cause", "collective"} <= schema["$defs"].keys()
    Draft202012Validator(schema).validate(spmdc("why", "p.spmd", "all_reduce", "--json").json)
    assert spmdc("schema").out.split() == sorted(f"spmdc.{name}/1" for name in schema_names())
    assert spmdc("schema", "nonsense").status == 2
