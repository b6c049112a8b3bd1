"""Whatever is read, it is refused with a diagnostic, or partitioned, printed so that it reads back, and computed alike.

Texts of every language, bytecode and machine files are damaged by `damage.py` and `other_inputs.py`, and judged by
`judge.py`: the same ones in each run, others under `make soak`, and more by `python tests/fuzz/damaged_inputs.py`. What
was found is kept in `corpus/`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import PROGRAM, Run
from damage import damage
from damaged_inputs import KINDS, LANGUAGE, damaged, judged
from damaged_options import FILE, damaged_options
from drawn import examples
from judge import judge
from seeds import seeds

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
COUNTS = {
    "spmd": 250,
    "propagated": 75,
    "plan": 180,
    "partitioned": 150,
    "hlo": 150,
    "mlir": 200,
    "bytecode": 40,
    "machine": 60,
}
PARTS = 2


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_was_found_stays_mended(path: Path) -> None:
    text = path.read_text("latin-1" if path.suffix == ".bytecode" else "utf-8")
    verdict = judge(text, path.suffix.removeprefix("."))
    assert not verdict.fault, verdict.details or verdict.fault


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_texts_are_refused_or_computed(kind: str, part: int) -> None:
    for number in range(part, COUNTS[kind], PARTS):
        text = damaged(kind, number)
        verdict = judge(text, LANGUAGE.get(kind, kind))
        assert not verdict.fault, f"{kind} {number}: {verdict.fault}\n{verdict.details}\n{text}"


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_are_sound(kind: str) -> None:
    """What is damaged would be worth computing."""
    assert len(seeds(kind)) > (20 if kind != "machine" else 10)
    for text in seeds(kind)[::10]:
        verdict = judge(text, LANGUAGE.get(kind, kind), run=False)
        assert verdict.outcome in ("partitioned", "SPMD"), verdict.fault


def test_some_of_what_is_damaged_can_be_computed() -> None:
    """Else the judge would see errors of syntax alone."""
    for kind, most in (("spmd", 0.9), ("hlo", 0.95), ("mlir", 0.95)):
        outcomes = [judge(damaged(kind, number), kind, run=False).outcome for number in range(10_000, 10_060)]
        assert sum(outcome.startswith("refused") for outcome in outcomes) < most * len(outcomes)


def test_a_judge_sees_faults() -> None:
    late = "mesh (x=2)\n\ndef main(a: f32[8@x]) -> (r: f32[8]) {\n  return a + a\n}\n"
    assert judge(late, "spmd").outcome == "equal"
    assert judge(late.replace("spmd", "x"), "nonsense").outcome == "equal"
    assert judge(late.replace("f32[8]", "f32[9]"), "spmd").outcome == "refused E401"


def test_damage_is_the_same_in_each_run() -> None:
    texts = [damage(np.random.default_rng(7), PROGRAM, [PROGRAM], "spmd") for _ in range(2)]
    assert texts[0] == texts[1] != PROGRAM


@pytest.mark.parametrize("part", range(PARTS))
def test_any_command_line_ends_with_a_status_that_means_something(spmdc: Run, part: int) -> None:
    Path(FILE).write_text(PROGRAM)
    for number in range(part, examples(120), PARTS):
        arguments = damaged_options(np.random.default_rng(number))
        ended = spmdc(*arguments)
        assert ended.status in (0, 1, 2), f"{arguments}\n{ended.err}"
        assert "Traceback" not in ended.err
        Path(FILE).write_text(PROGRAM)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_many_damaged_texts_are_refused_or_computed(kind: str) -> None:
    """In forks, with bounds of memory; some ten thousand of each kind."""
    for number, verdict, _ in judged(kind, range(100_000, 110_000)):
        assert not verdict.fault, f"{kind} {number}: {verdict.fault}\n{verdict.details}\n{damaged(kind, number)}"
