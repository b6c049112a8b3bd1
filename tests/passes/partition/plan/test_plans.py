"""Plans: programs that say what was decided, which can be read, priced, edited and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import examples
from hypothesis import given, settings

import spmdc
from ir.causes import Cause
from ir.dataflow import uses_within
from ir.diagnostics import Diagnostic
from ir.program import Program, all_ops, walk
from ir.spelling.printer import print_program
from passes.manager import Compilation
from passes.partition.write.cost import bytes_received
from spmdc.plans import Plan
from spmdc.testing import check_equivalence, inputs_for, programs


def _has_mesh(path: Path) -> bool:
    return "mesh" in path.read_text(encoding="utf-8").split("def")[0]


PROGRAMS = sorted(filter(_has_mesh, (Path(__file__).parents[3] / "programs").glob("*.spmd")))
PRODUCTS = """
mesh (x=4, y=2)

def main(a: f32[64@x, 32], w: f32[32, 48@y], v: f32[48@y, 32]) -> (o: f32[64@x, 32]) {
  h = tanh(matmul(a, w))
  o = matmul(h, v)
  return o
}
"""
EDITED = """
plan
mesh (x=4, y=2)

def main(a: f32[64@x, 32], w: f32[32, 48@y], v: f32[48@y, 32]) -> (o: f32[64@x, 32]) {
  h.1: f32[64@x, 48@y] = dot_general(a, w, lhs_contract=[1], rhs_contract=[0], strategy="i=x, j=y")
  h: f32[64@x, 48@y] = tanh(h.1, strategy="i=x, j=y")
  g: f32[64@x, 48]{replicated} = reshard(h)
  u: f32[48, 32]{replicated} = reshard(v)
  o: f32[64@x, 32] = dot_general(g, u, lhs_contract=[1], rhs_contract=[0], strategy="i=x")
  return o
}
"""


def causes(program: Program) -> list[Cause | None]:
    return [op.cause for op in all_ops(program)]


def same_when_read(program: Program) -> Plan:
    """The plan, which is written as what its text parses to is."""
    plan = spmdc.plan(program)
    text = plan.text(locations=False)
    read = spmdc.parse(text, "read.plan")
    assert print_program(read, locations=False) == text
    assert causes(read) == causes(plan.program)
    written, again = spmdc.partition(plan), spmdc.partition(read)
    assert causes(again.program) == causes(written.program)
    assert again.text(locations=False) == written.text(locations=False)
    return plan


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_plan_that_is_printed_and_parsed_is_written_as_the_plan_itself(path: Path) -> None:
    same_when_read(spmdc.load(path))


@settings(max_examples=examples(30))
@given(programs(max_devices=12))
def test_plans_of_random_programs_are_written_as_what_their_text_parses_to_is(program: Program) -> None:
    plan = same_when_read(program)
    arrays = inputs_for(program)
    for want, got in zip(spmdc.evaluate(program, *arrays), spmdc.evaluate(plan.program, *arrays), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_plan_in_which_a_mesh_without_a_name_comes_second_reads_back() -> None:
    order = "8, 6, 2, 5, 10, 1, 9, 11, 4, 3, 0, 7"
    meshes = f"mesh other (p=3, q=4) devices=[{order}]\nmesh (x=6, y=2)"
    program = spmdc.parse(f"{meshes}\ndef main(a: f32[3, 8@x]) -> (r: f32[3@p, 8]) {{ return a }}")
    same_when_read(program)
    text = spmdc.partition(program).text(locations=False)
    assert print_program(spmdc.parse(text), locations=False) == text


def test_an_edited_plan_is_written_as_it_says() -> None:
    program, q = spmdc.parse(PRODUCTS), spmdc.partition(spmdc.parse(EDITED))
    assert [c.kind for c in q.collectives()] == ["all_gather", "all_gather"]
    inputs = spmdc.random_inputs(program, integers=True)
    np.testing.assert_array_equal(q.simulate(*inputs)[0].round(3), spmdc.evaluate(program, *inputs)[0].round(3))


WRONG = {
    "operand": (', strategy="i=x")\n  return', ', strategy="k=y")\n  return', "E413", "operand g of dot_general is"),
    "factor": ('strategy="i=x")\n  return', 'strategy="l=x")\n  return', "E413", "has no such factors"),
    "axis": ('strategy="i=x")\n  return', 'strategy="i=z")\n  return', "E301", "names an axis 'z'"),
    "candidates": ('"i=x")\n  return', '"i=x; candidates to j")\n  return', "E413", "no candidates can be scattered"),
    "grammar": ('strategy="i=x")\n  return', 'strategy="i:x")\n  return', "E309", "expected '='"),
    "twice": ('strategy="i=x")\n  return', 'strategy="i=x, j=x")\n  return', "E413", "splits another factor"),
    "steps": ("reshard(h)", 'reshard(h, steps="all_gather 0 (x) -> [-, y]")', "E413", "is sharded [-, y]"),
    "no step": ("reshard(h)", 'reshard(h, steps="all_gather 0 (y) -> [x, -]")', "E413", "y is not what splits dim 0"),
    "no op": ("reshard(h)", 'f32(h, cause="result r of main")', "E201", "f32 has a cause and writes no op"),
    "no dim": ("reshard(h)", 'reshard(h, steps="all_gather 7 (y) -> [x, -]")', "E413", "has no such dim"),
    "reduction": ("reshard(h)", 'reshard(h, steps="all_reduce (y) sum -> [x, -]")', "E413", "no sum is pending over y"),
    "no kind": ("reshard(h)", 'reshard(h, steps="gather 1 (y) -> [x, -]")', "E309", "expected one of all_gather"),
    "no part": ("reshard(h)", 'reshard(h, steps="all_gather 0 (x) -> [y:(256)4 -]")', "E303", "y:(256)4 is no part of"),
    "part of none": ("reshard(h)", 'reshard(h, steps="all_gather 0 (z:(1)2) -> [-, y]")', "E301", "name an axis 'z'"),
    "identity": ("reshard(v)", 'reshard(v, steps="identity")', "E413", "is sharded [-, -], and must be [y, -]"),
    "no sharding": ("u: f32[48, 32]{replicated} =", "u =", "E413", "every value has a sharding"),
    "open": ("h: f32[64@x, 48@y]", "h: f32[64@x, 48@(y, ?)]", "E413", "every value has a sharding"),
    "result": ("(o: f32[64@x, 32])", "(o: f32[64@y, 32])", "E413", "result o of main is sharded [x, -]"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_contradicts_itself_is_reported_where_the_plan_says_it(case: str) -> None:
    old, new, code, message = WRONG[case]
    assert old in EDITED
    text = EDITED.replace(old, new)
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.partition(spmdc.parse(text, "edited.plan"))
    first = caught.value.diagnostics[0]
    assert first.code == code
    assert message in first.message
    assert first.span is not None
    line = text.splitlines()[first.span.line - 1]
    assert line in [changed for changed in text.splitlines() if changed not in EDITED.splitlines()] or case == "result"


def test_an_op_whose_strategy_does_not_fit_is_one_error() -> None:
    (found,) = _faults(EDITED.replace('strategy="i=x")\n  return', 'strategy="j=x")\n  return'))
    assert found.notes
    assert "a reshard in front of the op" in found.help
    assert "in its type on the left" in found.help


def test_a_value_without_a_sharding_is_one_error() -> None:
    (found,) = _faults(EDITED.replace("u: f32[48, 32]{replicated} =", "u ="))
    assert "'u' has none" in found.message


def test_steps_that_do_not_lead_on_are_named_as_in_the_plan() -> None:
    (found,) = _faults(EDITED.replace("reshard(h)", 'reshard(h, steps="all_gather 0 (y) -> [x, -]")'))
    assert found.message.startswith("all_gather 0 (y) does not lead from [x, y] to [x, -]")
    assert "without steps=" in found.help
    (found,) = _faults(EDITED.replace("reshard(h)", 'reshard(h, steps="gather 1 (y) -> [x, -]")'))
    assert (found.code, found.notes) == ("E309", ())
    assert "without steps=" in found.help


def _faults(text: str) -> tuple[Diagnostic, ...]:
    assert text != EDITED
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.plan(spmdc.parse(text))
    return caught.value.diagnostics


def test_a_plan_says_what_each_op_costs() -> None:
    plan = spmdc.plan(spmdc.parse(PRODUCTS))
    cost = plan.cost()
    received = [cost.ops[op].received for op in all_ops(plan.program)]
    assert received == [0, 0, 0, 2 * 16 * 32 * 4 // 2]
    assert cost.received == spmdc.partition(plan).received_bytes()
    assert cost.critical_seconds == pytest.approx(cost.seconds)
    assert cost.peak == 4 * (16 * 32 + 32 * 24 + 24 * 32 + 16 * 32 + 16 * 32)
    assert "2,048 bytes received" in plan.text(costs=True)


def test_every_strategy_of_an_op_is_shown_with_what_follows_from_it() -> None:
    plan = spmdc.plan(spmdc.parse(PRODUCTS))
    choices = plan.explain("o")
    assert [c.strategy for c in choices.choices if c.is_chosen] == ["i=x, k=y"]
    assert {"i=x", "k=y", ""} <= {c.strategy for c in choices.choices}
    for choice in choices.choices[:3]:
        assert choice.total == pytest.approx(plan.replace("o", choice.strategy).cost().seconds)
    with pytest.raises(spmdc.SpmdcError, match="has no value 'p'"):
        plan.explain("p")


def test_an_op_in_a_loop_is_explained_with_the_sharding_that_the_loop_has() -> None:
    """The loop is planned for several shardings of what it carries, of which the last is not the one that it gets."""
    plan = spmdc.plan(
        spmdc.parse(
            "mesh (d=4)\ndef main(x: f32[8, 8@d], steps: s32[], bias: f32[8@d, 8]) -> (y: f32[8@d, 8]) {\n"
            "  n, y = while(i = 0, h: f32[8@d, 8] = x) cond { return i < steps } do { return i + 1, h * 2 + bias }"
            "  return y\n}"
        )
    )
    (product,) = (op for op in all_ops(plan.program) if op.name == "multiply")
    assert product.strategy == "i=d"
    assert [c.strategy for c in plan.explain(product.result.name).choices if c.is_chosen] == ["i=d"]


def test_an_op_is_explained_and_replaced_by_its_name_in_the_plan() -> None:
    """A reshard may have the name that another op has in the source."""
    plan = spmdc.plan(spmdc.parse("mesh (d=4)\ndef main(x: f32[6, 10@d]) -> (o: f32[6, 10@d]) { return softmax(x) }"))
    split = [op for op in all_ops(plan.program) if op.strategy]
    for op in split:
        choices = plan.explain(op.result.name)
        assert (choices.op, [c.strategy for c in choices.choices if c.is_chosen]) == (op.name, [op.strategy])
    (product,) = (op for op in split if op.name == "divide")
    (whole,) = (op for op in all_ops(plan.replace(product.result.name, "").program) if op.name == "divide")
    assert whole.strategy == ""


def test_what_an_option_forbids_is_shown_as_excluded() -> None:
    header = "def main(a: f32[4096, 4096@x], b: f32[4096@x, 4096]) -> (o: f32[4096@x, 4096])"
    text = f"mesh (x=4)\n{header} {{ o = matmul(a, b) return o }}"
    choices = spmdc.plan(spmdc.parse(text), windowed_einsum="never").explain("o")
    excluded = [c for c in choices.choices if c.excluded]
    assert excluded
    assert all("windowed" in c.strategy and c.excluded == "windowed_einsum=never" for c in excluded)


def test_another_strategy_is_planned_for() -> None:
    program = spmdc.parse(PRODUCTS)
    plan = spmdc.plan(program).replace("o", "i=x")
    assert [c.kind for c in spmdc.partition(plan).collectives()] == ["all_gather", "all_gather"]
    twice = plan.replace("h", "i=x")
    assert [op.strategy for op in all_ops(twice.program) if op.name in ("tanh", "dot_general")][1:] == ["i=x", "i=x"]
    for choice in twice.explain("o").choices[:2]:
        assert choice.total == pytest.approx(twice.replace("o", choice.strategy).cost().seconds)
    with pytest.raises(spmdc.SpmdcError, match="has no strategy 'j=x'"):
        plan.replace("o", "j=x")
    with pytest.raises(spmdc.SpmdcError, match="cannot be made anew"):
        spmdc.plan(spmdc.parse(EDITED)).replace("o", "i=x")


def test_the_difference_of_two_plans_has_what_differs_and_what_it_costs() -> None:
    one, other = spmdc.plan(spmdc.parse(PRODUCTS)), spmdc.plan(spmdc.parse(EDITED))
    lines = one.diff(other).splitlines()
    assert [line.partition("  #")[0] for line in lines[:-2]] == [
        "+ h: reshard(all_gather 1 (y) -> [x, -])",
        "- o: dot_general i=x, k=y",
        "- o: reshard(all_reduce (y) sum -> [x, -])",
        "+ o: dot_general i=x",
        "+ v: reshard(all_gather 0 (y) -> [-, -])",
    ]
    assert "2,048 bytes received" in lines[-2]
    assert one.diff(one).splitlines()[0] == "the plans are the same"


SAME_NAMES = """
mesh (x=4)
def f(h: f32[64@x, 32]) -> f32[64, 32] { h2 = tanh(h) return h2 * 2 }
def g(h: f32[32, 16]) -> f32[32, 16] { h2 = exp(h) return h2 * 3 }
def main(a: f32[64@x, 32], b: f32[32@x, 16]) -> (o: f32[64, 32@x], p: f32[32@x, 16]) { return f(a), g(b) }
"""
CALLED_THRICE = """
mesh (x=2, y=2, z=2)
def f(h: f32[8, 32], w: f32[32, 32]) -> f32[8, 32] { return relu(matmul(h, w)) }
def main(x: f32[8@x, 32], w: f32[32@y, 32@z], v: f32[32@z, 32@y]) -> (o: f32[8@x, 32]) { return f(f(f(x, w), v), w) }
"""
COMPUTED_AGAIN = """
mesh (x=4)
def main(a: f32[4096@x, 2048], i: s32[]) -> (o: f32[4096, 2048@x]) {
  r = case(i) { return transpose(reshape(a, [2048, 4096])) } or { return a * sum(a) }
  return r
}
"""


@pytest.mark.parametrize(
    ("text", "value", "copies"),
    [(SAME_NAMES, "h2", 1), (CALLED_THRICE, "out.1", 3), (COMPUTED_AGAIN, "branch.7", 1)],
)
def test_what_is_said_of_a_strategy_is_so_when_an_op_gets_it(text: str, value: str, copies: int) -> None:
    plan = spmdc.plan(spmdc.parse(text))
    choices = plan.explain(value)
    assert choices.copies == copies
    (made,) = [op for op in all_ops(plan.program) if any(v.name == value for v in op.results)]
    assert [c.strategy for c in choices.choices if c.is_chosen] == [made.strategy]
    assert len({c.strategy for c in choices.choices}) == len(choices.choices)
    for choice in choices.choices:
        if choice.is_chosen:
            assert choice.total == pytest.approx(plan.cost().seconds)
        elif choice.total is not None:
            assert choice.total == pytest.approx(plan.replace(value, choice.strategy).cost().seconds)


def test_another_strategy_is_for_no_op_of_another_function() -> None:
    plan = spmdc.plan(spmdc.parse(SAME_NAMES)).replace("h2", "")
    assert [(op.name, op.strategy) for op in all_ops(plan.program) if op.name in ("tanh", "exponential")] == [
        ("tanh", ""),
        ("exponential", "i=x"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("mesh (x=4)", "mesh (x=2)", "+ mesh (x=2)"),
        ("f32[16@x]", "f32[16]", "+ parameter u: f32[16]{replicated}"),
        ("f32[16@x]", "f32[16]", "+ result v: f32[16]{replicated}"),
        ("a - b", "b - a", "+ d: f32[8@x] = subtract(b, a) i=x"),
        ("d * 2", "d * 3", "+ c.1: f32[8@x] = constant(value=3.0, type=f32[8]) i=x"),
        ("return c, u", "return d, u", "+ result o: f32[8@x] = d"),
        ("trip_count=3", "trip_count=4", "trip_count=4"),
    ],
)
def test_whatever_differs_is_in_the_difference(old: str, new: str, shown: str) -> None:
    text = """
