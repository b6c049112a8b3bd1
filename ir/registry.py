"""Registries of functions by the ops that they are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ir.diagnostics import SpmdcError, error
from ir.program import Op

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


def unregistered(op: Op, decorator: str, folder: str) -> SpmdcError:
    """The error (E522) for an op that was declared, and for which no function is registered."""
    help = f"@{decorator}({op.name!r}) in {folder} registers one: docs/extending.md has an example"
    message = f"the op {op.name!r} is declared, and no function has @{decorator}({op.name!r})"
    return error("E522", message, op.span, help=help)
