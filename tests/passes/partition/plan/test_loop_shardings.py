"""What a loop carries is sharded so that the whole loop costs the least; what it does not change is not carried."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping

import pytest

import spmdc
from ir.builder import RegionBuilder
from ir.ops.collective import COLLECTIVES
from ir.program import Op, Program, Value, walk
from passes.optimize.fold.simplify import simplify
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan import loops
from passes.partition.plan.loop_linearity import LinearParts, ShardingNow
from passes.partition.plan.pending_reductions import summands
from passes.partition.plan.planner import LoopChoice, Planner
from spmdc.testing import check_equivalence


def partitioned(text: str, *, exact: bool = True) -> spmdc.PartitionedProgram:
    program = spmdc.parse(text)
    if exact:
        check_equivalence(program)
    return spmdc.partition(program)


def moved(q: spmdc.PartitionedProgram) -> list[tuple[str, int, int | None]]:
    return [(c.kind, c.bytes, c.count) for c in q.collectives()]


def loop(q: spmdc.PartitionedProgram) -> Op:
    return next(op for op in walk(q.program.main.body) if op.name == "while")


ACCUMULATE = """
mesh (x=4)
def main(a: f32[8, 16@x], b: f32[16@x, 8], start: {start}) -> (out: {out}) {{
  n, y = while(i = 0, total = {first}, trip_count={trips}) cond {{ return i < {trips} }} do {{
    return i + 1, {next}
  }}
  return y
}}
"""
PART = "matmul(a * f32(i), b)"

PLANS = 2
"""How often a program is planned in which a loop sends something: once for few messages, and once for few bytes."""


@pytest.mark.parametrize("trips", [1, 5])
@pytest.mark.parametrize(
    "next",
    [
        f"total + {PART}",
        f"{PART} - total",
        f"total + {PART} * 2 + start",
        f"(total - {PART}) + matmul(a, b)",
        f"select(i > 2, total, total + {PART})",
        f"-(total * 2) + transpose(transpose({PART}, [1, 0]), [1, 0])",
    ],
)
@pytest.mark.parametrize(("start", "first"), [("f32[8, 8]", "start"), ("f32[8, 8]", "zeros([8, 8])")])
def test_partial_results_are_added_in_the_loop_and_reduced_behind_it(
    next: str, trips: int, start: str, first: str
) -> None:
    program = ACCUMULATE.format(start=start, out="f32[8, 8]{replicated}", first=first, trips=trips, next=next)
    assert moved(partitioned(program)) == [("all_reduce", 384, 1)]


def test_a_loop_that_runs_no_time_gives_its_first_values() -> None:
    text = ACCUMULATE.format(start="f32[8, 8]", out="f32[8, 8]", first="start", trips=0, next=f"total + {PART}")
    partitioned(text)


@pytest.mark.parametrize("first", ["start", "zeros([8, 8])"])
def test_a_first_value_that_is_split_becomes_partial_where_it_lies(first: str) -> None:
    text = ACCUMULATE.format(start="f32[8@x, 8]", out="f32[8@x, 8]", first=first, trips=5, next=f"total + {PART}")
    assert moved(partitioned(text)) == [("reduce_scatter", 192, 1)]


def test_a_sum_that_the_loop_looks_at_is_reduced_in_the_loop() -> None:
    text = """
mesh (x=4)
def main(a: f32[8, 4096@x], b: f32[4096@x, 8], start: f32[8, 8]{replicated}) -> (out: f32[8, 8]{replicated}) {
  n, y = while(i = 0, total = start, trip_count=3) cond { return i < 3 } do {
    part = matmul(a * f32(i), b)
    return i + 1, (total % 7) + part
  }
  return y
}
"""
    q = partitioned(text)
    assert moved(q) == [("all_reduce", 384, 3)]


def test_a_running_sum_of_a_linear_recurrence_is_not_carried_in_parts() -> None:
    text = """
mesh (x=4)
def main(h: f32[80@x, 4], steps: s32[]) -> (out: f32[80@x, 4]) {
  n, y = while(i = 0, g = h) cond { return i < steps } do { return i + 1, g - sum(g, 0) }
  return y
}
"""
    assert moved(partitioned(text)) == [("all_reduce", 24, None)]


def test_a_loop_carries_only_what_it_changes() -> None:
    text = """
