"""Axes of which an op splits one factor only: tensors without that factor may have them on another one, or along a
batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from propagated import shardings

import spmdc
from spmdc.api import PropagatedProgram

FREE_WEIGHTS = """
mesh (a=2)
def main(l: f32[8@a, 8], r: f32[8, 8]) -> (o: f32[8, 8@a]) { return einsum("ij,jk->ik", l, r) }
"""


def test_an_axis_splits_another_factor_of_the_op_on_a_parameter_that_is_free() -> None:
    """`a` splits the rows of `l` and the columns of the result. It is free on `r`: half of that arrives on a device."""
    found = shardings(FREE_WEIGHTS)
    assert [found[n] for n in "lro"] == ["f32[8@a, 8]", "f32[8, 8@a]", "f32[8, 8@a]"]


def test_why_says_what_a_free_tensor_followed_and_what_that_took() -> None:
    reasons = spmdc.propagate(spmdc.parse(FREE_WEIGHTS)).why("r")
    assert "r dim 1 <- o dim 1" in reasons
    assert "and l dim 0 is split over a" in reasons
    # Of r, 256 bytes; a device receives the other half of l, or half of its half of o.
    assert "r is split too: 128 and not 256 bytes arrive, 128 and not 64 bytes are received" in reasons


@pytest.mark.parametrize(
    ("kind", "r"),
    [
        ("f32[8@a, 16], r: f32[16, 32]) -> (o: f32[8, 32@a]) { return matmul(l, tanh(r)) }", "f32[16, 32@a]"),
        ("f32[8@a, 16], r: f32[16, 32]) -> (o: f32[8, 32@a]) { return matmul(l, r) * 2 }", "f32[16, 32@a]"),
        ("f32[16, 8@a], r: f32[16, 16]) -> (o: f32[16@a, 8]) { return matmul(r, l) }", "f32[16@a, 16]"),
        ("f32[4, 8@a, 16], r: f32[4, 16, 16]) -> (o: f32[4, 8, 16@a]) { return matmul(l, r) }", "f32[4, 16, 16@a]"),
        ("f32[8@a, 16], r: f32[16@b, 32@?]) -> (o: f32[8, 32@a]) { return matmul(l, r) }", "f32[16@b, 32@a]"),
        ("f32[8@a, 16], r: f32[16, 32]) -> (o: f32[8, 32@a]) { return f(l, r) }", "f32[16, 32@a]"),
    ],
)
def test_what_is_free_is_split_behind_other_ops_and_beside_other_axes(kind: str, r: str) -> None:
    callee = "def f(u: f32[8, 16], v: f32[16, 32]) -> f32[8, 32] { return matmul(u, v) }"
    text = f"mesh (a=2, b=2)\ndef main(l: {kind}\n{callee}".replace("'", '"')
    assert shardings(text)["r"] == r


@pytest.mark.parametrize(
    "program",
    [
        # The columns of r would be gathered again.
        "l: f32[64@a, 8], r: f32[8, 2]) -> (o: f32[64, 2@a]) { return matmul(l, r) }",
        # The rows that would be gathered for it are as large, and the result is small.
        "l: f32[8@a, 64], r: f32[64, 8]) -> (o: f32[8, 8@a]) { return matmul(l, r) }",
        # It is used along its rows too.
        "l: f32[8@a, 8], r: f32[8, 8]) -> (o: f32[8, 8@a], p: f32[8@a, 8]) { return matmul(l, r), matmul(l, r + 1) }",
        # In a loop, what l becomes would be gathered in each iteration.
        """l: f32[8@a, 8], r: f32[8, 8]) -> (o: f32[8, 8]) {
            i, z: f32[8@a, 8] = while(i = 0, z: f32[8@a, 8] = l, trip_count=4) cond { return i < 4 } do {
                h: f32[8, 8@a] = matmul(z, r)
                return i + 1, tanh(h)
            }
            return z
        }""",
    ],
)
def test_a_free_parameter_stays_whole_where_splitting_it_takes_more_bytes(program: str) -> None:
    assert shardings(f"mesh (a=2)\ndef main({program}")["r"].endswith("{replicated}")


def test_a_closed_parameter_follows_nobody() -> None:
    text = FREE_WEIGHTS.replace("r: f32[8, 8]", "r: f32[8, 8]{replicated}")
    assert shardings(text)["r"] == "f32[8, 8]{replicated}"


def test_what_is_free_is_found_in_steps_linear_in_the_program() -> None:
    """Each layer's weights are asked for, and the split of one would go on to the next."""

    def steps(layers: int) -> int:
        weights = ", ".join(f"w{i}: f32[8, 8]" for i in range(layers))
        body = "".join(f"h{i + 1}: f32[8, 8@a] = matmul(shard(h{i}, 'P(\"a\")'), w{i})\n" for i in range(layers))
        text = f"mesh (a=2)\ndef main(h0: f32[8, 8], {weights}) -> (o: f32[8, 8]) {{\n{body}return h{layers}\n}}"
        return spmdc.propagate(spmdc.parse(text)).propagated.steps

    assert steps(32) < 2.2 * steps(16)


