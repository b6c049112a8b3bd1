"""Custom calls that spmdc knows nothing of: LAPACK's as JAX makes them, anybody's, and the rules that users give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas
from jax.experimental.custom_partitioning import custom_partitioning
from jax.scipy import linalg as jsl

import spmdc
from ir.program import all_ops
from lowering.jax import jax_source
from spmdc import custom_calls
from spmdc.cli import main

P: Any = jax.sharding.PartitionSpec
partitioned_by_hand: Any = custom_partitioning
MESH = {"x": 4, "y": 2}
SQUARES = np.random.default_rng(0).standard_normal((8, 4, 4)).astype(np.float32) + 3 * np.eye(4, dtype=np.float32)
linalg = jax.lax.linalg

DECOMPOSITIONS: dict[str, Callable[[Any], Any]] = {
    "lu": linalg.lu,
    "qr": jnp.linalg.qr,
    "qr_with_pivots": lambda a: jsl.qr(a, pivoting=True),
    "eigh": lambda a: jnp.linalg.eigh(a + a.mT),
    "eig": jnp.linalg.eig,
    "svd": jnp.linalg.svd,
    "schur": linalg.schur,
    "hessenberg": linalg.hessenberg,
    "tridiagonal": linalg.tridiagonal,
    "tridiagonal_solve": lambda a: linalg.tridiagonal_solve(a[..., 0], a[..., 1] + 8, a[..., 2], a),
    "gradient_of_solve": jax.grad(lambda a: jnp.linalg.solve(a, a[..., :1]).sum()),
}


@pytest.fixture(scope="module")
def decomposed() -> dict[str, tuple[Any, Any]]:
    """What each gives on devices partitioned by spmdc, and unpartitioned by jax, all in one program."""

    def all_of_them(a: Any) -> dict[str, Any]:
        return {name: f(a) for name, f in DECOMPOSITIONS.items()}

    got = spmdc.jit(all_of_them, mesh=MESH, in_shardings=(P("x"),))(SQUARES)
    want = jax.jit(all_of_them)(SQUARES)
    return {name: (got[name], want[name]) for name in DECOMPOSITIONS}


@pytest.mark.parametrize("name", DECOMPOSITIONS)
def test_a_decomposition_of_split_matrices_equals_that_of_jax(
    name: str, decomposed: dict[str, tuple[Any, Any]]
) -> None:
    got, want = decomposed[name]
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("batch", [8, 6])
def test_the_batch_stays_split_and_nothing_is_sent(batch: int) -> None:
    a = np.concatenate([SQUARES, SQUARES])[:batch]
    program = spmdc.from_jax(lambda a: jnp.linalg.solve(a, a[..., :1]), a, mesh=MESH, in_shardings=(P("x"),))
    partitioned = spmdc.partition(program)
    assert not partitioned.collectives()
    assert not partitioned.warnings
    for ours, theirs in zip(partitioned.simulate(a), spmdc.evaluate(program, a), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_split_matrices_are_gathered_with_a_warning_that_names_the_call() -> None:
    program = spmdc.from_jax(linalg.hessenberg, SQUARES, mesh=MESH, in_shardings=(P(None, "x"),))
    partitioned = spmdc.partition(program)
    (warning,) = partitioned.warnings
    assert warning.code == "W001"
    assert "lapack_sgehrd_ffi" in warning.message
    assert "spmdc.register_rule('lapack_sgehrd_ffi'" in warning.help
    for ours, theirs in zip(partitioned.simulate(SQUARES), jax.jit(linalg.hessenberg)(SQUARES), strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs))


@pytest.mark.parametrize("spec", [P("x"), P(None, "x", "y")])
def test_approximate_top_k_and_functions_applied_at_indices_equal_those_of_jax(spec: P) -> None:
    x = np.random.default_rng(1).standard_normal((8, 16, 6)).astype(np.float32)
    indices = jnp.array([0, 3, 3, 9, -1, 20])

    def f(a: Any) -> Any:
        return (
            jax.lax.approx_max_k(a, 3, reduction_dimension=1),
            jax.lax.approx_max_k(a, 3, aggregate_to_topk=False),
            jax.lax.approx_min_k(a, 3),
            a.at[indices].apply(lambda b: 2 * b + 1),
            a.at[:, indices, indices].apply(jnp.sin),
        )

    got, want = spmdc.jit(f, mesh=MESH, in_shardings=(spec,))(x), jax.jit(f)(x)
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_the_smallest_of_a_split_dim_are_found_among_candidates() -> None:
    """Each of 8 devices gets the candidates of 2 rows from the others: 3 values of f32, and their places if those are
    asked for. Then it gets the results: two rows from each, or one with the two values that are asked for."""
    x = np.random.default_rng(1).permutation(16 * 1024).reshape(16, 1024).astype(np.float32)
    cases = {
        "approx_min_k": (lambda a: jax.lax.approx_min_k(a, 3), 2, 2 * 6),
        "argsort": (lambda a: jnp.argsort(a, axis=1)[:, :3], 2, 6),
        "sort": (lambda a: jnp.sort(a, axis=1)[:8:2, 1:3], 1, 2),
    }
    for name, (f, sent, returned) in cases.items():
        fast = spmdc.jit(f, mesh={"x": 8}, in_shardings=P(None, "x"))
        for ours, theirs in zip(jax.tree.leaves(fast(x)), jax.tree.leaves(jax.jit(f)(x)), strict=True):
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs), err_msg=name)
        assert fast.partitioned(x).received_bytes() == 7 * 4 * (2 * 3 * sent + returned), name


@pytest.mark.parametrize(
    "f",
    [
        pytest.param(lambda a: -jnp.sort(a)[:3], id="an op of the same type"),
        pytest.param(lambda a: jax.lax.sort((-jnp.sort(a)[:3], jnp.arange(3))), id="an op of two results"),
        pytest.param(lambda a: (jnp.argsort(a)[:3][:3] * 2, jnp.sort(a)[1:3]), id="slices of slices"),
        pytest.param(lambda a: jax.lax.fori_loop(0, 3, lambda i, c: c + c[::-1], jnp.sort(a)[:3]), id="a loop"),
    ],
)
def test_what_is_computed_of_the_first_of_a_sort_is_computed_of_them(f: Callable[[jax.Array], object]) -> None:
    x = np.random.default_rng(1).permutation(16).astype(np.float32)
    partitioned = spmdc.partition(spmdc.from_jax(f, x, mesh={"x": 8}, in_shardings=(P("x"),)))
    for ours, theirs in zip(partitioned.simulate(x), jax.tree.leaves(f(jnp.asarray(x))), strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs))


def module(attributes: str, target: str = "lapack_sgetrf_ffi") -> str:
    """A module with LU of [6, 3, 3], the batch split."""
    return f"""
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<6x3x3xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}, {{}}]>}})
    -> (tensor<6x3x3xf32>, tensor<6x3xi32>, tensor<6xi32>) {{
  %0:3 = stablehlo.custom_call @{target}(%a) {{{attributes} operand_layouts = [dense<[1, 2, 0]> : tensor<3xindex>],
    result_layouts = [dense<[1, 2, 0]> : tensor<3xindex>, dense<[1, 0]> : tensor<2xindex>,
    dense<0> : tensor<1xindex>], output_operand_aliases = [#stablehlo.output_operand_alias<
    output_tuple_indices = [0], operand_index = 0, operand_tuple_indices = []>], mhlo.backend_config = {{}}}}
    : (tensor<6x3x3xf32>) -> (tensor<6x3x3xf32>, tensor<6x3xi32>, tensor<6xi32>)
  return %0#0, %0#1, %0#2 : tensor<6x3x3xf32>, tensor<6x3xi32>, tensor<6xi32>
}}"""


RULE = (
    "sdy.sharding_rule = #sdy.op_sharding_rule<([i, j, k])->([i, l, m], [i, n], [i]) {i=6, j=3, k=3, l=3, m=3, n=3}>,"
)
RULED = {
    "by Shardy's rule": RULE,
    "by Shardy's rule, as HLO has it": f'mhlo.frontend_attributes = {{xla.sdy.sharding_rule = "{RULE[20:-1]}"}},',
    "by the number of batch dims": 'mhlo.frontend_attributes = {num_batch_dims = "1"},',
}


@pytest.mark.parametrize("call", RULED)
def test_a_module_says_which_dims_a_call_may_be_split_along(call: str) -> None:
    program = spmdc.from_mlir(module(RULED[call]))
    partitioned = spmdc.partition(program)
    assert not partitioned.collectives()
    a = np.random.default_rng(2).integers(-4, 5, (6, 3, 3)).astype(np.float32)
    want = spmdc.evaluate(program, a)
    np.testing.assert_array_equal(want[0], np.asarray(linalg.lu(a)[0]))
    for got in (partitioned.simulate(a), partitioned.to_jax()(a)):
        for ours, theirs in zip(got, want, strict=True):
            np.testing.assert_array_equal(np.asarray(ours), theirs)


def test_a_call_of_which_nothing_is_declared_is_computed_whole() -> None:
    program = spmdc.from_mlir(module(""))
    partitioned = spmdc.partition(program)
    assert [w.code for w in partitioned.warnings] == ["W001"]
    assert [(c.kind, c.bytes) for c in partitioned.collectives()] == [("all_gather", 108)]
    a = np.random.default_rng(2).standard_normal((6, 3, 3)).astype(np.float32)
    for ours, theirs in zip(partitioned.to_jax()(a), linalg.lu(a), strict=True):
        if ours.ndim > 1:
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs) + (ours.ndim == 2))


@pytest.fixture
def rules() -> Iterator[dict[str, str]]:
    """The rules that users have given, as they were afterwards."""
    before = dict(custom_calls.RULES)
    yield custom_calls.RULES
    custom_calls.RULES.clear()
    custom_calls.RULES.update(before)


@pytest.mark.usefixtures("rules")
def test_a_user_gives_a_call_its_rule() -> None:
    spmdc.register_rule("lapack_sgetrf_ffi", "... i j -> ... k l, ... m, ...")
    program = spmdc.from_mlir(module(""))
    assert not spmdc.partition(program).collectives()
    (op,) = program.main.body.ops
    assert op.attrs["rule"] == "... i j -> ... k l, ... m, ..."


def test_a_factor_that_a_call_reduces_is_summed_over_devices() -> None:
    program = spmdc.parse("""
        mesh (x=2)
        def main(a: f32[6, 8@x], b: f32[8@x, 4]) -> (c: f32[6, 4]) {
          return opaque(a, b, target="f", types=[f32[6, 4]], rule="i k, k j -> i j {k: reduction(sum)}")
        }""")
    partitioned = spmdc.partition(program)
    assert [c.kind for c in partitioned.collectives()] == ["all_reduce"]
    assert not partitioned.warnings


WRONG = {
    "b i j": "'->' is missing at its end",
    "b i -> b ?": "'?' stands in it",
    "b i i -> b": "a tensor has the same factor twice",
    "b i -> b {k: need_replication}": "no tensor has",
    "b i -> b {i: split}": "may be parallel, need_replication, or reduction(sum)",
    "b i -> b {i: parallel}": "no result has it",
    "b i -> b {i: reduction(mean)}": "may be by sum",
}


@pytest.mark.parametrize("rule", WRONG)
def test_what_is_no_rule_is_refused(rule: str, rules: dict[str, str]) -> None:
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.register_rule("f", rule)
    assert caught.value.diagnostics[0].code == "E201"
    assert WRONG[rule] in caught.value.diagnostics[0].message
    assert "f" not in rules


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("b i -> b i, b j, b", "operand 0 has 3 dims, and 2 in the rule"),
        ("b i j -> b i j, b i", "of 1 operands and 2 results"),
        ("b i j -> i j b, b k, b", "factor i of the rule"),
        ("(b c) i j -> (b c) k l, (b c) m, (b c)", "does not say how large b is"),
        ("(b c) i j -> (b c) k l, (b c) m, (b c) {b=2, c=2}", "is 4, and the dim is 6"),
    ],
)
def test_a_rule_that_does_not_fit_a_call_is_reported_at_the_call(rule: str, why: str) -> None:
    spmdc.register_rule("lapack_sgetrf_ffi", rule)
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.from_mlir(module(""))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E201"
    assert diagnostic.span is not None
    assert why in diagnostic.message


PARTS = """
mesh (x=4)

