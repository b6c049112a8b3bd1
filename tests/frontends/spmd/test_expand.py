"""What programs expand to: names, sugar, annotations, loops, calls."""

from __future__ import annotations

import numpy as np
import pytest

from ir.mesh import Mesh
from ir.program import Program, all_ops
from ir.verify.program import check
from lowering.reference import evaluate
from spmdc.frontends.spmd import parse, print_program


def ops(text: str, *, head: str = "mesh (x=4, y=2)", params: str = "a: f32[8, 4], n: s32[8]") -> list[str]:
    """The printed ops of the body `text`, which binds `r`."""
    program = parse(f"{head}\ndef main({params}) -> () {{ {text}\nreturn }}")
    check(program)
    lines = print_program(program, locations=False).split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("def main"))
    return [line.strip() for line in lines[start + 1 : -3]]


def run(text: str, *arrays: object) -> tuple[np.ndarray, ...]:
    program = parse(text)
    check(program)
    reprinted = parse(print_program(program))
    assert print_program(reprinted) == print_program(program)
    return evaluate(program, *(np.asarray(a) for a in arrays))


# Names.


def test_a_bound_value_has_the_name_and_inner_values_are_numbered_after_it() -> None:
    assert ops("r = relu(a + 1)") == [
        "r.1: f32[8, 4] = constant(value=1.0, type=f32[8, 4])",
        "r.2: f32[8, 4] = add(a, r.1)",
        "r.3: f32[8, 4] = constant(value=0.0, type=f32[8, 4])",
        "r: f32[8, 4] = maximum(r.2, r.3)",
    ]


def test_numbering_leaves_names_that_the_text_writes_alone() -> None:
    assert ops("r = -(-a)  r.1 = -a  r.3 = -r.1") == [
        "r.2: f32[8, 4] = negate(a)",
        "r: f32[8, 4] = negate(r.2)",
        "r.1: f32[8, 4] = negate(a)",
        "r.3: f32[8, 4] = negate(r.1)",
    ]


def test_a_further_name_for_a_value_makes_no_op() -> None:
    assert ops("r = -a  q = r  p = -q")[1] == "p: f32[8, 4] = negate(r)"


def test_returned_expressions_are_named_like_the_results() -> None:
    program = parse("def main(a: f32[4]) -> (out: f32[4], b: f32[4]) { return relu(a), -a }")
    assert [v.name for v in program.main.body.results] == ["out", "b"]


def test_unnamed_results_are_named_like_the_values_returned() -> None:
    program = parse("def main(a: f32[4]) -> (f32[4], f32[4], f32[4], f32[4]) { c = -a  return c, -c, c, -a }")
    assert [r.name for r in program.main.results] == ["c", "out", "c.1", "out.1"]


def test_compile_time_names_are_local_consts() -> None:
    assert ops("half = 8 // 2  list = [half, 1]  r: f32[half, list[1]] = a[half:, :list[1]]") == [
        "r: f32[4, 1] = slice(a, start=[4, 0], limit=[8, 1])"
    ]


