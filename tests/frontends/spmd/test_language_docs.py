"""docs/language.md says what is so: its programs parse, its errors occur where they are marked, nothing is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ir.diagnostics import SpmdcError
from ir.types import DTYPES
from ir.verify.program import check
from spmdc.frontends.spmd import format_source, parse, print_program
from spmdc.frontends.spmd.library import COMPOSITIONS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "language.md").read_text("utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", blocks("spmd"), ids=lambda t: t[:40])
def test_programs_of_the_page_are_programs(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks("spmd"):
        named = re.match(r"# (\w+\.spmd)", block)
        if named is not None:
            Path(named[1]).write_text(block)
    program = parse(text)
    check(program)
    assert print_program(parse(print_program(program))) == print_program(program)
    assert print_program(parse(format_source(text)), locations=False) == print_program(program, locations=False)


@pytest.mark.parametrize("text", blocks("spmd_error"))
def test_errors_of_the_page_occur_where_they_are_marked(text: str) -> None:
    marked = [(n, m[1]) for n, line in enumerate(text.split("\n"), 1) if (m := re.search(r"# (E\d+)$", line))]
    with pytest.raises(SpmdcError) as caught:
        parse(text)
    assert [(d.span.line, d.code) for d in caught.value.diagnostics if d.span] == marked


@pytest.mark.parametrize("name", [*COMPOSITIONS, *DTYPES])
def test_every_composition_and_element_type_is_on_the_page(name: str) -> None:
    assert re.search(rf"`[^`\n]*\b{name}\b", PAGE)
