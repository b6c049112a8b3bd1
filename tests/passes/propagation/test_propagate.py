"""Propagation: what annotations reach, in which order conflicts are settled, and the reasons it keeps."""

from __future__ import annotations

import math

import pytest
from propagated import shardings

import spmdc
from ir.diagnostics import SpmdcError
from ir.program import all_ops
from ir.sharding import Sharding
from ir.spelling.printer import print_type


def test_a_split_spreads_forward_and_backward_through_elementwise_ops() -> None:
    found = shardings(
        """
        mesh (d=4)
        def main(a: f32[8], b: f32[8]) -> (y: f32[8]) {
          c: f32[8@d] = a + b
          y = tanh(c)
          return y
        }
        """
    )
    assert [found[n] for n in "abcy"] == ["f32[8@d]"] * 4


def test_batch_dims_come_before_the_dims_of_one_operand() -> None:
    """GShard, section 3.2: the einsum is split like its operands, and `split` after it reshards."""
    found = shardings(
        """
        mesh (d=4)
        def main(a: f32[8@d, 4, 8], b: f32[8@d, 4, 2]) -> (y: f32[8, 8, 2]) {
          local = einsum("GSE,GSM->EGM", a, b)
          y = split(local, 0, 4)
          return y
        }
        """
    )
    assert found["local"] == "f32[8, 8@d, 2]"
    assert found["y"] == "f32[8@d, 8, 2]"


def test_a_closed_dim_takes_no_axes_and_an_open_one_does() -> None:
    found = shardings(
        """
        mesh (x=2, y=2)
        def main(a: f32[8@x, 4@y]) -> (y: f32[8, 4]) {
          b: f32[8, 4@?] = neg(a)
          y = neg(b)
          return y
        }
        """
    )
    assert found["b"] == "f32[8, 4@y]"


def test_axes_are_added_minor_to_those_an_open_dim_has() -> None:
    found = shardings(
        """
        mesh (x=2, y=2)
        def main(a: f32[8@(x, y)]) -> (y: f32[8]) {
          y: f32[8@(x, ?)] = neg(a)
          return y
        }
        """
    )
    assert found["y"] == "f32[8@(x,y)]"


def test_an_axis_that_is_replicated_explicitly_does_not_come_to_split() -> None:
    found = shardings(
        """
        mesh (x=2)
        def main(a: f32[8@x]) -> (y: f32[8]) {
          y: f32[8@?]{replicated: x} = neg(a)
          return y
        }
        """
    )
    assert found["y"] == "f32[8]{replicated}"


def test_user_priorities_go_first() -> None:
    found = shardings(
        """
        mesh (x=2)
        def main(a: f32[8@x!1, 4], b: f32[8, 4@x]) -> (y: f32[8, 4]) {
          y = a + b
          return y
        }
        """
    )
    assert found["y"] == "f32[8, 4@x]"


def test_the_larger_tensor_settles_a_conflict() -> None:
    found = shardings(
        """
        mesh (x=2)
        def main(a: f32[8@x, 4], b: f32[4, 64@x]) -> (y: f32[8, 64]) {
          y = einsum("ij,jk->ik", a, b)
          return y
        }
        """
    )
    assert found["y"] == "f32[8, 64@x]"


def test_a_split_bias_does_not_decide_for_what_it_is_added_to() -> None:
    """The rows are large and split, and so are the weights; were the bias asked first, the product would be split as it
    is, and the rows be sent."""
    found = shardings(
        """
        mesh (d=4)
        def main(x: f32[64@d, 16], w: f32[16, 16@d], b: f32[16@d]) -> (y: f32[64, 16]) {
          product = einsum("ij,jk->ik", x, w)
          bias = broadcast_in_dim(b, shape=[64, 16], dims=[1])
          y = product + bias
          return y
        }
        """
    )
    assert found["product"] == found["y"] == "f32[64@d, 16]"


def test_the_split_gradient_of_a_bias_does_not_decide_for_what_it_is_the_sum_of() -> None:
    """The batch, which comes by way of a lookup, splits all that it reaches."""
    found = shardings(
        """
        mesh (d=8)
        def main(tokens: s32[16@d], table: f32[64, 32], w: f32[32, 128]) -> (y: f32[16, 128], grad: f32[128@d]) {
          x = take(table, tokens, 0)
          product = matmul(x, w)
          y = tanh(product)
          grad = sum(y, dim=0)
          return y, grad
        }
        """
    )
    assert [found[n] for n in ("product", "y", "grad")] == ["f32[16@d, 128]", "f32[16@d, 128]", "f32[128@d]"]


