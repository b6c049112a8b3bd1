"""Every error of a .spmd text has its code and points at the place; independent errors are reported together."""

from __future__ import annotations

import time

import pytest
from language_errors import body, errors, places

from ir.diagnostics import SpmdcError
from spmdc.frontends.spmd import parse
from spmdc.frontends.spmd.syntax import lexer as tokens

BODIES = [
    # The text.
    ("E001 3:5", "b = = a"),
    ("E001 3:13", "b = relu(a) )"),
    ("E001 3:9", "b = relu(a"),
    ("E001 3:12", "b = relu(a a)"),
    ("E001 3:5", 'b = "abc'),
    ("E001 3:5", "b = 3x"),
    ("E001 3:9", "b = a < a < a"),
    ("E001 3:19", "b = sum(a, dim=1, 2)"),
    ("E001 3:12", 'b = einsum("\\q", a)'),
    ("E001 3:13", "b: f32[8, 4]{total: x} = shard(a)"),
    ("E002 3:7", "b = a $ a"),
    ("E002 3:5", "b = \u00e9"),
    ("E003 3:69", "b = " + "(" * 65 + "a" + ")" * 65),
    ("E003 3:505", "b = " + "a ** " * 150 + "a"),
    # Names.
    ("E101 3:10", "b = relu(aa)"),
    ("E101 3:4", "b: g32[8] = a"),
    ("E102 4:1", "b = relu(a)\nb = a"),
    ("E103 3:5", "b = rellu(a)"),
    ("E103 3:5", "b = a(a)"),
    ("E103 3:5", "b = call(a, function=layer)"),
    # Types.
    ("E201 3:5", "b = dot_general(a, a, lhs_contract=[0], rhs_contract=[1])"),
    ("E201 3:5", "b = dot_general(a, a, lhs_contract=[0], rhs_contract=[0], dtype=s32)"),
    ("E201 3:5", "b = a + n"),
    ("E201 3:5", "b = n + 1.5"),
    ("E201 3:5", "b = a + ones([3])"),
    ("E201 3:7", "b = a[9]"),
    ("E201 3:7", "b = a[0:9]"),
    ("E201 3:7", "b = a[::0]"),
    ("E201 3:5", "b = a[0, 0, 0]"),
    ("E201 3:5", "b = sum(a, dim=2)"),
    ("E201 3:5", "b = reshape(a, [3, -1])"),
    ("E201 3:5", "b = constant(value=[[1], [2, 3]], type=f32[2])"),
    ("E201 3:5", "b = top_k(a, 5)"),
    ("E201 3:16", "b = repeat i < 5000 (c = a) { return c }"),
    ("E201 3:15", "b = loop i < (-1) (c = a) { return c }"),
    ("E207 3:15", "b = loop i < (sum(n)) (c = a) { return c }"),
    ("E401 3:5", "b = checkpoint { c = a }"),
    ("E207 3:16", "b = checkpoint(n) { return a }"),
    ("E203 3:1", "b, c = checkpoint { return a }"),
    ("E101 3:25", "b = checkpoint { return c }"),
    ("E405 3:33", "b = loop i < 2 (c = a) { return n }"),
    ("E207 3:7", "b = a[sum(a)]"),
    ("E201 3:5", "b = while(i = 0, trip_count=-1) cond { return i < 3 } do { return i }"),
    ("E202 3:4", "b: f32[8, 5] = relu(a)"),
    ("E202 3:22", "b = while(i: s32[] = a) cond { return true } do { return i }"),
    ("E203 3:1", "b, c = relu(a)"),
    ("E203 3:1", "b = top_k(a, 2)"),
    ("E203 3:5", "b = relu(a, a)"),
    ("E203 3:5", "b = softmax()"),
    ("E203 3:16", "b = softmax(a, axis=1)"),
    ("E203 3:17", "b = sum(a, [0], dims=[1])"),
    ("E203 3:27", "b = convert(a, dtype=f32, u=1)"),
    ("E203 3:5", "b = negate(a, a)"),
    ("E203 3:5", "b = reduce(a, dims=[0])"),
    ("E203 3:5", "b = reduce(a, dims=[0], kind=total)"),
    ("E203 3:1", "relu(a)"),
    ("E203 3:5", "b = shard(a)"),
    ("E203 3:10", "b = relu(shard(a))"),
    ("E204 3:5", "b = 7 / 2"),
    ("E204 3:5", "b = 7 // 0"),
    ("E204 3:5", "b = 2 ** 1000"),
    ("E204 3:5", "b = log2(0 - 1)"),
    ("E205 3:8", "b: f32[0 - 4, 8] = a"),
    ("E205 3:8", "b: f32[2.5] = a"),
    ("E205 3:5", "b = zeros([1000000, 1000000, 1000000])"),
    ("E205 3:5", "b = zeros([-1])"),
    ("E205 3:5", f"b = zeros({[1] * 33})"),
    ("E206 3:5", 'b = einsum("ij,jk->ik", a)'),
    ("E206 3:5", 'b = einsum("ijk->ik", a)'),
    ("E206 3:5", 'b = einsum("ij->ik", a)'),
    ("E206 3:5", 'b = einsum("ij->ii", a)'),
    ("E206 3:5", 'b = einsum("i1->i", a)'),
    ("E206 3:5", 'b = einsum("ij,ik->jk", a, ones([3, 3]))'),
    ("E207 3:16", "b = sum(a, dim=a)"),
    ("E207 3:10", "b = relu(3)"),
    ("E207 3:8", "b: f32[n] = a"),
    ("E207 3:7", "b = a[n]"),
    ("E207 3:5", "b = f32 + a"),
    # Shardings.
    ("E301 3:10", "b: f32[8@z, 4] = relu(a)"),
    ("E301 3:17", "b = split(a, 0, z)"),
    ("E302 3:15", "b: f32[8@x, 4@x] = relu(a)"),
    ("E303 3:10", "b: f32[8@x:(3)2, 4] = relu(a)"),
    ("E303 3:14", "b = shard(a, [0, 1])"),
    ("E305 3:5", "b = split(a, 0, 64)"),
    ("E308 3:27", "b: s32[8]{partial: x, avg y} = relu(n)"),
    ("E308 3:26", "b: f32[8, 4]{partial: or x} = relu(a)"),
    # Structure.
    ("E101 3:5", "b = c\nc = a"),
    ("E405 3:32", "b = while(i = 0) cond { return i } do { return i }"),
    ("E405 3:58", "b = while(i = 0) cond { return i < 3 } do { j = i return f32(i) }"),
    ("E405 3:45", "b = while(i = 0) cond { return i < 3 } do { return i, i }"),
    ("E405 3:46", "b = repeat i < 2 (p: f32[8, 4] = a) { return n }"),
    ("E406 3:5", "b = all_reduce(a, axes=(x))"),
    ("E401 3:5", "b = while(i = 0) cond { j = i } do { return i }"),
]


