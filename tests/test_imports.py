"""Who imports whom: floors, circles, and imports that are made late. Who knows ops by name. Errors and ways out."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from ir.ops import OPS

ROOT = Path(__file__).parent.parent
BELOW = {"ir": (), "passes": ("ir",), "lowering": ("ir",), "spmdc": ("ir", "passes", "lowering")}
"""What each floor stands on."""


KNOW_MANY = {
    "spmdc/frontends": "what other languages call ops is said there",
    "passes/optimize/fold": "patterns of ops of several families, one behind the other",
    "lowering/jax/xla_faults.py": "the ops that backends get wrong",
}
"""Who may know ops of several families by name, besides the files of families, and why."""


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


def _errors_without_help(tree: ast.Module) -> Iterator[ast.Call]:
    """The calls that make an error, and are written without a way out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("error", "Diagnostic"):
            named = {keyword.arg for keyword in node.keywords}
            if node.args and not named & {"help", "severity", None}:
                yield node


def test_every_error_has_a_way_out() -> None:
    """To those of a function of the language, the call adds how it is called."""
    found = [
        f"{_files()[module].relative_to(ROOT)}:{node.lineno}"
        for module, tree in _trees().items()
        if not module.startswith("spmdc.frontends.spmd.library.")
        for node in _errors_without_help(tree)
    ]
    assert found == []


def _names_in(node: ast.expr) -> set[str]:
    """The strings of a table: of a set, a list, a tuple, or the keys of a dict."""
    if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name):
        return _names_in(node.args[0]) if node.func.id in ("frozenset", "set", "tuple", "dict") else set()
    elements: list[ast.expr] = []
    if isinstance(node, ast.Set | ast.List | ast.Tuple):
        elements = node.elts
    if isinstance(node, ast.Dict):
        elements = [key for key in node.keys if key is not None]
    return {e.value for e in elements if isinstance(e, ast.Constant) and isinstance(e.value, str)}


def _ops_asked_for(tree: ast.Module) -> set[str]:
    """The ops that a module tells apart by name: what it compares with a name, or matches, or has in a table of ops."""

    def is_name(node: ast.expr) -> bool:
        return isinstance(node, ast.Attribute) and node.attr == "name"

    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(map(is_name, (node.left, *node.comparators))):
            found |= {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        elif isinstance(node, ast.Match) and is_name(node.subject):
            patterns = (n for case in node.cases for n in ast.walk(case.pattern))
            found |= {n.value for n in patterns if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.BinOp):
            tables = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
            for table in filter(None, tables):
                names = _names_in(table)
                found |= names if names <= OPS.keys() else set()
    return found & OPS.keys()


def _knows_many(module: str) -> bool:
    path = _files()[module].relative_to(ROOT)
    return "ops" not in path.parts and len({OPS[name].family for name in _ops_asked_for(_trees()[module])}) > 1


def test_a_file_knows_the_ops_of_one_family_by_name_and_asks_declarations_of_others() -> None:
    knowing = [_files()[module].relative_to(ROOT) for module in _files() if _knows_many(module)]
    assert [str(path) for path in knowing if not any(path.is_relative_to(place) for place in KNOW_MANY)] == []
    assert [place for place in KNOW_MANY if not any(path.is_relative_to(place) for path in knowing)] == []


@pytest.mark.parametrize(
    "text",
    [
        "def f(op): return op.name == 'slice' or op.name in ('reduce', 'sort')",
        "A = frozenset({'slice'})\nB = A | {'reduce'}",
        "A: dict[str, int] = {'slice': 1, 'reduce': 2}",
        "def f(op):\n  match op.name:\n    case 'slice' | 'reduce': return 1",
    ],
)
def test_ops_are_found_that_a_file_tells_apart_by_name(text: str) -> None:
    assert _ops_asked_for(ast.parse(text)) >= {"slice", "reduce"}
