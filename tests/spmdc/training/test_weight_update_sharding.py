"""The update of weights is split over the devices that share the data by one word: what it sends and what it keeps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from training import CONFIG, PROGRAM, run_of, written

from ir.diagnostics import SpmdcError
from spmdc.training.run import Run

pytestmark = pytest.mark.usefixtures("devices")
_DATA_PARALLEL = PROGRAM.replace("@y", "").replace("x=2, y=2", "x=4")
_SPLIT = CONFIG.replace("rate = 0.01", 'rate = 0.01\nsplit = "x"')
_SHARDED = _DATA_PARALLEL.replace("wi: f32[M, 16]", "wi: f32[M, 16@x]").replace("bias: f32[V]", "bias: f32[V@x]")
_FEW = 64
"""Bytes: what counts, norms and losses send, and gradients do not."""


def made(folder: Path, config: str = CONFIG, program: str = _DATA_PARALLEL) -> Run:
    folder.mkdir()
    return run_of(written(folder, config, program))


def sent(run: Run) -> Counter[str]:
    """The bytes that a device receives in a step, by the collective, without those of single numbers."""
    found = run.trainer.step.lower(run._state()[0], run.feed.at(0)).partitioned.collectives()  # type: ignore[attr-defined]
    total: Counter[str] = Counter()
    for collective in found:
        if collective.bytes > _FEW:
            total[collective.kind] += collective.bytes * collective.count
    return total


def on_a_device(state: Any) -> int:
    """The bytes of a state that a device has."""
    return sum(array.addressable_shards[0].data.nbytes for array in jax.tree.leaves(state) if array.ndim)


def weight_bytes(run: Run) -> int:
    return sum(array.nbytes for array in run.trainer.first[0].values())


def test_gradients_are_reduce_scattered_and_updated_weights_gathered_with_a_quarter_of_the_memory(
    tmp_path: Path,
) -> None:
    whole, split = (
        made(tmp_path / name, config, _DATA_PARALLEL.replace("B = 8", "B = 64"))
        for name, config in (("whole", CONFIG), ("split", _SPLIT))
    )
    all_weights = weight_bytes(whole)
    assert sent(whole) == {"all_reduce": 2 * all_weights * 3 // 4}
    assert sent(split) == {"reduce_scatter": all_weights * 3 // 4, "all_gather": all_weights * 3 // 4}
    for run, part in ((whole, 1), (split, 4)):
        weights, memory = run._state()[0]
        assert on_a_device(weights) == all_weights
        assert on_a_device(memory) == 2 * all_weights // part


def test_rows_of_an_embedding_are_updated_from_the_tokens_if_these_are_fewer(tmp_path: Path) -> None:
    """The tokens of all devices and the gradients of what was embedded are gathered, and no gradient of the table is
    reduced."""
    run = made(tmp_path / "split", _SPLIT)
    all_weights, table = weight_bytes(run), run.trainer.first[0]["table"].nbytes
    batch, source, target, width = 8, 12, 9, 8
    elements = batch * (source + target) + batch * (target + 1) * width
    gathered = all_weights * 3 // 4 + elements * 4 * 3 // 4
    assert sent(run) == {"reduce_scatter": (all_weights - table) * 3 // 4, "all_gather": gathered}
    weights, memory = run._state()[0]
    assert on_a_device(weights) == all_weights
    assert on_a_device(memory) == 2 * all_weights // 4


@pytest.mark.parametrize("optimizer", ["adam", "adafactor"])
def test_an_update_that_is_split_is_the_same(optimizer: str, tmp_path: Path) -> None:
    states = []
    for name, config in (("whole", CONFIG), ("split", _SPLIT)):
        config = config.replace('"adam"', f'"{optimizer}"').replace("steps = 6", "steps = 6\nclip = 0.5")
        run = made(tmp_path / name, config)
        states.append(run.train(lambda record: None))
    for found, wanted in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_weight_annotated_as_split_is_gathered_where_it_is_used_and_its_gradient_scattered(tmp_path: Path) -> None:
    run = made(tmp_path / "sharded", program=_SHARDED)
    (weights, memory), kinds = run._state()[0], sent(run)
    assert kinds["reduce_scatter"] >= weights["wi"].nbytes * 3 // 4
    assert kinds["all_gather"] >= weights["wi"].nbytes * 3 // 4
    split = weights["wi"].nbytes + weights["bias"].nbytes
    assert on_a_device(weights) == weight_bytes(run) - split * 3 // 4
    assert on_a_device(memory) == 2 * on_a_device(weights)


def test_an_axis_that_the_mesh_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpmdcError, match=r"E606[\s\S]*optimizer.split is z[\s\S]*there are x"):
        made(tmp_path / "wrong", _SPLIT.replace('split = "x"', 'split = "z"'))


def test_what_is_split_over_the_axis_already_is_not_split_further(tmp_path: Path) -> None:
    run = made(tmp_path / "split", _SPLIT, PROGRAM.replace("@y", "@x").replace("x=2, y=2", "x=4"))
    weights, memory = run._state()[0]
    split = {name: array for name, array in weights.items() if name != "bias"}
    assert on_a_device(split) == sum(array.nbytes for array in split.values()) // 4
    assert on_a_device(memory) == 2 * weight_bytes(run) // 4