mesh (x=4)
def main(a: f32[8@x, 16], w: f32[16@x, 16], k: s32[]) -> (out: f32[8@x, 16], v: f32[16@x, 16]) {
  n, y, v, l = while(i = 0, h = a, w = w, k = k) cond { return i < k } do { return i + 1, matmul(h, w) % 3, w, k }
  return y, v
}
"""
    q = partitioned(text)
    assert len(loop(q).operands) == 2
    assert moved(q) == [("all_gather", 768, 1)]


def test_two_values_that_a_loop_swaps_are_carried() -> None:
    text = """
mesh (x=4)
def main(a: f32[8@x], b: f32[8@x]) -> (p: f32[8@x], q: f32[8@x]) {
  n, p, q = while(i = 0, p = a, q = b, trip_count=3) cond { return i < 3 } do { return i + 1, q, p }
  return p, q
}
"""
    assert len(loop(partitioned(text)).operands) == 3


TRIPS = """
mesh (x=4)
def main(a: f32[8@x, 64], w: f32[64@x, 64]) -> (out: f32[8@x, 64]) {
  n, y = while(i = 0, h = a, trip_count=TRIPS) cond { return i < TRIPS } do { return i + 1, matmul(h, w) % 3 }
  return y
}
"""


@pytest.mark.parametrize(("trips", "kinds"), [(1, {"all_to_all", "reduce_scatter"}), (100, {"all_gather"})])
def test_how_often_a_loop_runs_decides_whether_to_gather_in_front_of_it(trips: int, kinds: set[str]) -> None:
    q = partitioned(TRIPS.replace("TRIPS", str(trips)), exact=trips == 1)
    assert {c.kind for c in q.collectives()} == kinds


def test_a_matrix_is_not_gathered_in_front_of_a_loop_that_receives_less_in_all_of_its_turns() -> None:
    """In each turn a device lacks seven eighths of the vector and of the sum; in front of the loop, of the matrix."""
    text = """
mesh (x=8)
def main(a: f32[32@x, 32], v: f32[32@x]) -> (out: f32[32@x]) {
  n, y = while(i = 0, h = v, trip_count=10) cond { return i < 10 } do {
    w = 0.5 + 0.5 * matmul(a, h)
    return i + 1, w / sum(w)
  }
  return y
}
"""
    q = partitioned(text, exact=False)
    assert moved(q) == [("all_gather", 32 * 4 * 7 // 8, 10), ("all_reduce", 2 * 4 * 7 // 8, 10)]


def test_every_value_that_a_loop_carries_finds_its_own_layout() -> None:
    text = """
