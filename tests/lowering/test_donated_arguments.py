"""Results take the memory of arguments that are donated, and what cannot be used so is reported."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import spmdc
from ir.diagnostics import SpmdcError

pytestmark = pytest.mark.usefixtures("devices")
_spec: Any = PartitionSpec

STEP = """
mesh (x=4, y=2)

def main(w: f32[8@x, 6@y], bias: f32[6], slope: f32[8@x, 6@y], rate: f32[])
    -> (new: f32[8@x, 6@y], new_bias: f32[6]) {
  return w - rate * slope, bias - rate
}
"""


def program(text: str = STEP) -> spmdc.PartitionedProgram:
    return spmdc.partition(spmdc.parse(text))


def placed(shape: tuple[int, ...], *axes: str | None) -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))
    numbers = np.arange(float(np.prod(shape)), dtype=np.float32).reshape(shape)
    array: jax.Array = jax.device_put(numbers, NamedSharding(mesh, _spec(*axes)))
    return array


def arguments() -> dict[str, jax.Array]:
    return {"w": placed((8, 6), "x", "y"), "bias": placed((6,)), "slope": placed((8, 6), "x", "y"), "rate": placed(())}


@pytest.mark.parametrize("donate", ["w", ("w",), ("bias", "w"), ("bias",), ()])
def test_a_donated_argument_is_deleted_and_no_other(donate: str | tuple[str, ...]) -> None:
    given = arguments()
    wanted = [np.array(r) for r in program().to_jax()(*given.values())]
    assert not any(array.is_deleted() for array in given.values())
    with warnings.catch_warnings(action="error"):
        found = program().to_jax(donate=donate)(*given.values())
    for array, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(array, expected)
    assert {name for name, array in given.items() if array.is_deleted()} == {*([donate] if donate == "w" else donate)}


def test_the_state_of_a_loop_is_handed_from_call_to_call() -> None:
    step, given = program().to_jax(donate=("w", "bias")), arguments()
    w, bias = given["w"], given["bias"]
    for _ in range(3):
        before = w
        w, bias = step(w, bias, given["slope"], np.float32(1))
        assert before.is_deleted()
    np.testing.assert_array_equal(w, -2 * np.asarray(given["slope"]))


def test_what_is_not_where_the_devices_take_it_is_copied_there_and_stays() -> None:
    _, *others = arguments().values()
    host = np.array(others[1])
    run = program().to_jax(donate="w")
    for array in (host, jax.device_put(host, jax.devices()[0])):
        run(array, *others)
        np.testing.assert_array_equal(array, others[1])


def test_a_name_of_no_argument_is_reported_with_those_that_are_near() -> None:
    with pytest.raises(SpmdcError, match=r"E101.*no argument 'slop' to donate[\s\S]*did you mean slope"):
        program().to_jax(donate=("w", "slop"))
    with pytest.raises(SpmdcError, match="there are w, bias, slope, rate"):
        program().to_jax(donate="new")


@pytest.mark.parametrize(
    ("text", "donate", "said"),
    [
        (STEP, ("rate",), "rate: f32[]{replicated} has the type and sharding of no result"),
        (STEP, ("w", "slope"), "slope: f32[8@x, 6@y] has the type and sharding of no result, or of none that is left"),
        (STEP.replace("new: f32[8@x, 6@y]", "new: f32[8@x, 6]"), ("w",), "w: f32[8@x, 6@y] has the type"),
        (STEP.replace("8@x", "7@x"), ("w",), "w: f32[7@x, 6@y] is cut into shards of its own in each call"),
    ],
)
def test_an_argument_whose_memory_no_result_can_take_is_warned_of_and_keeps_it(
    text: str, donate: tuple[str, ...], said: str
) -> None:
    with pytest.warns(UserWarning, match="Some donated arguments are not usable") as warned:
        run = program(text).to_jax(donate=donate)
    assert said in str(warned[0].message)
    assert warned[0].filename == __file__
    given = arguments()
    if "7@x" in text:
        given |= {name: placed((7, 6)) for name in ("w", "slope")}
    run(*given.values())
    assert not given[donate[-1]].is_deleted()


def test_an_array_that_is_donated_and_given_twice_is_refused() -> None:
    given = arguments()
    with pytest.raises(SpmdcError, match=r"E514.*w is donated, and the same array is given as slope"):
        program().to_jax(donate="w")(given["w"], given["bias"], given["w"], given["rate"])
    assert not given["w"].is_deleted()


def test_an_array_that_was_donated_before_is_refused() -> None:
    run, given = program().to_jax(donate="w"), arguments()
    run(*given.values())
    with pytest.raises(RuntimeError, match="deleted"):
        run(*given.values())