# Sugar.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("r = a[2]", ["r.1: f32[1, 4] = slice(a, start=[2, 0], limit=[3, 4])", "r: f32[4] = reshape(r.1, shape=[4])"]),
        ("r = a[-2:, ::2]", ["r: f32[2, 2] = slice(a, start=[6, 0], limit=[8, 4], stride=[1, 2])"]),
        ("r = a[:, :]", []),
        ("r = add(a, 1)", ["r.1: f32[8, 4] = constant(value=1.0, type=f32[8, 4])", "r: f32[8, 4] = add(a, r.1)"]),
        ("r = 1 < n", ["r.1: s32[8] = constant(value=1, type=s32[8])", "r: pred[8] = compare(r.1, n, direction=LT)"]),
        ("r = convert(n, f32)", ["r: f32[8] = convert(n, dtype=f32)"]),
        ("r = f32(n)", ["r: f32[8] = convert(n, dtype=f32)"]),
        ("r = iota(s32[4, 2], 1)", ["r: s32[4, 2] = iota(type=s32[4, 2], dim=1)"]),
        ("r: f32[3] = [1, 2, 3]", ["r: f32[3] = constant(value=[1.0, 2.0, 3.0], type=f32[3])"]),
        ("r: bf16[2] = 0", ["r: bf16[2] = constant(value=0.0, type=bf16[2])"]),
        ("r: s32[16] = concatenate([n, n])", ["r: s32[16] = concatenate(n, n, dim=0)"]),
        ("l = [n, n]  r = concatenate(l, dim=0)", ["r: s32[16] = concatenate(n, n, dim=0)"]),
        ("r = a ** 2", ["r: f32[8, 4] = multiply(a, a)"]),
        ("r = reduce(a, dims=[-1], kind=sum)", ["r: f32[8] = reduce(a, dims=[1], kind=sum)"]),
        ("r = cumsum(a, -1)", ["r: f32[8, 4] = cumsum(a, dim=1)"]),
        ("r = pad(a, 0.0, low=[1, 0], high=[0, 0])",
         ["r.1: f32[] = constant(value=0.0, type=f32[])", "r: f32[9, 4] = pad(a, r.1, low=[1, 0], high=[0, 0])"]),
        ("r = dynamic_slice(a, 1, 0, sizes=[2, 4])",
         ["r.1: s32[] = constant(value=1, type=s32[])", "r.2: s32[] = constant(value=0, type=s32[])",
          "r: f32[2, 4] = dynamic_slice(a, r.1, r.2, sizes=[2, 4])"]),
        ("r = select(n > 0, n, 7)[0:1]",
         ["r.1: s32[8] = constant(value=0, type=s32[8])", "r.2: pred[8] = compare(n, r.1, direction=GT)",
          "r.3: s32[8] = constant(value=7, type=s32[8])", "r.4: s32[8] = select(r.2, n, r.3)",
          "r: s32[1] = slice(r.4, start=[0], limit=[1])"]),
    ],
)  # fmt: skip
def test_sugar(text: str, expected: list[str]) -> None:
    assert ops(text) == expected


def test_a_function_of_the_program_comes_before_a_composition_of_its_name() -> None:
    text = "def main(a: f32[4]) -> f32[4] { return relu(a) } def relu(x: f32[4]) -> f32[4] { return -x }"
    assert run(text, np.ones(4, np.float32))[0].tolist() == [-1] * 4


def test_an_op_comes_before_a_function_of_its_name_which_call_reaches() -> None:
    text = """def main(a: f32[4]) -> (f32[4], f32[4]) { return negate(a), call(a, function=negate) }
def negate(x: f32[4]) -> f32[4] { return x * 3 }"""
    assert [v.tolist() for v in run(text, np.ones(4, np.float32))] == [[-1] * 4, [3] * 4]


# Calls.


def test_functions_may_be_called_before_they_are_defined_with_named_arguments_and_numbers() -> None:
    text = """def main(a: f32[2]) -> f32[2] { p, q = both(a, scale=3)  return p - q }
def both(x: f32[2], scale: f32[]) -> (f32[2], f32[2]) { return x * scale, x }"""
    assert run(text, np.array([1, 2], np.float32))[0].tolist() == [2, 4]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("both(a)", "takes 2 arguments, and is given 1"),
        ("both(a, a, a)", "takes 2 arguments, and is given 3"),
        ("both(a, y=a)", "'y' is no parameter"),
        ("both(a, x=a)", "'x' is given twice"),
        ("both(a, a)", "argument 'scale' must be f32[], and is f32[2]"),
        ("both(a, [a, a])", "a list of numbers is needed here"),
    ],
)
def test_a_call_is_checked_against_the_signature(call: str, message: str) -> None:
    text = f"def main(a: f32[2]) -> () {{ p, q = {call} return }}"
    text += "def both(x: f32[2], scale: f32[]) -> (f32[2], f32[2]) { return x * scale, x }"
    with pytest.raises(Exception, match=message.replace("[", r"\[").replace("]", r"\]")):
        parse(text)


