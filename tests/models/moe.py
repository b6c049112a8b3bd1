"""GShard's mixture-of-experts layer (Algorithms 1 and 2), as one writes it in JAX, with its annotations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

P: Any = PartitionSpec
place: Any = lax.with_sharding_constraint


def init(key: Any, *, experts: int, width: int, hidden: int) -> dict[str, Any]:
    k = jax.random.split(key, 3)
    return {
        "wg": jax.random.normal(k[0], (width, experts)) * width**-0.5,
        "wi": jax.random.normal(k[1], (experts, width, hidden)) * width**-0.5,
        "wo": jax.random.normal(k[2], (experts, hidden, width)) * hidden**-0.5,
    }


def top2_gating(gates: Any, capacity: int) -> Any:
    """Algorithm 1 for every group at once; the second expert always takes part."""
    experts = gates.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(gates, axis=-1), experts)
    rest = jnp.where(first > 0, -1.0, gates)
    second = jax.nn.one_hot(jnp.argmax(rest, axis=-1), experts)
    share = jnp.mean(first, axis=1)
    aux = jnp.mean(share * jnp.mean(gates, axis=1)) * experts**2
    ahead1 = jnp.cumsum(first, axis=1) - first
    position1 = jnp.sum(ahead1 * first, axis=-1)
    ahead2 = jnp.cumsum(second, axis=1) - second + jnp.sum(first, axis=1, keepdims=True)
    position2 = jnp.sum(ahead2 * second, axis=-1)
    gate1 = jnp.sum(gates * first, axis=-1)
    gate2 = jnp.sum(gates * second, axis=-1)
    total = gate1 + gate2 + 1e-9
    choices: list[Any] = [(gate1, position1, first), (gate2, position2, second)]
    combine = sum(
        (gate / total * (position < capacity))[..., None, None]
        * mask[..., None]
        * jax.nn.one_hot(position.astype(jnp.int32), capacity)[..., None, :]
        for gate, position, mask in choices
    )
    return combine, (combine > 0).astype(gates.dtype), aux


def layer(params: Any, inputs: Any, axes: tuple[str, ...] = ()) -> Any:
    """Algorithm 2: `inputs` is [groups, tokens, width]; experts are split along the mesh's `axes`, if any are named."""
    experts = params["wg"].shape[-1]
    capacity = max(1, 2 * inputs.shape[1] // experts)
    gates = jax.nn.softmax(jnp.einsum("GSM,ME->GSE", inputs, params["wg"]))
    combine, dispatch, aux = top2_gating(gates, capacity)
    dispatched = jnp.einsum("GSEC,GSM->EGCM", dispatch, inputs)
    if axes:
        dispatched = place(dispatched, P(axes))
    h = jax.nn.relu(jnp.einsum("EGCM,EMH->EGCH", dispatched, params["wi"]))
    expert_out = jnp.einsum("EGCH,EHM->GECM", h, params["wo"])
    return jnp.einsum("GSEC,GECM->GSM", combine, expert_out), aux


def loss(params: Any, inputs: Any, targets: Any, axes: tuple[str, ...]) -> Any:
    outputs, aux = layer(params, inputs, axes)
    return jnp.mean((outputs - targets) ** 2) + 0.01 * aux


def step(params: Any, inputs: Any, targets: Any, axes: tuple[str, ...] = ()) -> Any:
    """One step of gradient descent."""
    value, grads = jax.value_and_grad(loss)(params, inputs, targets, axes)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value