def main(a: f32[6@x, 3, 3]) -> (lu: f32[6, 3, 3], p: s32[6, 3], info: s32[6]) {
  lu, p, info = opaque(a, target="lapack_sgetrf_ffi", types=[f32[6, 3, 3], s32[6, 3], s32[6]], rule="RULE",
    operand_layouts=[[0, 2, 1]], result_layouts=[[0, 2, 1], [0, 1], [0]], aliases=[[0, 0]])
  return lu, p, info
}
"""


def test_a_compound_factor_is_split_in_its_major_part() -> None:
    program = spmdc.parse(PARTS.replace("RULE", "(b c) i j -> (b c) k l, (b c) m, (b c) {b=2}").replace("x=4", "x=2"))
    assert spmdc.parse(spmdc.partition(program).text()).stage == "spmd"
    assert not spmdc.partition(program).collectives()


def test_the_rule_of_a_call_is_verified(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong = tmp_path / "right.spmd", tmp_path / "wrong.spmd"
    right.write_text(PARTS.replace("RULE", "b i j -> b k l, b m, b"))
    wrong.write_text(PARTS.replace("RULE", "b i j -> b i j, b k, b {j: parallel}"))
    assert main(["verify", str(right), "--rules"]) == 0
    assert "0 wrong" in capsys.readouterr().out
    assert main(["verify", str(wrong), "--rules"]) == 1
    assert "error[E509]" in capsys.readouterr().err
    wrong.write_text("def main(a: f32[2]) -> (b: f32[2]) { return a }")
    assert main(["verify", str(wrong), "--rules"]) == 2
    assert main(["verify", str(wrong), "--rules", "add"]) == 2


@pytest.mark.parametrize(
    ("target", "way_out"),
    [("nobody_has_it", "jax.ffi.register_ffi_target"), ("lapack_nobody_ffi", "devices of the CPU")],
)
def test_a_call_that_the_runtime_does_not_have_is_reported_at_its_line(target: str, way_out: str) -> None:
    program = spmdc.from_mlir(module(RULE, target=target))
    a = np.zeros((6, 3, 3), np.float32)
    for run in (lambda: spmdc.evaluate(program, a), lambda: spmdc.partition(program).to_jax()(a)):
        with pytest.raises(spmdc.SpmdcError) as caught:
            run()
        (diagnostic,) = caught.value.diagnostics
        assert diagnostic.code == "E510"
        assert target in diagnostic.message
        assert way_out in diagnostic.help
        assert diagnostic.span is not None


def test_options_of_a_call_arrive_as_they_are_written() -> None:
    given = (
        'a = dense<[1, 2]> : tensor<2xi64>, b = array<i32: 1, 2>, c = "x\\22y", d = {e = 1.500000e+00 : f32}, '
        "g = [1 : i32, 2 : ui8], h = true"
    )
    text = module(RULE, target="f").replace("mhlo.backend_config = {}", f"mhlo.backend_config = {{{given}}}")
    program = spmdc.from_mlir(text)
    assert spmdc.parse(spmdc.partition(program).text()).main.body.ops[0].attrs["config"] == f"{{{given}}}"
    lowered = spmdc.partition(program).stablehlo_text()
    for option in given.replace("array<i32: 1, 2>", "dense<[1, 2]> : tensor<2xi32>").split(", g ")[0].split(", b "):
        assert option in lowered


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("{", "no dictionary of options: expected a name"),
        ("3 : i32", "no dictionary"),
        ("{a = i32}", "expected a number"),
        (f"{{a = {'[' * 100_000}}}", "nest more than 64 deep"),
    ],
)
def test_options_that_cannot_be_given_are_reported(config: str, why: str) -> None:
    program = spmdc.parse(PARTS.replace("RULE", f'", config="{config}'))
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.partition(program).jax_source()
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E201"
    assert why in diagnostic.message
    assert diagnostic.span is not None


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("[[0, 2, 1]]", "[[0, 2, 2]]", "operand_layouts does not order the dims"),
        ("aliases=[[0, 0]]", "aliases=[[0]]", "aliases are pairs"),
        ("aliases=[[0, 0]]", "aliases=[[0, 5]]", "no result 5"),
        ("aliases=[[0, 0]]", "aliases=[[0, 1]]", "and its alias s32[6, 3]"),
        ('target="lapack_sgetrf_ffi"', "target=lapack", "must be a text in quotes"),
        ("types=[f32[6, 3, 3], s32[6, 3], s32[6]]", "types=f32[6]", "must be a list of types"),
    ],
)
def test_attributes_of_a_call_that_make_no_sense_are_reported(before: str, after: str, why: str) -> None:
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.parse(PARTS.replace("RULE", "b i j -> b k l, b m, b").replace(before, after))
    assert why in caught.value.diagnostics[0].message


def test_an_untyped_call_keeps_its_options_as_a_text() -> None:
    text = module(RULE, target="f").replace(
        "mhlo.backend_config = {}", 'backend_config = "a\\22b", api_version = 2 : i32'
    )
    partitioned = spmdc.partition(spmdc.from_mlir(text))
    assert "custom_call_api_version=2, legacy_backend_config='a\"b'" in partitioned.jax_source()


def test_a_call_of_functions_is_refused() -> None:
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.from_mlir(module("called_computations = [@main],"))
    assert [d.code for d in caught.value.diagnostics] == ["E705"]


def _of_every_routine(a: Any) -> Any:
    symmetric = a + a.mT
    return (
        linalg.lu(a),
        jnp.linalg.qr(a),
        jnp.linalg.eigh(symmetric),
        jnp.linalg.svd(a),
        jnp.linalg.svd(a, compute_uv=False),
        linalg.tridiagonal(symmetric),
        linalg.tridiagonal_solve(a[..., 0], a[..., 1] + 8, a[..., 2], a),
    )


def test_other_devices_than_the_hosts_need_no_lapack() -> None:
    partitioned = spmdc.partition(spmdc.from_jax(_of_every_routine, SQUARES, mesh=MESH, in_shardings=(P("x"),)))
    names: dict[str, Any] = {}
    exec(compile(partitioned.jax_source(), "module", "exec"), names)
    on_mesh = names["on_mesh"](names["make_mesh"](jax.devices()[:8]))
    lowered = {p: on_mesh.trace(SQUARES).lower(lowering_platforms=(p,)).as_text() for p in ("cpu", "cuda")}
    assert "@lapack_sgesdd_ffi" in lowered["cpu"]
    assert "@cusolver_getrf_ffi" not in lowered["cpu"]
    assert "@cusolver_getrf_ffi" in lowered["cuda"]
    assert "lapack" not in lowered["cuda"]


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_what_other_devices_compute_is_what_lapack_gives(dtype: str) -> None:
    """Here both are LAPACK's in the end: vectors have the same signs."""
    a = SQUARES.astype(dtype)
    if dtype == "complex64":
        a = a + 1j * a.swapaxes(1, 2)[:, ::-1]
    functions = (_of_every_routine, jnp.linalg.eig)
    program = spmdc.from_jax(lambda a: [f(a) for f in functions], a)
    calls = [op for op in all_ops(program) if op.name == "opaque"]
    source = jax_source(program)
    assert len(calls) == source.count(", cpu=lambda") > 7
    names: dict[str, Any] = {}
    exec(compile(source.replace("cpu=lambda", "tpu=lambda"), "module", "exec"), names)
    for ours, theirs in zip(names["main"](a), spmdc.evaluate(program, a), strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-5, atol=1e-5)


