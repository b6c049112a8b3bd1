"""Readable names from MLIR's locations: `args[0]['w']` becomes `w`, `jit(f)/mlp/dot_general` no name of its own."""

from __future__ import annotations

import keyword
import re

from ir.names import RESERVED, is_name

_PATH_PART = re.compile(r"\[['\"](\w+)['\"]\]|\.(\w+)|\[(\d+)\]|^(\w+)", re.ASCII)
_UNSAFE = re.compile(r"\W+", re.ASCII)


def identifier(name: str, default: str) -> str:
    """The name with invalid characters replaced by underscores."""
    if is_name(name):
        return name
    parts = [_UNSAFE.sub("_", part).strip("_") or "_" for part in name.split(".")] if name else []
    cleaned = ".".join(parts)
    if not cleaned.strip("_."):
        return default
    cleaned = cleaned if not cleaned[0].isdigit() else f"{default}_{cleaned}"
    return cleaned if cleaned not in RESERVED else f"{cleaned}_"


def name_of_instruction(name: str) -> str:
    """A name for an HLO instruction's result. JAX's names list scopes; of these it is the last that is not a call."""
    last = name.rpartition("/")[2]
    return "" if "(" in last else identifier(last, "")


def name_of_path(path: str, default: str) -> str:
    """A name for a leaf of a pytree: `p['layers'][0]['w']` is `layers_0_w`, `x` is `x`, `args[0]` is `args_0`."""
    parts = [next(g for g in match.groups() if g is not None) for match in _PATH_PART.finditer(path)]
    if len(parts) > 1 and not parts[1].isdigit():
        parts = parts[1:]
    name = "_".join(parts)
    return identifier(name, default) if not keyword.iskeyword(name) else f"{name}_"
