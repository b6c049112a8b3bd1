"""Every .spmd file of this folder is run unpartitioned and partitioned, and must give the same, bit for bit.

What a program expects stands in the comments at its top; tests/README.md describes them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import spmdc
from ir.program import Program
from spmdc.testing import inputs_for

Array = npt.NDArray[Any]

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*.spmd"))
DIRECTIVE = re.compile(r"# *((?:expect|input|tolerance|also on|memory limit)\b.*)")
KEY = re.compile(r"expect|expect bytes|expect warnings|input \w+|tolerance|also on|memory limit")
ANYTHING = "anything"


@dataclass(frozen=True)
class Expectation:
    """The comments at the top of a program. None stands for what the program leaves open, also as a count."""

    collectives: dict[str, int | None] | None
    bytes: int | None
    warnings: dict[str, int | None] | None
    inputs: dict[str, tuple[Any, ...]]
    tolerance: float
    on_jax: bool
    memory_limit: int | None


def expectation_of(text: str) -> Expectation:
    """Reads the leading comments. Raises ValueError for one that is misspelt, given twice or missing."""
    said: dict[str, str] = {}
    for line in _leading_comments(text):
        match = DIRECTIVE.fullmatch(line)
        if match is None:
            continue
        key, _, content = match[1].partition(":")
        if KEY.fullmatch(key) is None or not content.strip() or key in said:
            raise ValueError(f"not an expectation, or a second one: {line}")
        said[key] = content.strip()
    if "expect" not in said:
        raise ValueError("the program does not say what it expects: write '# expect: none' or '# expect: anything'")
    if said.get("also on", "jax") != "jax":
        raise ValueError(f"cannot run on {said['also on']}")
    return Expectation(
        collectives=_counts(said["expect"]),
        bytes=int(said["expect bytes"].replace("_", "")) if "expect bytes" in said else None,
        warnings=_counts(said.get("expect warnings", "none")),
        inputs={
            key.split()[1]: tuple(json.loads(choice) for choice in content.split("|"))
            for key, content in said.items()
            if key.startswith("input ")
        },
        tolerance=float(said.get("tolerance", 0.0)),
        on_jax="also on" in said,
        memory_limit=int(said["memory limit"].replace("_", "")) if "memory limit" in said else None,
    )


def _leading_comments(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line.startswith("#"):
            return
        yield line


def _counts(text: str) -> dict[str, int | None] | None:
    """`all_to_all 2, all_reduce` as counts, the second one open; `none` as no counts."""
    if text == ANYTHING:
        return None
    counts: dict[str, int | None] = {}
    for part in [] if text == "none" else text.split(","):
        kind, *count = part.split()
        if len(count) > 1 or kind in counts:
            raise ValueError(f"not a kind and its count: {part}")
        counts[kind] = int(count[0]) if count else None
    return counts


def assert_counts(found: Iterable[str], expected: dict[str, int | None] | None, text: str) -> None:
    """Each kind as often as expected, and no other kind."""
    if expected is None:
        return
    counts = Counter(found)
    wanted = {kind: counts.get(kind, 1) if count is None else count for kind, count in expected.items()}
    assert counts == wanted, text


def cases(program: Program, chosen: dict[str, tuple[Any, ...]]) -> Iterator[tuple[Array, ...]]:
    """Inputs with every combination of the values that the program's comments give; the others are drawn anew."""
    params = [p.name for p in program.main.params]
    unknown = chosen.keys() - set(params)
    if unknown:
        raise ValueError(f"main has no parameters {sorted(unknown)}")
    combinations = [dict(zip(chosen, values, strict=True)) for values in product(*chosen.values())]
    for seed, values in enumerate(combinations * 2 if len(combinations) == 1 else combinations):
        drawn = zip(program.main.params, inputs_for(program, seed), strict=True)
        yield tuple(
            np.broadcast_to(np.asarray(values[p.name], p.type.dtype.numpy), p.type.shape) if p.name in values else array
            for p, array in drawn
        )


def assert_same(actual: tuple[Any, ...], expected: tuple[Array, ...], tolerance: float, text: str) -> None:
    """Equal types, shapes and elements; without a tolerance, NaNs and the signs of zeros too."""
    for got, want in zip(map(np.asarray, actual), expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if tolerance:
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
            continue
        np.testing.assert_array_equal(got, want, err_msg=text)
        if want.dtype.kind == "f":
            number = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number], err_msg=text)


@pytest.mark.optimised
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_program_communicates_what_it_expects_and_computes_what_one_device_would(path: Path) -> None:
    expectation = expectation_of(path.read_text(encoding="utf-8"))
    program = spmdc.load(path)
    q = spmdc.partition(program, memory_limit=expectation.memory_limit)
    if expectation.memory_limit is not None:
        assert q.peak_bytes() <= expectation.memory_limit < spmdc.partition(program).peak_bytes(), q.text()
    assert_counts((c.kind for c in q.collectives()), expectation.collectives, q.text())
    if expectation.bytes is not None:
        assert q.received_bytes() == expectation.bytes, q.text()
    assert_counts((w.code for w in q.warnings), expectation.warnings, q.text())
    run_on_jax = q.to_jax() if expectation.on_jax else None
    for arrays in cases(program, expectation.inputs):
        expected = spmdc.evaluate(program, *arrays)
        assert_same(q.simulate(*arrays), expected, expectation.tolerance, q.text())
        if run_on_jax is not None:
            assert_same(run_on_jax(*arrays), expected, expectation.tolerance, q.text())


def test_the_figures_of_the_paper_are_there() -> None:
    figures = {f.stem.split("_")[1] for f in FILES if f.stem.startswith("figure_")}
    assert figures == {"2", "4a", "4b", "4c", "5a", "5b", "5c", "10", "11", "12", "13"}


@pytest.mark.parametrize(
    "text",
    [
        "mesh (x=2)",
        "# expect all_reduce 1",
        "# expect: all_reduce one",
        "# expect: all_reduce 1, all_reduce 2",
        "# expect: all_reduce 1\n# expect: none",
        "# expect bytes: none\n# expect: none",
        "# expect: none\n# also on: paper",
        "# expect: none\n# input k: one",
        "# expect: none\n# memory limit: small",
        "# expect: none\n# expect byte: 3",
    ],
)
def test_an_expectation_that_is_missing_or_misspelt_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"expect|cannot run|not a kind|invalid literal|Expecting value"):
        expectation_of(text)
