"""Patches modules when they are imported, so that no test waits for the import of a module that it does not need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Then = Callable[[Any], None]

_THEN: dict[str, Then] = {}


def when_imported(name: str, then: Then) -> None:
    """Calls a function with a module as soon as it is imported, which it must not be yet."""
    assert name not in sys.modules, f"{name} is imported already"
    if not _THEN:
        sys.meta_path.insert(0, _Finder())
    _THEN[name] = then


class _Loader(Loader):
    """Loads a module with another loader, and then calls the function."""

    def __init__(self, loader: Loader, then: Then) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in _THEN else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, _THEN[name])
        return spec