@pytest.mark.parametrize(("place", "line"), BODIES)
def test_a_statement_error_is_reported_at_its_place(place: str, line: str) -> None:
    assert places(body(line)) == [place]


ITEMS = [
    ("E001 1:1", "x = 3\n" + body()),
    (
        "E001 2:1",
        body(head="mesh (x=4, y=2) gadgets=[1]").replace("mesh (x=4, y=2) gadgets", "mesh (x=4, y=2)\ngadgets"),
    ),
    ("E001 3:1", "mesh (x=4)\ndef main(a: f32[8]) -> (r: f32[8]) { return a }\nreturn a"),
    ("E001 1:13", "const A = 1 B"),
    ("E001 1:5", "def main(a: f32[8]) -> f32[8]"),
    ("E001 1:31", "def main(a: f32[8]) -> f32[8] { return a"),
    ("E001 1:44", "def main(a: f32[8]) -> f32[8] { return a } }"),
    ("E001 1:42", "def main(a: f32[8]) -> f32[8] { return a b = a }"),
    ("E101 1:11", "const A = B\n" + body()),
    ("E102 2:7", "const A = 1\nconst A = 2\n" + body()),
    ("E102 1:20", "def main(a: f32[], a: f32[]) -> f32[] { return a }"),
    ("E102 1:34", "def main(a: f32[]) -> (r: f32[], r: f32[]) { return a, a }"),
    ("E204 1:11", "const A = 7 / 2\n" + body()),
    ("E207 1:11", 'const A = "x"\n' + body()),
    ("E205 1:17", "def main(a: f32[0 - 3]) -> f32[3] { return a }"),
    ("E301 2:19", "mesh (x=4)\ndef main(a: f32[8@z]) -> f32[8] { return a }"),
    ("E304 1:7", "mesh (x=0)" + body(head="")),
    ("E304 1:12", "mesh (x=4, x=2)" + body(head="")),
    ("E304 2:9", "mesh (x=4)\nmesh m (x=2)" + body(head="")),
    ("E304 2:1", "mesh (x=4)\nmesh (y=2)" + body(head="")),
    ("E304 1:20", "mesh (x=2) devices=[0, 0]" + body(head="")),
    ("E304 1:20", "mesh (x=2) devices=[0]" + body(head="")),
    ("E304 2:1", "mesh (x=4)\nmesh m (y=2)" + body(head="")),
    ("E304 1:1", "mesh (x=1000000000000000003)" + body(head="")),
    ("E304 1:1", "mesh (x=1000000, y=1100000)" + body(head="")),
    ("E306 1:19", "def main(a: f32[8@x]) -> f32[8] { return a }"),
    ("E306 1:40", "def main(a: f32[8]) -> f32[8] { return split(a, 0, 2) }"),
    ("E401 1:5", "def main(a: f32[8]) -> f32[8] { b = a }"),
    ("E401 1:40", "def main(a: f32[8]) -> f32[9] { return a }"),
    ("E401 1:33", "def main(a: f32[8]) -> f32[8] { return a, a }"),
    ("E402 1:40", "def main(a: f32[8]) -> f32[8] { return main(a) }"),
    ("E403 1:1", "def first(a: f32[8]) -> f32[8] { return a }"),
    ("E403 2:5", "def main(a: f32[8]) -> f32[8] { return a }\ndef main() -> () { return }"),
    ("E406 1:13", "def main(a: f32[2] of f32[4]) -> f32[2] { return a }"),
    ("E406 2:40", "spmd mesh (x=2)\ndef main(a: f32[8]) -> f32[8] { return split(a, 0, 2) }"),
]