mesh (x=2, y=2)
def main(a: f32[8, 16@x], b: f32[16@x, 8], c: f32[8, 8@y], s: f32[8@y, 8])
    -> (p: f32[8, 8]{replicated}, q: f32[8@y, 8]) {
  n, p, q = while(i = 0, p = zeros([8, 8]), q: f32[8, 8] = s, trip_count=6) cond { return i < 6 } do {
    return i + 1, p + matmul(a * f32(i), b), reverse(q, dims=[0]) % 5 + c * f32(i)
  }
  return p, q
}
"""
    q = partitioned(text)
    assert [(c.kind, c.count) for c in q.collectives()] == [("all_to_all", 1), ("all_reduce", 1), ("all_to_all", 1)]


PASSED_ON = """
mesh (x=4)
def main(a: f32[16, 16], b: f32[16, 16], c: f32[16, 16@x], w: f32[16, 16@x]) -> (p: f32[16, 16@x], q: f32[16@x, 16]) {
  n, p, q, r = while(i = 0, p = a, q = b, r = c, trip_count=9) cond { return i < 9 } do { return i + 1, NEXT }
  return p, q
}
"""


@pytest.mark.parametrize(
    ("next", "sent"),
    [
        ("matmul(q, w), q % 5, r", [("all_gather", 768, 1)]),
        ("r, q % 5, matmul(q, w)", [("all_gather", 768, 1)]),
    ],
)
def test_once_a_value_lies_elsewhere_what_is_made_of_it_follows(next: str, sent: list[tuple[str, int, int]]) -> None:
    """Where the body makes `p` at first is not where it makes it once `q` is sharded as its result is wanted."""
    q = partitioned(PASSED_ON.replace("NEXT", next))
    assert moved(q) == sent


def test_trials_leave_nothing_behind() -> None:
    text = ACCUMULATE.format(
        start="f32[8@x, 8]",
        out="f32[8@x, 8]",
        first="start",
        trips=5,
        next=f"total + {PART} + transpose(a[:, :8], [1, 0])",
    )
    first, second = partitioned(text), partitioned(text)
    assert first.text() == second.text()
    assert len(first.warnings) == len({w.message for w in first.warnings})


NEST = """
mesh (x=2, y=4)
def main(h0: f32[32, 64@x], g0: f32[32@x, 64@y], w: f32[64, 64@x]) -> (r: f32[32, 64], s: f32[32@y, 64]) {
  n, r, s = while(i = 0, g = g0, h = h0, trip_count=2) cond { return i < 2 } do {
    m, next, end = while(j = 0, p = g0, q = h0, trip_count=10) cond { return j < 10 } do {
      product = matmul(p, w)
      return j + 1, product, product
    }
    return i + 1, next, h + end
  }
  return r, s
}
"""


def test_an_inner_loop_is_searched_in_full_for_the_first_and_the_last_trial_of_the_outer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full, brief = Counter[Planner](), Counter[Planner]()
    cheapest = loops._Search.cheapest

    def counted(search: loops._Search, wanted: loops.Carried) -> object:
        if search.op.results[0].name == "m":
            (full if search.last is None else brief)[search.p.whole] += 1
        return cheapest(search, wanted)

    monkeypatch.setattr(loops._Search, "cheapest", counted)
    spmdc.plan(spmdc.parse(NEST))
    assert max(full.values()) <= 2 < min(brief.values())


def test_a_brief_round_tries_two_changes_that_were_not_tried_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later round lists changes back to what earlier ones tried first."""
    program = spmdc.parse("""
    mesh (x=2, y=4)
    def main(a: s32[32, 64@y], u: s32[64, 64]) -> (r: s32[32@x, 64], s: s32[32, 64@x]) {
      product = matmul(a, u)
      n, s = while(i = 0, g = product, trip_count=2) cond { return i < 2 } do {
        m, next = while(j = 0, h = g, trip_count=5) cond { return j < 5 } do {
          return j + 1, g % 7 - product * 3
        }
        return i + 1, next
      }
      return product * 2, s
    }""")
    in_brief = spmdc.plan(program).cost().seconds
    monkeypatch.setattr(loops, "_MAX_TRIALS_IN_A_BRIEF_ROUND", loops._MAX_TRIALS_IN_A_ROUND)
    assert in_brief == spmdc.plan(program).cost().seconds


def nested(depth: int) -> str:
    opened = "".join(
        f"n{d}, y{d} = while(i{d} = 0, h{d} = {f'h{d - 1}' if d else 'c'}, trip_count=2) "
        f"cond {{ return i{d} < 2 }} do {{\n"
        for d in range(depth)
    )
    inner = f"return i{depth - 1} + 1, h{depth - 1} + matmul(a, b)\n}}\n"
    closed = "".join(f"return i{d} + 1, y{d + 1}\n}}\n" for d in reversed(range(depth - 1)))
    return f"""
mesh (x=4)
def main(a: f32[8, 16@x], b: f32[16@x, 8], c: f32[8, 8]) -> (out: f32[8, 8]{{replicated}}) {{
{opened}{inner}{closed}return y0
}}
"""


def test_nested_loops_reduce_behind_the_outermost_and_take_no_exponential_time() -> None:
    assert moved(partitioned(nested(3))) == [("all_reduce", 384, 1)]
    start = time.process_time()
    q = partitioned(nested(7), exact=False)
    assert time.process_time() - start < 20
    assert moved(q) == [("all_reduce", 384, 1)]


def test_what_all_branches_owe_is_still_owed_behind_the_choice() -> None:
    text = """
mesh (x=4)
def main(a: f32[8, 16@x], b: f32[16@x, 8], i: s32[]) -> (out: f32[8@x, 8]) {
  r = case(i) { return matmul(a, b) } or { return matmul(a * 2, b) }
  return r + matmul(a, b)
}
"""
    assert moved(partitioned(text)) == [("reduce_scatter", 192, 1)]