def test_what_is_concatenated_is_split_along_another_dim_where_an_operand_has_one() -> None:
    """Nothing is exchanged then, but for the operand that is split along the concatenated dim."""
    text = """
        mesh (d=8)
        def main(a: f32[64@d, 32], b: f32[64, 32@d]) -> (y: f32[128, 32]) {
          y = concatenate(a, b, dim=0)
          return y
        }
        """
    assert shardings(text)["y"] == "f32[128, 32@d]"
    assert spmdc.partition(spmdc.parse(text)).received_bytes() == 64 * 32 * 4 // 8 * 7 // 8


def test_what_a_loop_makes_in_each_turn_is_as_large_as_all_turns() -> None:
    """The weights are larger than the state, and are sent once where the state would be sent ten times."""
    text = """
        mesh (d=4)
        def main(x: f32[8@d, 16], w: f32[16, 16@d]) -> (y: f32[]) {
          n, y = while(i: s32[] = 0, s: f32[] = 0, trip_count=TURNS) cond { return i < TURNS } do {
            product = einsum("ij,jk->ik", x * s, w)
            return i + 1, sum(sum(product, dim=1), dim=0)
          }
          return y
        }
        """
    once, often = (spmdc.propagate(spmdc.parse(text.replace("TURNS", n))).program for n in ("1", "10"))
    (product,) = (op.result for op in all_ops(often) if op.name == "dot_general")
    assert print_type(product.type, product.sharding) == "f32[8@d, 16]"
    (product,) = (op.result for op in all_ops(once) if op.name == "dot_general")
    assert print_type(product.type, product.sharding) == "f32[8, 16@d]"


def test_the_groups_of_a_convolution_are_split_as_its_images_are_and_not_as_its_few_weights() -> None:
    """A depthwise convolution: images split by batch stay so, beside weights that are split by group."""
    found = shardings(
        """
        mesh (d=4)
        def main(images: f32[8@d, 16, 16, 8], w: f32[3, 3, 1, 8@d]) -> (y: f32[8, 14, 14, 8]) {
          y = conv(images, w, groups=8)
          return y
        }
        """
    )
    assert found["y"] == "f32[8@d, 14, 14, 8]"


def test_contracting_dims_are_split_alike_in_both_operands() -> None:
    found = shardings(
        """
        mesh (x=2)
        def main(a: f32[8, 4@x], b: f32[4, 6]) -> (y: f32[8, 6]) {
          y = einsum("ij,jk->ik", a, b)
          return y
        }
        """
    )
    assert found["b"] == "f32[4@x, 6]"
    assert found["y"] == "f32[8, 6]{replicated}"


def test_the_result_of_a_sort_lies_as_what_was_sorted_and_says_nothing_back() -> None:
    found = shardings(
        """
        mesh (x=2, y=2)
        def main(a: f32[8@x, 4], b: f32[8, 4]) -> (p: f32[8@?, 4@?], q: f32[8@y, 4]) {
          p = sort(a, dim=0)
          q = sort(b, dim=0)
          return p, q
        }
        """
    )
    assert found["p"] == "f32[8@x, 4]"
    assert found["b"] == "f32[8, 4]{replicated}"


def test_reshape_carries_a_split_through_merged_and_separated_dims() -> None:
    found = shardings(
        """
        mesh (x=2, y=2)
        def main(a: f32[4@x, 6, 10]) -> (y: f32[24, 2, 5]) {
          b = reshape(a, [24, 10])
          y: f32[24@?, 2@y, 5] = reshape(b, [24, 2, 5])
          return y
        }
        """
    )
    assert found["b"] == "f32[24@x, 10@y]"
    assert found["a"] == "f32[4@x, 6, 10]"


def test_an_axis_is_cut_where_a_reshape_leaves_each_dim_a_part_of_it() -> None:
    """Eight devices and four heads: the axis splits both dims, and nothing is sent."""
    text = """
        mesh (tp=8)
        def main(x: f32[64@tp]) -> (y: f32[64@tp]) {
          h = reshape(x, shape=[4, 16])
          y = reshape(exp(h), shape=[64])
          return y
        }
        """
    assert shardings(text)["h"] == "f32[4@tp:(1)4, 16@tp:(4)2]"
    assert spmdc.partition(spmdc.parse(text)).received_bytes() == 0


