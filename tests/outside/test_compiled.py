"""What the outside models are held to: off by roundings is right, and off by more is not."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from compiled import expected


def _sums(x: Any) -> tuple[Any, Any, Any]:
    """One large sum, one of which only roundings are left, and integers."""
    return x.sum(), jnp.float32(1000.0) * (x.sum() - x[::-1].sum()), jnp.arange(3)


@pytest.fixture
def numbers() -> Any:
    return np.random.default_rng(0).uniform(1, 2, 512).astype(np.float32)


def test_sums_in_another_order_are_equal(numbers: Any) -> None:
    order = np.random.default_rng(1).permutation(512)
    expected(_sums, (numbers,)).check(_sums(jnp.asarray(numbers[order])))


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_what_is_wrong_by_more_than_roundings_is_found(numbers: Any, wrong: int) -> None:
    right = expected(_sums, (numbers,))
    results = list(right.results)
    results[wrong] = results[wrong] + results[wrong].dtype.type(1)
    with pytest.raises(AssertionError, match=f"result {wrong}"):
        right.check(results)