@pytest.mark.parametrize(
    ("program", "name", "found"),
    [
        # The columns of w are split too: l is gathered, or the sum is scattered.
        ("l: f32[16, 8@a], w: f32[8, 8@a]) -> (o: f32[16, 8]) { return matmul(l, w) }", "o", "f32[16, 8@a]"),
        ("l: f32[4@a, 8], w: f32[8@a, 16]) -> (o: f32[4, 16]) { return matmul(l, w) }", "o", "f32[4@a, 16]"),
        # Its rows are: the sum before it is scattered.
        (
            """l: f32[32, 32@a], v: f32[32@a, 16], w: f32[16@a, 8]) -> (o: f32[32, 8@a]) {
                h = matmul(l, v)
                return matmul(tanh(h), w)
            }""",
            "h",
            "f32[32, 16@a]",
        ),
        # Nothing is saved: a sum of its rows would be reduced twice.
        ("l: f32[4@a, 8], w: f32[8@a, 9]) -> (o: f32[9]) { return sum(matmul(l, w), 0) }", "o", "f32[9]{replicated}"),
    ],
)
def test_what_nobody_annotated_is_split_by_an_axis_of_another_factor_where_less_is_received(
    program: str, name: str, found: str
) -> None:
    assert shardings(f"mesh (a=2)\ndef main({program}")[name] == found


def two_layers(rows: int) -> str:
    """Each has its input and the rows of its weights split."""
    return f"""
        mesh (y=4)
        def main(t: f32[{rows}, {rows}, 32@y], v: f32[32@y, 32], w: f32[32@y, 32]) -> (o: f32[{rows}, {rows}, 32@y]) {{
          h = einsum("od,btd->bto", v, t)
          return einsum("od,btd->bto", w, tanh(h))
        }}"""


def test_where_following_the_other_factor_saves_nothing_a_result_is_split_along_its_batch() -> None:
    """Along features, h would be gathered as t is, and neither weight; along the batch, both weights are, and what the
    layers take and give is exchanged."""
    program = two_layers(16)
    assert shardings(program)["h"] == "f32[16@y, 16, 32]"
    found = spmdc.partition(spmdc.parse(program)).collectives()
    exchanged, weights = 3 * 4 * 16 * 8 * 4, 3 * 4 * 8 * 32
    assert [(c.kind, c.bytes) for c in found] == [
        ("all_to_all", exchanged),
        ("all_gather", 2 * weights),
        ("all_to_all", exchanged),
    ]


@pytest.mark.parametrize(
    "program",
    [
        # The rows do not divide.
        "x: f32[15, 32@y], v: f32[32@y, 32], w: f32[32@y, 32]) -> (o: f32[15, 32@y]) {",
        # The weights are larger than what they are multiplied with.
        "x: f32[4, 32@y], v: f32[32@y, 32], w: f32[32@y, 32]) -> (o: f32[4, 32@y]) {",
        # Only one factor has the axis: the sum stays pending.
        "x: f32[64, 32@y], v: f32[32, 32@y], w: f32[32, 32]) -> (o: f32[64, 32]) {",
    ],
)
def test_a_result_is_not_split_along_its_batch_where_that_is_uneven_or_saves_nothing(program: str) -> None:
    body = 'h = einsum("od,bd->bo", v, x)\n return einsum("od,bd->bo", w, tanh(h)) }'
    assert not shardings(f"mesh (y=4)\ndef main({program}\n{body}")["h"].startswith(("f32[15@y", "f32[4@y", "f32[64@y"))


def test_a_split_along_the_batch_that_does_not_save_what_it_was_estimated_to_is_not_planned() -> None:
    """Propagation estimates each axis by itself, and so takes less than it is for the gather of what is returned."""
    program = spmdc.parse("""
        mesh (x=2, y=4)
        def main(t: f32[16, 32@y, 16@x], v: f32[16@x, 16], w: f32[16, 64]) -> (o: f32[16, 32, 64]{replicated}) {
          h = einsum("od,btd->bto", v, t)
          return einsum("btd,do->bto", tanh(h), w)
        }""")
    estimated, weighed = spmdc.propagate(program, weigh=False), spmdc.propagate(program)
    assert "h: f32[16@x, 32@y, 16]" in estimated.text()
    assert "h: f32[16, 32@y, 16]" in weighed.text()
    weights, activations, returned = 8 * 16, 16 * 8 * 8, 3 * 16 * 8 * 16
    for found in (spmdc.partition(program), spmdc.partition(estimated), spmdc.partition(weighed)):
        assert found.received_bytes() == 4 * (weights + activations + returned)
        assert "h: f32[16, 32@y, 16]" in found.why("h")


def test_on_a_network_the_faster_plan_decides_on_splits_along_the_batch() -> None:
    """On TPU v4, the latencies of the exchanges cost more than the bytes that they save."""
    program = spmdc.parse(two_layers(64))
    estimated = spmdc.propagate(program, weigh=False).propagated
    assert estimated.otherwise is not None
    ways = replace(estimated, otherwise=None), estimated.otherwise()
    split, plain = (spmdc.plan(PropagatedProgram(way), machine="tpu-v4").cost() for way in ways)
    assert split.seconds > plain.seconds
    assert split.received < plain.received
    assert spmdc.plan(program, machine="tpu-v4").cost().received == plain.received
    assert spmdc.plan(program).cost().received == split.received