@pytest.mark.parametrize(("place", "text"), ITEMS, ids=[f"{p} {t[:60]}" for p, t in ITEMS])
def test_an_item_error_is_reported_at_its_place(place: str, text: str) -> None:
    assert places(text) == [place]


def test_a_text_of_too_many_tokens_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS", 100)
    assert places("a b\n" * 60) == ["E004 51:1"]


def test_binary_data_is_no_program() -> None:
    data = bytes(range(256)) * 40
    assert {d.code for d in errors(data.decode("latin-1"))} == {"E002"}
    assert places("mesh (x=4)\n  \udc80") == ["E002 2:3"]


@pytest.mark.parametrize("defines", [{"B": 3}, {"A": "3"}, {"A": 2.5}, {"F": "2"}])
def test_overriding_a_const_that_is_not_there_or_no_integer(defines: dict[str, float]) -> None:
    assert [d.code for d in errors("const A = 1, F = 0.5\n" + body(), defines)] == ["E104"]


@pytest.mark.parametrize("given", [2, 2.5])
def test_a_const_that_is_a_float_stays_one_when_it_is_overridden(given: float) -> None:
    text = "const F = 0.5\ndef main(a: f32[8]) -> (r: f32[8]) { return a * F }"
    (constant,) = (op for op in parse(text, defines={"F": given}).main.body.ops if op.name == "constant")
    assert repr(constant.attrs["value"]) == repr(float(given))


def test_a_dotted_name_is_not_to_become_a_const() -> None:
    (problem,) = errors(body("b = a + a.foo"))
    assert "const" not in problem.help


def test_independent_errors_are_reported_together_in_the_order_of_their_places() -> None:
    text = """const S = 8, T = S / 3
mesh (x=4, y=2)
def main(a: f32[S, 4]) -> (r: f32[S, 4]) {
  b = rellu(a)
  c = relu(b)
  d = = a
  e: f32[S, 5] = relu(a)
  f = d + e
  g = while(i = 0) cond { h = = 3  return i < unknown } do { return i }
  return softmax(a, axis=1)
}
def helper(a: f32[T, 4@z]) -> f32[8, 4] { return a }
def other(a: f32[8, 4@z]) -> f32[8, 4] {
  return a
"""
    assert places(text) == [
        "E204 1:18",
        "E103 4:7",
        "E001 6:7",
        "E202 7:6",
        "E001 9:31",
        "E101 9:47",
        "E203 10:21",
        "E301 13:23",
        "E001 13:40",
    ]


