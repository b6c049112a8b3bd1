"""Arguments of another kind than a function of the API takes are errors that say what was wrong, and a way out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec

import spmdc
from ir.mesh import Mesh
from ir.sharding import Sharding

_PROGRAM = spmdc.parse("""
mesh (x=4)
def main(a: f32[8@x, 6], b: f32[6, 4] = normal(1), scale: f32[]) -> (loss: f32[]) {
  product = einsum("ij,jk->ik", a, b)
  return sum(product * scale, [0, 1])
}
""")
_PLAN = spmdc.plan(_PROGRAM)
_PARTITIONED: Any = spmdc.partition(_PROGRAM)
_PRODUCT = next(op for op in _PROGRAM.main.body.ops if op.label == "product")
_SHARDINGS = [v.sharding for v in _PLAN.program.main.params[:2]]
_VECTOR, _ELSEWHERE = (Sharding.replicate(mesh, rank) for mesh, rank in ((_PROGRAM.mesh, 1), (Mesh((("z", 2),)), 2)))
_SPEC: Any = PartitionSpec
_INPUTS = spmdc.random_inputs(_PROGRAM, integers=True)
_api: Any = spmdc
"""Without types, which would refuse all of this before it runs."""


def _function(x: object) -> object:
    return x


_TAKING_PROGRAMS: dict[str, Callable[[Any], object]] = {
    "as_jax": _api.as_jax,
    "checkpointed": lambda p: _api.checkpointed(p, 1),
    "compare": _api.compare,
    "evaluate": lambda p: _api.evaluate(p, *_INPUTS),
    "gradient": _api.gradient,
    "initial_values": _api.initial_values,
    "partition": _api.partition,
    "plan": _api.plan,
    "propagate": _api.propagate,
    "random_inputs": _api.random_inputs,
    "verify": _api.verify,
}


@pytest.mark.parametrize("take", _TAKING_PROGRAMS.values(), ids=_TAKING_PROGRAMS)
@pytest.mark.parametrize(
    ("given", "shown", "way_out"),
    [
        (_function, "the function _function", "spmdc.from_jax(f, *args)"),
        ("p.spmd", "'p.spmd'", "spmdc.load(path)"),
        (Path("p.spmd"), "p.spmd", "spmdc.load(path)"),
        (None, "None", "spmdc.load, spmdc.parse and spmdc.from_jax"),
    ],
)
def test_what_is_no_program_is_refused(take: Callable[[Any], object], given: object, shown: str, way_out: str) -> None:
    found = _refused("E601", lambda: take(given))
    assert "a program is expected, and not" in found
    assert shown in found
    assert way_out in found


@pytest.mark.parametrize("name", ["as_jax", "evaluate", "gradient", "partition", "plan", "propagate", "verify"])
def test_a_partitioned_program_is_refused_where_it_is_too_late(name: str) -> None:
    assert "SPMD program" in _refused("E406", lambda: _TAKING_PROGRAMS[name](_PARTITIONED))


def test_the_program_is_taken_of_what_has_one() -> None:
    expected = _PARTITIONED.text()
    assert _api.partition(_api.as_jax(_PROGRAM)).text() == expected
    assert _api.partition(_api.plan(_PLAN)).text() == expected
    for array, of_source in zip(_api.random_inputs(_PARTITIONED, integers=True), _INPUTS, strict=True):
        np.testing.assert_array_equal(array, of_source)
    np.testing.assert_array_equal(_api.evaluate(_PLAN, *_INPUTS), _api.evaluate(_PROGRAM, *_INPUTS))


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"mesh": {"x": 2}}, "a plan is for the mesh"),
        ({"machine": "tpu-v4"}, "and machine would"),
        ({"memory_limit": 1000}, "and memory_limit would"),
        ({"windowed_einsum": "always", "recompute": "never"}, "and windowed_einsum and recompute would"),
    ],
)
def test_a_plan_refuses_what_comes_too_late_for_it(options: dict[str, Any], shown: str) -> None:
    assert shown in _refused("E406", lambda: _api.partition(_PLAN, **options))
    if "machine" not in options:
        assert shown in _refused("E406", lambda: _api.partition(_PLAN.program, **options))
        assert shown in _refused("E406", lambda: _api.plan(_PLAN, **options))


def test_nothing_is_decided_for_a_plan() -> None:
    assert "and decide would" in _refused("E406", lambda: _api.plan(_PLAN, decide=_function))


def test_a_plan_may_be_told_again_what_it_was_made_with() -> None:
    how: dict[str, Any] = {"machine": "tpu-v4", "memory_limit": 2**20, "recompute": "never"}
    plan = _api.plan(_PROGRAM, **how)
    assert _api.partition(plan, **how).text() == _api.partition(plan).text()
    assert _api.plan(_PLAN.program, machine="tpu-v4").options.machine.name == "tpu-v4"


def test_a_propagated_program_is_for_its_mesh() -> None:
    assert "is for the mesh" in _refused("E406", lambda: _api.partition(_api.propagate(_PROGRAM), {"x": 2}))


_REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a mesh in a text": (lambda: _api.partition(_PROGRAM, mesh="x=4"), '{"x": 4, "y": 2}'),
    "a mesh of pairs": (lambda: _api.plan(_PROGRAM, mesh=[("x", 4)]), '{"x": 4, "y": 2}'),
    "a limit in a text": (lambda: _api.partition(_PROGRAM, memory_limit="8GiB"), "8 * 2**30"),
    "a limit of a gradient": (lambda: _api.checkpointed(_PROGRAM, "8GiB"), "8 * 2**30"),
    "a limit of an op": (lambda: _api.strategies(_PRODUCT, _SHARDINGS, memory_limit="8GiB"), "8 * 2**30"),
    "names of passes": (lambda: _api.partition(_PROGRAM, passes=["plan"]), "spmdc.pipeline()"),
    "a pass among passes": (lambda: _api.partition(_PROGRAM, passes=(*_api.pipeline(), 3)), "apply, and not 3"),
    "a pass without a name": (
        lambda: _api.partition(_PROGRAM, passes=[SimpleNamespace(apply=_function)]),
        "and not namespace(",
    ),
    "the class of a pass": (lambda: _api.partition(_PROGRAM, passes=[SimpleNamespace]), "objects with a name"),
    "a pass that returns nothing": (
        lambda: _api.partition(_PROGRAM, passes=[SimpleNamespace(name="idle", apply=lambda s: None)]),
        "the pass 'idle' returns a Compilation, and not None",
    ),
    "no hook": (lambda: _api.partition(_PROGRAM, hooks=[print, 3]), "a Compilation, and not 3"),
    "no decision": (lambda: _api.plan(_PROGRAM, decide=3), "decide is a function, and not 3"),
    "a number as a machine": (lambda: _api.partition(_PROGRAM, machine=3), "a machine is a Machine"),
    "no machine": (lambda: _api.machine(None), "a machine is a Machine"),
    "a machine of costs": (lambda: _PARTITIONED.cost(machine=_api), "a machine is a Machine"),
    "a machine of jit": (lambda: _api.jit(_function, machine=3), "a machine is a Machine"),
    "a number as a target": (lambda: _api.partition(_PROGRAM).compile(3), "tpu-v3:4x4"),
    "a number as a rule": (lambda: _api.register_rule("t", 3), '"... i j -> ... i j"'),
    "a number as a custom call": (lambda: _api.register_rule(3, "i -> i"), "the name of a target, and not 3"),
    "a text as a callback": (lambda: _api.register_callback("f", "f"), "a function, and not 'f'"),
    "a callback without a name": (lambda: _api.register_callback(3, _function), "by name, and not 3"),
    "strategies of nothing": (lambda: _api.strategies(None, []), "program.main.body.ops"),
    "too few shardings": (lambda: _api.strategies(_PRODUCT, []), "one for each of 2 operands"),
    "shardings of another rank": (lambda: _api.strategies(_PRODUCT, [_SHARDINGS[0], _VECTOR]), "of its rank"),
    "shardings of two meshes": (lambda: _api.strategies(_PRODUCT, [_SHARDINGS[0], _ELSEWHERE]), "on one mesh"),
    "shardings of JAX": (lambda: _api.strategies(_PRODUCT, [_SPEC("x")] * 2), "one for each of 2 operands"),
    "a picture of a spec": (lambda: _api.picture(_SPEC("x")), "partitioned.picture(name)"),
    "bytes as a program": (lambda: _api.parse(b"def main()"), "spmdc.load(path)"),
    "nothing as a text": (lambda: _api.parse(None), "a text, and not None"),
    "names as consts": (lambda: _api.parse("", defines=["n"]), 'defines={"n": 8}'),
    "a file descriptor": (lambda: _api.load(3), "a path, and not 3"),
    "nothing as a path": (lambda: _api.load(None), "a path, and not None"),
    "nothing as MLIR": (lambda: _api.from_mlir(None), "spmdc.load(path)"),
    "bytes as HLO": (lambda: _api.from_hlo(b"HloModule m"), "spmdc.load(path)"),
    "a negative seed": (lambda: _api.random_inputs(_PROGRAM, seed=-1), "not negative, and not -1"),
    "a negative seed of padding": (lambda: _PARTITIONED.simulate(*_INPUTS, seed=-1), "not negative, and not -1"),
    "a number as inputs": (lambda: _PARTITIONED.trace(inputs=3), "a sequence of arrays, and not 3"),
    "a number as a hook": (lambda: _api.verify(_PROGRAM, on_example=3), "a function, and not 3"),
    "a seed in letters": (lambda: _api.initial_values(_PROGRAM, seed="a"), "an integer, and not 'a'"),
    "examples in letters": (lambda: _api.verify(_PROGRAM, "a"), "at least 1 example, and not 'a'"),
    "positions of parameters": (lambda: _api.gradient(_PROGRAM, wrt=[0]), "by name, and not [0]"),
    "a position to donate": (lambda: _api.partition(_PROGRAM).to_jax(donate=0), "by name, and not 0"),
    "a number as a strategy": (lambda: _api.plan(_PROGRAM).replace("product", 3), "a text, and not 3"),
    "a number of devices": (lambda: _PARTITIONED.to_jax(8), "jax.devices() has them"),
    "numbers of devices": (lambda: _PARTITIONED.to_jax([*range(8)]), "a sequence of JAX's, and not [0,"),
    "a plan beside a program": (lambda: _PLAN.diff(_api.partition(_PROGRAM)), "spmdc.plan(program)"),
}


@pytest.mark.parametrize(("call", "way_out"), _REFUSED.values(), ids=_REFUSED)
def test_an_argument_of_another_kind_is_refused(call: Callable[[], object], way_out: str) -> None:
    assert way_out in _refused("E601", call)


@pytest.mark.parametrize("size", ["4", 4.0])
def test_sizes_of_a_mesh_are_integers(size: object) -> None:
    assert f"has size {size!r}" in _refused("E304", lambda: _api.partition(_PROGRAM, {"x": size}))


def test_names_that_are_numbers_are_those_of_nothing() -> None:
    assert "no result 0" in _refused("E101", lambda: _api.gradient(_PROGRAM, of=0))
    assert "no value 3" in _refused("E101", lambda: _api.partition(_PROGRAM).why(3))


def test_an_uneven_list_is_no_array() -> None:
    uneven = [[1.0], [1.0, 2.0]]
    assert "no array of numbers" in _refused("E501", lambda: _api.evaluate(_PROGRAM, uneven, *_INPUTS[1:]))
    assert "no array of numbers" in _refused("E501", lambda: _api.partition(_PROGRAM).simulate(uneven, *_INPUTS[1:]))


def test_the_name_of_one_parameter_is_no_sequence_of_letters() -> None:
    assert [r.name for r in spmdc.gradient(_PROGRAM, "scale").main.results] == ["d_scale"]
    assert [r.name for r in spmdc.checkpointed(_PROGRAM, 2**30, "scale").after.gradient.main.results] == ["d_scale"]


def _refused(code: str, call: Callable[[], object]) -> str:
    """The text of the error that a call raises."""
    with pytest.raises(spmdc.SpmdcError) as caught:
        call()
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == code
    return str(caught.value)
