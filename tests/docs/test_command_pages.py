"""docs/cli.md and docs/errors.md, pages of all verbs and of all codes, are what the parser of the command line and
`spmdc explain` say; `--update-golden` writes them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ir.explanations import EXPLANATIONS
from spmdc.commands.shared.parser import command_parser

DOCS = Path(__file__).resolve().parents[2] / "docs"
_VERBS = """\
# The command line

All commands (verbs) and their options, as `spmdc VERB --help` prints them; the tests write this page from the parser. A
FILE is a program: .spmd, .mlir (StableHLO) or .hlo (HLO text), whatever it is called if it begins with `module` or
`HloModule`, and `-` is standard input. The exit status is 0 after success, 1 if the program or its inputs have errors,
2 after wrong usage, and 3 if spmdc has a bug.
[questions.md](questions.md) lists common questions and the command that answers each.
"""
_CODES = """\
# Errors and warnings

This page has the explanation of each code, as `spmdc explain` prints it. The meaning of a code does not change. In a
message, the text after the arrow is the place, the text after the carets is the error there, a note gives the reason,
and a help proposes a change.
"""
_KINDS = {
    "E0": "The text and the file", "E1": "Names", "E2": "Types", "E3": "Meshes and shardings", "E4": "Structure",
    "E5": "Running", "E6": "The command line", "E7": "Imported programs", "W0": "Warnings",
}  # fmt: skip


def _cli_page() -> str:
    (verbs,) = (action for action in command_parser()._actions if action.dest == "verb")
    assert isinstance(verbs.choices, dict)
    lines = [_VERBS]
    for name, verb in verbs.choices.items():
        arguments = [line for action in verb._actions for line in _argument(action)]
        lines += [f"## {name}", "", f"{verb.description}", "", *arguments, ""]
    return _page(lines)


def _argument(action: argparse.Action) -> Iterator[str]:
    if action.dest == "help":
        return
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices is not None:
        value = "|".join(map(str, action.choices))
    if action.nargs == "?":
        value = f"[{value}]"
    words = [", ".join(action.option_strings), *([value] if action.nargs != 0 else [])]
    yield f"- `{' '.join(filter(None, words))}`: {' '.join((action.help or '').split())}"


def _errors_page() -> str:
    lines = [_CODES]
    for kind, title in _KINDS.items():
        lines += [f"## {title}", ""]
        lines += [f"- **{code}** {text}" for code, text in sorted(EXPLANATIONS.items()) if code.startswith(kind)]
        lines += [""]
    return _page(lines)


def _page(lines: list[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


@pytest.mark.parametrize(("name", "text"), [("cli.md", _cli_page()), ("errors.md", _errors_page())])
def test_a_page_of_the_command_line_is_what_that_says(name: str, text: str, request: pytest.FixtureRequest) -> None:
    page = DOCS / name
    if request.config.getoption("--update-golden"):
        page.write_text(text, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == text, f"{page} is old; --update-golden rewrites it"


def test_every_code_is_on_the_page() -> None:
    assert {code[:2] for code in EXPLANATIONS} == {*_KINDS}


def test_the_page_about_machines_names_every_command_that_takes_one() -> None:
    (verbs,) = (action for action in command_parser()._actions if action.dest == "verb")
    assert isinstance(verbs.choices, dict)
    taking = {name for name, verb in verbs.choices.items() if "--machine" in verb._option_string_actions}
    text = (DOCS / "machines.md").read_text("utf-8")
    (named,) = re.findall(r"by `--machine` of (.*?), and by", text, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", named)) == taking