def test_branches_of_which_one_owes_nothing_reduce_in_the_others() -> None:
    text = """
mesh (x=4)
def main(a: f32[8, 16@x], b: f32[16@x, 8], c: f32[8, 8], i: s32[]) -> (out: f32[8, 8]{replicated}) {
  r = case(i) { return matmul(a, b) } or { return tanh(c) }
  return r
}
"""
    q = partitioned(text, exact=False)
    assert "all_reduce" not in [op.name for op in q.program.main.body.ops]
    assert [c.kind for c in q.collectives()] == ["all_reduce"]


def test_what_is_known_of_the_whole_program_is_found_once_for_all_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Program] = []

    def counted(program: Program, sums: Collection[Value]) -> Mapping[Value, int]:
        found.append(program)
        return summands(program, sums)

    monkeypatch.setattr("passes.partition.plan.facts.summands", counted)
    one = "n{k}, r{k} = while(i = 0, v = {v}, trip_count=2) cond {{ return i < 2 }} do {{ return i + 1, cumsum(v, 0) }}"
    loops = "\n".join(one.format(k=k, v=f"r{k - 1}" if k else "a") for k in range(5))
    spmdc.partition(spmdc.parse(f"mesh (x=4)\ndef main(a: s32[8@x]) -> (r: s32[8]) {{\n{loops}\nreturn r4 }}"))
    assert len(found) == 1, "for both plans"


def test_what_a_carried_value_is_made_of_is_looked_at_once_a_round_and_not_in_every_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[LinearParts] = []
    found: list[LinearParts] = []
    natural, find = LinearParts.natural, LinearParts._find_natural

    def looking(parts: LinearParts, sharding_now: ShardingNow) -> Collection[ClosedSharding]:
        looked.append(parts)
        return natural(parts, sharding_now)

    def finding(parts: LinearParts, sharding_now: ShardingNow) -> Collection[ClosedSharding]:
        found.append(parts)
        return find(parts, sharding_now)

    monkeypatch.setattr(LinearParts, "natural", looking)
    monkeypatch.setattr(LinearParts, "_find_natural", finding)
    inside = "v + matmul(a, b), w - matmul(a, b), reverse(u, [0])"
    loop = "n, x, y, z = while(i = 0, v = c, w = c, u = c, trip_count=9) cond { return i < 9 } do { return i + 1, "
    main = "def main(a: f32[8, 16@x], b: f32[16@x, 8], c: f32[8, 8]) -> (o: f32[8, 8], p: f32[8, 8], q: f32[8, 8])"
    spmdc.partition(spmdc.parse(f"mesh (x=4)\n{main} {{\n{loop}{inside} }}\nreturn x, y, z }}"))
    rounds, values = 2, 4
    assert len(looked) == PLANS * rounds * values
    assert len(set(looked)) == values, "for both plans"
    assert len(found) == values, "what it is made of has the same shardings each time"


def test_a_loop_is_planned_once_for_each_layout_that_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the best trial has planned stays. Of a loop that sends nothing there is one: what it starts with could be
    elsewhere too, and that is not tried."""
    written: list[tuple[bool, LoopChoice]] = []
    write = loops._plan

    def counted(p: Planner, b: RegionBuilder, op: Op, choice: LoopChoice) -> None:
        written.append((p.saves_bytes, choice))
        write(p, b, op, choice)

    monkeypatch.setattr(loops, "_plan", counted)
    steps = "\n".join(f"v{n + 1} = maximum(v{n} % 5, -v{n}) + {{}}" for n in range(4))
    text = f"""mesh (x=4)
    def main(a: f32[8@x, 16], b: f32[8, 16]{{{{replicated}}}}) -> (y: f32[8@x, 16]) {{{{
      n, y = while(i = 0, h = b, trip_count=9) cond {{{{ return i < 9 }}}} do {{{{
        return i + 1, g(g(h, a), h) + {{0}}
      }}}}
      return y
    }}}}
    def g(v0: f32[8, 16], a: f32[8, 16]) -> (r: f32[8, 16]) {{{{
      {steps.replace("{}", "{1}")}
      return v4
    }}}}"""
    assert spmdc.partition(spmdc.parse(text.format("a", "a"))).collectives() == []
    assert len(written) == 1
    written.clear()
    assert spmdc.partition(spmdc.parse(text.format("a", "reverse(a, [0])"))).collectives()
    assert len(written) > 1
    written.clear()
    assert spmdc.partition(spmdc.parse(text.format("reverse(a, [0])", "a"))).collectives()
    assert len(written) > 1
    assert len(set(map(str, written))) == len(written)


def test_a_loop_of_a_function_asks_for_an_argument_in_the_layout_that_it_needs() -> None:
    """A trial brings the argument there inside; in what is written in the end, the callers do."""
    q = partitioned("""
