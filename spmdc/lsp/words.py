"""Descriptions of the language's own names, from the declarations of ops and compositions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from ir.initializers import DRAWN
from ir.ops import OPS, AttrDef
from spmdc.frontends.spmd.expand.annotations import USAGE
from spmdc.frontends.spmd.library import COMPOSITIONS
from spmdc.frontends.spmd.names import Word


def signature(name: str) -> str:
    """How an op or a composition is called: `cumsum(x, dim, [reverse], [exclusive])`."""
    if name in USAGE:
        return USAGE[name]
    if name in COMPOSITIONS:
        return str(COMPOSITIONS[name])
    opdef = OPS.get(name)
    if opdef is None:
        return f"{name}({', '.join(DRAWN.get(name, ('…',)))})"
    return str(opdef)


def about(word: Word) -> str:
    """The description of a name, in Markdown."""
    if word.attribute:
        return _about_attribute(word)
    return "\n\n".join([f"```spmd\n{signature(word.name)}\n```", *_text(word.name)])


def _text(name: str) -> Iterator[str]:
    opdef, composition = OPS.get(name), COMPOSITIONS.get(name)
    if composition is not None:
        yield inspect.getdoc(composition.expand) or ""
    elif opdef is not None:
        yield opdef.doc
        yield "\n".join(f"- {_spelt(attr)}" for attr in opdef.attrs)
    elif name in DRAWN:
        yield "What a weight holds at first: numbers that are drawn, other ones for each name and seed."


def _about_attribute(word: Word) -> str:
    opdef = OPS.get(word.name)
    attr = opdef.attr(word.attribute) if opdef is not None else None
    return _spelt(attr) if attr is not None else f"`{word.attribute}` of `{signature(word.name)}`"


def _spelt(attr: AttrDef) -> str:
    """`kind`: word (sum, max), and its description."""
    choices = f" ({', '.join(attr.choices)})" if attr.choices else ""
    return f"`{attr.name}`: {attr.kind}{choices}" + (f", {attr.doc}" if attr.doc else "")
