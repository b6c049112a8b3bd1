"""What is reported is what runs: the collectives of the module that XLA compiles, counted.

Every test that runs on devices checks it (`tests/support/executed.py`). Here is that the check finds what differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from executed import Checked, assert_executed
from hlo_texts import collectives_of_hlo, has_unknown_trips, received_in_hlo
from jax.sharding import PartitionSpec
from watched import runs_of

import spmdc
from lowering.jax import compile_in_one
from spmdc.api import PartitionedProgram

P: Any = PartitionSpec
_struct: Any = jax.ShapeDtypeStruct

pytestmark = pytest.mark.usefixtures("devices")

SHIPPED = Path(spmdc.__file__).parent / "programs"


def module_of(q: PartitionedProgram) -> str:
    """The optimised HLO of what runs."""
    executable: Any = q.to_jax()
    names = executable.module
    shapes = [_struct(p.of.shape, p.dtype.numpy) for p in q.program.main.params if p.of is not None]
    return str(names["on_mesh"](names["make_mesh"]()).lower(*shapes).compile().as_text())


@pytest.mark.parametrize(
    ("name", "defines"),
    [
        ("moe_layer", {"S": 16, "M": 16, "H": 32}),
        ("moe_gather", {}),
        ("matmul_cases", {}),
    ],
)
def test_shipped_programs_execute_what_they_report(name: str, defines: dict[str, int]) -> None:
    q = spmdc.partition(spmdc.load(SHIPPED / f"{name}.spmd", defines=defines))
    executed = sorted((c.kind, c.count * c.bytes) for c in collectives_of_hlo(module_of(q), literally=True))
    assert executed == sorted((c.kind, (c.count or 0) * c.bytes) for c in q.collectives())


def test_an_outlined_function_that_is_called_on_split_and_on_whole_values_adds_up_once() -> None:
    def gelu(x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    def layers(x: Any, a: Any, b: Any) -> Any:
        return gelu(gelu(x @ a) @ b)

    x, a, b = np.ones((16, 64), "f4"), np.ones((64, 64), "f4"), np.ones((64, 64), "f4")
    specs = P("data"), P(None, "model"), P("model")
    mesh = {"data": 4, "model": 2}
    fast: Any = spmdc.jit(layers, mesh=mesh, in_shardings=specs, out_shardings=P("data"))
    lowered = fast.lower(x, a, b)
    assert lowered.partitioned.received_bytes() == 4 * 64 * 4
    assert received_in_hlo(lowered.compile().as_text()) == 4 * 64 * 4


CONDITION = """
mesh (x=8)
def main(a: f32[4194304@x]) -> (n: s32[], b: f32[4194304@x]) {
  n, b = while(i = 0, b = a, trip_count=5) cond { return and(i < 5, sum(b) < 1e9) } do { return i + 1, b + 1.0 }
  return n, b
}
"""


def test_the_condition_of_a_loop_is_executed_once_more_than_its_body() -> None:
    """XLA is not told how often, and takes as many trips as it sees, which is none."""
    q = spmdc.partition(spmdc.parse(CONDITION))
    (sum_of_all,) = q.collectives()
    assert (sum_of_all.kind, sum_of_all.count) == ("all_reduce", 6)
    assert [(c.kind, c.bytes) for c in collectives_of_hlo(module_of(q), literally=True)] == [
        ("all_reduce", sum_of_all.bytes)
    ]


NEVER = """
mesh (x=3)
def main(a: s32[3@x]) -> (n: s32[], b: s32[3]{replicated}) {
  zero: s32[] = constant(value=0, type=s32[])
  n: s32[] = while(i: s32[] = zero, trip_count=0) cond { return i < 0 } do {
    called: s32[] = callback(i, function=reversed_elements, types=[s32[]])
    await_callbacks(called)
    return i + 1
  }
  return n, a
}
"""


def test_a_loop_with_effects_that_never_runs_may_be_kept_by_xla() -> None:
    """Its all_reduce is there, and runs as often as is reported, which is never."""
    q = spmdc.partition(spmdc.parse(NEVER))
    assert [(c.kind, c.count) for c in q.collectives()] == [("all_reduce", 0), ("all_gather", 1)]
    (a,) = spmdc.random_inputs(spmdc.parse(NEVER))
    np.testing.assert_array_equal(q.to_jax()(a)[1], a)


LOOP = """HloModule m, num_partitions=2

