"""What `spmdc.testing` draws: every op, any numbers; and that faults planted in the partitioner are shrunk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from drawn import examples
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

import passes.partition.ops.reduction
import passes.partition.reshard.steps
import passes.partition.shards
import passes.partition.write.writer
import spmdc
from ir.builder import RegionBuilder
from ir.diagnostics import SpmdcError
from ir.mesh import Mesh
from ir.ops import OPS
from ir.ops.boxes import Boxes
from ir.program import Program, Value, all_ops
from ir.spelling.printer import print_program
from ir.types import DTYPES, DType, TensorType, s32, u8
from passes.partition.exchange import box_exchange as exchange
from passes.partition.exchange.affine import Affine
from passes.partition.reshard.steps import Destination, Reduce, Step
from spmdc.testing import FAMILIES, NotEquivalentError, check_equivalence, inputs_for, programs


def test_the_drawn_programs_have_every_op_that_a_user_may_write() -> None:
    missing = {name for name, op in OPS.items() if "global" in op.stages}
    blocks: list[tuple[str, bool, tuple[DType, ...] | None]] = [(family, False, None) for family in FAMILIES]
    blocks += [("elementwise", True, None), ("elementwise", False, (s32, u8)), ("reductions", False, (s32, u8))]
    for round, (family, anything, dtypes) in itertools.product(range(30), blocks):
        if not missing:
            break

        @seed(round)
        @settings(max_examples=examples(10), phases=(Phase.generate,))
        @given(programs(20, dtypes, family=family, anything=anything))
        def note(program: Program) -> None:
            missing.difference_update(op.name for op in all_ops(program))

        note()
    assert missing == set()


def test_any_numbers_are_nan_and_both_zeros_and_extremes() -> None:
    b = RegionBuilder()
    params = [b.param(name, TensorType((400,), dtype)) for name, dtype in DTYPES.items()]
    program = Program((Mesh((("x", 2),)),), {"main": b.function("main", params)})
    by_seed = [dict(zip(DTYPES, inputs_for(program, s, anything=True), strict=True)) for s in range(6)]
    for name, dtype in DTYPES.items():
        drawn = np.concatenate([arrays[name] for arrays in by_seed])
        for part in (drawn.real, drawn.imag) if dtype.is_complex else (drawn,):
            wide = part.astype(np.float64)
            if dtype.is_float or dtype.is_complex:
                known = dtype.component.format
                assert np.isnan(wide).any() == known.has_nan
                assert {dtype.component.highest, dtype.component.lowest} <= set(wide.tolist())
                assert set(np.signbit(wide[wide == 0]).tolist()) == {False, True}.difference(
                    () if known.has_negative_zero else {True}, () if known.has_zero else {False}
                )
            else:
                assert {dtype.lowest, dtype.highest} <= set(drawn.tolist())


# Planted faults.


def _no_mask(b: RegionBuilder, x: Value, *rest: object) -> Value:
    return x


def _without_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (passes.partition.write.writer, passes.partition.ops.reduction, passes.partition.shards):
        monkeypatch.setattr(module, "mask", _no_mask)


def _without_reductions(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = passes.partition.reshard.steps.emit_step

    def emit_step(step: Step, x: Value, to: Destination) -> Value:
        return x if isinstance(step, Reduce) else emit(step, x, to)

    monkeypatch.setattr(passes.partition.reshard.steps, "emit_step", emit_step)


def _exchanged_one_off(monkeypatch: pytest.MonkeyPatch) -> None:
    first_needed = exchange._Writer._first_needed

    def one_off(self: exchange._Writer, i: Affine, boxes: Boxes) -> Affine:
        return first_needed(self, i, boxes) + 1

    monkeypatch.setattr(exchange._Writer, "_first_needed", one_off)


def _on_smaller_meshes(program: Program) -> Iterator[Program]:
    """The program with any one of its longer axes of two devices, where none of its annotations uses parts of that."""
    text = print_program(program)
    for name, size in ((name, size) for name, size in program.mesh.axes if size > 2):
        try:
            smaller = spmdc.parse(text.replace(f"{name}={size}", f"{name}=2", 1))
        except SpmdcError:
            continue
        yield smaller


@pytest.mark.parametrize("plant", [_without_masks, _without_reductions, _exchanged_one_off])
def test_a_planted_fault_is_found_and_shrunk_to_few_ops(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    @seed(4)
    @settings(max_examples=examples(4000), phases=(Phase.generate,))  # It ends with the first that is found.
    @given(programs(max_devices=12), st.integers(0, 1000))
    def holds(program: Program, inputs: int) -> None:
        check_equivalence(program, seed=inputs, shrink=True)

    with pytest.raises(NotEquivalentError) as found:
        holds()
    program = found.value.program
    assert len(list(all_ops(program))) <= 3
    for smaller in _on_smaller_meshes(program) if program.mesh.size > 4 else ():
        check_equivalence(smaller, seed=found.value.seed)  # It is planned otherwise there, without the fault.
    assert all(n <= 5 for p in program.main.params for n in p.shape)
    assert f"seed {found.value.seed}" in str(found.value)
    with pytest.raises(NotEquivalentError):
        check_equivalence(program, seed=found.value.seed)
    monkeypatch.undo()
    check_equivalence(program, seed=found.value.seed)