def test_calls_of_hlo_text_are_made_too() -> None:
    program = spmdc.from_hlo("""
HloModule m, num_partitions=2

ENTRY main {
  a = f32[6,3,3]{2,1,0} parameter(0), sharding={devices=[2,1,1]<=[2]}
  ROOT r = (f32[6,3,3]{1,2,0}, s32[6,3]{1,0}, s32[6]{0}) custom-call(a), custom_call_target="lapack_sgetrf_ffi",
    operand_layout_constraints={f32[6,3,3]{1,2,0}}, api_version=API_VERSION_TYPED_FFI, backend_config={},
    frontend_attributes={num_batch_dims="1"}
}
""")
    partitioned = spmdc.partition(program)
    assert not partitioned.collectives()
    a = np.random.default_rng(3).standard_normal((6, 3, 3)).astype(np.float32)
    factors, pivots, _ = partitioned.simulate(a)
    want = linalg.lu(a)
    np.testing.assert_array_equal(factors, np.asarray(want[0]))
    np.testing.assert_array_equal(pivots, np.asarray(want[1]) + 1)


def test_what_a_partitioning_by_hand_and_an_interpreted_kernel_compute_is_split_as_any_program() -> None:
    def double(x: Any, out: Any) -> None:
        out[...] = 2 * x[...]

    inverted = partitioned_by_hand(lambda a: jnp.linalg.inv(a) + 1)
    inverted.def_partition(
        partition=lambda mesh, args, result: (mesh, inverted, result.sharding, (args[0].sharding,)),
        sharding_rule="b i j -> b k l",
    )

    def f(a: Any) -> Any:
        kernel = pallas.pallas_call(double, out_shape=jax.eval_shape(lambda x: x, a), interpret=True)
        return inverted(kernel(a))

    program = spmdc.from_jax(f, SQUARES, mesh=MESH, in_shardings=(P("x"),))
    partitioned = spmdc.partition(program)
    assert not partitioned.collectives()
    np.testing.assert_array_equal(np.asarray(partitioned.to_jax()(SQUARES)[0]), np.asarray(jax.jit(f)(SQUARES)))


@pytest.mark.parametrize(("size", "kind"), [(12, "all_reduce"), (13, "all_gather")])
def test_what_a_call_reduces_is_split_where_it_divides_for_nobody_knows_what_padding_is_to_it(
    size: int, kind: str
) -> None:
    spmdc.register_callback("powers", lambda x: (2**x).sum(1)[None])
    program = spmdc.parse(
        f"mesh (x=4)\ndef main(a: f32[8, {size}@x]) -> (r: f32[8]) {{\n"
        '  return opaque(a, target="f", types=[f32[8]], rule="b i -> b {i: reduction(sum)}", function=powers)\n}'
    )
    found = spmdc.partition(program)
    assert [c.kind for c in found.collectives()] == [kind]
    a = np.arange(8 * size, dtype="f4").reshape(8, size) % 5
    for results in (found.simulate(a), found.to_jax()(a)):
        np.testing.assert_array_equal(np.asarray(results[0]), (2**a).sum(1))