mesh (x=4)
def main(a: f32[16@x, 8], b: f32[16@x, 8]) -> (y: f32[8, 8], z: f32[8, 8]) { return f(a), f(b) + f(a) + f(b + 2) }
def f(v: f32[16, 8]) -> (r: f32[8, 8]) {
  w = abs(reverse(abs(v), [0]))
  n, r = while(i = 0, s = zeros([8, 8]), trip_count=9) cond { return i < 9 } do {
    return i + 1, s + reverse(v, [0])[0:8]
  }
  return r + (w + max(w, 0, keepdims=true) - abs(w + w * 3))[0:8]
}
""")  # fmt: skip
    f = q.program.functions["f"]
    assert [p.shape for p in f.params] == [(4, 8), (16, 8)]
    assert "all_gather" not in [op.name for op in walk(f.body)]


LEAPFROG = """
mesh (x=4)

def main(p: f64[8], rows: f64[64@x, 8]) -> (q: f64[8], v: f64[8], g: f64[8]) {
  start = einsum("nd,n->d", rows, abs(einsum("nd,d->n", rows, p)))
  n, where, speed, slope = while(i = 0, q = p, v = p, g = start, trip_count=2) cond { return i < 2 } do {
    half = v + 2.0 * g
    moved = q + half
    new = einsum("nd,n->d", rows, abs(einsum("nd,d->n", rows, moved)))
    return i + 1, moved, half + 2.0 * new, new
  }
  return where, speed, slope
}
"""


def test_a_sum_that_is_carried_whole_and_added_to_something_is_reduced_once() -> None:
    """A gradient, at each step of a leapfrog integrator."""
    assert moved(partitioned(LEAPFROG)) == [("all_reduce", 96, 1), ("all_reduce", 96, 2)]


def test_a_part_of_a_weight_is_gathered_once_for_all_turns() -> None:
    text = """
mesh (x=4)
def main(h: f32[8@x, 4], w: f32[8@x, 4]) -> (out: f32[8@x, 4]) {
  n, y = while(i = 0, g = h, trip_count=6) cond { return i < 6 } do {
    part: f32[4, 4] = replicate(transpose(w[4:8], [1, 0]))
    return i + 1, matmul(g, part) - g
  }
  return y
}
"""
    program = simplify(spmdc.parse(text))
    check_equivalence(program)
    q = spmdc.partition(program)
    assert {c.count for c in q.collectives()} == {1}
    body = loop(q).regions[1]
    assert not [op.name for op in walk(body) if op.name in ("slice", "transpose", *COLLECTIVES)]


CHOOSES = """
mesh (x=4)
def main(a: f32[8, 16@x], b: f32[16@x, 8]) -> (y: f32[8, 8]) {
  n, y = while(i = 0, total = zeros([8, 8]), trip_count=6) cond { return i < 6 } do {
    part = case(i) { return matmul(a, b) } or { return flip(matmul(a, b), [0]) } or { return total }
    m, inner = while(j = 0, s = part, trip_count=2) cond { return j < 2 } do { return j + 1, s + matmul(a, b) }
    return i + 1, total + inner + flip(abs(total), [1])
  }
  return y
}
"""


@pytest.mark.parametrize("text", [LEAPFROG, CHOOSES])
def test_a_trial_that_is_given_up_would_not_have_been_kept(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Op] = []
    plan_op = Planner._op

    def counted(p: Planner, b: RegionBuilder, op: Op) -> None:
        planned.append(op)
        plan_op(p, b, op)

    monkeypatch.setattr(Planner, "_op", counted)
    program = spmdc.parse(text)
    soon = spmdc.plan(program).text()
    given_up = len(planned)
    planned.clear()
    monkeypatch.setattr(loops, "ROUNDING", 1e30)
    assert spmdc.plan(program).text() == soon
    assert given_up < len(planned)


def test_of_two_stacks_one_alone_may_be_pending() -> None:
    """The parts of the large one are worth reducing where they are made, those of the small one are not."""
    text = """
