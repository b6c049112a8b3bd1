"""Functions of the host: who calls them, how often, in which order, with what, and what becomes of their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import pytest
from failed_callbacks import forget_failures
from jax.experimental import io_callback

import ir.host
import spmdc
from ir.diagnostics import SpmdcError
from ir.ops.host import callbacks_of
from ir.verify.program import check, verify
from spmdc.frontends.spmd import parse, print_program

JAX: Any = jax
P: Any = jax.sharding.PartitionSpec
Array = npt.NDArray[Any]
Call = tuple[Any, ...]

X = np.arange(32, dtype=np.float32).reshape(8, 4)
TEXT = """
mesh (x=4, y=2)

def main(a: f32[8@x, 4@y], n: s32[]) -> (r: f32[8@x, 4], s: f32[]) {
  first = constant(value=0, type=u32[])
  d = callback(a, function=twice, types=[f32[8, 4]])
  i, b, t = while(i = n, b = d, t = first) cond { return i < 3 } do {
    next = callback(i, b, t, function=note, effect=true)
    return i + 1, b + 1.0, next
  }
  last = callback(a, t, function=part, effect=true, split=true, each=(x, y))
  s = sum(b)
  await_callbacks(b, s, last, each=(x, y))
  return b, s
}
"""


@pytest.fixture(autouse=True)
def no_failure_is_left() -> Iterator[None]:
    yield
    forget_failures()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """The calls of `twice`, `note` and `part`, in their order."""
    monkeypatch.setattr(ir.host, "_REGISTERED", {})
    made: list[Call] = []

    def twice(a: Array) -> Array:
        made.append(("twice", a.shape, float(a.sum())))
        return a * 2

    spmdc.register_callback("twice", twice)
    spmdc.register_callback("note", lambda i, b: made.append(("note", int(i), float(b.sum()))))
    spmdc.register_callback("part", lambda a: made.append(("part", a.shape, float(a.sum()))))
    return made


def ways(program: Any) -> dict[str, Callable[..., Any]]:
    """Unpartitioned, on the simulator, and on devices."""
    partitioned = spmdc.partition(program)

    def on_devices(*arrays: Any) -> list[Array]:
        results = partitioned.to_jax()(*arrays)
        JAX.effects_barrier()
        return [np.asarray(r) for r in results]

    return {"whole": lambda *a: spmdc.evaluate(program, *a), "shards": partitioned.simulate, "devices": on_devices}


def test_the_host_is_called_once_in_order_and_by_each_device_for_its_part(calls: list[Call]) -> None:
    whole = [("twice", (8, 4), 496.0), ("note", 0, 992.0), ("note", 1, 1024.0), ("note", 2, 1056.0)]
    parts = [("part", (2, 2), float(X[i : i + 2, j : j + 2].sum())) for i in range(0, 8, 2) for j in (0, 2)]
    for way, run in ways(spmdc.parse(TEXT)).items():
        calls.clear()
        result, total = run(X, np.int32(0))
        np.testing.assert_array_equal(result, X * 2 + 3)
        assert float(total) == 1088.0
        assert [c for c in calls if c[0] != "part"] == whole
        assert sorted(c for c in calls if c[0] == "part") == ([("part", (8, 4), 496.0)] if way == "whole" else parts)


def test_a_program_with_callbacks_prints_and_reads_back(calls: list[Call]) -> None:
    program = spmdc.parse(TEXT)
    for each in (program, spmdc.partition(program).program):
        again = parse(print_program(each))
        check(again)
        assert print_program(again) == print_program(each)
    assert "callback(a, function=twice, types=[f32[8, 4]])" in print_program(program)


def test_what_one_device_calls_is_in_the_text_of_its_module(calls: list[Call]) -> None:
    partitioned = spmdc.partition(spmdc.parse(TEXT))
    for text in (partitioned.stablehlo_text(), partitioned.hlo_text()):
        assert text.count("xla_ffi_python_cpu_callback") == 4, "three functions, and the end"


def test_a_shard_is_given_without_what_pads_it(calls: list[Call]) -> None:
    program = spmdc.parse(
        "mesh (x=4)\ndef main(a: f32[6@x]) -> (r: f32[6@x]) {\n"
        "  t = callback(a, constant(value=0, type=u32[]), function=part, effect=true, split=true, each=(x))\n"
        "  await_callbacks(t, each=(x))\n  return a\n}"
    )
    spmdc.partition(program).simulate(np.ones(6, np.float32))
    assert calls == [("part", (2,), 2.0)] * 3 + [("part", (2,), 0.0)]


def test_an_effect_that_nothing_awaits_is_left_out(calls: list[Call]) -> None:
    program = spmdc.parse(
        "mesh (x=4)\ndef main(a: f32[8@x]) -> (r: f32[8@x]) {\n"
        "  t = callback(a, constant(value=0, type=u32[]), function=part, effect=true)\n  return a\n}"
    )
    spmdc.partition(program).simulate(np.ones(8, np.float32))
    assert calls == []


VALUES = {
    "pred": np.array([True, False, True]),
    "s64": np.array([-(2**62), 3, 2**53 + 1]),
    "u64": np.array([2**64 - 1, 0, 5], np.uint64),
    "f64": np.array([0.1, -0.0, np.nan]),
    "f32": np.array([-0.0, np.inf, 1e-40], np.float32),
    "bf16": np.array([1.5, -2, 0]),
    "c64": np.array([complex(0.5, -0.0), complex(-0.0, 2), 1], np.complex64),
    "s4": np.array([-8, 7, 0]),
    "u2": np.array([3, 0, 1]),
    "f4e2m1fn": np.array([-0.0, 6, -0.5]),
    "c128": np.array([complex(0.1, -0.0), complex(-0.0, 1e300), 1]),
}


@pytest.mark.parametrize("dtype", VALUES)
def test_every_bit_of_what_the_host_gets_and_gives_arrives(dtype: str, calls: list[Call]) -> None:
    seen: list[bytes] = []

    def same(x: Array) -> Array:
        seen.append(x.tobytes())
        return x

    spmdc.register_callback("same", same)
    program = spmdc.parse(
        f"mesh (x=2)\ndef main(a: {dtype}[3]) -> (r: {dtype}[3]) {{\n"
        f"  r = callback(a, function=same, types=[{dtype}[3]])\n  await_callbacks(r)\n  return r\n}}"
    )
    given = VALUES[dtype].astype(program.main.params[0].dtype.numpy)
    for run in ways(program).values():
        (result,) = run(given)
        assert result.tobytes() == given.tobytes()
    assert set(seen) == {given.tobytes()}


FAILING = """
mesh (x=4)

