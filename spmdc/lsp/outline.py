"""The outline of a text: consts, meshes, functions, and the values in them."""

from __future__ import annotations

from collections.abc import Sequence

from lsprotocol import types

from spmdc.frontends.spmd.names import Definition, Kind
from spmdc.lsp.documents import Analysis
from spmdc.lsp.problems import detail_of

KINDS: dict[Kind, types.SymbolKind] = {
    "const": types.SymbolKind.Constant,
    "mesh": types.SymbolKind.Namespace,
    "axis": types.SymbolKind.EnumMember,
    "function": types.SymbolKind.Function,
    "parameter": types.SymbolKind.Variable,
    "result": types.SymbolKind.Property,
    "value": types.SymbolKind.Variable,
}


def outline(analysis: Analysis) -> list[types.DocumentSymbol]:
    """The definitions of a text, those of functions inside of them."""
    definitions = analysis.names.definitions
    inside: dict[str, list[Definition]] = {}
    for definition in definitions:
        if definition.function:
            inside.setdefault(definition.function, []).append(definition)
    return [_symbol(analysis, d, inside.get(d.name, []) if d.kind == "function" else []) for d in definitions
            if not d.function]  # fmt: skip


def _symbol(analysis: Analysis, definition: Definition, inside: Sequence[Definition]) -> types.DocumentSymbol:
    children = [_symbol(analysis, d, ()) for d in inside]
    selected = analysis.lines.range(definition.span)
    end = max([selected.end, *(child.range.end for child in children)], key=lambda p: (p.line, p.character))
    return types.DocumentSymbol(
        definition.name, KINDS[definition.kind], types.Range(selected.start, end), selected,
        detail=detail_of(analysis, definition).lstrip(": ="), children=children,
    )  # fmt: skip
