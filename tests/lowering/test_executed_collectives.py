"""What is reported is what runs: the collectives of the module that XLA compiles, counted.

Every test that runs on devices checks that no more is executed (`tests/support/executed.py`). Here is what is equal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from executed import Checked, assert_executed
from jax.sharding import PartitionSpec

import spmdc
from spmdc.api import PartitionedProgram
from spmdc.xla import collectives_of_hlo, received_in_hlo

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
    executed = sorted((c.kind, c.count * c.bytes) for c in collectives_of_hlo(module_of(q)))
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
    assert [(c.kind, c.bytes) for c in collectives_of_hlo(module_of(q))] == [("all_reduce", sum_of_all.bytes)]


REDUCED = "mesh (x=8)\ndef main(a: f32[64@x, 8]) -> (r: f32[8]{replicated}) { return reduce(a, dims=[0], kind=sum) }"
GATHERED = "mesh (x=8)\ndef main(a: f32[64@x, 8]) -> (r: f32[64, 8]{replicated}) { return a }"


@pytest.mark.parametrize(("reported", "executed"), [(REDUCED, GATHERED), (REDUCED.replace("8]", "4]"), REDUCED)])
def test_a_module_that_sends_what_is_not_reported_is_found(reported: str, executed: str) -> None:
    program = spmdc.partition(spmdc.parse(reported)).program
    with pytest.raises(AssertionError, match="reported"):
        assert_executed(program, module_of(spmdc.partition(spmdc.parse(executed))))


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
    monkeypatch.setattr("executed.write_reductions", lambda program: silent)
    with pytest.raises(AssertionError, match="reported"):
        double(np.ones((64, 8), "f4"))
