"""A small U-Net with transposed convolutions, as one writes it in JAX."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def init(key: Any, channels: tuple[int, ...]) -> dict[str, Any]:
    def kernel(key: Any, size: int, m: int, n: int) -> Any:
        return jax.random.normal(key, (size, size, m, n)) * (size * size * m) ** -0.5

    pairs = list(itertools.pairwise(channels))
    keys = iter(jax.random.split(key, 4 * len(pairs) + 1))
    return {
        "down": [kernel(next(keys), 3, m, n) for m, n in pairs],
        "up": [kernel(next(keys), 2, n, m) for m, n in reversed(pairs)],
        "merge": [kernel(next(keys), 3, 2 * m, m) for m, _ in reversed(pairs)],
        "out": kernel(next(keys), 1, channels[0], channels[0]),
    }


def conv(x: Any, kernel: Any, stride: int = 1) -> Any:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=_LAYOUT)


def forward(params: Any, images: Any) -> Any:
    x, skips = images, []
    for kernel in params["down"]:
        skips.append(x)
        x = jax.nn.relu(conv(x, kernel, stride=2))
    for up, merge, skip in zip(params["up"], params["merge"], reversed(skips), strict=True):
        x = lax.conv_transpose(x, up, (2, 2), "SAME", dimension_numbers=_LAYOUT)
        x = jax.nn.relu(conv(jnp.concatenate([x, skip], axis=-1), merge))
    return conv(x, params["out"])


def loss(params: Any, images: Any, targets: Any) -> Any:
    return jnp.mean((forward(params, images) - targets) ** 2)


def step(params: Any, images: Any, targets: Any) -> Any:
    """One step of gradient descent."""
    value, grads = jax.value_and_grad(loss)(params, images, targets)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value