mesh (x=4)
def main(a: f32[8@x], b: f32[8@x], u: f32[16@x]) -> (o: f32[8@x], v: f32[16@x]) {
  d = a - b
  n, e = while(i = 0, s = d, trip_count=3) cond { return i < 9 } do { return i + 1, s * d }
  c = d * 2 + e
  return c, u
}"""
    assert old in text
    lines = spmdc.plan(spmdc.parse(text)).diff(spmdc.plan(spmdc.parse(text.replace(old, new)))).splitlines()
    assert any(shown in line for line in lines), lines


def test_the_strategies_of_an_op_are_found_from_where_its_operands_lie() -> None:
    program = spmdc.parse(PRODUCTS)
    op = next(op for op in all_ops(program) if op.name == "dot_general")
    shardings = [v.sharding for v in op.operands if v.sharding is not None]
    found = dict(spmdc.strategies(op, shardings))
    assert next(iter(found)) == "i=x, j=y"
    assert found["i=x, j=y"] < found[""]


@pytest.mark.parametrize("seed", range(4))
def test_no_strategy_uses_an_axis_twice_where_an_operand_is_partial(seed: int) -> None:
    text = """
        mesh (x=2)
        def main(a: f32[3, 8, 4]{partial: max x}) -> (r: f32[4]) { return floor(reduce(a, dims=[0, 1], kind=sum)) }"""
    check_equivalence(spmdc.parse(text), seed=seed, any_strategies=True)


def test_a_lookup_reads_no_more_of_its_table_than_it_returns() -> None:
    """Split by what it returns, it does an eighth of the work of a partial sum of everything."""
    program = spmdc.parse("""
        mesh (x=8)
        def main(a: f32[2048@x, 128], order: s32[2048@x]) -> (r: f32[2048@x, 128]) { return take(a, order, 0) }""")
    found = {choice.strategy: choice.alone for choice in spmdc.plan(program).explain("r").choices}
    assert found["i=x"] < found["j=x"] / 4


@pytest.mark.parametrize(("columns", "cut"), [("256", True), ("256@y", False)])
def test_a_pad_cuts_first_along_dims_that_its_operand_has_whole(columns: str, cut: bool) -> None:
    program = spmdc.parse(f"""
        mesh (x=2, y=2)
        def main(a: f32[96@x, {columns}]) -> (r: f32[96@x, 255]) {{
          return pad(a, [[3, -3], [-1, 0]], value=0.0)
        }}""")
    assert ("slice" in [op.name for op in all_ops(spmdc.plan(program).program)]) == cut


class _Count:
    """A pass of a user's own."""

    name = "count"

    def __init__(self) -> None:
        self.reshards = 0

    def apply(self, state: Compilation) -> Compilation:
        self.reshards = sum(op.name == "reshard" for op in all_ops(state.program))
        return state