def main(a: f32[8@x]) -> (r: f32[8@x], s: f32[]) {
  b = callback(a, function=fails, types=[f32[8]])
  s = sum(a + b)
  await_callbacks(b, s)
  return b, s
}
"""


def fails(a: Array) -> Array:
    if a.max() > 3:
        raise ValueError("a number is too large")
    return a


def test_an_error_on_the_host_is_raised_and_holds_no_device_up(calls: list[Call]) -> None:
    """The others do not wait for ever, as they would if the device that calls stopped there."""
    spmdc.register_callback("fails", fails)
    program = spmdc.parse(FAILING)
    small, large = np.ones(8, np.float32), np.arange(8, dtype=np.float32)
    with pytest.raises(ValueError, match="a number is too large"):
        spmdc.evaluate(program, large)
    with pytest.raises(ValueError, match="a number is too large"):
        spmdc.partition(program).simulate(large)
    run = spmdc.partition(program).to_jax()
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match="a number is too large"):
            JAX.block_until_ready(run(large))
        np.testing.assert_array_equal(run(small)[0], small)
        assert float(run(small)[1]) == 16.0


def test_what_comes_after_an_error_on_the_host_is_not_called(calls: list[Call]) -> None:
    """A second function may well stand there for what a runtime does that cannot raise errors."""
    spmdc.register_callback("fails", fails)
    program = spmdc.parse(FAILING.replace("s = sum(a + b)", "s = sum(callback(b, function=twice, types=[f32[8]]))"))
    run = spmdc.partition(program).to_jax()
    with pytest.raises(jax.errors.JaxRuntimeError, match="a number is too large"):
        JAX.block_until_ready(run(np.arange(8, dtype=np.float32)))
    assert calls == []
    assert float(run(np.ones(8, np.float32))[1]) == 16.0
    assert calls == [("twice", (8,), 8.0)]


def test_a_function_that_nobody_registered_is_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ir.host, "_REGISTERED", {})
    program = spmdc.parse(FAILING)
    with pytest.raises(SpmdcError, match="E512") as caught:
        spmdc.evaluate(program, np.ones(8, np.float32))
    assert 'register_callback("fails", function)' in str(caught.value)
    with pytest.raises(jax.errors.JaxRuntimeError, match="E512"):
        JAX.block_until_ready(spmdc.partition(program).to_jax()(np.ones(8, np.float32)))


@pytest.mark.parametrize("given", [np.ones(7), [np.ones(8), np.ones(8)], np.ones(8, np.complex64)])
def test_other_results_than_the_program_says_are_refused(given: Any, calls: list[Call]) -> None:
    spmdc.register_callback("fails", lambda a: given)
    with pytest.raises(SpmdcError, match="E513"):
        spmdc.evaluate(spmdc.parse(FAILING), np.ones(8, np.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="fails gave"):
        JAX.block_until_ready(spmdc.partition(spmdc.parse(FAILING)).to_jax()(np.ones(8, np.float32)))


def test_an_effect_without_a_token_is_refused() -> None:
    with pytest.raises(SpmdcError) as caught:
        spmdc.parse("def main(a: f32[8]) -> (t: u32[]) { return callback(a, function=f, effect=true) }")
    assert [d.code for d in caught.value.diagnostics] == ["E201"]


def test_what_one_device_gets_from_the_host_is_not_the_same_on_all() -> None:
    text = """spmd
