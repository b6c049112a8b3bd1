"""Table 4 of the GShard paper: how the compute and the communication of one device grow with the number of devices D.

The dims that a row names grow in proportion to D, so that each device's part of a tensor stays as large.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest

import spmdc
from ir.ops import OPS
from ir.program import all_ops

DEVICES = (2, 4, 16, 64)


@dataclass(frozen=True)
class Row:
    """A row of the table: a program over D devices, whether compute and communication of one device are O(D) rather
    than O(1), and by which collective it communicates."""

    name: str
    text: str
    linear: bool = False
    kind: str | None = None


ROWS = (
    Row("add_split_a", "def main(x: f32[A@d], y: f32[A@d]) -> (r: f32[A@d]) { return x + y }"),
    Row(
        "matmul_split_b",
        "def main(x: f32[F, A@d], y: f32[A@d, F]) -> (r: f32[F, F]{replicated}) { return dot(x, y) }",
        kind="all_reduce",
    ),
    Row(
        "matmul_split_a",
        "def main(x: f32[A@d, F], y: f32[F, F]{replicated}) -> (r: f32[A@d, F]) { return dot(x, y) }",
    ),
    Row(
        "matmul_split_a_and_b",
        "def main(x: f32[A@d, A], y: f32[A@d, F]) -> (r: f32[A@d, F]) { return dot(x, y) }",
        linear=True,
        kind="all_gather",
    ),
    Row(
        "matmul_split_a_and_c",
        "def main(x: f32[A@d, F], y: f32[F, A@d]) -> (r: f32[A@d, A]) { return dot(x, y) }",
        linear=True,
        kind="all_gather",
    ),
    Row("reduce_to_split_dim", "def main(x: f32[A@d, F]) -> (r: f32[A@d]) { return sum(x, 1) }"),
    Row(
        "reduce_of_split_dim",
        "def main(x: f32[A@d, F]) -> (r: f32[F]{replicated}) { return sum(x, 0) }",
        kind="all_reduce",
    ),
    Row(
        "dispatch_einsum",
        """def main(x: f32[D@d, S, D, C], y: f32[D@d, S, F]) -> (r: f32[D@d, D, C, F]) {
             return split(einsum("GSEC,GSM->EGCM", x, y), 0, D)
           }""",
        kind="all_to_all",
    ),
    Row(
        "convolution_split_x",
        """def main(x: f32[8, 8, A@d, F], y: f32[3, 3, 8, 16]{replicated}) -> (r: f32[8, 16, A@d, F]) {
             return conv(x, y, "BIXY,xyIO->BOXY", padding="same")
           }""",
        kind="collective_permute",
    ),
)


@cache
def measured(text: str, devices: int) -> tuple[int, int, tuple[str, ...]]:
    """Compute of one device, bytes that the worst one receives, and kinds of collectives."""
    # The dispatch einsum has tokens in groups of S and a capacity C of S / E = O(1/D): E C is constant.
    consts = f"const D = {devices}, A = 128 * D, F = 64, S = 64, C = 64 // D\nmesh (d=D)\n"
    q = spmdc.partition(spmdc.parse(consts + text))
    assert q.warnings == ()
    collectives = q.collectives()
    return compute(q), q.received_bytes(), tuple(c.kind for c in collectives)


def compute(q: spmdc.PartitionedProgram) -> int:
    """Floating-point operations where an op says how many it does, else one for each element of the results."""
    total = 0
    for op in all_ops(q.program):
        flops = OPS[op.name].flops
        total += sum(r.type.size for r in op.results) if flops is None else flops(op)
    return total


def per(devices: int, row: Row) -> float:
    """What the table lets grow with the devices, here as it is on one."""
    return devices if row.linear else 1


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_compute_of_one_device_grows_as_the_table_says(row: Row) -> None:
    shares = [measured(row.text, d)[0] / per(d, row) for d in DEVICES]
    assert max(shares) <= 1.1 * min(shares)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_device_communicates_as_the_table_says(row: Row) -> None:
    for d in DEVICES:
        _, received, kinds = measured(row.text, d)
        assert set(kinds) == ({row.kind} - {None})
        assert (received == 0) == (row.kind is None)


@pytest.mark.parametrize(
    "row", [r for r in ROWS if r.kind not in (None, "collective_permute")], ids=lambda row: row.name
)
def test_the_bytes_that_one_device_receives_grow_as_the_table_says(row: Row) -> None:
    """Of d pieces, one is the device's own: hence the factor (d - 1) / d."""
    shares = [measured(row.text, d)[1] / per(d, row) * d / (d - 1) for d in DEVICES]
    assert shares == pytest.approx([shares[0]] * len(shares))


def test_a_convolution_receives_one_column_from_each_neighbour_however_many_devices_there_are() -> None:
    row = next(r for r in ROWS if r.kind == "collective_permute")
    column = 8 * 8 * 64 * 4
    assert [measured(row.text, d)[1] for d in DEVICES] == [column, 2 * column, 2 * column, 2 * column]
