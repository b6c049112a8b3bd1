"""docs/api.md, a page of the public API, is what signatures and docstrings say; `--update-golden` writes it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import spmdc

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
_HEAD = """\
# The Python API

This page has the public names of `import spmdc` with their docstrings, from which the tests write it. Wherever a
function takes a `Machine`, it also accepts the name of one (`spmdc machine list`). Errors in a program or in its inputs
are raised as `SpmdcError`.
"""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _page() -> str:
    names = sorted((name for name in spmdc.__all__ if not name.startswith("_")), key=lambda n: (n[0].isupper(), n))
    return "\n".join([_HEAD, *(line for name in names for line in _entry(name))]).rstrip() + "\n"


def _entry(name: str) -> Iterator[str]:
    thing = getattr(spmdc, name)
    yield f"## {name}\n"
    if not (inspect.isclass(thing) or inspect.isfunction(inspect.unwrap(thing))):
        yield f"`{name}`: a `{type(thing).__name__}`.\n"
        return
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))).body
    if isinstance(node, _Function):
        yield from _told(f"spmdc.{name}", node)
        return
    assert isinstance(node, ast.ClassDef)
    yield f"{ast.get_docstring(node) or ''}\n"
    for part in node.body:
        if isinstance(part, _Function) and not part.name.startswith("_"):
            yield f"### {name}.{part.name}\n"
            yield from _told(part.name, part)


def _told(name: str, node: _Function) -> Iterator[str]:
    """The signature of a function, or of a method, and its docstring."""
    decorators = [ast.unparse(each) for each in node.decorator_list]
    arguments = node.args
    if arguments.args and arguments.args[0].arg == "self":
        arguments.args = arguments.args[1:]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    is_value = any(each in ("property", "cached_property") for each in decorators)
    whole = f"{name}{'' if is_value else f'({ast.unparse(arguments)})'}{returns}"
    yield f"```py\n{textwrap.fill(whole, 100, subsequent_indent='    ', break_long_words=False)}\n```\n"
    yield f"{ast.get_docstring(node) or ''}\n"


def test_the_page_of_the_api_is_what_docstrings_say(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        PAGE.write_text(_page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == _page(), f"{PAGE} is old; --update-golden rewrites it"