def test_an_open_bracket_does_not_hide_errors_of_other_statements() -> None:
    assert places(body("b = rellu(a)", "c = relu(a, ", "d: f32[9] = exp(a)", "e = c + 1")) == [
        "E103 3:5",
        "E001 4:9",
        "E202 5:4",
    ]


def test_errors_inside_blocks_are_reported_one_by_one_without_what_follows_from_them() -> None:
    cond = ["b = while(i = 0) cond { j = = 3", "k = j + i", "m = unknown", "return < k }"]
    assert places(body(*cond, "do { return i }")) == ["E001 3:29", "E101 5:5", "E001 6:8"]
    assert places(body("b = while(i = 0) cond { return i < 3 }", "do { p = 1 + return p + i }")) == ["E001 4:13"]


def test_a_name_that_is_defined_later_is_reported_as_such() -> None:
    assert "further down" in errors(body("b = -c", "c = -a"))[0].help
    assert "further down" in errors("const A = B, B = 3\n" + body())[0].help
    assert "further down" not in errors(body("b = r"))[0].help


def test_a_const_that_is_overridden_may_have_a_fault_of_its_own() -> None:
    text = "const A = 3\nconst B = 12 // (A - 3)\ndef main(a: f32[B]) -> f32[B] { return a }"
    assert parse(text, defines={"B": 2}).main.params[0].shape == (2,)
    assert parse(text, defines={"A": 7}).main.params[0].shape == (3,)


@pytest.mark.parametrize(
    ("expected", "line"),
    [
        (["E001 3:12"], "x = relu(a); y = exp(x) z = y + x"),
        (["E001 3:12", "E101 3:27"], "x = relu(a); y = exp(x) + unknown"),
        (["E001 3:12", "E001 4:11"], "x = relu(a);\ny = exp(x);"),
        (["E001 3:34"], "x = while(i = 0) cond { j = i < 3; k = j return k } do { return i }"),
    ],
)
def test_a_separator_between_statements_is_all_that_is_wrong(expected: list[str], line: str) -> None:
    assert places(body(line)) == expected
    assert "no separator" in errors(body(line))[0].help


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("3:8", "return ) a"),
        ("3:5", "b = ) relu(a)"),
        ("3:11", "b = relu(a]"),
        ("3:5", "b = [a"),
        ("3:12", "b = relu(a))"),
    ],
)
def test_a_bracket_without_partner_is_reported_once(place: str, line: str) -> None:
    text = body(line) if "return" not in line else body(line).replace("\nreturn a }", "\n}")
    assert places(text) == [f"E001 {place}"]


@pytest.mark.parametrize(
    "line",
    [
        "for i in 3 { b = a }",
        "for i in range(3) { b = a }",
        "b = a if a else a",
        "b = a and a",
        "b = not a",
        "if (n) { b = a } else { b = -a }",
        "if n { b = a } else { b = -a }",
        "if n: b = a",
        "b = if (n) { return a } elif (n) { return a } else { return a }",
        "b = if (n) { return a } else if (n) { return a } else { return a }",
        "b, c = a, a",
        "b = loop 3 (c = a) { return c }",
        "repeat k < 3 (c = a) { b = c return b }",
    ],
)
def test_what_is_no_statement_is_one_error_to_the_end_of_its_line(line: str) -> None:
    after = "c = b" if "b" in line else ""
    assert [place[:7] for place in places(body(line, after))] == ["E001 3:"]


def test_a_block_that_is_not_returned_is_all_that_is_wrong() -> None:
    text = "def main(a: f32[8], p: pred[]) -> f32[8] {\nif (p) { return a } else { return -a }\n}\n"
    assert places(text) == ["E001 2:1"]
    assert places("def main(a: f32[8]) -> f32[8] {\nmanual(v = a) { return v }\n}\n") == ["E001 2:1"]


@pytest.mark.parametrize("shown", ["{partial}", "{split: x}", "{}"])
def test_braces_behind_a_type_are_no_body(shown: str) -> None:
    for signature in (f"(a: f32[8]{shown}) -> f32[8]", f"(a: f32[8]) -> f32[8]{shown}"):
        codes = [p.split()[0] for p in places(f"mesh (x=4)\ndef main{signature} {{\nreturn a\n}}\n")]
        assert codes == ["E001"], signature


def test_an_error_inside_a_block_is_not_answered_by_the_form_of_the_block() -> None:
    for line in ("b = repeat k < 2 (c = a) { return c c }", "b = case(sum(n)) { return a } or return a"):
        assert all("loop" not in d.help and "|" not in d.help for d in errors(body(line))), line


