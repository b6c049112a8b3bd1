"""Every construct is imported, partitioned, and computes what XLA, or numpy, computes of it."""

from __future__ import annotations

import numpy as np
import pytest
from constructs import REFUSED, Construct, all_constructs, hlo
from one_device import compiled_and_run

import spmdc

CONSTRUCTS = all_constructs()


def test_there_are_as_many_as_are_needed_to_say_so_and_few_are_refused() -> None:
    assert len(CONSTRUCTS) >= 300
    assert len(REFUSED) <= 0.03 * len(CONSTRUCTS)


@pytest.mark.parametrize("construct", CONSTRUCTS, ids=lambda construct: construct.name)
def test_a_construct_is_imported_and_computes_what_it_means(construct: Construct) -> None:
    read = spmdc.from_hlo if construct.is_hlo else spmdc.from_mlir
    program = read(construct.text, construct.name)
    arrays = [np.round(4 * a) if a.dtype.kind == "f" else a for a in spmdc.random_inputs(program, seed=1)]
    whole = spmdc.evaluate(program, *arrays)
    expected = list(whole)
    if construct.expected is not None:
        expected = [construct.expected(arrays[0])]
    elif not construct.is_by_hand:
        expected = compiled_and_run(construct.text, arrays)
    parts = spmdc.partition(program).simulate(*arrays) if program.meshes[0].size > 1 else whole
    for have, part, want in zip(whole, parts, expected, strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_allclose(have, want, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(part, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_a_place_a_reason_and_a_way_out(name: str) -> None:
    code, body = REFUSED[name]
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.from_hlo(hlo(body))
    (diagnostic, *_) = refused.value.diagnostics
    assert diagnostic.code == code
    assert diagnostic.span is not None
    assert diagnostic.help
