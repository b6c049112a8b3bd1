"""The help of an error says what to write, also to those who write as in JAX, Python or elsewhere."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from language_errors import body, errors, places

from ir.ops import OPS
from ir.types import DTYPES
from lowering.reference import evaluate
from spmdc.frontends.spmd import parse
from spmdc.frontends.spmd.expand.annotations import ANNOTATIONS
from spmdc.frontends.spmd.foreign_names import ARGUMENTS, CALLS, EXPRESSIONS
from spmdc.frontends.spmd.library import COMPOSITIONS
from spmdc.frontends.spmd.syntax import lexer as tokens

HELPS = [
    ("E002", "letters", body("b = \u00e9")),
    ("E002", "write <=", body("b = a \u2264 a")),
    ("E201", "0 to 255", body("b = u8(300)")),
    ("E201", "takes integers", body("b = n + 1.5")),
    ("E204", "//", body("b = 7 / 2")),
    ("E204", "max(1, n)", body("b = 7 // 0")),
    ("E204", "2.0", body("b = 2 ** 1000")),
    ("E204", "positive", body("b = log2(0 - 1)")),
    ("E207", "const N = 8", body("b = sum(a, dim=a)")),
    ("E207", "//", body("b = sum(a, dim=1.5)")),
    ("E207", "s32(3)", body("b = relu(3)")),
    ("E201", "-8 to 7", body("b = a[8]")),
    ("E201", "has no element", "def main(a: f32[0]) -> (r: f32[]) { return a[0] }"),
    ("E201", "x[:8] is all", body("b = a[0:9]")),
    ("E201", "reverse(x, dims=[0])", body("b = a[::-1]")),
    ("E201", "for each dim", body("b = a[0, 0, 0]")),
    ("E201", "valid dims are 0 to 1", body("b = mean(a, dim=2)")),
    ("E201", "reverse(x, dims)", body("b = reverse(a, dims=[2])")),
    ("E201", "top_k(x, k, [dim])", body("b = top_k(a, 9)")),
    ("E201", "transpose(x, perm)", body("b = transpose(a, [0])")),
    ("E201", "reshape(x, shape)", body("b = reshape(a, [5, -1])")),
    ("E203", "top_k(x, k, [dim])", body("b = top_k()")),
    ("E203", "gather(x, y, offset_dims, [collapsed", body("b = gather(a, n)")),
    ("E203", "kind is one of replace, sum", body("b = scatter(a, n, a)")),
    ("E205", "in parts", body("b = zeros([1000000, 1000000, 1000000])")),
    ("E205", "max(0,", body("b = zeros([-1])")),
    ("E207", "const N = 8", body("b = zeros([n, 4])")),
    ("E403", 'include "t.spmd"', "def first(a: f32[8]) -> f32[8] { return a }"),
    ("E101", "a number is, by const foo = 8", body("b = a + foo")),
    ("E101", "names are defined before they are used", body("b = a + a.foo")),
    ("E103", "shapes are in types", body("b = shape(a)")),
    ("E302", "each axis splits one dim", body("b: f32[8@x, 4@x] = relu(a)")),
    ("E304", "0 to 1", body(head="mesh (x=2) devices=[0, 0]")),
    ("E304", "0 to 1", body(head="mesh (x=2) devices=[0]")),
    ("E304", "x=1", body(head="mesh (x=0)")),
    ("E304", "unique", body(head="mesh (x=2, x=3)")),
    ("E304", "multiply to 6", body(head="mesh (x=2, y=3)\nmesh m (z=5)")),
    ("E304", "1,048,576", body(head=f"mesh (x={10**7})")),
    ("E202", "transpose(x)", body("b = f(a)") + "\ndef f(a: f32[4, 8]) -> (r: f32[]) { return 0 }"),
    ("E202", "f32(x) converts it", body("b = loop k < 2 (b: f32[8] = n) { return b }")),
    ("E202", "reshape(x", body("b = manual(v of f32[32] = a) { return v[0] }")),
    ("E207", "f32(x)", body("b = f32 + a")),
    ("E207", "einsum(", body("b = 'x' + a")),
    ("E103", "callback(", body("print(a)")),
    ("E001", "f32[8, 4]", "def main(a: f32(8, 4)) -> (r: f32[8, 4]) { return a }"),
    ("E401", "end it with: return r", "def main(a: f32[8]) -> (r: f32[8]) { b = a }"),
    ("E401", "-> (r: f32[8])", "def main(a: f32[8]) -> (r: f32[8]) { return a, a }"),
]


@pytest.mark.parametrize(("code", "help", "text"), HELPS)
def test_the_help_of_an_error_says_what_to_write(code: str, help: str, text: str) -> None:
    (problem,) = errors(text)
    assert problem.code == code
    assert help in problem.help


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("b: float32[8, 4] = a", "did you mean f32"),
        ("b: int32[8] = n", "did you mean s32"),
        ("b: bool[8] = n", "did you mean pred"),
        ("b: f32[8x4] = a", "commas"),
        ("b: f32[8@x@y, 4] = a", "8@(x,y)"),
        ("b = jnp.tanh(a)", "names alone: tanh("),
        ("b = a.sum(0)", "names alone: sum(a, "),
        ("b = a.astype(s32)", "a type is called"),
        ("b = a.T", "transpose(a)"),
        ("b = a.shape", "const N = 8"),
        ("b = sum(a, dim=None)", "is left out"),
        ("b = ppermute(a, y)", "collective_permute(x, target="),
        ("b = lax.psum(a, y)", "all_reduce(x, axes=(d))"),
        ("b = manual(a) { return a }", "manual(v of f32[8@x] = a, axes=(x))"),
        ("manual (x) (p = a) {", "manual(v of f32[8@x] = a, axes=(x))"),
        ("b = matmul(a, a)", "transpose"),
        ("b = reshape(a, shape=[3])", "shape=["),
        ("b = concatenate(a, n, dim=0)", "dim in which they differ"),
        ("b = all_gather(a, axes=(x), dim=0)", "annotate"),
        ("b = relu(a", "close it by ')'"),
        ("let b = a", "no word before"),
        ("for i in range(3) {", "loop k < 3"),
        ("if n > 0 {", "select"),
        ("b += 1", "never reassigned: give the new value a name of its own, b2 = b +"),
        ("b = a and a", "write a & b"),
        ("b = a or a", "write a | b"),
        ("b = not a", "write ~a"),
        ("b = a if n else a", "y = if (p) { return a } else { return b }"),
        ("b = if (n) { return a } else if (n) { return a } else { return a }", "else { return if (q)"),
        ("b = case(sum(n)) { return a } or return a", "or { return b }"),
        ("if n: b = a", "y = if (p) { return a } else { return b }"),
        ("if (n) { b = a } else { b = -a }", "y = if … { return a } …, or return if … { return a }"),
        ("repeat k < 3 (b = a) { return b }", "y = repeat … { return a } …"),
        ("b = repeat 3 (c = a) { return c }", "repeat k < 3 (x = a)"),
        ("b = while (n < 3) { c = n }", "while(x = a) cond {"),
        ("b, c = a, a", "b = … and c = … are two statements"),
        ("b: f32[8@4, 4] = a", "8@x"),
        ("b: f32[8, 4]{split: x} = a", "f32[8@x, 4] is split"),
        ("b: f32[8, 4]{partial} = a", "{partial: x, max y"),
        ("// twice", "comments begin with #"),
        ("b = zeros(shape=[SIZE])", "const SIZE = 8"),
        ("b = 2 * manual(v = a) { return v }", "x = manual(…) {…}"),
        ("b = relu(case(sum(n)) { return a } or { return -a })", "x = case(…) {…} or {…}"),
        ("b = -loop k < 3 (c = a) { return c }", "x = loop k < … (…) {…}"),
        ("b = relu(while(c = a) cond { return true } do { return c })", "x = while(…) cond {…} do {…}"),
        ("b = 2 * checkpoint { return a }", "x = checkpoint {…}"),
        ("b = 2 * precision(bf16) { return a }", "x = precision(…) {…}"),
        ("b = 2 * if (k) { return a } else { return -a }", "x = if (…) {…} else {…}"),
        ("b = max(a, n)", "maximum(a, b)"),
        ("b = min(2, a)", "minimum(a, b)"),
        ("b = max(a, 4)", "maximum(a, b)"),
        ("b = where(a > 0, 1.0, 0)", "f32(1.0) is a tensor"),
        ("b = where(a > 0, false, true)", "pred(false) is a tensor"),
        ("k, b = loop k < 3 (x = a) { return x }", "those that it carries, x, and its counter k is none of them"),
        ("b, c = while(x = a) cond { return x[0, 0] > 0 } do { return x }", "those that it carries, x"),
    ],
)
def test_habits_of_other_languages_are_answered_by_what_is_written_here(line: str, help: str) -> None:
    assert any(help in d.help for d in errors(body(line))), [d.help for d in errors(body(line))]


@pytest.mark.parametrize(
    ("declared", "help"),
    [
        ("s32[8, 4]", "s32(x) converts it, or declare it f32[8, 4]"),
        ("f32[4, 8]", "transpose(x) turns it around, or declare it f32[8, 4]"),
        ("f32[32]", "reshape(x, shape=[32]) has as many elements, or declare it f32[8, 4]"),
        ("f32[7]", "declare it f32[8, 4]"),
    ],
)
def test_a_type_that_is_another_one_is_answered_by_what_makes_it_so(declared: str, help: str) -> None:
    head = "def main(a: f32[8, 4]) -> (r: "
    (local,) = errors(f"{head}f32[8, 4]) {{\n  b: {declared} = a\n  return a\n}}\n")
    (result,) = errors(f"{head}{declared}) {{\n  return a\n}}\n")
    assert (local.code, local.help) == ("E202", help)
    assert (result.code, result.help) == ("E401", help)


def test_words_of_jax_that_mean_something_here_have_no_help_of_their_own() -> None:
    assert not (CALLS.keys() | EXPRESSIONS.keys()) & (OPS.keys() | COMPOSITIONS.keys())
    assert not CALLS.keys() & EXPRESSIONS.keys()


@pytest.mark.parametrize("word", CALLS)
def test_what_is_written_instead_of_a_word_of_jax_exists(word: str) -> None:
    known = OPS.keys() | COMPOSITIONS.keys() | ANNOTATIONS | tokens.CONTEXTUAL | DTYPES.keys()
    called = re.findall(r"(\w+)\(", CALLS[word])
    assert set(called) <= known


_SHAPES: list[tuple[int, ...]] = [(8, 4), (8, 8), (8, 8), (8,)]
_X, _A, _B, _V = (np.random.default_rng(i).normal(size=shape).astype(np.float32) for i, shape in enumerate(_SHAPES))
_I = np.array([3, 0, 1, 1, 2, 0, 3, 3], np.int32)
_SUMS = np.zeros((8, 4), np.float32)
np.add.at(_SUMS, _I, _X)
_AS_IN_NUMPY: dict[str, Any] = {
    "eye": np.eye(8), "diag": np.diag(_A), "trace": np.trace(_A), "triu": np.triu(_A), "linspace": np.linspace(0, 1, 9),
    "meshgrid": np.meshgrid(range(8), range(4), indexing="ij")[0], "roll": np.roll(_X, 1, 0),
    "tile": np.tile(_X, (3, 1)), "repeat": np.repeat(_X, 3, 0), "ravel": _X.ravel(), "permute": _X.T,
    "vstack": np.vstack([_X, _X]), "hstack": np.hstack([_X, _X]), "dstack": np.dstack([_X, _X]), "mm": _A @ _B,
    "outer": np.outer(_V, _V), "inner": np.inner(_V, _V), "tensordot": np.tensordot(_A, _B, 1),
    "norm": np.linalg.norm(_X), "std": _X.std(0), "average": np.average(_X, 0), "count_nonzero": np.count_nonzero(_X),
    "floor_divide": np.floor_divide(_A, _B), "mod": np.mod(_A, _B), "fmod": np.fmod(_A, _B),
    "logaddexp": np.logaddexp(_A, _B), "sinh": np.sinh(_X), "cosh": np.cosh(_X), "trunc": np.trunc(_X),
    "isnan": np.isnan(_X), "isinf": np.isinf(_X), "isfinite": np.isfinite(_X), "bincount": np.bincount(_I, minlength=8),
    "segment_sum": _SUMS, "take_along_axis": _X[range(8), _I], "embedding": _X[_I], "detach": _X,
}  # fmt: skip


def test_what_is_written_instead_of_functions_of_others_computes_what_they_do() -> None:
    lines = "".join(f"  r_{name} = {text}\n" for name, text in EXPRESSIONS.items())
    dtypes = {"float32": "f32", "float64": "f32", "int32": "s32", "int64": "s32", "bool": "pred"}
    right = {name: np.asarray(value) for name, value in _AS_IN_NUMPY.items()}
    types = ", ".join(f"r_{name}: {dtypes[x.dtype.name]}{list(x.shape)}" for name, x in right.items())
    head = "def main(x: f32[8, 4], a: f32[8, 8], b: f32[8, 8], v: f32[8], i: s32[8])"
    returned = ", ".join(f"r_{name}" for name in right)
    found = evaluate(parse(f"{head} -> ({types}) {{\n{lines}  return {returned}\n}}"), _X, _A, _B, _V, _I)
    for name, result in zip(right, found, strict=True):
        np.testing.assert_allclose(result, right[name], rtol=2e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("word", ["triu", "jnp.roll", "jax.ops.segment_sum"])
def test_a_function_of_others_is_answered_by_what_computes_the_same(word: str) -> None:
    (found,) = errors(body(f"b = {word}(a)"))
    assert EXPRESSIONS[word.rpartition(".")[2]] in found.help


@pytest.mark.parametrize(
    ("subscripts", "help"),
    [
        ("None", "expand_dims(x, 0)"),
        (":, None", "expand_dims(x, 1)"),
        (":, :, np.newaxis", "expand_dims(x, 2)"),
        ("..., 0", "x[:, 0] has a subscript for each dim"),
        ("[0, 2]", "take(x, i, 0)"),
        ("a > 0", "where(mask, x, 0)"),
    ],
)
def test_a_subscript_of_numpys_is_answered_by_what_does_the_same(subscripts: str, help: str) -> None:
    assert any(help in found.help for found in errors(body(f"b = a[{subscripts}]")))


@pytest.mark.parametrize(
    ("call", "own"),
    [
        ("all_to_all(v, axes=(x), split_axis=0, concat=1)", "split=…"),
        ("all_gather(v, axes=(x), axis=0)", "dim=…"),
        ("all_reduce(v, axis_name=x)", "axes=…"),
        ("reduce_scatter(v, axes=(x), scatter_dimension=0)", "dim=…"),
        ("transpose(v, axes=[1, 0])", "perm=…"),
        ("softmax(v, axis=1)", "dim=…"),
        ("sum(v, axis=1)", "dim=…"),
    ],
)
def test_an_argument_of_jaxs_is_answered_by_what_it_is_called_here(call: str, own: str) -> None:
    (found,) = errors(body(f"b = manual(v = a) {{ return {call} }}"))
    assert (found.code, found.help) == ("E203", f"{own} is what it is called here")


def test_every_argument_of_others_stands_for_one_of_an_op() -> None:
    ours = {attr.name for opdef in OPS.values() for attr in opdef.attrs}
    assert {own for owns in ARGUMENTS.values() for own in owns} <= ours


@pytest.mark.parametrize("head", ["mesh x=4", "mesh {x: 4}", "mesh (4, 2)", "mesh = (x=4)"])
def test_a_mesh_that_is_none_is_answered_by_one(head: str) -> None:
    assert errors(body(head=head))[0].help == "mesh (x=4, y=2)"


def test_functions_begin_with_def() -> None:
    assert (
        errors("mesh (x=4)\nfn main(a: f32[8]) -> (r: f32[8]) {\n  return a\n}")[0].help == "functions begin with def"
    )


def test_numbers_outside_of_functions_that_lack_their_word_are_answered_each_by_the_const_that_it_is() -> None:
    text = "mesh (x=2)\nlet B = 4\nC = 3\ndef main(a: f32[B@x, C]) -> (r: f32[B, C]) {\nreturn a * C\n}\nD = 8\n"
    found = errors(text)
    assert places(text) == ["E001 2:1", "E001 3:1", "E001 7:1"]
    assert [d.help for d in found] == ["const B = …", "const C = …", "const D = …"]
