"""Every module in `hlo` is imported, computes what XLA computes, and partitions.

They cover the opcodes of HLO that compute, and the spellings of its shardings; a file is named for what it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from one_device import compiled_and_run

import spmdc
from ir.program import all_ops
from spmdc.frontends.spmd import print_program

Array = npt.NDArray[Any]
FILES = sorted((Path(__file__).parent / "hlo").glob("*.hlo"))
UNKNOWN_TO_XLA: dict[str, Callable[[Array], Array]] = {
    "asinh": np.arcsinh,
    "bitcast": np.ravel,
    "cosh": np.cosh,
    "sinh": np.sinh,
}
"""What XLA reads and does not compile for a CPU."""


def xla(path: Path, arrays: Sequence[Array]) -> list[Array]:
    """The module's results, compiled by XLA for one device."""
    if path.stem in UNKNOWN_TO_XLA:
        return [UNKNOWN_TO_XLA[path.stem](arrays[0])]
    return compiled_and_run(path.read_text(), arrays)


def assert_close(found: Sequence[Array], expected: Sequence[Array]) -> None:
    assert len(found) == len(expected)
    for have, want in zip(found, expected, strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(have, want)
        else:
            np.testing.assert_allclose(have.astype("f8"), want.astype("f8"), rtol=2e-5, atol=2e-5)


def test_there_are_modules_of_every_kind() -> None:
    assert len(FILES) >= 140


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_module_computes_what_xla_computes_and_prints_and_parses_again(path: Path) -> None:
    program = spmdc.load(path)
    arrays = spmdc.random_inputs(program, seed=1)
    whole = spmdc.evaluate(program, *arrays)
    assert_close(whole, xla(path, arrays))
    if program.meshes:
        assert_close(spmdc.partition(program).simulate(*arrays), whole)
    again = spmdc.parse(print_program(program))
    assert [op.name for op in all_ops(again)] == [op.name for op in all_ops(program)]
    assert again.meshes == program.meshes or not program.meshes
    assert [v.sharding for v in again.main.params] == [v.sharding for v in program.main.params]
