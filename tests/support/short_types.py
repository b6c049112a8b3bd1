"""Integer types of fewer than 8 bits and floats of up to 8, as parameters of tests that compile for each of them."""

from __future__ import annotations

from typing import Any

import pytest

from ir.types import DTYPES

SHORT = tuple(t for t in DTYPES.values() if t.is_short)

_AS_FOR_USERS = ("f4e2m1fn", "f8e4m3fn", "f8e5m2fnuz", "f8e8m0fnu", "s4", "u2")
"""One type of each kind: floats with or without infinity, NaN, signed zeros or any zero, and integers with and without
a sign. f4e2m1fn and the fnuz types are computed incorrectly by the loops of XLA's older emitter."""

EACH_SHORT: list[Any] = [
    pytest.param(t, id=str(t), marks=pytest.mark.optimised if str(t) in _AS_FOR_USERS else ()) for t in SHORT
]
"""All short types; one of each kind is compiled as for users."""
