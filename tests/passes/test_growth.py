"""What passes do grows as programs do. The work is counted, not timed: in instructions that Python executes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from counted import growth

import spmdc
from ir.mesh import AxisRef
from ir.program import Value, all_ops, callees_first
from passes.cost.buffers import peak_of
from passes.optimize.dce import eliminate_dead_code
from passes.optimize.fold.simplify import simplify
from passes.optimize.joining import join_collectives
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan.pending_reductions import never_pending, reduced_anyway, wanted_whole

Text = Callable[[int], str]
Sizes = tuple[int, int]


def loops_in_one_another(depth: int) -> str:
    lines = ["def main(a: f32[4]) -> (r: f32[4]) {"]
    around = "a"
    for i in range(depth):
        lines.append(f"n{i}, r{i} = while(i{i} = 0, v{i} = {around}) cond {{ return i{i} < 3 }} do {{")
        around = f"v{i}"
    lines += [f"r{depth} = tanh({around})", *(f"return i{i} + 1, r{i + 1} }}" for i in reversed(range(depth)))]
    return "\n".join([*lines, "return r0 }"])


def values_passed_around_in_a_loop(count: int) -> str:
    """Of which each turn hands every one to the next place: all are needed for the first."""
    given = ", ".join(f"v{i} = a" for i in range(count))
    passed = ", ".join(f"v{(i + 1) % count}" for i in range(count))
    results = ", ".join(f"r{i}" for i in range(count))
    return f"""
        def main(a: f32[4]) -> (r: f32[4]) {{
          n, {results} = while(i = 0, {given}) cond {{ return i < 3 }} do {{ return i + 1, {passed} }}
          return r0
        }}
        """


@pytest.mark.parametrize(("text", "sizes"), [(loops_in_one_another, (3, 6)), (values_passed_around_in_a_loop, (8, 32))])
def test_dead_code_is_found_in_time_linear_in_the_program(text: Text, sizes: Sizes) -> None:
    assert growth(lambda size: partial(eliminate_dead_code, spmdc.parse(text(size))), sizes) < 1.3


def functions_each_called_once(count: int) -> str:
    """Of which each calls the one before it, and computes something."""
    functions = ["def f0(a: f32[4]) -> (r: f32[4]) { return tanh(a) }"]
    functions += [f"def f{i + 1}(a: f32[4]) -> (r: f32[4]) {{ return tanh(f{i}(a + 1)) }}" for i in range(count)]
    return "\n".join([*functions, f"def main(a: f32[4]) -> (r: f32[4]) {{ return f{count}(a) }}"])


def test_functions_that_are_called_once_are_made_simple_once() -> None:
    def work(count: int) -> Callable[[], object]:
        return partial(simplify, spmdc.parse(functions_each_called_once(count)))

    assert growth(work, (6, 24)) < 1.3


def a_chain_that_many_kernels_need(count: int) -> str:
    """Numbers that could be computed anew in each of as many kernels."""
    numbers = "\n".join(f"s{i + 1} = s{i} * s{i}" for i in range(count))
    scans = "\n".join(f"v{i + 1} = cumsum(v{i} * broadcast(s{count}, [64]), dim=0)" for i in range(count))
    return f"def main(v0: f32[64], s0: f32[]) -> (r: f32[64]) {{\n{numbers}\n{scans}\nreturn v{count} }}"


def functions_that_call_twice(count: int) -> str:
    """Of which each calls the one before it twice: the first runs in 2^count places."""
    functions = ["def f0(a: f32[4]) -> (r: f32[4]) { return tanh(a) }"]
    functions += [f"def f{i + 1}(a: f32[4]) -> (r: f32[4]) {{ return f{i}(f{i}(a)) }}" for i in range(count)]
    return "\n".join([*functions, f"def main(a: f32[4]) -> (r: f32[4]) {{ return f{count}(a) }}"])


@pytest.mark.parametrize(
    ("text", "sizes"), [(a_chain_that_many_kernels_need, (16, 64)), (functions_that_call_twice, (3, 9))]
)
def test_the_cost_of_a_program_is_found_in_time_linear_in_it(text: Text, sizes: Sizes) -> None:
    assert growth(lambda size: spmdc.partition(spmdc.parse(text(size))).cost, sizes) < 1.3


def test_what_functions_cost_counts_for_each_of_their_calls() -> None:
    cost = spmdc.partition(spmdc.parse(functions_that_call_twice(5))).cost(by="kind")
    assert [(row.what, row.count) for row in cost.rows] == [("tanh", 32)]


def updates_in_place(count: int) -> str:
    updates = "\n".join(f"v{i + 1} = dynamic_update_slice(v{i}, w, k)" for i in range(count))
    return f"def main(a: f32[64], w: f32[1], k: s32[]) -> (r: f32[64]) {{\nv0 = tanh(a)\n{updates}\nreturn v{count} }}"


def test_the_memory_of_a_buffer_that_is_updated_often_is_found_in_time_linear_in_the_updates() -> None:
    assert growth(lambda size: partial(peak_of, spmdc.parse(updates_in_place(size)), None), (20, 160)) < 1.3


def calls_of_one_function(count: int) -> str:
    body = "".join(f"v{i + 1} = tanh(v{i})\n" for i in range(count))
    calls = "".join(f"v{i + 1} = f(v{i})\n" for i in range(count))
    main = f"def main(v0: f32[4]) -> (r: f32[4]) {{\n{calls}return v{count} }}"
    return f"{main}\ndef f(v0: f32[4]) -> (r: f32[4]) {{\n{body}return v{count} }}"


def test_functions_are_ordered_in_time_linear_in_the_program() -> None:
    assert growth(lambda size: partial(callees_first, spmdc.parse(calls_of_one_function(size))), (8, 64)) < 1.3


def choices_in_one_another(depth: int) -> str:
    """Of which each needs, in both branches, all of a tensor of its own."""
    tensors = ", ".join(f"a{i}: f32[8@x]" for i in range(depth))
    whole = "f32[8]{replicated}"
    opened = [f"r{i}: {whole} = if (p) {{ return a{i} }} else {{\nw{i}: {whole} = a{i}" for i in range(depth)]
    closed = [f"return w{i} * r{i + 1}\n}}" for i in reversed(range(depth - 1))]
    lines = [*opened, f"return w{depth - 1}\n}}", *closed, "return r0"]
    return f"mesh (x=4)\ndef main(p: pred[], {tensors}) -> (r: f32[8]) {{\n" + "\n".join(lines) + "\n}"


def test_choices_in_one_another_are_planned_in_time_linear_in_them() -> None:
    def work(depth: int) -> Callable[[], object]:
        return partial(spmdc.plan, spmdc.parse(choices_in_one_another(depth)))

    assert growth(work, (8, 24)) < 1.3


def an_op_of_many_operands(count: int) -> str:
    parts = "\n".join(f"v{i} = a * {i}.0" for i in range(count))
    joined = ", ".join(f"v{i}" for i in range(count))
    return f"def main(a: f32[4]) -> (r: f32[{4 * count}]) {{\n{parts}\nreturn concatenate({joined}, dim=0) }}"


def replicated(value: Value) -> ClosedSharding:
    return ClosedSharding.replicated(value.type.rank)


def test_what_waits_for_a_sum_is_found_in_time_linear_in_the_operands_of_an_op() -> None:
    def asked(count: int) -> Callable[[], object]:
        program = spmdc.parse(an_op_of_many_operands(count))
        over = frozenset({AxisRef("x", 1, 2)})
        sums = {op.result: over for op in all_ops(program)}

        def work() -> None:
            reduced = never_pending(program, ())
            wanted_whole(program, reduced)
            reduced_anyway(program, {}, reduced, replicated)
            reduced_anyway(program, sums, never_pending(program, sums), replicated)

        return work

    assert growth(asked, (10, 80)) < 1.3


def rounds_that_wait_for_their_turns(count: int) -> str:
    """A chain of large shifts, with shifts of other tensors that are needed one after another: none can share a message
    with another, because all devices send and receive in each."""
    given = ", ".join(f"a{i}: f32[64@x, 200000]" for i in range(count))
    turns = "".join(
        f"""
          s{i} = concatenate([a{i}[1:], a{i}[:1]], dim=0)
          h{i + 1} = tanh(concatenate([h{i}[1:], h{i}[:1]], dim=0)) * s{i}"""
        for i in range(count)
    )
    return f"""
        mesh (x=8)
        def main(b: f32[64@x, 200000], {given}) -> (o: f32[64@x, 200000]) {{
          h0 = b{turns}
          return h{count}
        }}"""


def test_room_for_rounds_that_wait_is_found_in_time_linear_in_the_program() -> None:
    def work(count: int) -> Callable[[], object]:
        apart = spmdc.partition(spmdc.parse(rounds_that_wait_for_their_turns(count)), passes=spmdc.pipeline()[:-1])
        return partial(join_collectives, apart.program, spmdc.TPU_V3, spmdc.TPU_V3.memory)

    assert growth(work, (32, 64)) < 1.3


def shards_that_are_joined(count: int) -> str:
    params = ", ".join(f"v{i}: f32[8@x]" for i in range(count))
    joined = ", ".join(f"v{i}" for i in range(count))
    return f"mesh (x=4)\ndef main({params}) -> (r: f32[{8 * count}@x]) {{ return concatenate({joined}, dim=0) }}"


def test_shards_of_many_operands_are_joined_in_time_and_text_linear_in_them() -> None:
    def work(count: int) -> Callable[[], object]:
        program = spmdc.parse(shards_that_are_joined(count))
        return lambda: spmdc.partition(program, verify=False).text()

    assert growth(work, (10, 80)) < 1.3
    texts = [len(spmdc.partition(spmdc.parse(shards_that_are_joined(count))).text()) for count in (20, 80)]
    assert texts[1] / texts[0] < 1.3 * 80 / 20


def axes_that_pass_many_dims(rank: int) -> str:
    dims = ", ".join(["2@x:(1)2", "2@x:(2)2", *["2"] * (rank - 2)])
    return f"""
        mesh (x=4, y=2)
        def main(a: f32[{dims}]) -> (r: f32[{2**rank}@y]) {{ return reshape(transpose(a), [{2**rank}]) }}
        """


def test_reshards_are_searched_in_less_time_than_the_square_of_the_dims() -> None:
    def work(rank: int) -> Callable[[], object]:
        program = spmdc.parse(axes_that_pass_many_dims(rank))
        return lambda: spmdc.plan(program)

    assert growth(work, (8, 24)) < 2


def operands_that_are_split_differently(count: int) -> str:
    """Joined along a dim over which some are split, and others along the other dim."""
    kinds = ["8@x, 8", "8, 8@x", "8@y, 8", "8, 8@(x,y)"]
    params = ", ".join(f"a{i}: f32[{kinds[i % 4]}]" for i in range(count))
    lines = "\n".join(f"v{i} = tanh(a{i})" for i in range(count))
    joined = ", ".join(f"v{i}" for i in range(count))
    head = f"mesh (x=2, y=4)\ndef main({params}) -> (r: f32[8, {8 * count}]) {{"
    return f"{head}\n{lines}\nreturn sin(concatenate({joined}, dim=1)) }}"


def test_the_operands_of_an_op_that_are_split_differently_are_propagated_in_time_linear_in_them() -> None:
    def work(count: int) -> Callable[[], object]:
        program = spmdc.parse(operands_that_are_split_differently(count))
        return lambda: spmdc.propagate(program, weigh=False)

    assert growth(work, (8, 48)) < 1.5
