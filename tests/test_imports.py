"""Who imports whom: floors, circles, and imports that are made late."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
BELOW = {"ir": (), "passes": ("ir",), "lowering": ("ir",), "spmdc": ("ir", "passes", "lowering")}
"""What each floor stands on."""


@cache
def _files() -> Mapping[str, Path]:
    """The files of the product, by the names of their modules."""
    found: dict[str, Path] = {}
    for floor in BELOW:
        for path in sorted((ROOT / floor).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def _trees() -> Mapping[str, ast.Module]:
    return {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in _files().items()}


def _imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def _targets(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{name}" for name in names]
    for name in names:
        module = name if name in _files() else name.rpartition(".")[0]
        if module in _files():
            yield module


@cache
def _arrows() -> nx.DiGraph[str]:
    """Which module imports which, at whatever place in it."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for module, tree in _trees().items():
        for node in _imports(tree):
            graph.add_edges_from((module, target) for target in _targets(node) if target != module)
    return graph


def test_no_import_runs_upward() -> None:
    def floor(module: str) -> str:
        return module.partition(".")[0]

    assert [(a, b) for a, b in _arrows().edges if floor(a) != floor(b) and floor(b) not in BELOW[floor(a)]] == []


def test_no_files_import_one_another_in_a_circle() -> None:
    assert [ring for ring in nx.strongly_connected_components(_arrows()) if len(ring) > 1] == []


@pytest.mark.parametrize("folder", sorted({path.parent.relative_to(ROOT).as_posix() for path in _files().values()}))
def test_no_circle_leads_through_the_files_and_folders_of_a_folder(folder: str) -> None:
    rooms: nx.DiGraph[str] = nx.DiGraph()

    def room(module: str) -> str:
        """What in the folder the module is in, or is; empty if it is elsewhere. What a package hands on is no room."""
        path = _files()[module].relative_to(ROOT)
        inside = path.is_relative_to(folder) and path != Path(folder) / "__init__.py"
        return path.relative_to(folder).parts[0] if inside else ""

    rooms.add_edges_from((a, b) for x, y in _arrows().edges if (a := room(x)) and (b := room(y)) and a != b)
    assert [ring for ring in nx.strongly_connected_components(rooms) if len(ring) > 1] == []


def test_a_file_with_imports_inside_of_functions_says_why() -> None:
    silent: list[str] = []
    for module, path in _files().items():
        functions = (n for n in ast.walk(_trees()[module]) if isinstance(n, ast.FunctionDef))
        is_late = any(True for function in functions for _ in _imports(function))
        if is_late and "Imported late" not in path.read_text(encoding="utf-8"):
            silent.append(module)
    assert silent == []