def test_a_pass_of_ones_own_stands_where_it_is_put() -> None:
    program, count, seen = spmdc.parse(PRODUCTS), _Count(), list[str]()
    passes = spmdc.pipeline()
    at = [step.name for step in passes].index("write")
    own = (*passes[:at], count, *passes[at:])
    q = spmdc.partition(program, passes=own, hooks=(lambda step, state: seen.append(step.name),))
    assert count.reshards == 1
    assert q.text() == spmdc.partition(program).text()
    assert seen[:3] == ["propagate", "plan", "write"]
    with pytest.raises(spmdc.SpmdcError, match="the passes end in a plan program"):
        spmdc.partition(program, passes=passes[:at])


P, Q, R = 'einsum("ij,jk->ik", a, b)', 'einsum("ij,jk->ik", c, d)', 'einsum("ij,jk->ik", e, f)'
SUMS = {
    "added": f"{P} + {Q}",
    "scaled": f"{P} + 0.5 * {Q}",
    "negated": f"-({P}) + {Q}",
    "transposed": f"transpose({P}, [1, 0]) + {Q}",
    "transposed together": f"transpose({P} + 2 * {Q}, [1, 0])",
    "reshaped": f"reshape(reshape({P}, [4096]) + reshape({Q}, [4096]), [64, 64])",
    "three": f"{P} + 2 * ({Q} + 3 * {R})",
    "with a bias": f"{P} + 2 * {Q} + c",
}


