"""docs/notebook.ipynb is executed, and shows what its cells come to: `--update-golden` rewrites the outputs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "notebook.ipynb"


def result_of(source: str, names: dict[str, Any]) -> object:
    """What the last line of a cell comes to, as a notebook has it."""
    *before, last = ast.parse(source).body
    assert isinstance(last, ast.Expr), "a cell ends in what it shows"
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def shown(result: Any) -> dict[str, list[str]]:
    """The output of a cell, by the kind of data, as Jupyter asks for it."""
    data = {"text/plain": repr(result)}
    for kind, name in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
        if hasattr(result, name):
            data[kind] = getattr(result, name)()
    return {kind: text.splitlines(keepends=True) for kind, text in data.items()}


def test_the_notebook_shows_what_its_cells_come_to(request: pytest.FixtureRequest) -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    counted = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        counted += 1
        data = shown(result_of("".join(cell["source"]), names))
        output = {"data": data, "execution_count": counted, "metadata": {}, "output_type": "execute_result"}
        if request.config.getoption("--update-golden"):
            cell["execution_count"], cell["outputs"] = counted, [output]
        assert cell["outputs"] == [output]
        assert len(data) == 2, "a picture or a page, and a line of text"
    if request.config.getoption("--update-golden"):
        NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
