"""What collectives send stands with their declaration, and the cost model asks there."""

from __future__ import annotations

import pytest

from ir.ops import OPS
from ir.ops.collective import COLLECTIVES, communication_of
from passes.cost.model import received_bytes

SENT = {
    "all_gather": (3 * 1000, 2),
    "all_reduce": (2 * 750, 2),
    "all_to_all": (750, 2),
    "box_permute": (1000, 1),
    "box_permutes": (1000, 1),
    "collective_permute": (1000, 1),
    "reduce_scatter": (750, 2),
}
"""Bytes that each of 4 devices with 1000 bytes receives, and messages that wait for one another."""


@pytest.mark.parametrize("name", sorted(SENT))
def test_what_four_devices_receive(name: str) -> None:
    nbytes, messages = SENT[name]
    assert received_bytes(name, 4, 1000) == nbytes
    assert received_bytes(name, 1, 1000) == 0
    assert communication_of(name).messages(4) == messages


def test_every_op_that_sends_something_says_what() -> None:
    assert {name for name, opdef in OPS.items() if opdef.family == "collective"} - {"axis_index"} == COLLECTIVES
    assert SENT.keys() == COLLECTIVES
    with pytest.raises(KeyError, match="axis_index"):
        communication_of("axis_index")
