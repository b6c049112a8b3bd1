"""The gating that ships with spmdc, against what the papers say, token by token."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
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


def drawn(rng: Array, shape: tuple[int, ...], low: float = 0, high: float = 1) -> Array:
    """What `uniform` draws with a key."""
    return np.asarray(jax.random.uniform(jax.random.wrap_key_data(jax.numpy.asarray(rng)), shape, None, low, high))


def taken_in_turn(probabilities: Array, first: Array, capacity: int, reroutes: int = 0) -> Array:
    """Who takes which token as its how-manieth, with its probability: every token asks `first`, then those that found
    no room ask the best that they have not asked, and so on, the tokens of a group in their order (appendix B)."""
    combine = np.zeros((G, S, E, capacity))
    for g in range(G):
        counts, waiting = np.zeros(E, int), list(range(S))
        asked: dict[int, list[int]] = {s: [] for s in range(S)}
        for _ in range(reroutes + 1):
            for s in list(waiting):
                untried = [e for e in np.argsort(-probabilities[g, s], kind="stable") if e not in asked[s]]
                e = untried[0] if asked[s] else first[g, s]
                asked[s].append(int(e))
                if counts[e] < capacity:
                    combine[g, s, e, counts[e]] = probabilities[g, s, e]
                    counts[e] += 1
                    waiting.remove(s)
    return combine


@pytest.mark.parametrize("capacity", [1, 3, 20])
def test_top_1_gating_is_the_switch_router_run_token_by_token(capacity: int) -> None:
    """Switch Transformer, equations 4 to 6 and Figure 15; the z-loss is equation 5 of ST-MoE."""
    inputs, wg = tokens(capacity)
    rng = np.array([7, capacity], np.uint32)
    combine, dispatch, aux, z_loss = routed("top1", inputs, wg, rng, C=capacity)

    logits = (inputs * drawn(rng, inputs.shape, 0.99, 1.01)) @ wg
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


@pytest.mark.parametrize("way", ["argmax", "sample softmax", "input dropout", "input jitter"])
def test_tokens_explore_experts_in_the_four_ways_of_the_paper(way: str) -> None:
    """Switch Transformer, appendix C and Table 11."""
    ways = ("argmax", "sample softmax", "input dropout", "input jitter")
    inputs, wg = tokens(5)
    rng = np.array([3, 8], np.uint32)
    combine, dispatch, aux, _ = routed("top1", inputs, wg, rng, EXPLORE=ways.index(way), ROUTER_DROPOUT=30, JITTER=20)

    seen = {
        "input dropout": np.where(drawn(rng, inputs.shape) < 0.7, inputs / 0.7, 0),
        "input jitter": inputs * drawn(rng, inputs.shape, 0.8, 1.2),
    }.get(way, inputs)
    probabilities = softmax(seen @ wg)
    best = probabilities.argmax(-1)
    noise = -np.log(-np.log(drawn(rng, (G, S, E), 1e-30)))
    first = (np.log(probabilities) + noise).argmax(-1) if way == "sample softmax" else best
    expected = taken_in_turn(probabilities, first, int(1.25 * S / E))
    np.testing.assert_allclose(combine, expected, rtol=1e-5)
    np.testing.assert_array_equal(dispatch, expected > 0)
    busy = np.eye(E)[first].mean(1)
    np.testing.assert_allclose(aux, E * (busy * probabilities.mean(1)).sum(1).mean(), rtol=1e-5)
    assert (first != softmax(inputs @ wg).argmax(-1)).any() == (way != "argmax")


def test_a_token_goes_to_an_expert_as_often_as_is_probable_if_it_is_sampled() -> None:
    """Switch Transformer, appendix C: "sampling from the softmax distribution"."""
    many = 500
    inputs, wg = np.ones((G, many, M), np.float32), tokens(2)[1] / 4
    _, dispatch, *_ = routed("top1", inputs, wg, np.array([1, 2], np.uint32), EXPLORE=1, S=many, C=many)
    probabilities = softmax(inputs[0, 0] @ wg)
    frequencies = dispatch.sum((0, 1, 3)) / (G * many)
    assert probabilities.min() > 0.02
    deviations = np.sqrt(probabilities * (1 - probabilities) / (G * many))
    assert (np.abs(frequencies - probabilities) < 4 * deviations).all()


@pytest.mark.parametrize("reroutes", [0, 1, 2, 3])
@pytest.mark.parametrize("capacity", [1, 3, 5])
def test_tokens_without_room_ask_their_next_best_expert_and_none_is_left_behind(capacity: int, reroutes: int) -> None:
    """Switch Transformer, appendix B and Figure 11. All tokens of the first group prefer the same expert."""
    inputs, wg = tokens(capacity)
    inputs[0] = inputs[0, :1] + inputs[0] / 20
    combine, dispatch, aux, _ = routed(
        "top1", inputs, wg, np.zeros(2, np.uint32), EXPLORE=0, C=capacity, REROUTES=reroutes
    )
    probabilities = softmax(inputs @ wg)
    expected = taken_in_turn(probabilities, probabilities.argmax(-1), capacity, reroutes)
    np.testing.assert_allclose(combine, expected, rtol=1e-5)
    np.testing.assert_array_equal(dispatch, expected > 0)
    *_, alone, _ = routed("top1", inputs, wg, np.zeros(2, np.uint32), EXPLORE=0, C=capacity)
    assert aux == alone
    if reroutes == E - 1:
        assert (dispatch.sum((1, 2, 3)) == min(S, E * capacity)).all()


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
