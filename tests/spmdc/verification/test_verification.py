"""`spmdc verify`: that it finds planted faults, shrinks them, and finds none where there is none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import spmdc
from ir.diagnostics import SpmdcError
from ir.ops import OPS, Factor, FactorKind, FactorRule, Linearity
from ir.program import Op, Value
from ir.types import Array
from lowering.reference import KERNELS
from lowering.reference.interpreter import Interpreter
from passes.partition.context import OpContext
from passes.partition.registry import PARTITIONINGS
from spmdc.cli import main
from spmdc.verification.exactness import evaluate_watched
from spmdc.verification.op_instances import instances_of
from spmdc.verification.op_rules import verify_rules

PROGRAM = """\
const n = 5
mesh (x=2)

def main(a: f32[n@x, 7], w: f32[7, 3]) -> (out: f32[n, 3]) {
  h = einsum("ij,jk->ik", a, w)
  return h + 1
}
"""
REVERSE = """\
mesh (x=2)

def main(a: f32[6, 4]) -> (out: f32[6, 4]) {
  b = a + 1
  return reverse(b, dims=[0])
}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "p.spmd"
    path.write_text(PROGRAM)
    return str(path)


def _local_reverse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are reversed and not exchanged. What devices have whole is reversed as it should be."""
    right = PARTITIONINGS["reverse"]

    def in_place(context: OpContext) -> Sequence[Value]:
        (x,) = context.operands
        return context.emit(x, **context.op.attrs) if x.shape == context.local_type().shape else right.write(context)

    monkeypatch.setitem(PARTITIONINGS, "reverse", replace(right, write=in_place))


# Programs


def test_an_exact_program_agrees_bit_for_bit_on_every_mesh() -> None:
    found = spmdc.verify(spmdc.parse(PROGRAM), examples=20)
    assert found.ok
    assert (found.equal, found.rounding, found.sensitive) == (found.examples, 0, 0)
    assert found.examples > 10


def test_a_program_that_rounds_agrees_within_rounding() -> None:
    program = spmdc.parse(PROGRAM.replace("return h + 1", "return softmax(exp(h / 7), 0)"))
    assert spmdc.verify(program, examples=20).ok


def test_a_planted_fault_is_found_and_shrunk_to_one_annotation(monkeypatch: pytest.MonkeyPatch) -> None:
    _local_reverse(monkeypatch)
    found = spmdc.verify(spmdc.parse(REVERSE), examples=100)
    assert found.counterexample is not None
    program = found.counterexample.program
    assert len(program.mesh.axes) == 1
    assert program.mesh.size == 2
    assert "partitioned and" in found.counterexample.reason
    assert [d.code for d in found.diagnostics()] == ["E507"]
    again = spmdc.parse(found.counterexample.text())
    assert not np.array_equal(
        spmdc.partition(again).simulate(*spmdc.random_inputs(again, found.counterexample.seed, integers=True))[0],
        spmdc.evaluate(again, *spmdc.random_inputs(again, found.counterexample.seed, integers=True))[0],
    )


def test_equal_seeds_give_equal_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    _local_reverse(monkeypatch)
    first, second = (spmdc.verify(spmdc.parse(REVERSE), examples=50, seed=3).counterexample for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.text() == second.text()


def test_a_program_too_large_to_simulate_is_refused_with_a_way_out() -> None:
    with pytest.raises(SpmdcError) as raised:
        spmdc.verify(spmdc.parse(PROGRAM, defines={"n": 10**7}))
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.code == "E508"
    assert "-D" in diagnostic.help


def test_a_large_program_is_verified_with_fewer_examples() -> None:
    program = spmdc.parse(PROGRAM, defines={"n": 10**6})
    with pytest.raises(SpmdcError) as raised:
        spmdc.verify(program)
    (diagnostic,) = raised.value.diagnostics
    (most,) = re.findall(r"at most (\d+) examples", diagnostic.help)
    with pytest.raises(SpmdcError):
        spmdc.verify(program, examples=int(most) + 1)
    assert spmdc.verify(program, examples=1).counterexample is None


def test_a_partitioned_program_is_refused() -> None:
    with pytest.raises(SpmdcError) as raised:
        spmdc.verify(spmdc.partition(spmdc.parse(PROGRAM)).program)
    assert [d.code for d in raised.value.diagnostics] == ["E406"]


@pytest.mark.parametrize(
    ("scale", "exact"),
    [(1.0, True), (2.0**20, False), (0.5, False)],
    ids=["small integers", "sums beyond 24 bits", "fractions"],
)
def test_a_program_is_exact_while_its_terms_are_small_integers(scale: float, exact: bool) -> None:
    program = spmdc.parse(PROGRAM)
    ones = [np.full(p.shape, 3 * scale, np.float32) for p in program.main.params]
    assert evaluate_watched(program, ones)[1] is exact


def test_the_command_prints_one_line(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", file, "--examples", "5", "-D", "n=3"]) == 0
    assert capsys.readouterr().out == f"{file}: 5 examples agree: 5 bit for bit\n"


def test_the_command_prints_the_counterexample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _local_reverse(monkeypatch)
    path = tmp_path / "r.spmd"
    path.write_text(REVERSE)
    assert main(["verify", str(path)]) == 1
    diagnostic = capsys.readouterr()
    assert "error[E507]" in diagnostic.err
    assert not spmdc.verify(spmdc.parse(diagnostic.out), examples=1).ok
    assert main(["verify", str(path), "--json"]) == 1
    figures = json.loads(capsys.readouterr().out)
    assert figures["counterexample"]["program"] == diagnostic.out
    assert [d["code"] for d in figures["diagnostics"]] == ["E507"]


@pytest.mark.parametrize("arguments", [(), ("p.spmd", "--rules", "add"), ("--rules", "while"), ("--rules", "nonsense")])
def test_wrong_usage_is_told(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *arguments]) == 2
    assert "E601" in capsys.readouterr().err


# Rules


def test_every_op_with_a_factor_rule_has_an_instance() -> None:
    """But for `undefined`, which holds nothing that could be compared, and axis_index, which has no dims, and so no
    factors."""
    ruled = {name for name, opdef in OPS.items() if opdef.factors is not None}
    assert {name for name in ruled if not instances_of(name)} == {"undefined", "axis_index"}


def test_no_rule_is_wrong_and_none_missing_without_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--rules", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    found = [f for op in figures["ops"] for f in (*op["wrong"], *op["missing"]) if not f["accepted"]]
    assert found == []
    assert all(op["checked"] for op in figures["ops"])


def _all_parallel(op: Op) -> FactorRule:
    dims = tuple((i,) for i in range(op.result.type.rank))
    return FactorRule(tuple(Factor(n) for n in op.result.shape), (dims,) * len(op.operands), (dims,))


@pytest.mark.parametrize("op", ["cumsum", "reverse", "cholesky", "all_gather", "all_to_all"])
def test_a_dim_wrongly_declared_parallel_is_found(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, op, replace(OPS[op], factors=_all_parallel))
    assert any("is parallel" in f.claim for f in verify_rules(op).wrong)


@pytest.mark.parametrize(
    ("op", "linearity"),
    [
        ("abs", Linearity(("sum",), (0,))),
        ("add", Linearity(("sum",), (0,))),
        ("multiply", Linearity(("sum",), (0, 1))),
        ("negate", Linearity(("max",), (0,))),
        ("all_reduce", Linearity(("min",), (0,))),
    ],
)
def test_a_wrongly_declared_linearity_is_found(
    op: str, linearity: Linearity, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(OPS, op, replace(OPS[op], linear=(linearity,)))
    assert any(f.claim.startswith("linear") for f in verify_rules(op).wrong)
    assert main(["verify", "--rules", op]) == 1
    assert "E509" in capsys.readouterr().err


def test_a_linearity_that_is_not_declared_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "negate", replace(OPS["negate"], linear=()))
    assert "linear in 0 for sum" in [f.claim for f in verify_rules("negate").unexplained]


def test_a_dim_needlessly_declared_whole_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(op: Op) -> FactorRule:
        rule = _all_parallel(op)
        return replace(rule, factors=(Factor(rule.factors[0].size, FactorKind.NEED_REPLICATION), *rule.factors[1:]))

    monkeypatch.setitem(OPS, "negate", replace(OPS["negate"], factors=whole))
    assert any("factor 0" in f.claim and "parallel" in f.claim for f in verify_rules("negate").unexplained)


def test_a_faulty_kernel_shows_in_its_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel: Callable[[Op, Sequence[Array], Interpreter], Sequence[Array]] = KERNELS["negate"]

    def first_device_only(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
        return [x + 1 if machine.lead else x for x in kernel(op, arrays, machine)]

    monkeypatch.setitem(KERNELS, "negate", first_device_only)
    assert verify_rules("negate").wrong
