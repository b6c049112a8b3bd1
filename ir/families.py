"""Packages with a file for each family of ops: what is in them is registered when the package is imported."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable


def import_families(package: str, path: Iterable[str]) -> None:
    """Imports all files of a package, whose `__name__` and `__path__` are given."""
    for file in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{file.name}")