def test_a_second_block_is_no_body_of_a_function() -> None:
    text = "def main(a: f32[8]) -> f32[8] { return rellu(a) } { return a }"
    assert places(text) == ["E103 1:40", "E001 1:51"]
    assert errors("def main(a: f32[8]) -> f32[8]" + " {}" * 50_000)


def test_all_unknown_attributes_of_a_call_are_reported_with_those_that_it_has() -> None:
    text = "spmd mesh (x=4)\ndef main(a: f32[2] of f32[8@x]) -> (o: f32[2] of f32[8@x]) {\n  %s\n  return b\n}"
    found = errors(text % "b = collective_permute(a, axes=(x), pairs=[[0, 1]])")
    assert [d.message.split()[-1] for d in found] == ["'axes'", "'pairs'"]
    assert [d.help for d in found] == ["collective_permute(x, target, source, [shift])"] * 2
    (problem,) = errors(text % "b = collective_permute(a, target=(x), source=(x), shift=[1])")
    assert (problem.code, problem.help) == ("E207", "shift=1")


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("b = top_k()", "top_k needs the arguments 'x', 'k'"),
        (
            "b = gather(a, n, index_vector_dim=1, slice_sizes=[1, 4])",
            "gather needs the attributes 'offset_dims', '",
        ),
        ("b = reverse(a)", "reverse needs the attribute 'dims'"),
    ],
)
def test_all_that_a_call_lacks_is_in_one_error(line: str, missing: str) -> None:
    (problem,) = errors(body(line))
    assert problem.message.startswith(missing)


def test_an_error_of_sizes_says_which_consts_are_overridden() -> None:
    text = "const N = 4\ndef main(a: f32[N]) -> (r: f32[], s: f32[]) {\nreturn a[0], a[1]\n}\n"
    assert [d.notes for d in errors(text, {"N": 0})] == [("consts are overridden: N = 0",), ()]
    assert [d.notes for d in errors(text.replace("a[1]", "a[4]"))] == [()]


def test_a_faulty_mesh_hides_nothing_but_errors_of_axes() -> None:
    lines = [
        "b: f32[8@x, 5] = relu(a)",
        "c = split(a, 0, x)",
        "d: f32[9] = c",
        "e = shard(a, [[0], [1]])",
        "f = e + unknown",
    ]
    assert places(body(*lines, head="mesh (x=0)")) == ["E304 1:7", "E202 3:4", "E202 5:4", "E101 7:9"]
    assert places("mesh (x=0)\nspmd\ndef main(a: f32[2] of f32[8@x]) -> (f32[8@x]) { return unknown }") == [
        "E304 1:7",
        "E101 3:56",
    ]
    text = "mesh (x=)\ndef main(a: f32[8@x]) -> (r: f32[8@x]) { b: f32[8@x] = shard(a) return b + unknown }"
    assert places(text) == ["E001 1:9", "E101 2:76"]


def test_a_faulty_const_poisons_what_uses_it_and_nothing_else() -> None:
    text = """const T = 7 / 2, S = T + 1
def main(a: f32[8], b: f32[S], k: f32[]) -> (r: f32[8], q: f32[T]) {
  c = b + T
  d: f32[9] = a
  e = unknown + b
  return k, c
}
def other(a: f32[8]) -> f32[8] { return layer(a, a, a) }
def layer(a: f32[8], b: f32[T]) -> f32[9] { return a }
def user(a: f32[8]) -> f32[8] { return layer(a, a) }
"""
    assert places(text) == ["E204 1:11", "E202 4:6", "E101 5:7", "E401 6:10", "E203 8:41", "E401 9:52", "E401 10:40"]


def test_a_signature_with_errors_leaves_the_rest_of_the_program_to_be_checked() -> None:
    bodies = "{\n c = relu(a)\n d = relu(b) + unknown\n return rellu(b) }"
    for head in [
        "(a: f32[8, b: f32[4]) -> (r: f32[8])",
        "(a: f32[8], b: f32[4])",
        "(a: f32[= 8], b: f32[4]) -> (r: f32[8])",
    ]:
        codes = [p.split()[0] for p in places(f"def main{head} {bodies}")]
        assert codes == ["E001", "E101", "E103"], head
    assert places("def main a: f32[8]) -> f32[8] { return rellu(a) }") == ["E001 1:19", "E103 1:40"]
    assert places("def main(a: f32[8], a: f32[4]) -> f32[8] { b = a return unknown }") == ["E102 1:21", "E101 1:57"]
    assert places("def main(a: f32[8@z]) -> f32[9] { return a }") == ["E306 1:19", "E401 1:42"]