@pytest.mark.parametrize(
    ("devices", "shape", "found"),
    [
        (4, (2, 4), "f32[2@d:(1)2, 4@d:(2)2]"),
        (8, (2, 2, 2), "f32[2@d:(1)2, 2@d:(2)2, 2@d:(4)2]"),
        (6, (2, 12), "f32[2@d:(1)2, 12@d:(2)3]"),
        (6, (3, 8), "f32[3@d:(1)3, 8@d:(3)2]"),
        (4, (3, 4), "f32[3, 4]{replicated}"),
    ],
)
def test_each_dim_of_a_reshape_takes_the_part_of_an_axis_that_divides_it(
    devices: int, shape: tuple[int, ...], found: str
) -> None:
    n = math.prod(shape)
    text = f"mesh (d={devices})\ndef main(x: f32[{n}@d]) -> (y: f32[{', '.join(map(str, shape))}]) {{ " + (
        f"h = reshape(x, shape=[{', '.join(map(str, shape))}])\nreturn h }}"
    )
    assert shardings(text)["h"] == found


def test_a_split_enters_and_leaves_a_loop_by_the_carried_value() -> None:
    found = shardings(
        """
        mesh (x=2)
        def main(a: f32[8@x]) -> (y: f32[8]) {
          n, y = while(i: s32[] = 0, v: f32[8] = a) cond { return i < 3 } do { return i + 1, v + v }
          return y
        }
        """
    )
    assert found["y"] == "f32[8@x]"


def test_a_split_enters_and_leaves_a_function() -> None:
    found = shardings(
        """
        mesh (x=2)
        def main(a: f32[8@x]) -> (y: f32[8]) {
          y = twice(a)
          return y
        }
        def twice(v: f32[8]) -> (w: f32[8]) { return v + v }
        """
    )
    assert found["y"] == "f32[8@x]"


def test_propagating_again_changes_nothing() -> None:
    program = spmdc.parse(
        """
        mesh (x=2, y=2)
        def main(a: f32[8@x, 6], w: f32[6, 4@y]) -> (y: f32[8, 4]) { return relu(einsum("ij,jk->ik", a, w)) }
        """
    )
    once = spmdc.propagate(program)
    assert spmdc.propagate(once.program).text() == once.text()


def test_every_value_has_a_closed_sharding_afterwards() -> None:
    program = spmdc.parse("mesh (x=2)\ndef main(a: f32[8@(x, ?)]) -> (y: f32[8]) { return neg(a) }")
    after = spmdc.propagate(program).program
    for value in (*after.main.params, *(v for op in after.main.body.ops for v in op.results)):
        assert isinstance(value.sharding, Sharding)
        assert not any(d.open for d in value.sharding.dims)


def test_the_reason_of_an_axis_leads_back_to_the_annotation() -> None:
    text = (
        "mesh (d=4)\ndef main(a: f32[8@d, 4], w: f32[4, 4]) -> (y: f32[8, 4]) {\n"
        '  h = einsum("ij,jk->ik", a, w)\n  y = relu(h)\n  return y\n}\n'
    )
    lines = spmdc.propagate(spmdc.parse(text, "layer.spmd")).why("y").splitlines()
    assert lines[0] == "y: f32[8@d, 4]"
    assert lines[1].strip() == "dim 0 is split over d"
    assert "maximum, forward" in lines[2]
    assert "layer.spmd:4" in lines[2]
    assert "dot_general, forward" in lines[3]
    assert lines[-1].strip().startswith("a dim 0: annotated")


def test_asking_why_of_an_unknown_value_suggests_names() -> None:
    propagated = spmdc.propagate(spmdc.parse("mesh (d=4)\ndef main(gates: f32[8]) -> (y: f32[8]) { return -gates }"))
    with pytest.raises(SpmdcError, match="did you mean gates"):
        propagated.why("gate")


def test_axes_cut_in_ways_without_common_refinement_are_refused() -> None:
    text = """
        mesh (x=12)
        def main(a: f32[12@x:(1)4], b: f32[12@x:(1)6]) -> (y: f32[12]) { return a + b }
        """
    with pytest.raises(SpmdcError) as caught:
        spmdc.propagate(spmdc.parse(text))
    assert caught.value.diagnostics[0].code == "E307"


def test_a_bias_that_is_split_further_does_not_move_the_batch_of_what_it_is_added_to() -> None:
    """It is gathered instead, before it is broadcast: all but an eighth of 16 numbers."""
    program = """
        mesh (x=2, y=4)
        def main(h: f32[64@x, 16], w: f32[16, 16], b: f32[16@(x,y)]) -> (o: f32[64, 16]) {
          return tanh(matmul(h, w) + expand_dims(b, 0))
        }"""
    assert shardings(program)["o"].startswith("f32[64@x, 16")
    assert spmdc.partition(spmdc.parse(program)).received_bytes() <= 14 * 4