# Annotations.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("r = replicate(a)", "r: f32[8, 4]{replicated} = shard(a)"),
        ("r = split(a, 0, 4)", "r: f32[8@x, 4] = shard(a)"),
        ("r = split(a, -1, 2)", "r: f32[8, 4@y] = shard(a)"),
        ("r = split(a, 0, 8)", "r: f32[8@(x,y), 4] = shard(a)"),
        ("r = split(a, 1, y)", "r: f32[8, 4@y] = shard(a)"),
        ("r = split(a, 0, (y, x))", "r: f32[8@(y,x), 4] = shard(a)"),
        ("r = split(a, 0, y, x:(1)2)", "r: f32[8@(y,x:(1)2), 4] = shard(a)"),
        ("k = 2  r = split(a, 0, 2 * k)", "r: f32[8@x, 4] = shard(a)"),
        ('r = shard(a, \'P("x", "y")\')', "r: f32[8@x, 4@y] = shard(a)"),
        ('r = shard(a, "P(\\"x\\")")', "r: f32[8@x, 4] = shard(a)"),
        ("r = shard(a, '{devices=[4,2]<=[8]}')", "r: f32[8@x, 4@y] = shard(a)"),
        ("r = shard(a, '#sdy.sharding<@mesh, [{\"x\"}, {}]>')", "r: f32[8@x, 4] = shard(a)"),
        ("r = shard(a, [[0, 1], [2, 3], [4, 5], [6, 7]])", "r: f32[8@x, 4@y] = shard(a)"),
        ("r: f32[8@x, 4] = a", "r: f32[8@x, 4] = shard(a)"),
        ("r: f32[8@x, 4]{partial: y} = shard(a)", "r: f32[8@x, 4]{partial: y} = shard(a)"),
    ],
)
def test_annotations_become_shard_ops(text: str, expected: str) -> None:
    assert ops(text) == [expected]


def test_an_annotated_type_places_the_value_where_it_is_made() -> None:
    assert ops("r: f32[8@x, 4] = -a") == ["r: f32[8@x, 4] = negate(a)"]


def test_two_annotations_of_one_value_make_two_ops() -> None:
    assert ops("r: f32[8@x, 4] = split(a, 0, 2)") == [
        "r.1: f32[8@y, 4] = shard(a)",
        "r: f32[8@x, 4] = shard(r.1)",
    ]


def test_device_assignments_make_meshes_once_each() -> None:
    program = parse(
        """mesh (d=4)
def main(a: f32[8]) -> f32[8] {
  b = shard(a, [3, 1, 2, 0])
  c = shard(b, [0, 1, 2, 3])
  d = shard(c, [3, 1, 2, 0])
  return shard(d, [2, 3, 0, 1])
}"""
    )
    check(program)
    assert [m.devices for m in program.meshes] == [None, (3, 1, 2, 0), (2, 3, 0, 1)]
    assert print_program(parse(print_program(program))) == print_program(program)


# Loops.

FACTORIAL = """def main(n: s32[]) -> (s32[], s32[]) {
  return while(i = n, product: s32[] = 1, trip_count=5) cond { return i > 0 } do { return i - 1, product * i }
}"""


def test_while_loops() -> None:
    assert [int(v) for v in run(FACTORIAL, np.int32(5))] == [0, 120]


def test_blocks_see_values_around_the_loop_and_may_shadow_them() -> None:
    text = """def main(a: f32[2], n: s32[]) -> (f32[2]) {
  step = a * 2
  i, sum.1 = while(i: s32[] = n, acc = a) cond { limit = 3  return i < limit } do {
    step = step + 1
    return i + 1, acc + step
  }
  return sum.1 + step
}"""
    assert run(text, np.array([1, 2], np.float32), np.int32(1))[0].tolist() == [9, 16]


