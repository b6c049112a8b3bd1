"""The property that everything rests on: a partitioned program computes what the unpartitioned one computes.

Programs are drawn in blocks, which the cores share: for each family of ops, of small integers and of any numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from drawn import examples
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from side_by_side import programs_side_by_side, side_by_side

from ir.program import Program
from ir.types import DTYPES, DType, s2
from passes.cost.machine import TPU_V3, machine
from spmdc.testing import FAMILIES, NotEquivalentError, check_equivalence, programs

_BLOCKS = [(family, anything) for anything in (False, True) for family in (None, *FAMILIES)]
_EXAMPLES = 40
"""Of each block."""
_OF_SHORT_TYPES = 40
_WITH_SHORT_TYPES = [
    *(DTYPES[name] for name in ("s32", "f32", "bf16", "u8", "pred", "c64")),
    *(t for t in DTYPES.values() if t.is_short and t.has_zero and t.bits > 2),
]
"""Of 2 bits, XLA itself exchanges no tensors where a module has what is around the shards in it, too."""
_DEVICES = 24
"""Reshards over more are searched among so many layouts that a program can take seconds."""
_JAX_MODULES = 6
"""Of programs that run on devices, in each of four blocks. The first is as simple as can be, and does not count."""
_IN_A_MODULE = 20
"""Two of each family, and two of all."""
_STRATEGIES_AT_RANDOM = 3
"""Of so many programs one is computed in ways that are drawn, and not in the cheapest."""
_MACHINES = [TPU_V3, *map(machine, ("h100", "host", "tpu-v5e"))]
"""What programs are planned for, in turn."""
_FIRST: dict[str, Any] = {"phases": (Phase.explicit, Phase.generate), "report_multiple_bugs": False}
"""Hypothesis stops at the first program that fails, and `check_equivalence` makes it smaller: that takes as long as a
thousand others."""


def _choices(inputs: int) -> dict[str, Any]:
    """What is chosen for a program, by the seed of its inputs."""
    at_random = inputs % _STRATEGIES_AT_RANDOM == 0
    return {"any_strategies": at_random, "machine": _MACHINES[inputs % len(_MACHINES)]}


def _check(draws: st.SearchStrategy[Program], block: int, count: int, *, anything: bool) -> None:
    """Draws `count` programs, the same every time; or new ones, as many times more as the profile has more examples."""
    profile = settings.get_profile(settings.get_current_profile_name())

    @seed(block if profile.derandomize else None)
    @settings(profile, max_examples=count * profile.max_examples // 100, **_FIRST)
    @given(draws, st.integers(0, 1000))
    def holds(program: Program, inputs: int) -> None:
        check_equivalence(program, seed=inputs, anything=anything, **_choices(inputs))

    try:
        holds()
    except NotEquivalentError as found:
        check_equivalence(found.program, seed=found.seed, anything=anything, shrink=True, **_choices(found.seed))
        raise


@pytest.mark.parametrize(
    ("family", "anything"), _BLOCKS, ids=[f"{family or 'every'}-{'any' if a else 'small'}" for family, a in _BLOCKS]
)
def test_a_partitioned_program_equals_the_unpartitioned_one_bit_for_bit(family: str | None, anything: bool) -> None:
    block = _BLOCKS.index((family, anything))
    draws = programs(max_devices=_DEVICES if family else 64, family=family, anything=anything)
    _check(draws, block, _EXAMPLES, anything=anything)


@pytest.mark.parametrize("anything", [False, True], ids=["small", "any"])
def test_programs_of_short_types_are_partitioned_alike(anything: bool) -> None:
    """Of floats of 8 and 4 bits and integers of 4 and 2, most of which lack something that others have."""
    short = [t for t in DTYPES.values() if t.is_short and t.has_zero and t != s2]
    _check(programs(8, short, max_devices=16, anything=anything), anything, _OF_SHORT_TYPES, anything=anything)


@pytest.mark.parametrize("block", [pytest.param(0, marks=pytest.mark.optimised), 1])
@pytest.mark.parametrize("anything", [False, True], ids=["small", "any"])
def test_partitioned_programs_on_jax_devices_equal_the_oracle(anything: bool, block: int) -> None:
    """In each run 400 programs, 20 in a module; when soaking, 20,000. One by one if a module differs."""
    ran = 0
    profile = settings.get_profile(settings.get_current_profile_name())

    @seed(2 * block + anything if profile.derandomize else None)
    @settings(profile, max_examples=_JAX_MODULES * (1 if profile.derandomize else 50), **_FIRST)
    @given(_together(anything, _WITH_SHORT_TYPES if block == 0 else None), st.integers(0, 1000))
    def holds(drawn: list[Program], inputs: int) -> None:
        nonlocal ran
        ran += len(drawn) if any(p.main.body.ops for p in drawn) else 0
        try:
            check_equivalence(side_by_side(drawn), jax=True, seed=inputs, anything=anything)
        except NotEquivalentError:
            for program in drawn:
                check_equivalence(program, jax=True, seed=inputs, anything=anything, shrink=True)
            raise

    holds()
    assert ran >= (_JAX_MODULES - 1) * _IN_A_MODULE >= 100


def _together(anything: bool, dtypes: Sequence[DType] | None) -> st.SearchStrategy[list[Program]]:
    families = (None, *FAMILIES)
    return programs_side_by_side(
        _IN_A_MODULE, 6, dtypes, max_devices=8, families=families, anything=anything, functions=False
    )


@settings(max_examples=examples(40), **_FIRST)
@given(programs(family="control"), st.integers(0, 20))
def test_functions_that_are_not_written_where_they_are_called_compute_the_same(program: Program, seed: int) -> None:
    with patch("passes.partition.plan.versions.inlined_functions", return_value=frozenset()):
        check_equivalence(program, seed=seed, shrink=True)