def test_where_tensors_of_an_op_disagree_is_told_by_why() -> None:
    text = "mesh (x=2, y=2)\ndef main(a: f32[8@x], b: f32[8@y]) -> (y: f32[8]) {\n  return a + b\n}\n"
    for value in "aby":
        reasons = spmdc.propagate(spmdc.parse(text, "clash.spmd")).why(value)
        assert "add cannot have both: a dim 0 is split over x, and b dim 0 is split over y  at clash.spmd:3" in reasons
        assert "the former is kept: the earlier operand goes first" in reasons


@pytest.mark.parametrize(
    ("a", "b", "shape", "expression", "loser", "rule"),
    [
        ("f32[8@x, 16]", "f32[8, 16@x]", "8, 16", "a + b", "b dim 1", "the earlier operand goes first"),
        (
            "f32[8@x, 16]",
            "f32[16, 12@x]",
            "8, 12",
            'einsum("ij,jk->ik", a, b)',
            "a dim 0",
            "the larger tensor goes first",
        ),
        ("f32[8@x, 16]", "f32[8@(x,y), 16]", "8, 16", "a + b", "a dim 0", "more axes go first"),
        (
            "f32[8@x]",
            "f32[8, 16@x, 4]",
            "8, 16",
            "broadcast_in_dim(a, shape=[8, 16], dims=[0]) + sum(b, dim=2)",
            "c.1 dim 0",
            "a tensor that does not repeat the elements of smaller ones goes first",
        ),
        (
            "f32[8@x]",
            "f32[8@x, 4]",
            "8, 8, 4",
            "broadcast_in_dim(a, shape=[8, 8, 4], dims=[0]) * broadcast_in_dim(b, shape=[8, 8, 4], dims=[1, 2])",
            "c.1 dim 0",
            "of tensors that repeat elements, the one that repeats more goes first",
        ),
        (
            "f32[4, 8@x, 16]",
            "f32[4@x, 16, 8]",
            "4, 8, 8",
            'einsum("bij,bjk->bik", a, b)',
            "a dim 1",
            "a dim that all tensors of the op share goes first",
        ),
        (
            "f32[4@x, 2, 8]",
            "f32[4, 64@(x,y), 8]",
            "4, 2, 64",
            'einsum("ebk,esk->ebs", a, b)',
            "a dim 0",
            "a tensor goes before one that is gathered for no more bytes than the first is moved for",
        ),
    ],
)
def test_the_rule_that_settled_a_tie_is_told_and_who_lost(
    a: str, b: str, shape: str, expression: str, loser: str, rule: str
) -> None:
    text = f"mesh (x=2, y=2)\ndef main(a: {a}, b: {b}) -> (r: f32[{shape}]) {{\n  c = {expression}\n  return c\n}}"
    reasons = spmdc.propagate(spmdc.parse(text)).why("c")
    assert f"and {loser} is split over" in reasons
    assert f"the former is kept: {rule}" in reasons


def test_pairs_are_split_along_the_dim_that_is_reduced_to_fewer_elements_later() -> None:
    """The sum over j makes 8 elements, and that of these over i one."""
    text = """
        mesh (x=2)
        def main(a: f32[8@x]) -> (r: f32[]) {
          pairs = expand_dims(a, 0) - expand_dims(a, 1)
          return sum(sin(sum(pairs, dim=1)))
        }"""
    assert shardings(text)["pairs"] == "f32[8@x, 8]"


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_tokens_stay_where_small_experts_are_gathered_through_layers_and_gradients(layers: int) -> None:
    weights = ", ".join(f"w{i}: f32[4@x, 8, 8]" for i in range(layers))
    body = "h"
    for i in range(layers):
        body = f'relu(einsum("egcm,emf->egcf", {body}, w{i}))'
    program = spmdc.parse(f"""
        mesh (x=2, y=4)
        def main(h: f32[4, 64@(x, y), 16, 8], {weights}) -> (r: f32[4, 64@(x, y), 16, 8]) {{ return {body} }}""")
    assert spmdc.partition(program).received_bytes() == layers * 4 * 8 * 8 // 2 * 4
    gradient = spmdc.gradient(program, [f"w{i}" for i in range(layers)], "r")
    sent = {c.kind for c in spmdc.partition(gradient).collectives()}
    assert sent <= {"all_gather", "reduce_scatter", "all_reduce"}