def test_nested_loops_and_functions() -> None:
    text = """def main(a: s32[]) -> (s32[]) {
  i, total = while(i = 0, t = a) cond { return i < 3 } do {
    j, u = while(j = 0, u = t) cond { return j < i } do { return j + 1, twice(u) }
    return i + 1, u + i
  }
  return total
}
def twice(x: s32[]) -> (s32[]) { return repeat k < 1 (y = x) { return y * 2 } }"""
    assert int(run(text, np.int32(5))[0]) == ((5 * 1 + 0) * 2 + 1) * 4 + 2


def test_repeat_unrolls_and_its_counter_is_a_number() -> None:
    text = """const L = 3
def main(x: f32[2], w: f32[L, 2, 2]) -> (f32[2]) {
  y, scale = repeat l < L (h = x, k = 1) {
    h = matmul(h, w[l])
    return h * (l + 1), k + l
  }
  return y * f32(scale)
}"""
    with pytest.raises(Exception, match="E102"):
        parse(text)
    text = text.replace("h = matmul(h, w[l])\n    return h", "g = matmul(h, w[l])\n    return g")
    w = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    expected = np.array([1, 1], np.float32) @ w[0] @ w[1] @ w[2] * 6 * 4
    assert run(text, np.array([1, 1], np.float32), w)[0].tolist() == expected.tolist()


def test_repeat_of_no_rounds_is_what_it_began_with() -> None:
    text = "def main(a: f32[2]) -> f32[2] { return repeat l < 0 (h = a) { return -h } }"
    assert run(text, np.array([1, 2], np.float32))[0].tolist() == [1, 2]


@pytest.mark.parametrize("rounds", ["log2(T)", "(log2(T))", "cdiv(T, max(4, 2)) + 1", "S[1]"])
@pytest.mark.parametrize("word", ["repeat", "loop"])
def test_a_loop_has_as_many_rounds_as_any_expression_says(word: str, rounds: str) -> None:
    text = f"""const T = 8, S = [2, 3]
def main(a: f32[2]) -> f32[2] {{ b, c = {word} l < {rounds} (h = a, g = a) {{ return h + 1, g + h }} return b + c }}"""
    assert run(text, np.array([1, 2], np.float32))[0].tolist() == [4 + 7, 5 + 11]


def test_a_loop_stays_one_and_its_counter_subscripts() -> None:
    text = """const L = 3
def main(x: f32[2], w: f32[L, 2, 2], v: f32[2 * L, 4]) -> (y: f32[2], scale: s32[], total: f32[]) {
  y, scale, total = loop l < L (h = x, k = 1, t = 0.0) {
    g = matmul(h, w[l])
    return g * f32(l + 1), k + l, t + v[2 * l + 1, l] * v[l][3] + sum(v[0, 1:3])
  }
  return y, scale, total
}"""
    program = parse(text)
    assert [op.attrs["trip_count"] for op in program.main.body.ops if op.name == "while"] == [3]
    w, v = np.arange(12, dtype=np.float32).reshape(3, 2, 2), np.arange(24, dtype=np.float32).reshape(6, 4)
    y, scale, total = run(text, np.array([1, 1], np.float32), w, v)
    expected = np.array([1, 1], np.float32) @ w[0] @ w[1] @ w[2] * 6
    assert y.tolist() == expected.tolist()
    assert scale == 4
    assert total == sum(v[2 * i + 1, i] * v[i, 3] + v[0, 1] + v[0, 2] for i in range(3))


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_loop_of_few_rounds_is_still_a_loop(rounds: int) -> None:
    text = f"def main(a: f32[2]) -> f32[2] {{ return loop l < {rounds} (h = a) {{ return -h }} }}"
    assert run(text, np.array([1, 2], np.float32))[0].tolist() == [[1, 2], [-1, -2]][rounds]


