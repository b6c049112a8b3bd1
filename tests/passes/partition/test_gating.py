"""The gating that ships with spmdc, against what the papers say, token by token."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import spmdc

Array = npt.NDArray[Any]

GATING = Path(str(files("spmdc"))) / "programs" / "gating"
G, S, M, E = 3, 20, 6, 4
SIZES = {"D": 4, "G": G, "S": S, "M": M, "E": E}


def routed(name: str, inputs: Array, wg: Array, *more: Array, **defines: int) -> list[Array]:
    """The results of a file's `main`, the same unpartitioned and on the shards of four devices."""
    program = spmdc.load(GATING / f"{name}.spmd", {**SIZES, **defines})
    arrays = {"inputs": inputs, "wg": wg, **dict(zip(["rng"], more, strict=False))}
    operands = [arrays[p.name] for p in program.main.params]
    expected = [np.asarray(x) for x in spmdc.evaluate(program, *operands)]
    for got, want in zip(spmdc.partition(program).simulate(*operands), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    return expected


def tokens(seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(G, S, M)).astype(np.float32), rng.normal(size=(M, E)).astype(np.float32)


def softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def shown(rng: Array, inputs: Array, jitter: float) -> Array:
    """What a router with jitter sees of the inputs."""
    import jax

    return np.asarray(
        inputs
        * jax.random.uniform(
            jax.random.wrap_key_data(jax.numpy.asarray(rng)), inputs.shape, None, 1 - jitter, 1 + jitter
        )
    )


@pytest.mark.parametrize("capacity", [1, 3, 20])
def test_top_1_gating_is_the_switch_router_run_token_by_token(capacity: int) -> None:
    """Switch Transformer, equations 4 to 6 and Figure 15; the z-loss is equation 5 of ST-MoE."""
    inputs, wg = tokens(capacity)
    rng = np.array([7, capacity], np.uint32)
    combine, dispatch, aux, z_loss = routed("top1", inputs, wg, rng, C=capacity)

    logits = shown(rng, inputs, 0.01) @ wg
    probabilities = softmax(logits)
    expected = np.zeros((G, S, E, capacity))
    losses = []
    for g in range(G):
        counts = np.zeros(E, int)
        for s in range(S):
            e = probabilities[g, s].argmax()
            if counts[e] < capacity:
                expected[g, s, e, counts[e]] = probabilities[g, s, e]
            counts[e] += 1
        losses.append(E * (counts / S * probabilities[g].mean(0)).sum())
    np.testing.assert_allclose(combine, expected, rtol=1e-5)
    np.testing.assert_array_equal(dispatch, expected > 0)
    np.testing.assert_allclose(aux, np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(z_loss, np.mean(np.log(np.exp(logits).sum(-1)) ** 2), rtol=1e-5)
    assert (dispatch.sum() == G * S) == (capacity == S)


def test_the_load_balancing_loss_is_1_for_experts_that_are_equally_busy() -> None:
    """Switch Transformer, section 2.2. Each expert is the certain choice of every fourth token."""
    inputs = np.zeros((G, S, M), np.float32)
    inputs[:, np.arange(S), np.arange(S) % E] = 1
    wg = np.zeros((M, E), np.float32)
    wg[np.arange(E), np.arange(E)] = 50
    *_, aux, _ = routed("top1", inputs, wg, np.zeros(2, np.uint32))
    np.testing.assert_allclose(aux, 1, rtol=1e-6)
    inputs[:] = inputs[:, :1]
    *_, aux, _ = routed("top1", inputs, wg, np.zeros(2, np.uint32))
    np.testing.assert_allclose(aux, E, rtol=1e-6)


def test_the_capacity_of_top_1_gating_is_a_quarter_above_an_even_share() -> None:
    inputs, wg = tokens(0)
    combine, *_ = routed("top1", inputs, wg, np.zeros(2, np.uint32))
    assert combine.shape == (G, S, E, int(1.25 * S / E))


@pytest.mark.parametrize("capacity", [1, 5, 20])
def test_experts_choose_the_tokens_that_fit_them_best(capacity: int) -> None:
    """Mixture-of-experts with expert choice routing (Zhou et al., 2022), section 3.2."""
    inputs, wg = tokens(capacity)
    combine, dispatch = routed("expert_choice", inputs, wg, C=capacity)

    gates = softmax(inputs @ wg)
    best = np.argsort(-gates, axis=1, kind="stable")[:, :capacity]
    expected = np.zeros((G, S, E, capacity))
    for g, e, c in np.ndindex(G, E, capacity):
        expected[g, best[g, c, e], e, c] = gates[g, best[g, c, e], e]
    np.testing.assert_allclose(combine, expected, rtol=1e-5)
    np.testing.assert_array_equal(dispatch, expected > 0)
    np.testing.assert_array_equal(dispatch.sum((1, 3)), np.full((G, E), capacity))


def test_a_program_elsewhere_includes_a_shipped_gating_with_sizes_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "router.spmd"
    path.write_text(f"""
        const G = 2, S = 8, E = 2
        include "{GATING.as_posix()}/top1.spmd"
        def main(logits: f32[G, S, E]) -> (combine: f32[G, S, E, 5], aux: f32[]) {{
          combine, dispatch, aux, z_loss = top1_gating(logits)
          return combine, aux
        }}
    """)
    assert str(spmdc.load(path).main.results[0].type) == "f32[2, 8, 2, 5]"
