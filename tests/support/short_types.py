"""Types of fewer than 8 bits or of floats of 8, as parameters of tests that compile for each of them."""

from __future__ import annotations

from typing import Any

import pytest

from ir.types import DTYPES

SHORT = tuple(t for t in DTYPES.values() if t.is_short)

_AS_FOR_USERS = ("f4e2m1fn", "f8e4m3fn", "f8e5m2fnuz", "f8e8m0fnu", "s4", "u2")
"""One of each kind: floats with or without infinity, NaN, zeros of both signs or any, and integers with a sign or none.
f4e2m1fn and those fnuz are computed wrongly by the loops that XLA's older emitter writes."""

EACH_SHORT: list[Any] = [
    pytest.param(t, id=str(t), marks=pytest.mark.optimised if str(t) in _AS_FOR_USERS else ()) for t in SHORT
]
"""All of them; one of each kind is compiled as for users."""