mesh (x=8)
def main(a: f32[64@x, 65536]) -> (small: f32[6], large: f32[65536, 256]) {
  n, s, r = while(i = 0, s = zeros(6), r = zeros([65536, 256]), trip_count=6) cond { return i < 6 } do {
    m = a * f32(i)
    column = reshape(reduce(m, dims=[0], kind=max), [65536, 1])
    most = reshape(reduce(m, dims=[0, 1], kind=max), [1])
    return i + 1, dynamic_update_slice(s, most, i), dynamic_update_slice(r, column, 0, i)
  }
  return s, r
}
"""
    counts = {c.count for c in partitioned(text).collectives()}
    assert counts == {1, 6}


def test_the_trials_of_a_loop_do_not_grow_with_the_number_of_its_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[LoopChoice] = []
    plan = loops._plan

    def counted(p: Planner, b: RegionBuilder, op: Op, choice: LoopChoice) -> None:
        tried.append(choice)
        plan(p, b, op, choice)

    monkeypatch.setattr(loops, "_plan", counted)
    counts: list[int] = []
    for n in (16, 32):
        stacks = range(n)
        carried = ", ".join(f"s{k} = zeros([4096, 256])" for k in stacks)
        stored = ", ".join(f"dynamic_update_slice(s{k}, column * {k + 1}, 0, i)" for k in stacks)
        results = ", ".join(f"r{k}" for k in stacks)
        spmdc.partition(
            spmdc.parse(f"""
            mesh (x=8)
            def main(a: f32[64@x, 4096]) -> ({", ".join(f"r{k}: f32[4096, 256]" for k in stacks)}) {{
              n, {results} = while(i = 0, {carried}, trip_count=6) cond {{ return i < 6 }} do {{
                column = reshape(reduce(a * f32(i), dims=[0], kind=sum), [4096, 1])
                return i + 1, {stored}
              }}
              return {results}
            }}""")
        )
        counts.append(len(tried))
        tried.clear()
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("trips", "returned", "expected"),
    [
        (20, "next", [("all_to_all", 96, 20)]),
        (40, "next", [("all_gather", 3168, 1)]),
        (40, "kept", [("all_to_all", 96, 40)]),
        (40, "same(next)", [("all_to_all", 96, 40)]),
    ],
)
def test_a_loop_is_computed_whole_if_its_iterations_would_receive_more(
    trips: int, returned: str, expected: list[tuple[str, int, int]]
) -> None:
    """The 40 iterations would receive 3840 bytes; the matrix and the vector are 3168. What is annotated stays split."""
    text = f"""
mesh (x=4)
def same(h: f32[32]) -> (kept: f32[32]) {{
  t = tanh(h)
  kept: f32[32@x] = t
  return kept
}}
def main(a: f32[32@x], w: f32[32, 32@x]) -> (out: f32[32@x]) {{
  n, y = while(i = 0, h = a, trip_count={trips}) cond {{ return i < {trips} }} do {{
    next = max(w + broadcast_in_dim(h, shape=[32, 32], dims=[1]), dim=1)
    {"kept: f32[32@x] = next" if returned == "kept" else ""}
    return i + 1, {returned}
  }}
  return y
}}
"""
    assert moved(partitioned(text, exact=False)) == expected


def test_a_loop_whose_values_are_annotated_stays_split() -> None:
    text = """
mesh (x=8)
def main(a: f32[64@x]) -> (o: f32[64@x]) {
  i, o = while(i = 0, h = a, trip_count=20) cond { return i < 20 } do {
    w = maximum(h, reverse(pad(h, 0.0, low=[1], high=[-1]), dims=[0]))
    return i + 1, w
  }
  return o
}
"""
    assert moved(partitioned(text)) == [("all_gather", 224, 1)]
    kept = partitioned(text.replace("w =", "w: f32[64@x] ="))
    assert {kind for kind, *_ in moved(kept)} == {"collective_permute"}


def test_what_next_values_are_made_of_goes_with_them_only_where_that_takes_less_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = """
mesh (x=2, y=2, z=2)
def main(a: f32[2048@x, 2048], w: f32[2048, 2048@x]) -> (o: f32[2048, 2048@y]) {
  n, r, s = while(i = 0, c = w, d = a, trip_count=8) cond { return i < 8 } do {
    v = (d + c) % 7
    return i + 1, v, c
  }
  return s
}
"""
    seconds = partitioned(text, exact=False).cost().seconds
    monkeypatch.setattr(loops, "wanted_with", lambda *_: {})
    assert seconds <= partitioned(text, exact=False).cost().seconds