@pytest.mark.parametrize("how", SUMS)
@pytest.mark.parametrize("n", [64, 1024])
def test_products_whose_results_are_added_reduce_once(how: str, n: int) -> None:
    """Large ones too, each of which would be a windowed einsum by itself."""
    body = SUMS[how].replace("4096", str(n * n)).replace("64", str(n))
    params = ", ".join(f"{v}: f32[{n}, {n}@x], {w}: f32[{n}@x, {n}]" for v, w in ("ab", "cd", "ef"))
    program = spmdc.parse(f"mesh (x=8)\ndef main({params}) -> (r: f32[{n}, {n}@x]) {{ return {body} }}")
    q = spmdc.partition(program)
    assert [(c.kind, c.bytes) for c in q.collectives()][:1] == [("reduce_scatter", 7 * n * n // 8 * 4)]
    assert q.received_bytes() <= 8 * n * n // 8 * 4
    if n == 64:
        inputs = spmdc.random_inputs(program, integers=True)
        for want, got in zip(spmdc.evaluate(program, *inputs), q.simulate(*inputs), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("machine", ["tpu-v3", "tpu-v4"])
def test_an_option_that_forbids_something_makes_no_program_cheaper(machine: str) -> None:
    options: list[dict[str, Any]] = [{"windowed_einsum": "never"}, {"recompute": "never"}, {"memory_limit": 1000}]
    for path in PROGRAMS:
        program = spmdc.load(path)
        free = spmdc.plan(program, machine=machine).cost()
        for forbidden in options:
            limited = spmdc.plan(program, machine=machine, **forbidden).cost()
            assert free.seconds <= limited.seconds * (1 + 1e-9), (path.stem, forbidden)


def test_what_is_not_to_be_computed_again_is_sent() -> None:
    program = spmdc.load(PROGRAMS[0].with_name("rows_taken_for_two_splits.spmd"))
    again, sent = spmdc.partition(program), spmdc.partition(program, recompute="never")
    assert (again.received_bytes(), sent.received_bytes()) == (0, 768)
    inputs = spmdc.random_inputs(program, integers=True)
    for one, other in zip(again.simulate(*inputs), sent.simulate(*inputs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_only_what_changes_nothing_in_a_sum_is_a_part_of_itself() -> None:
    text = """plan
mesh (x=2)
def main(a: f32[4]{{replicated}}) -> (o: f32[4]{{replicated}}) {{
  zero: f32[4]{{replicated}} = constant(value={}, type=f32[4])
  part: f32[4]{{partial: x}} = reshard(zero, steps="identity")
  sum: f32[4]{{replicated}} = reshard(part)
  o: f32[4]{{replicated}} = add(a, sum)
  return o
}}"""
    (got,) = spmdc.partition(spmdc.parse(text.format("-0.0"))).simulate(np.ones(4, "f4"))
    np.testing.assert_array_equal(got, np.ones(4, "f4"))
    with pytest.raises(spmdc.SpmdcError, match="zero is not known to change nothing"):
        spmdc.partition(spmdc.parse(text.format("1.0")))


def test_a_plan_is_for_one_mesh() -> None:
    with pytest.raises(spmdc.SpmdcError, match="a plan is for the mesh that it was made for"):
        spmdc.partition(spmdc.parse(EDITED), mesh={"x": 2, "y": 2})


@pytest.mark.parametrize("cut", ["o:(3)2", "o:(1)3", "y:(1)3", "y:(3)2"])
def test_where_another_mesh_is_cut_is_in_a_plan_also_if_what_cuts_it_is_gone(cut: str) -> None:
    """What is counted is made where it is needed, so that only the result says how its mesh is cut."""
    program = spmdc.parse(f"""
        mesh (y=6)
        mesh other (o=6)
        def main(a: s32[12@y]) -> (r: s32[12@o], s: s32[12@y]) {{
          counted: s32[12@{cut}] = iota(type=s32[12], dim=0)
          return a * 2, a + counted
        }}""")
    plan = same_when_read(program)
    a = np.arange(5, 17, dtype=np.int32)
    for got in (spmdc.partition(plan).simulate(a), spmdc.partition(program).simulate(a)):
        np.testing.assert_array_equal(np.array(got), [2 * a, a + np.arange(12)])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("3@x, 3@z", "3@(x, z, y), 3"),
        ("3@(y, z, x), 3", "3@y, 3@z"),
        ("16@(z, x), 5, 3", "16@z, 5, 3@(x, y)"),
    ],
)
def test_a_plan_that_pads_shards_for_their_digits_is_the_same_when_read(before: str, after: str) -> None:
    text = f"mesh (x=2, y=3, z=3)\ndef main(a: s32[{before}]) -> (r: s32[{after}]) {{ return a }}"
    assert "retile" in same_when_read(spmdc.parse(text)).text()


def test_a_plan_with_loops_over_what_is_pending_is_the_same_when_read() -> None:
    text = PROGRAMS[0].with_name("a_sum_that_a_product_takes_reduced_is_added_up_reduced.spmd").read_text()
    program = spmdc.parse(text.replace("32", "320").replace("48", "480").replace("f320", "f32"))
    plan = spmdc.plan(program, windowed_einsum="always")
    assert "sums rotate" in plan.text()
    assert print_program(spmdc.partition(spmdc.parse(plan.text())).program) == print_program(
        spmdc.partition(plan).program
    )


def test_every_strategy_that_an_op_is_said_to_have_it_can_get() -> None:
    """Also ops that planning makes of others."""
    plan = spmdc.plan(spmdc.load(PROGRAMS[0].with_name("dynamic_slice_at_a_constant_start.spmd")))
    for choice in plan.explain("out").choices:
        found = plan.replace("out", choice.strategy)
        assert choice.total == pytest.approx(found.cost().seconds)
        assert choice.strategy in {op.strategy for op in all_ops(found.program)}


def test_an_op_that_is_computed_again_can_keep_its_strategy() -> None:
    """It was asked for that of another sharding, before the one that it is computed in was known."""
    text = """mesh (d=4)
def main(x: f32[4, 32@d, 8]) -> (y: c64[4, 8, 33]) {
  return fft(swapaxes(pad(x, [[0, 0], [0, 32], [0, 0]]), 1, 2), kind=RFFT, length=[64])
}"""
    plan = spmdc.plan(spmdc.parse(text))
    (padded,) = (op for op in all_ops(plan.program) if op.name == "pad")
    for choice in plan.explain(padded.result.name).choices:
        assert plan.replace(padded.result.name, choice.strategy).cost().seconds == pytest.approx(choice.total)
    assert plan.replace(padded.result.name, padded.strategy).text() == plan.text()


STRIDED = """
    mesh (x=2, y=2, z=2)
    def main(a: s32[4, 4@y], b: s32[4@y, 2@x]) -> (r: s32[4@(x,z), 2]) {
      return matmul(a, b)
    }"""


def test_what_is_owed_of_strided_parts_is_reduced_as_the_plan_says() -> None:
    plan = same_when_read(spmdc.parse(STRIDED))
    assert "all_reduce (y) sum -> <2 2@z, 2@x / 4 2 / >" in plan.text()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("all_reduce (y) sum -> <2 2@z, 2@x / 4 2 / >;", "all_reduce (z) sum -> <2 2@z, 2@x / 4 2 / >;"),
        ("all_reduce (y) sum -> <2 2@z, 2@x / 4 2 / >;", "all_reduce (y) max -> <2 2@z, 2@x / 4 2 / >;"),
        ("all_reduce (y) sum -> <2 2@z, 2@x / 4 2 / >;", "all_reduce (y) sum -> <2 2@z, 2@x / 4 2 / sum y>;"),
        ("all_reduce (y) sum -> <2 2@z, 2@x / 4 2 / >;", "all_reduce (y) sum -> <2@z 2, 2@x / 4 2 / >;"),
        ("all_reduce (y) sum -> <2 2@z, 2@x / 4 2 / >;", "slice 1 (y) -> <2 2@z, 2@x / 4 2 / >;"),
    ],
)
def test_a_step_of_strided_parts_that_leads_elsewhere_is_reported(old: str, new: str) -> None:
    text = spmdc.plan(spmdc.parse(STRIDED)).text(locations=False)
    assert old in text
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.partition(spmdc.parse(text.replace(old, new)))
    assert [d.code for d in refused.value.diagnostics] == ["E413"]
    assert " does not lead from [(2,z), x] partial(y) to [" in str(refused.value)


def test_bytes_of_a_rotation_are_those_of_the_device_that_receives_most() -> None:
    """One permute goes around the end, and one is between the other devices, of which each receives in one only."""
    plan = spmdc.plan(
        spmdc.parse("""
        mesh (x=8)
        def main(a: f32[16@x, 6]) -> (o: f32[16@x, 6]) {
          return loop k < 5 (s = a) { return tanh(concatenate(s[15:], s[:15], dim=0)) }
        }""")
    )
    assert plan.made is not None
    assert bytes_received(plan.made) == spmdc.partition(plan).received_bytes() == 5 * 6 * 4


def test_a_plan_has_no_op_that_nothing_uses() -> None:
    """The part of a value that was computed in another sharding, for others, is gone."""
    program = spmdc.parse("""
    mesh (x=4)
    def main(a: f32[64@x, 32], i: s32[]) -> (o: f32[64, 32@x]) {
      o = case(i) { return transpose(reshape(a, [32, 64])) } or { return a * sum(a) }
      return o
    }""")
    plan = spmdc.plan(program).program
    uses = uses_within(plan.main.body)
    assert [v.name for op in walk(plan.main.body) for v in op.results if not uses.count(v)] == []


def test_the_result_of_several_split_tensors_is_gathered_and_not_each_of_them() -> None:
    program = spmdc.parse("""
    mesh (x=4)
    def main(v: f32[64, 32@x, 16]) -> (p: f32[64, 32, 16]{replicated}) { return v - max(v, dim=2, keepdims=true) }""")
    plan = spmdc.plan(program).program
    (difference,) = (op for op in plan.main.body.ops if op.name == "subtract")
    assert difference.result.sharding is not None
    assert difference.result.sharding.axes[1]
