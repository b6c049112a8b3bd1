"""Custom calls that do more than give results: each device makes them, once each and in their order."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spmdc
from spmdc.frontends.spmd import print_program

FFI: Any = jax.ffi
P: Any = jax.sharding.PartitionSpec
MESH = {"x": 2}
NUMBERS = np.arange(8, dtype=np.float32)
SEEN: list[float] = []
WANTED = [1.0, 3.0, 4.0, 2.0, 3.0, 4.0]

_Floats = ctypes.POINTER(ctypes.c_float)
_kind: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
_capsule: Any = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _one_more(out: Any, operands: Any) -> None:
    SEEN.append(ctypes.cast(operands[0], _Floats)[0])
    ctypes.cast(out, _Floats)[0] = SEEN[-1] + 1


def _without_results(out: Any, operands: Any) -> None:
    SEEN.append(ctypes.cast(operands[0], _Floats)[0])


_FUNCTIONS = {"one_more": _kind(_one_more), "seen": _kind(_without_results)}


def one_more(x: Any) -> Any:
    struct: Any = jax.ShapeDtypeStruct
    return FFI.ffi_call("one_more", struct((), jnp.float32), has_side_effect=True, custom_call_api_version=1)(x)


def seen(x: Any) -> Any:
    return FFI.ffi_call("seen", [], has_side_effect=True, custom_call_api_version=1)(x)


def f(x: Any) -> Any:
    """In its order: a call without results, one in a choice, one of what that gives, and some in a loop, of which
    nobody uses what they give."""
    seen(x[1])
    y = jax.lax.cond(x[0] > 5, lambda: one_more(x[2]), lambda: one_more(x[3]))
    seen(y)
    return x + y + jax.lax.fori_loop(0, 3, lambda i, t: (one_more(t), t + 1)[1], x[2])


@pytest.fixture(autouse=True)
def _called() -> None:
    """The functions that this file has XLA call."""
    for name, function in _FUNCTIONS.items():
        capsule = _capsule(ctypes.cast(function, ctypes.c_void_p), b"xla._CUSTOM_CALL_TARGET", None)
        jax.ffi.register_ffi_target(name, capsule, platform="cpu", api_version=0)
    SEEN.clear()


def are_in_order(calls: Sequence[float], devices: int) -> bool:
    """Whether the calls may be those of so many devices, each of which makes what is wanted in its order."""
    places = [0] * devices
    for call in calls:
        ready = [d for d, place in enumerate(places) if place < len(WANTED) and WANTED[place] == call]
        if not ready:
            return False
        places[ready[0]] += 1
    return all(place == len(WANTED) for place in places)


def test_each_device_makes_the_calls_once_and_in_their_order() -> None:
    program = spmdc.from_jax(f, NUMBERS, mesh=MESH, in_shardings=(P("x"),))
    text = print_program(program)
    assert print_program(spmdc.parse(text)) == text
    found = spmdc.partition(program)
    want = NUMBERS + 4 + 5
    runs: list[tuple[Callable[..., Any], int]] = [
        (lambda x: spmdc.evaluate(program, x)[0], 1),
        (lambda x: found.simulate(x)[0], 2),
        (lambda x: found.to_jax()(x)[0], 2),
        (spmdc.jit(f, mesh=MESH, in_shardings=(P("x"),)), 2),
    ]
    for run, devices in runs:
        np.testing.assert_array_equal(np.asarray(run(NUMBERS)), want)
        assert Counter(SEEN) == Counter(WANTED * devices)
        assert are_in_order(SEEN, devices)
        SEEN.clear()


def test_a_call_whose_results_nobody_uses_is_made() -> None:
    fast = spmdc.jit(lambda x: (seen(x[0]), x * 2)[1], mesh=MESH, in_shardings=(P("x"),))
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda x: (fast(x), x + 1)[1])(NUMBERS)), NUMBERS + 1)
    assert SEEN == [0.0, 0.0]


def test_a_call_in_a_function_of_elements_is_refused() -> None:
    body = """
func.func @main(%a: tensor<8xf32>, %i: tensor<f32>) -> tensor<f32> {
  %0 = stablehlo.reduce(%a init: %i) across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    reducer(%x: tensor<f32>, %y: tensor<f32>) {
      %s = stablehlo.add %x, %y : tensor<f32>
      %r = stablehlo.custom_call @one_more(%s) {has_side_effect = true} : (tensor<f32>) -> tensor<f32>
      stablehlo.return %r : tensor<f32>
    }
  return %0 : tensor<f32>
}"""
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.from_mlir(body)
    assert [d.code for d in caught.value.diagnostics] == ["E704"]


def test_a_call_with_an_effect_takes_a_token() -> None:
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.parse('def main(a: f32[]) -> (t: u32[]) { return opaque(a, target="seen", types=[], effect=true) }')
    assert [d.code for d in caught.value.diagnostics] == ["E201"]


def test_calls_in_an_order_differ_between_devices_by_their_own_operands_alone() -> None:
    """What a call on all devices gives is the same on all, behind calls of which each device makes its own."""
    program = spmdc.parse("""
mesh (x=2)

def main(a: f32[2@x], b: f32[]) -> (r: f32[2@x], s: f32[]) {
  r, token = opaque(a, u32(0), target="one_more", types=[f32[2]], rule="i -> i", effect=true, api_version=1)
  s, last = opaque(b, token, target="one_more", types=[f32[]], effect=true, api_version=1)
  return r, s
}
""")
    found = spmdc.partition(program)
    assert not found.collectives()
    r, s = found.to_jax()(np.array([1, 4], np.float32), np.float32(7))
    np.testing.assert_array_equal(np.asarray(r), [2, 5])
    assert np.asarray(s) == 8
    assert [[call for call in SEEN if call in own] for own in ((1,), (4,), (7,))] == [[1], [4], [7, 7]]
