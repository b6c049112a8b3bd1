"""Which devices send to which in a round of a box exchange, device by device."""

from __future__ import annotations

import numpy as np

from ir.ops.boxes import Round


def pairs_of(each: Round) -> tuple[tuple[int, int], ...]:
    """(source, receiver) of each transfer."""
    receivers = np.arange(each.devices, dtype=np.int64)
    sources = each.sources(receivers)
    some = sources >= 0
    return tuple(zip(sources[some].tolist(), receivers[some].tolist(), strict=True))