mesh (x=2)

def main(a: f32[4] of f32[4]{replicated}) -> (r: f32[4] of f32[4]{replicated}) {
  r: f32[4] = callback(a, function=f, types=[f32[4]])
  return r
}
"""
    assert [d.code for d in verify(parse(text))] == ["E407"]
    assert verify(parse(text.replace("types=[f32[4]])", "types=[f32[4]], each=(x))"))) == []


def test_what_depends_on_a_call_of_the_host_has_no_gradient() -> None:
    with pytest.raises(SpmdcError, match="fails on the host is called with what depends on a") as caught:
        spmdc.gradient(spmdc.parse(FAILING), ["a"], "s")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E710"
    assert diagnostic.span is not None
    assert diagnostic.span.line == 5


def test_calls_of_the_host_beside_what_is_differentiated_are_made() -> None:
    """What is printed may depend on it, as in jax.grad; and in a loop each turn prints."""
    calls: list[tuple[str, float]] = []

    def note(name: str, x: Any) -> Any:
        calls.append((name, float(np.sum(x))))
        return np.float32(3 + len(calls))

    scalar = JAX.ShapeDtypeStruct((), np.float32)

    def f(a: Any, b: Any) -> Any:
        JAX.debug.callback(lambda x: note("depends", x), a * 2)
        scale = io_callback(lambda x: note("io", x), scalar, b)
        pure = JAX.pure_callback(lambda x: np.float32(x.max()), scalar, b)

        def turn(i: Any, total: Any) -> Any:
            JAX.debug.callback(lambda x: note("turn", x), i)
            return total + (a * a * pure).sum()

        return jax.lax.fori_loop(0, 2, turn, scale)

    numbers = np.arange(8, dtype=np.float32)
    program = spmdc.from_jax(f, numbers, numbers + 1, mesh={"x": 4}, in_shardings=(P("x"), P("x")))
    gradient = spmdc.gradient(program, ["a"])
    wanted = [("depends", 56.0), ("io", 36.0), ("turn", 0.0), ("turn", 1.0)]
    for run in (lambda *x: spmdc.evaluate(gradient, *x), spmdc.partition(gradient).simulate):
        np.testing.assert_array_equal(run(numbers, numbers + 1)[0], numbers * 32)
        assert calls == wanted
        calls.clear()
    on_devices = spmdc.partition(gradient).to_jax()
    np.testing.assert_array_equal(np.asarray(on_devices(numbers, numbers + 1)[0]), numbers * 32)


def test_a_call_that_only_other_results_need_is_left_out_of_a_gradient() -> None:
    program = spmdc.parse(FAILING.replace("sum(a + b)", "sum(a * a)"))
    gradient = spmdc.gradient(program, ["a"], "s")
    assert not callbacks_of(gradient)
    np.testing.assert_array_equal(spmdc.evaluate(gradient, np.ones(8, np.float32))[0], np.full(8, 2.0))


def test_a_call_by_each_device_for_itself_has_no_gradient() -> None:
    text = FAILING.replace("types=[f32[8]])", "types=[f32[8]], each=(x))").replace("sum(a + b)", "sum(a) + sum(b)")
    with pytest.raises(SpmdcError) as caught:
        spmdc.gradient(spmdc.parse(text), ["a"], "s")
    assert [d.code for d in caught.value.diagnostics] == ["E710"]


CHAIN = """
mesh (x=8)

def main(a: f32[8@x]) -> (r: f32[3]) {
  x, y, z = callback(sum(a), function=three, types=[f32[3], pred[4], c64[2]])
  return callback(x, y, z, function=last, types=[f32[3]])
}
"""


def test_what_only_another_call_takes_stays_on_the_device_that_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ir.host, "_REGISTERED", {})
    given = np.array([-0.0, np.inf, 1e-40], "f4"), np.arange(4) > 1, np.array([1j, -0.0 - 2j], "c8")
    spmdc.register_callback("three", lambda total: given)
    seen: list[Any] = []

    def last(*got: Any) -> Any:
        seen.append(got)
        return got[0] + 1

    spmdc.register_callback("last", last)
    program = spmdc.parse(CHAIN)
    sent = [(c.kind, c.bytes) for c in spmdc.partition(program).collectives()]
    assert sent == [("all_reduce", 7), ("all_reduce", 21)]
    for run in ways(program).values():
        seen.clear()
        np.testing.assert_array_equal(run(np.ones(8, "f4"))[0], given[0] + 1)
        ((*got,),) = seen
        for x, expected in zip(got, given, strict=True):
            assert np.asarray(x).tobytes() == expected.tobytes()
