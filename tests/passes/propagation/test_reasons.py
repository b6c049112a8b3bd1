"""The chains of reasons: from each axis of each value back to an annotation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import spmdc
from ir.mesh import AxisRef
from passes.propagation.reasons import Propagated, Reason, ValueId

FOLDERS = Path(__file__).parents[2] / "programs", Path(spmdc.__file__).parent / "programs"
PROGRAMS = sorted(path for folder in FOLDERS for path in folder.glob("*.spmd"))

CARRIED = """
mesh (d=4, m=2)
def main(x: f32[16@d, 12], v: f32[3, 12@d, 12@m]) -> (y: f32[16, 12]) {
  y = loop l < 3 (h = x) { return h + matmul(h, v[l]) }
  return y
}
"""


def chains_ending(propagated: Propagated) -> Iterator[tuple[Reason, Reason]]:
    """Each reason with the last one of its chain, along which steps decrease."""
    first: dict[tuple[ValueId, AxisRef], Reason] = {}
    for reasons in propagated.reasons.values():
        for reason in reasons:
            known = first.setdefault((reason.value, reason.axis), reason)
            if reason.step < known.step:
                first[reason.value, reason.axis] = reason
    for reasons in propagated.reasons.values():
        for reason in reasons:
            last = reason
            while last.source is not None:
                earlier = first[last.source, last.axis]
                assert earlier.step < last.step, (last, earlier)
                last = earlier
            yield reason, last


def test_what_a_loop_carries_is_explained_though_its_condition_has_the_same_names() -> None:
    propagated = spmdc.propagate(spmdc.parse(CARRIED))
    assert propagated.why("y").splitlines()[-1].lstrip().startswith("v dim 2: annotated")
    assert propagated.why("h").count("dim 1 is split over m\n") == 1


def test_every_chain_of_reasons_ends_at_an_annotation() -> None:
    for path in PROGRAMS:
        for reason, last in chains_ending(spmdc.propagate(spmdc.load(path)).propagated):
            assert last.how == "annotated", (path.stem, reason)