def test_a_checkpoint_is_what_it_returns_and_is_printed_as_one() -> None:
    text = """mesh (x=2)
def main(a: f32[4@x]) -> (f32[4@x], s32[]) {
  b, n = checkpoint {
    c: f32[4@x] = a * 2
    d = checkpoint(1 < 2) { return checkpoint(1 - 1) { return c + a } }
    return d, 1
  }
  return b, n
}"""
    assert [r.tolist() for r in run(text, np.arange(4, dtype=np.float32))] == [[0, 3, 6, 9], 1]
    program = parse(text)
    assert [op.name for op in all_ops(program)].count("checkpoint") == 2
    assert print_program(parse(print_program(program))) == print_program(program)


def test_a_computed_subscript_is_taken_for_the_nearest_that_there_is() -> None:
    text = "def main(a: f32[3], i: s32[]) -> f32[] { return a[i] }"
    taken = [run(text, np.array([5, 6, 7], np.float32), np.int32(i))[0] for i in (-2, 0, 2, 9)]
    assert taken == [5, 5, 7, 7]


# The mixture of experts.


def moe(**defines: int) -> Program:
    from importlib import resources

    folder = resources.files("spmdc") / "programs"
    program = parse(folder.joinpath("moe_layer.spmd").read_text("utf-8"), "moe_layer.spmd", defines, str(folder))
    check(program)
    return program


def test_moe_layer_has_the_shapes_and_the_mesh_of_the_paper() -> None:
    program = moe(D=2048)
    assert program.mesh == Mesh((("d", 2048),))
    assert [str(r.type) for r in program.main.results] == ["f32[4096, 64, 128]", "f32[]"]
    assert str(program.functions["top2_gating"].results[0].type) == "f32[4096, 64, 2048, 1]"


@pytest.mark.parametrize("capacity", [1, 3, 8, 20])
def test_top2_gating_equals_algorithm_1_run_token_by_token(capacity: int) -> None:
    import jax

    groups, tokens, model, experts, hidden = 3, 20, 6, 4, 5
    program = moe(D=4, G=groups, S=tokens, M=model, E=experts, H=hidden, C=capacity)
    rng = np.random.default_rng(capacity)
    inputs, wg = rng.normal(size=(groups, tokens, model)), rng.normal(size=(model, experts))
    wi, wo = rng.normal(size=(experts, model, hidden)), rng.normal(size=(experts, hidden, model))
    outputs, aux = evaluate(program, *(np.asarray(v, np.float32) for v in (inputs, wg, wi, wo)))

    rnd = np.asarray(jax.random.uniform(jax.random.key(0), (groups, tokens)))
    gates = np.asarray(jax.nn.softmax((inputs @ wg).astype(np.float32)))
    expert_out = np.maximum(np.einsum("gsm,emh->gseh", inputs, wi), 0)
    expert_out = np.einsum("gseh,ehm->gsem", expert_out, wo)
    combine = np.zeros((groups, tokens, experts))
    losses = []
    for g in range(groups):
        counts = np.zeros(experts, int)
        best = np.argsort(-gates[g], axis=1, kind="stable")[:, :2]
        for t, (e1, e2) in enumerate(best):
            if counts[e1] < capacity:
                combine[g, t, e1] = gates[g, t, e1] / (gates[g, t, e1] + gates[g, t, e2])
            counts[e1] += 1
        losses.append(np.mean(counts / tokens * gates[g].mean(0)))
        for t, (e1, e2) in enumerate(best):
            weight = gates[g, t, e2] / (gates[g, t, e1] + gates[g, t, e2])
            if counts[e2] < capacity and 2 * weight > rnd[g, t]:
                combine[g, t, e2] = weight
            counts[e2] += 1
    np.testing.assert_allclose(outputs, np.einsum("gse,gsem->gsm", combine, expert_out), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(aux, np.mean(losses), rtol=1e-5)
    if capacity == 20:
        assert (combine > 0).sum() > groups * tokens
