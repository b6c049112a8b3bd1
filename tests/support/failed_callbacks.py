"""Clears the state that failed callbacks leave in JAX."""

from __future__ import annotations

from typing import Any

from jax._src import dispatch


def forget_failures() -> None:
    """JAX keeps the last effects of each device, and raises the errors of failed ones in the next call that awaits
    effects, possibly in another test."""
    tokens: Any = dispatch.runtime_tokens
    tokens.clear()
