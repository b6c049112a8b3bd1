"""Registries of functions by the ops that they are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Registered = TypeVar("Registered", bound=Callable[..., object])


class Registry(dict[str, Registered]):
    """Functions by the names of the ops that they are for. Each is registered by a decorator."""

    def of(self, *names: str) -> Callable[[Registered], Registered]:
        """Registers the decorated function for the ops of these names."""

        def register(function: Registered) -> Registered:
            for name in names:
                assert name not in self, name
                self[name] = function
            return function

        return register
