"""Packages with a file for each op family, whose ops are registered when the package is imported."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable


def import_families(package: str, path: Iterable[str]) -> None:
    """Imports all files of a package, given by its `__name__` and `__path__`."""
    for file in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{file.name}")