%body (p.1: (s32[], f32[4])) -> (s32[], f32[4]) {
  %p.1 = (s32[], f32[4]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %x.1 = f32[4]{0} get-tuple-element(%p.1), index=1
  %step = s32[] constant(STEP)
  %next = s32[] add(%i.1, %step)
  %sum = f32[4]{0} all-reduce(%x.1), channel_id=1, replica_groups={{0,1}}, to_apply=%plus
  %next.copy = s32[] copy(%next)
  ROOT %out = (s32[], f32[4]{0}) tuple(%next.copy, %sum)
}

%condition (p.2: (s32[], f32[4])) -> pred[] {
  %p.2 = (s32[], f32[4]{0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%p.2), index=0
  %end = s32[] constant(END)
  ROOT %test = pred[] compare(%i.2, %end), direction=LT
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %begin = s32[] constant(BEGIN)
  %begin.copy = s32[] copy(%begin)
  %given = (s32[], f32[4]{0}) tuple(%begin.copy, %x)
  %loop = (s32[], f32[4]{0}) while(%given), condition=%condition, body=%body
  ROOT %y = f32[4]{0} get-tuple-element(%loop), index=1
}
"""


@pytest.mark.parametrize(("begin", "end", "step"), [(0, 9, 1), (0, 9, 2), (3, 4, 7), (-2, 5, 3), (5, 5, 1), (6, 5, 1)])
def test_loops_that_count_to_a_constant_need_no_statement_of_their_trips(begin: int, end: int, step: int) -> None:
    hlo = LOOP.replace("BEGIN", str(begin)).replace("END", str(end)).replace("STEP", str(step))
    assert not has_unknown_trips(hlo)
    assert [c.count for c in collectives_of_hlo(hlo)] == [len(range(begin, end, step))]


@pytest.mark.parametrize(
    ("known", "unknown"),
    [
        ("direction=LT", "direction=NE"),
        ("constant(STEP)", "constant(-1)"),
        ("add(%i.1,", "multiply(%i.1,"),
        ("constant(BEGIN)", "get-tuple-element(%of_a_call), index=0"),
        ("compare(%i.2, %end)", "compare(%end, %i.2)"),
        ("add(%i.1, %step)", "add(%step, %step)"),
    ],
)
def test_other_loops_are_of_unknown_trips(known: str, unknown: str) -> None:
    hlo = LOOP.replace(known, unknown).replace("BEGIN", "0").replace("END", "9").replace("STEP", "1")
    assert has_unknown_trips(hlo)
    assert [c.count for c in collectives_of_hlo(hlo)] == [1]


def test_loops_of_unknown_trips_count_as_often_as_they_were_seen_to_run() -> None:
    """Six turns of the outer loop, of three turns each of the inner one; the outer's condition sends as well."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, P("x"))

    def inner(limit: Any, y: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[0] < limit, lambda c: (c[0] + 1, jnp.cos(c[1].sum()) + c[1]), (0, y))[1]

    def outer(limit: Any, y: Any) -> Any:
        return jax.lax.while_loop(
            lambda c: c[1].max() * 0 + c[0] < 6, lambda c: (c[0] + 1, inner(limit, c[1])), (0, y)
        )[1]

    args = jnp.int32(3), jax.device_put(np.ones(16, "f4"), rows)
    compiled: Any = jax.jit(outer).lower(*args).compile()
    hlo = compiled.as_text()
    assert has_unknown_trips(hlo)
    runs = runs_of(hlo, lambda: compiled(*args))
    assert sorted(runs[c.name] for c in collectives_of_hlo(hlo, literally=True)) == [7, 18]
    assert received_in_hlo(hlo, runs) == (7 + 18) * received_in_hlo(hlo) // 2
    with pytest.raises(AssertionError, match="does not run jit_outer"):
        runs_of(hlo, lambda: args[1] + 1)


REDUCED = "mesh (x=8)\ndef main(a: f32[64@x, 8]) -> (r: f32[8]{replicated}) { return reduce(a, dims=[0], kind=sum) }"
GATHERED = "mesh (x=8)\ndef main(a: f32[64@x, 8]) -> (r: f32[64, 8]{replicated}) { return a }"


TWICE = """mesh (x=8)
def main(a: f32[64@x, 8]) -> (r: f32[8]{replicated}, s: f32[8]{replicated}) { return sum(a, 0), sum(a * a, 0) }"""


@pytest.mark.parametrize(
    ("reported", "executed"),
    [
        (REDUCED, GATHERED),
        (REDUCED.replace("8]", "4]"), REDUCED),
        (GATHERED, GATHERED.replace("{replicated}", "{partial: x}").replace("@x", "")),
        (REDUCED, REDUCED.replace("8]", "4]")),
        (TWICE, REDUCED),
    ],
)
def test_a_module_that_sends_what_is_not_reported_or_less_is_found(reported: str, executed: str) -> None:
    program = spmdc.partition(spmdc.parse(reported)).program
    with pytest.raises(AssertionError, match="reported"):
        assert_executed(program, module_of(spmdc.partition(spmdc.parse(executed))))


def test_sums_that_xla_joins_are_as_many_bytes() -> None:
    q = spmdc.partition(spmdc.parse(TWICE))
    hlo = module_of(q)
    assert ([c.bytes for c in q.collectives()], received_in_hlo(hlo)) == ([56, 56], 112)
    assert len(collectives_of_hlo(hlo, literally=True)) == 1
    assert_executed(q.program, hlo)


def test_what_runs_on_devices_in_a_test_is_checked() -> None:
    executable: Any = spmdc.partition(spmdc.parse(REDUCED)).to_jax()
    jitted = executable.module["on_mesh"](executable.mesh, ())
    assert isinstance(jitted, Checked)
    assert not jitted.is_checked
    executable(np.ones((64, 8), "f4"))
    assert jitted.is_checked


def test_what_functions_of_jit_run_in_a_test_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here against what another program says."""
    double: Any = spmdc.jit(lambda a: a.sum(0), mesh={"x": 8}, in_shardings=P("x"), out_shardings=P())
    silent = spmdc.partition(spmdc.parse(REDUCED.replace("{replicated}", "{partial: x}"))).program
    monkeypatch.setattr("executed.write_reductions", lambda program, machine: silent)
    with pytest.raises(AssertionError, match="reported"):
        double(np.ones((64, 8), "f4"))


UNEVEN = """mesh (x=8)
def main(a: f32[13@x, 8]) -> (r: f32[13@x, 8], s: f32[8]{partial: x}) { return a, sum(a, 0) }"""


def test_what_brings_uneven_and_partial_results_into_arrays_of_jax_is_reported() -> None:
    """Seven shards of two rows, and two times seven of eight parts of the sum."""
    q = spmdc.partition(spmdc.parse(UNEVEN))
    assert not q.collectives()
    handed_on = q.with_even_results()
    assert [(c.kind, c.bytes) for c in handed_on.collectives()] == [("all_gather", 7 * 2 * 32), ("all_reduce", 2 * 28)]
    assert handed_on.with_even_results().program is handed_on.program
    a = np.arange(13 * 8, dtype="f4").reshape(13, 8)
    executable: Any = q.to_jax()
    for results in (executable(a), handed_on.simulate(a)):
        np.testing.assert_array_equal(results[0], a)
        np.testing.assert_array_equal(results[1], a.sum(0))
    assert "undivided" not in q.jax_source()
    assert executable.program.main.results == handed_on.program.main.results


def test_what_runs_as_one_module_with_what_cuts_its_arguments_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cuts them sends nothing, as arguments begin as a whole on every device."""
    run = compile_in_one(spmdc.partition(spmdc.parse(UNEVEN)).with_even_results().program)
    run(np.ones((13, 8), "f4"))
    silent = spmdc.partition(spmdc.parse(REDUCED.replace("{replicated}", "{partial: x}"))).program
    monkeypatch.setattr("executed.write_reductions", lambda program, machine: silent)
    with pytest.raises(AssertionError, match="reported"):
        run(np.ones((13, 8), "f4"))
