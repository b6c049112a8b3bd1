"""What a step of `spmdc train` takes beside the same step under `jax.jit`, with the same annotations and the same
shardings of weights and optimizer, whose memory both reuse. Run with `make bench`; prints every figure.

Both take their steps in turn, and the least time of each counts, so that other work on the machine counts for neither.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import spmdc
from spmdc.training.config import read_config
from spmdc.training.feed import Feed, feed_of
from spmdc.training.programs import trained_program
from spmdc.training.step import State, Trainer

pytestmark = pytest.mark.usefixtures("devices")
PROGRAMS = Path(spmdc.__file__).parent / "programs"
ROUNDS = 20
finish: Any = jax.block_until_ready
Step = Callable[[State, Mapping[str, Any]], tuple[State, Mapping[str, Any]]]


@dataclass
class Course:
    """The steps of one side: its state, the loss of its first step, and its least time for a step."""

    step: Step
    state: State
    loss: float = math.nan
    seconds: float = math.inf

    def advance(self, batch: Mapping[str, Any]) -> None:
        began = time.perf_counter()
        self.state, results = finish(self.step(self.state, batch))
        self.seconds = min(self.seconds, time.perf_counter() - began)
        if math.isnan(self.loss):
            self.loss = float(results["loss"])


def trained(name: str, devices: int, folder: Path) -> tuple[Trainer, Feed]:
    config = read_config(PROGRAMS / f"{name}.toml", folder)
    config = replace(config, consts={**config.consts, "D": devices})
    program = trained_program(config)
    return Trainer(program, config), feed_of(program, config)


def step_of_jax(trainer: Trainer) -> Step:
    """The step under `jax.jit`: the program's annotations are constraints in it."""
    placed = trainer.shardings
    jitted = jax.jit(trainer.updated, in_shardings=(placed, None), out_shardings=(placed, trainer.whole),
                     donate_argnums=0)  # fmt: skip

    def step(state: State, batch: Mapping[str, Any]) -> Any:
        with jax.set_mesh(trainer.mesh):
            return jitted(state, batch)

    return step


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("name", ["translate_months", "moe_translation", "dense_translation"])
def test_a_training_step_beside_jax(name: str, devices: int, tmp_path: Path) -> None:
    trainer, feed = trained(name, devices, tmp_path)
    first = jax.tree.map(np.asarray, trainer.first)
    steps = {"jax.jit": step_of_jax(trainer), "spmdc": trainer.step}
    courses = {side: Course(step, jax.device_put(first, trainer.shardings)) for side, step in steps.items()}
    for n in range(ROUNDS):
        for course in courses.values():
            course.advance(feed.at(n))
    ours, plain = courses["spmdc"], courses["jax.jit"]
    ratio = ours.seconds / plain.seconds
    times = "  ".join(f"{side} {1e3 * course.seconds:.1f} ms" for side, course in courses.items())
    print(f"\n{name} on {devices}: {times}, ratio {ratio:.2f}")
    np.testing.assert_allclose(ours.loss, plain.loss, rtol=1e-5)
    assert ratio < 1.05
