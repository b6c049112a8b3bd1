"""Functions by the ops that they are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Rule = TypeVar("Rule", bound=Callable[..., object])


class Registry(dict[str, Rule]):
    """What is known to do for each op, by its name: every function is registered by a decorator in front of it."""

    def of(self, *names: str) -> Callable[[Rule], Rule]:
        """Registers a function for these ops."""

        def register(rule: Rule) -> Rule:
            for name in names:
                assert name not in self, name
                self[name] = rule
            return rule

        return register
