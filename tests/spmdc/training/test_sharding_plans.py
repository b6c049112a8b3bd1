"""A step of training, with its gradient and its optimizer, is the same however tokens are sent to their experts, and so
is what dropout and the router draw in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.tree_util import keystr, tree_leaves_with_path
from training import CONFIG

import spmdc
from ir.program import Program
from ir.types import Array
from spmdc.training.config import Config, read_config
from spmdc.training.step import Trainer, optimizer_of

pytestmark = pytest.mark.usefixtures("devices")
_FOLDER = Path(spmdc.__file__).parent / "programs"
_STEPS, _RATE = 20, 0.01


@dataclass(frozen=True)
class Model:
    """A shipped program, and consts of which none depends on the mesh."""

    name: str
    consts: Mapping[str, int]

    def on(self, mesh: Mapping[str, int]) -> Program:
        return spmdc.load(_FOLDER / f"{self.name}.spmd", {**self.consts, **mesh})


_SIZES = {"B": 16, "T": 8, "V": 16, "M": 8, "N": 2, "K": 4, "H": 8, "G": 8, "E": 8}
SWITCH = Model("switch_transformer", {**_SIZES, "LAYERS": 1, "EVERY": 1, "GEGLU": 0, "EXPLORE": 1})
"""The router draws the expert of a token by its probabilities. Dropout is what the program has by default."""
TOP_2 = Model("moe_transformer", {**_SIZES, "LAYERS": 2, "W": 16, "S": 16, "DROPOUT": 10})
"""The router draws whether a token has a second expert."""
_ALONE = {SWITCH.name: {"DATA": 1, "EXPERT": 1, "MODEL": 1}, TOP_2.name: {"D": 1}}
PLANS = {
    "experts over all devices": {"DATA": 1, "EXPERT": 8, "MODEL": 1},
    "data and experts": {"DATA": 2, "EXPERT": 4, "MODEL": 1},
    "experts and model": {"DATA": 1, "EXPERT": 4, "MODEL": 2},
    "data, experts and model": {"DATA": 2, "EXPERT": 2, "MODEL": 2},
}


def config_of(folder: Path, optimizer: str = "adam") -> Config:
    """Adam divides a gradient by its size and eps: with the usual 1e-8, what is but a rounding of a gradient would be
    as long a step as any."""
    path = folder / "train.toml"
    settings = f'"{optimizer}"' + ("\neps = 1e-5" if optimizer == "adam" else "")
    path.write_text(CONFIG.replace('"adam"', settings))
    return read_config(path)


def batches_of(program: Program) -> list[dict[str, Array]]:
    """What is not a weight, for each step: symbols, and a key that is never the same."""
    draw = np.random.default_rng(0)
    inputs = [p for p in program.main.params if p.name not in program.weights]
    highest = {p.name: 2**32 if p.type.shape == (2,) else _SIZES["V"] for p in inputs}
    return [
        {p.name: draw.integers(highest[p.name], size=p.type.shape).astype(p.type.dtype.numpy) for p in inputs}
        for _ in range(_STEPS)
    ]


def other_key(batch: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array + 1 if name in ("key", "rng") else array for name, array in batch.items()}


@dataclass(frozen=True)
class Course:
    """The losses of all steps, and the state after the first: weights, and what the optimizer remembers."""

    losses: list[float]
    first: Any


def unpartitioned(model: Model, config: Config) -> Course:
    """By JAX alone, on one device, which knows nothing of annotations. What is drawn makes a difference."""
    program = model.on(_ALONE[model.name])
    function, optimizer = spmdc.as_jax(program), optimizer_of(config)

    @jax.jit
    def step(weights: Any, memory: Any, batch: Any) -> Any:
        loss, slopes = jax.value_and_grad(lambda w: function(**w, **batch).loss)(weights)
        updates, memory = optimizer.update(slopes, memory, weights)
        return optax.apply_updates(weights, updates), memory, loss

    weights = spmdc.initial_values(program, config.seed)
    memory = optimizer.init(weights)
    losses, states = list[float](), list[Any]()
    batches = batches_of(program)
    *_, of_other_key = step(weights, memory, other_key(batches[0]))
    for batch in batches:
        weights, memory, loss = step(weights, memory, batch)
        losses.append(float(loss))
        states.append((weights, memory))
    assert abs(of_other_key - losses[0]) > 1e-3
    return Course(losses, states[0])


def partitioned(model: Model, mesh: Mapping[str, int], config: Config) -> tuple[Course, set[str]]:
    """As `spmdc train` does it, and the axes over which tokens are sent to experts."""
    program = model.on(mesh)
    trainer = Trainer(program, config)
    state, batches = jax.device_put(trainer.first, trainer.shardings), batches_of(program)
    losses, states = list[float](), list[Any]()
    sent = trainer.step.lower(state, batches[0]).partitioned.collectives()  # type: ignore[attr-defined]
    for batch in batches:
        state, record = trainer.step(state, batch)
        losses.append(float(record["loss"]))
        states.append(jax.tree.map(np.array, state) if not states else None)
    return Course(losses, states[0]), {c.axes for c in sent if c.kind == "all_to_all"}


def check_alike(got: Course, want: Course, optimizer: str = "adam") -> None:
    """Sums over devices are added in another order than on one, which moves a gradient by roundings: some 1e-7 of its
    largest number, and Adam's step by rate / eps of that, a thousandth of its length at most. Adafactor's step is as
    long where a gradient is but a rounding as where it is large: of its first step what it remembers is compared."""
    assert abs(got.losses[0] - want.losses[0]) <= 1e-5
    np.testing.assert_allclose(got.losses, want.losses, rtol=1e-3)
    (weights, memory), (wanted, remembered) = got.first, want.first
    for path, array, expected in paired(memory, remembered):
        np.testing.assert_allclose(array, expected, atol=1e-5 * np.abs(expected).max(initial=0), err_msg=path)
    for path, array, expected in paired(weights, wanted) if optimizer != "adafactor" else ():
        np.testing.assert_allclose(array, expected, atol=1e-3 * _RATE, err_msg=path)


def paired(found: Any, wanted: Any) -> Iterator[tuple[str, Array, Array]]:
    for (path, array), expected in zip(tree_leaves_with_path(found), jax.tree.leaves(wanted), strict=True):
        yield keystr(path), array, np.asarray(expected)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Course:
    return unpartitioned(SWITCH, config_of(tmp_path_factory.mktemp("alone")))


@pytest.mark.parametrize("plan", PLANS)
def test_steps_are_those_of_one_device_over_whatever_axes_tokens_are_sent(
    plan: str, alone: Course, tmp_path: Path
) -> None:
    found, axes = partitioned(SWITCH, PLANS[plan], config_of(tmp_path))
    assert axes == {"expert"}
    check_alike(found, alone)


@pytest.mark.soak
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adafactor"])
@pytest.mark.parametrize("explore", [2, 3])
def test_steps_are_those_of_one_device_however_the_router_explores(
    explore: int, optimizer: str, tmp_path: Path
) -> None:
    more = {"LAYERS": 2, "EVERY": 2, "GEGLU": 1, "EXPLORE": explore, "REROUTES": 1, "RECOMPUTE": 1}
    model, config = Model(SWITCH.name, {**SWITCH.consts, **more}), config_of(tmp_path, optimizer)
    wanted = unpartitioned(model, config)
    for mesh in PLANS.values():
        check_alike(partitioned(model, mesh, config)[0], wanted, optimizer)


@pytest.mark.soak
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adafactor"])
def test_steps_are_those_of_one_device_where_tokens_have_two_experts(optimizer: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, optimizer)
    wanted = unpartitioned(TOP_2, config)
    for devices in (2, 8):
        found, axes = partitioned(TOP_2, {"D": devices}, config)
        assert axes == {"d"}
        check_alike(found, wanted, optimizer)
