"""Every name of JAX's and jaxlib's that spmdc uses is in the JAX at hand; CI has pip's newest beside an older one.

Of spmdc itself, one module alone uses names that JAX keeps private.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = sorted(f for package in ("ir", "passes", "lowering", "spmdc") for f in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PRIVATE = ROOT / "lowering" / "jax" / "versions.py"
OURS = ("jax", "jaxlib")


def names_in(text: str) -> Iterator[tuple[int, str]]:
    """The dotted names of JAX's that a module uses, with their lines: what it imports, and attributes of that."""
    tree = ast.parse(text)
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in OURS:
                    bound[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.lineno, f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        parts: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id in bound:
            yield inner.lineno, ".".join([bound[inner.id], *reversed(parts)])


def missing(name: str) -> str | None:
    """The first part of a dotted name that is not there, or None. Only modules and classes are looked into."""
    first, *rest = name.split(".")
    here, found = first, importlib.import_module(first)
    for part in rest:
        here = f"{here}.{part}"
        if not hasattr(found, part):
            if not hasattr(found, "__path__"):
                return here if isinstance(found, type) or hasattr(found, "__file__") else None
            try:
                importlib.import_module(here)
            except ImportError:
                return here
        found = getattr(found, part)
        if not isinstance(found, type) and not hasattr(found, "__file__"):
            return None
    return None


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def test_every_name_of_jax_that_is_used_is_there() -> None:
    gone = [
        f"{file.relative_to(ROOT)}:{line} uses {at}"
        for file in (*PRODUCT, *TESTS)
        for line, name in names_in(file.read_text())
        if (at := missing(name)) is not None
    ]
    assert not gone, "this version of jax lacks names:\n" + "\n".join(gone)


def test_private_names_stand_in_one_module() -> None:
    used = [
        f"{file.relative_to(ROOT)}:{line} uses {name}"
        for file in PRODUCT
        if file != PRIVATE
        for line, name in names_in(file.read_text())
        if is_private(name)
    ]
    assert not used, "these belong into lowering/jax/versions.py:\n" + "\n".join(used)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import jax\njax.no_such_function()", "jax.no_such_function"),
        ("from jax.interpreters import no_such_module", "jax.interpreters.no_such_module"),
        ("import jax.numpy as jnp\njnp.no_such.thing", "jax.numpy.no_such"),
        ("from jax.sharding import Mesh\nMesh.no_such", "jax.sharding.Mesh.no_such"),
        ("from jaxlib import _jax\n_jax.no_such", "jaxlib._jax.no_such"),
    ],
)
def test_a_name_that_has_moved_is_found(text: str, name: str) -> None:
    assert [missing(used) for _, used in names_in(text)][-1] == name


def test_a_private_name_is_known_as_such() -> None:
    assert [is_private(name) for _, name in names_in("from jax._src import core\nimport jax")] == [True, False]