def test_of_two_alike_sums_only_the_one_of_a_broadcast_is_settled_by_it() -> None:
    text = """
        mesh (x=2, y=2)
        def main(m: f32[8@x], b: f32[8@y, 16, 4], c: f32[8@x, 16, 4], d: f32[8@y, 16, 4]) -> (f32[8, 16], f32[8, 16]) {
          r = broadcast_in_dim(m, shape=[8, 16], dims=[0]) + sum(b, dim=2)
          s = sum(c, dim=2) + sum(d, dim=2)
          return r, s
        }"""
    propagated = spmdc.propagate(spmdc.parse(text)).text(locations=False)
    assert "r: f32[8@y, 16] = add" in propagated
    assert "s: f32[8@x, 16] = add" in propagated


def test_of_two_dims_the_one_that_is_not_reduced_later_is_split() -> None:
    text = """
        mesh (d=4)
        def main(s: f32[8@d, 8], t: f32[8, 8@d]) -> (r: f32[8]) {
          ways = s + t
          return max(tanh(ways), dim=0)
        }
        """
    assert shardings(text)["ways"] == "f32[8, 8@d]"
    why = spmdc.propagate(spmdc.parse(text)).why("ways")
    assert "the former is kept: a dim that is not reduced later goes first" in why


@pytest.mark.parametrize("reduced", ["max(ways, dim=0)", "log(sum(exp(ways - max(ways, dim=0)), dim=0))"])
def test_what_a_loop_reduces_in_each_turn_is_split_along_what_it_keeps(reduced: str) -> None:
    """A gather of the small vector in each turn is all: no reduction follows, for which iterations would count too."""
    text = f"""
        mesh (d=4)
        def main(scores: f32[8@d], transitions: f32[8@d]) -> (last: f32[8]) {{
          n, last = while(i: s32[] = 0, s: f32[8] = scores, trip_count=15) cond {{ return i < 15 }} do {{
            ways = broadcast_in_dim(s, shape=[8, 8], dims=[0]) + broadcast_in_dim(transitions, shape=[8, 8], dims=[1])
            return i + 1, {reduced}
          }}
          return last
        }}
        """
    assert {c.kind for c in spmdc.partition(spmdc.parse(text)).collectives()} == {"all_gather"}


@pytest.mark.parametrize(
    ("used", "split"),
    [
        ("max(ways, dim=0)", "f32[8, 8@d]"),
        ("sum(ways, dim=0)", "f32[8@d, 8]"),
        ("max(ways, dim=0) + max(ways, dim=1)", "f32[8@d, 8]"),
        ("max(ways, dim=0) + f32(argmax(ways, dim=1))", "f32[8@d, 8]"),
    ],
)
def test_of_two_dims_of_what_is_kept_the_one_over_which_no_extreme_is_found_is_split(used: str, split: str) -> None:
    text = f"""
        mesh (d=4)
        def main(s: f32[8@d, 8], t: f32[8, 8@d]) -> (r: f32[8], ways: f32[8, 8]) {{
          ways = s + t
          return {used}, ways
        }}
        """
    assert shardings(text)["ways"] == split


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        (4, "a tensor goes before one that is gathered for no more bytes than the first is moved for"),
        (4096, "the indices of a lookup go before the table"),
    ],
)
@pytest.mark.parametrize("table", ["{rows}@d, 8", "{rows}, 8@d"])
def test_embeddings_are_split_as_tokens_are_whatever_the_table_and_the_weights_want(
    rows: int, rule: str, table: str
) -> None:
    """As with weights that are split to save memory, over the axes of the batch (ZeRO, FSDP)."""
    text = f"""
        mesh (d=4)
        def main(tokens: s32[8@d, 4], table: f32[{table.format(rows=rows)}], w: f32[3, 8@d, 8]) -> (y: f32[]) {{
          found = gather(table, tokens, offset_dims=[2], collapsed_slice_dims=[0], start_index_map=[0],
                         index_vector_dim=2, slice_sizes=[1, 8])
          y = loop l < 3 (h = found) {{ return tanh(matmul(h, w[l])) }}
          return sum(y)
        }}
        """
    found = shardings(text)
    assert found["found"] == found["y"] == "f32[8@d, 4, 8]"
    assert f"the former is kept: {rule}" in spmdc.propagate(spmdc.parse(text)).why("found")


def test_what_a_loop_starts_with_splits_what_it_carries_before_its_body_does() -> None:
    found = shardings(
        """
        mesh (d=4)
        def main(x: f32[8@d, 8], v: f32[8, 8], w: f32[8@d, 8]) -> (y: f32[8, 8]) {
          start = matmul(x, v)
          y = loop l < 3 (h = start) { return tanh(matmul(h, w)) }
          return y
        }
        """
    )
    assert found["y"] == "f32[8@d, 8]"