def test_a_shard_that_is_used_as_a_whole_tensor_is_an_error_of_the_region_that_made_it() -> None:
    head = "mesh (x=4, y=2)\ndef main(a: f32[8@x, 4]) -> (r: f32[8, 4]) {"
    (result,) = errors(f"{head}\ny = manual(v of f32[8@(x, y), 4] = a) {{ return v }}\nreturn y\n}}\n")
    assert result.span is not None
    assert (result.code, result.span.line, result.span.column) == ("E401", 3, 5)
    assert "y: f32[8@(x,y), 4] = manual(…)" in result.help
    region = "y, n = manual(v of f32[8, 4@x] = a, axes=(x)) { return v, 1 }"
    (named,) = errors(f"{head}\n{region}\nz: f32[8, 4] = y\nreturn a\n}}\n")
    assert "y: f32[8, 4@x] = manual(…)" in named.help
    (other,) = errors(f"{head}\ny = manual(v of f32[8@x, 4] = a) {{ return v[:, :2] }}\nreturn y\n}}\n")
    assert "declare it f32[2, 2]" in other.help
    (shard,) = errors(f"{head}\ny: f32[8@x, 4] = manual(v of f32[8@(x, y), 4] = a) {{ return v }}\nreturn y\n}}\n")
    assert (shard.code, "each device's shard" in shard.help) == ("E405", True)


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("i, v = while(i = 0, v = 0) cond { return i < 3 } do { return i + 1, v + sum(a) }", "begins: v: f32[] = 0"),
        ("b = loop k < 3 (b = 0) { return b + 0.5 }", "begins: b: f32[] = 0"),
        ("b = loop k < 3 (b = 0) { return a }", "begins: b: f32[8, 4] = 0"),
        ("b = loop k < 3 (b = 0.5) { return b + k }", "convert(x, dtype=f32)"),
        ("b = loop k < 3 (b = 0) { return k + sum(a) }", "convert(x, dtype=f32)"),
        ("b = loop k < 3 (b = n) { return a, n }", "the next b"),
        ("i, b = while(i = 0, b = a) cond { return i < 3 } do { return a, i + 1 }", "the next i, b, in this order"),
        ("i = while(i = 0) cond { return i } do { return i + 1 }", "return i < 3"),
        ("b = repeat k < 3 (b = a) { return a, n }", "the next b"),
        ("b = repeat k < 3 (b: f32[8, 4] = a) { return n }", "if none is written"),
        ("b = case(sum(n)) { return a } or { return n }", "of the same types"),
        ("b = case(sum(n)) { return a } or { return a, n }", "as many values"),
        ("b, c = relu(a)", "values, places = top_k"),
    ],
)
def test_blocks_that_return_something_else_are_answered_by_what_they_return(line: str, help: str) -> None:
    (problem,) = errors(body(line))
    assert help in problem.help


def test_what_is_returned_is_checked_though_other_statements_have_errors() -> None:
    assert places(body("c = rellu(a)", "return c, c }").replace("\nreturn a }", "")) == ["E103 3:5", "E401 4:1"]
    assert places(body("c = rellu(a)", "return n }").replace("\nreturn a }", "")) == ["E103 3:5", "E401 4:8"]
    assert places(body("return rellu(a), n }").replace("\nreturn a }", "")) == ["E103 3:8"]


def test_operands_and_arguments_are_checked_each_by_itself() -> None:
    assert places(body("b = unknown + a * rellu(a) + missing")) == ["E101 3:5", "E103 3:19", "E101 3:30"]
    assert places(body("b = add(unknown, rellu(a))")) == ["E101 3:9", "E103 3:18"]
    assert places(body("b = softmax(unknown, dim=missing)")) == ["E101 3:13", "E101 3:26"]
    assert places(body("b = rellu(a)", "c = b + b + missing")) == ["E103 3:5", "E101 4:13"]
    assert places(body("b = sum(a, dims=[unknown, missing])")) == ["E101 3:18", "E101 3:27"]


def test_the_caret_of_an_axis_that_clashes_marks_the_axis() -> None:
    texts = [
        "b: f32[8@x, 4@x]{partial: x} = relu(a)",
        "b: f32[8@x:(1)2, 4]{partial: x:(1)2; replicated: x:(2)2} = relu(a)",
    ]
    assert places(body(texts[0])) == ["E302 3:15", "E302 3:27"]
    assert places(body(texts[1])) == ["E302 3:30"]
    head = "mesh (x=12)"
    assert places(body("b: f32[8@x:(1)4, 4@x:(6)2] = relu(a)", head=head)) == ["E307 3:20"]


def test_what_depends_on_an_error_is_not_reported_again() -> None:
    lines = ["b = unknown(a)", "c = b + a", "d: f32[9] = relu(c)", "e, f = top_k(d, 2)", "g = sum(e[0])"]
    assert places(body(*lines)) == ["E103 3:5"]


def test_each_circle_of_calls_is_reported_once_in_the_order_of_the_calls() -> None:
    names = {"main": "f", "f": "g", "g": "h", "h": "f", "p": "q", "q": "p", "r": "p"}
    text = "".join(f"def {a}(x: f32[]) -> f32[] {{ return {b}(x) }}\n" for a, b in names.items())
    found = errors(text)
    assert [d.message for d in found] == [
        "function 'f' calls itself: f → g → h → f",
        "function 'p' calls itself: p → q → p",
    ]
    assert [(d.span.line, d.span.column) for d in found if d.span] == [(2, 35), (5, 35)]


def test_help_suggests_close_names() -> None:
    assert errors(body("b = sofmax(a)"))[0].help == "did you mean softmax"
    assert errors(body("value = relu(a)", "c = relu(valu)"))[0].help.startswith("did you mean value")
    assert errors("const SIZE = 1\n" + body(), {"SIZ": 3})[0].help == "did you mean SIZE"
    assert "did you mean reduce" in errors(body("b = reduc(a)"))[0].help


def test_errors_of_a_bottomless_text_are_reported_at_once() -> None:
    start = time.monotonic()
    for text in ["(" * 4_000_000, body("a " * 50_000), body("b = " + "-" * 50_000 + "a"), "a = b\n" * 50_000]:
        assert errors(text)
    assert time.monotonic() - start < 20


def test_every_error_of_a_signature_is_reported() -> None:
    signature = "def main(a: f32[4@, 3], b: f32[4 3], c f32[3]) -> (y: f3[4], z: f32[4,@x]) {"
    assert places(f"mesh (x=4, y=2)\n{signature}\nreturn a, c }}") == [
        "E001 2:19",
        "E001 2:34",
        "E001 2:40",
        "E101 2:55",
        "E001 2:71",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"const A{i} = B{i}\n" for i in range(1000)) + body("b = a"),
        "".join(f"mesh m{i} (a{i}=0)\n" for i in range(1000)) + body("b = a", head=""),
        f"def main({', '.join(f'a{i}: f32[8@z{i}]' for i in range(1000))}) -> (r: f32[8]) {{\n  return a0\n}}\n",
        body("b = a") + "".join(f"def f{i}(a: f33[8]) -> (r: f32[8]) {{\n  return a\n}}\n" for i in range(1000)),
        body("\n".join(f"b{i} = c{i}" for i in range(1000))),
    ],
)
def test_no_more_errors_than_anyone_reads_are_looked_for(text: str) -> None:
    with pytest.raises(SpmdcError) as caught:
        parse(text)
    assert len(caught.value.diagnostics) == 200


def test_functions_of_numbers_take_one_as_well() -> None:
    assert parse("const N = max(4) + min(4)\ndef main(a: f32[N]) -> (r: f32[8]) {\n  return a\n}\n").main.params[
        0
    ].shape == (8,)


def test_a_mesh_of_more_axes_than_arrays_have_dims_is_refused() -> None:
    assert places(
        f"mesh ({', '.join(f'x{i}=1' for i in range(20000))})\ndef main(a: f32[8]) -> f32[8] {{ return a }}"
    ) == ["E304 1:1"]


def test_a_name_that_is_not_defined_is_reported_where_it_is_first_used() -> None:
    text = "def main(a: f32[N], b: f32[N]) -> (r: f32[N]) {\nc = a * gain\nd = b * gain + c\nreturn c\n}\n"
    assert places(text) == ["E101 1:17", "E101 2:9"]
