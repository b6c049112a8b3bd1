"""StableHLO as text: the spellings of shardings, and ops that JAX does not emit but others do."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.export
import numpy as np
import pytest
from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import stablehlo

import spmdc
from ir.diagnostics import SpmdcError
from ir.mesh import AxisRef, Mesh
from ir.program import Program, all_ops
from spmdc.cli import main
from spmdc.frontends.stablehlo.mlir_modules import new_context

X = np.arange(24, dtype="f4").reshape(4, 6)


def module(body: str, *, head: str = "", argument: str = "", result: str = "tensor<4x6xf32>") -> str:
    return f"module {{\n{head}\nfunc.func @main(%x: tensor<4x6xf32> {argument}) -> {result} {{\n{body}\n}}\n}}\n"


MESH = 'sdy.mesh @mesh = <["x"=4, "y"=2]>'


def sharded(sharding: str, head: str = MESH) -> Program:
    argument = "{sdy.sharding = #sdy.sharding<" + sharding + ">}"
    return spmdc.from_mlir(module("return %x : tensor<4x6xf32>", head=head, argument=argument))


def test_dims_are_open_or_closed_and_have_priorities() -> None:
    sharding = sharded('@mesh, [{"x", ?}p1, {}]').main.params[0].sharding
    assert sharding is not None
    assert sharding.axes == ((AxisRef("x", 1, 4),), ())
    assert [(d.open, d.priority) for d in sharding.dims] == [(True, 1), (False, 0)]


def test_parts_of_axes_replicated_and_unreduced_ones_are_kept() -> None:
    sharding = sharded('@mesh, [{"x":(1)2}, {}], replicated={"y"}, unreduced={"x":(2)2}').main.params[0].sharding
    assert sharding is not None
    assert sharding.axes == ((AxisRef("x", 1, 2),), ())
    assert sharding.replicated == (AxisRef("y", 1, 2),)
    assert sharding.partial == ((AxisRef("x", 2, 2), "sum"),)


def test_axes_that_our_language_cannot_spell_are_renamed() -> None:
    program = sharded('@mesh, [{"data parallel"}, {}]', head='sdy.mesh @mesh = <["data parallel"=4, "def"=2]>')
    assert program.mesh.names == ("data_parallel", "def_")
    assert spmdc.parse(spmdc.propagate(program).text()).mesh == program.mesh


def test_a_mesh_in_another_order_of_devices_is_another_mesh() -> None:
    body = (
        '%0 = sdy.sharding_constraint %x <@mesh, [{"x"}, {}]> : tensor<4x6xf32>\n'
        '%1 = sdy.sharding_constraint %0 <@other, [{"x"}, {}]> : tensor<4x6xf32>\nreturn %1 : tensor<4x6xf32>'
    )
    head = 'sdy.mesh @mesh = <["x"=4]>\nsdy.mesh @other = <["x"=4], device_ids=[3, 2, 1, 0]>'
    program = spmdc.from_mlir(module(body, head=head))
    assert [m.device_ids for m in program.meshes] == [(0, 1, 2, 3), (3, 2, 1, 0)]
    np.testing.assert_array_equal(spmdc.partition(program).simulate(X)[0], X)


def test_ops_results_and_constraints_are_annotated() -> None:
    body = (
        '%0 = stablehlo.add %x, %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {"y"}]>]>} : '
        "tensor<4x6xf32>\nreturn %0 : tensor<4x6xf32>"
    )
    result = 'tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}'
    program = spmdc.from_mlir(module(body, head=MESH, result=f"({result})"))
    (add,) = program.main.body.ops
    assert add.result.sharding is not None
    assert add.result.sharding.axes == ((AxisRef("x", 1, 4),), (AxisRef("y", 1, 2),))
    declared = program.main.results[0].sharding
    assert declared is not None
    assert declared.axes == ((), (AxisRef("x", 1, 4),))


def test_a_mesh_without_axes_says_nothing() -> None:
    program = sharded("@empty_mesh, [{}, {}]", head="sdy.mesh @empty_mesh = <[]>")
    assert program.mesh == Mesh(())
    assert program.main.params[0].sharding is None


def test_hints_of_shardy_leave_values_as_they_are() -> None:
    body = (
        "sdy.sharding_group %x group_id=0 : tensor<4x6xf32>\n"
        "%0 = sdy.propagation_barrier %x allowed_direction=NONE : tensor<4x6xf32>\n"
        "return %0 : tensor<4x6xf32>"
    )
    program = spmdc.from_mlir(module(body, head=MESH))
    assert [(op.name, op.attrs["group"], op.attrs["passes"]) for op in program.main.body.ops] == [
        ("shard", 0, "both"), ("shard", None, "none")
    ]  # fmt: skip
    (x,) = spmdc.random_inputs(program)
    np.testing.assert_array_equal(spmdc.evaluate(program, x)[0], x)


BODIES = {
    "dynamic_reshape": (
        "%s = stablehlo.constant dense<24> : tensor<1xi32>\n"
        "%0 = stablehlo.dynamic_reshape %x, %s : (tensor<4x6xf32>, tensor<1xi32>) -> tensor<24xf32>\n"
        "return %0 : tensor<24xf32>",
        "tensor<24xf32>",
        X.ravel(),
    ),
    "real_dynamic_slice": (
        "%a = stablehlo.constant dense<[1, 0]> : tensor<2xi32>\n%b = stablehlo.constant dense<[3, 6]> : tensor<2xi32>\n"
        "%c = stablehlo.constant dense<[1, 2]> : tensor<2xi32>\n%0 = stablehlo.real_dynamic_slice %x, %a, %b, %c : "
        "(tensor<4x6xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<2x3xf32>\n"
        "return %0 : tensor<2x3xf32>",
        "tensor<2x3xf32>",
        X[1:3, ::2],
    ),
    "dynamic_pad": (
        "%z = stablehlo.constant dense<7.0> : tensor<f32>\n%a = stablehlo.constant dense<[1, 0]> : tensor<2xi32>\n"
        "%b = stablehlo.constant dense<0> : tensor<2xi32>\n%0 = stablehlo.dynamic_pad %x, %z, %a, %b, %b : "
        "(tensor<4x6xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<5x6xf32>\n"
        "return %0 : tensor<5x6xf32>",
        "tensor<5x6xf32>",
        np.pad(X, ((1, 0), (0, 0)), constant_values=7),
    ),
    "einsum": (
        '%0 = "stablehlo.einsum"(%x, %x) <{einsum_config = "ij,kj->ik"}> : '
        "(tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x4xf32>\nreturn %0 : tensor<4x4xf32>",
        "tensor<4x4xf32>",
        X @ X.T,
    ),
    "torch_index_select": (
        "%i = stablehlo.constant dense<[3, 1]> : tensor<2xi32>\n"
        '%0 = "stablehlo.torch_index_select"(%x, %i) <{batch_dims = 0 : i64, dim = 0 : i64}> : '
        "(tensor<4x6xf32>, tensor<2xi32>) -> tensor<2x6xf32>\nreturn %0 : tensor<2x6xf32>",
        "tensor<2x6xf32>",
        X[[3, 1]],
    ),
    "broadcast_add": (
        "%r = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]> : tensor<6xf32>\n"
        "%0 = chlo.broadcast_add %x, %r : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>\n"
        "return %0 : tensor<4x6xf32>",
        "tensor<4x6xf32>",
        X + np.arange(1, 7, dtype="f4"),
    ),
    "if": (
        "%t = stablehlo.constant dense<true> : tensor<i1>\n"
        '%0 = "stablehlo.if"(%t) ({\n  stablehlo.return %x : tensor<4x6xf32>\n}, {\n'
        "  %n = stablehlo.negate %x : tensor<4x6xf32>\n  stablehlo.return %n : tensor<4x6xf32>\n}) : "
        "(tensor<i1>) -> tensor<4x6xf32>\nreturn %0 : tensor<4x6xf32>",
        "tensor<4x6xf32>",
        X,
    ),
    "bf16_and_complex_constants": (
        "%h = stablehlo.constant dense<[1.5, -2.5, 3.0, 0.0, 1.0, 2.0]> : tensor<6xbf16>\n"
        "%w = stablehlo.convert %h : (tensor<6xbf16>) -> tensor<6xf32>\n"
        "%c = stablehlo.constant dense<(2.0, 3.0)> : tensor<6xcomplex<f32>>\n"
        "%m = stablehlo.imag %c : (tensor<6xcomplex<f32>>) -> tensor<6xf32>\n%s = stablehlo.multiply %w, %m : "
        "tensor<6xf32>\n%b = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<6xf32>) -> tensor<4x6xf32>\n"
        "%0 = stablehlo.add %x, %b : tensor<4x6xf32>\nreturn %0 : tensor<4x6xf32>",
        "tensor<4x6xf32>",
        X + 3 * np.array([1.5, -2.5, 3, 0, 1, 2], "f4"),
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_an_op_that_jax_does_not_emit_computes_what_it_should(name: str) -> None:
    body, result, expected = BODIES[name]
    program = spmdc.from_mlir(module(body, result=result))
    np.testing.assert_array_equal(spmdc.evaluate(program, X)[0], expected)


COMPOSITES = {
    "my.twice": "add",
    "chlo.erf": "erf",
    "chlo.polygamma": "add",  # It has two operands.
    "chlo.constant_like": "add",  # It lacks its value.
    "chlo.add": "add",
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite_is_the_op_that_it_names_or_else_its_decomposition(name: str) -> None:
    text = (
        "module {\nfunc.func @main(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {\n"
        f'%0 = stablehlo.composite "{name}" %x {{decomposition = @twice}} : (tensor<4x6xf32>) -> tensor<4x6xf32>\n'
        "return %0 : tensor<4x6xf32>\n}\nfunc.func private @twice(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {\n"
        "%0 = stablehlo.add %x, %x : tensor<4x6xf32>\nreturn %0 : tensor<4x6xf32>\n}\n"
        "func.func private @never_called(%x: tensor<?xf32>) -> tensor<?xf32> {\nreturn %x : tensor<?xf32>\n}\n}\n"
    )
    program = spmdc.from_mlir(text)
    assert list(program.functions) == ["main"]
    assert [op.name for op in all_ops(program)] == [COMPOSITES[name]]
    if COMPOSITES[name] == "add":
        np.testing.assert_array_equal(spmdc.evaluate(program, X)[0], 2 * X)


def test_a_composite_of_a_type_that_its_op_lacks_is_its_decomposition() -> None:
    text = (
        "module {\nfunc.func @main(%x: tensor<4x6xcomplex<f32>>) -> tensor<4x6xcomplex<f32>> {\n"
        '%0 = stablehlo.composite "chlo.bessel_i1e" %x {decomposition = @twice} : '
        "(tensor<4x6xcomplex<f32>>) -> tensor<4x6xcomplex<f32>>\n"
        "return %0 : tensor<4x6xcomplex<f32>>\n}\n"
        "func.func private @twice(%x: tensor<4x6xcomplex<f32>>) -> tensor<4x6xcomplex<f32>> {\n"
        "%0 = stablehlo.add %x, %x : tensor<4x6xcomplex<f32>>\nreturn %0 : tensor<4x6xcomplex<f32>>\n}\n}\n"
    )
    assert [op.name for op in all_ops(spmdc.from_mlir(text))] == ["add"]


def test_what_jax_exports_selects_the_largest_elements_where_they_are() -> None:
    artifact = jax.export.export(jax.jit(lambda x: jax.lax.top_k(x, 2)))(X).mlir_module_serialized
    assert [op.name for op in all_ops(spmdc.from_mlir(artifact))] == ["top_k"]


def test_bytecode_is_read_as_text_is(tmp_path: Path) -> None:
    text = module("%0 = stablehlo.add %x, %x : tensor<4x6xf32>\nreturn %0 : tensor<4x6xf32>")
    path = tmp_path / "x.mlir"
    with new_context(), path.open("wb") as file:
        mlir.Module.parse(text).operation.write_bytecode(file)
    np.testing.assert_array_equal(spmdc.evaluate(spmdc.load(path), X)[0], 2 * X)


@pytest.mark.parametrize("version", [stablehlo.get_minimum_version(), stablehlo.get_current_version()])
def test_a_portable_artifact_is_read_as_its_module_is(version: str) -> None:
    body = """
        %0 = sdy.sharding_constraint %x <@mesh, [{}, {"y"}]> : tensor<4x6xf32>
        %1 = stablehlo.custom_call @f(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
        return %1 : tensor<4x6xf32>"""
    text = module(body, head=MESH)
    with new_context():
        artifact = stablehlo.serialize_portable_artifact(mlir.Module.parse(text), version, allow_other_dialects=True)
    of_artifact, of_text = (spmdc.propagate(spmdc.from_mlir(m)).text() for m in (artifact, text))
    assert of_artifact == of_text
    assert "@y" in of_text


def test_ops_know_their_line_of_the_file() -> None:
    program = spmdc.from_mlir(
        module("\n%0 = stablehlo.add %x, %x : tensor<4x6xf32>\nreturn %0 : tensor<4x6xf32>"), "a.mlir"
    )
    (add,) = all_ops(program)
    assert add.span is not None
    assert str(add.span).startswith("a.mlir:5")


@pytest.mark.parametrize("verb", ["check", "fmt", "run", "propagate", "partition", "lower"])
@pytest.mark.parametrize("ending", ["mlir", "hlo"])
def test_every_verb_takes_files_of_other_languages(
    verb: str, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {
        "mlir": module(
            "%0 = stablehlo.tanh %x : tensor<4x6xf32>\nreturn %0 : tensor<4x6xf32>",
            head=MESH,
            argument='{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}',
        ),
        "hlo": "HloModule m\n\nENTRY e {\n  x = f32[4,6] parameter(0), sharding={devices=[4,2]<=[8]}\n"
        "  ROOT t = f32[4,6] tanh(x)\n}\n",
    }
    path = tmp_path / f"a.{ending}"
    path.write_text(texts[ending])
    assert main([verb, str(path)]) == 0
    assert capsys.readouterr().out


def test_fmt_shows_a_module_in_our_language_and_leaves_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.hlo"
    text = "HloModule m\n\nENTRY e {\n  x = f32[4,6] parameter(0)\n  ROOT t = f32[4,6] tanh(x)\n}\n"
    path.write_text(text)
    assert main(["fmt", str(path)]) == 0
    shown = capsys.readouterr().out
    assert path.read_text() == text
    assert [op.name for op in all_ops(spmdc.parse(shown))] == ["tanh"]


def test_a_module_without_a_mesh_is_for_one_device() -> None:
    program = spmdc.from_mlir(module("return %x : tensor<4x6xf32>"))
    assert program.mesh == Mesh(())
    assert spmdc.parse(spmdc.propagate(program).text()).mesh == Mesh(())
    assert spmdc.partition(program).collectives() == []


def test_tensors_that_nothing_can_address_are_refused() -> None:
    for shape in ("x".join(["4294967296"] * 2), "2147483648", "x".join(["1"] * 70)):
        text = module("return %x : TYPE", result="TYPE").replace("tensor<4x6xf32>", "TYPE")
        text = text.replace("TYPE", f"tensor<{shape}xf32>")
        with pytest.raises(SpmdcError) as caught:
            spmdc.from_mlir(text)
        assert caught.value.diagnostics[0].code == "E205"


@pytest.mark.parametrize(
    ("type", "data", "value"),
    [
        ("tensor<2x2xi32>", "01000000020000000300000004000000", [[1, 2], [3, 4]]),
        ("tensor<2xbf16>", "803f0040", [1, 2]),
        ("tensor<1xcomplex<f32>>", "0000803f00000040", [1 + 2j]),
    ],
)
def test_a_constant_that_is_a_resource_is_read(type: str, data: str, value: list[object]) -> None:
    text = f"func.func @main() -> {type} {{\n  %0 = stablehlo.constant dense_resource<r> : {type}\n"
    text += f'  return %0 : {type}\n}}\n{{-# dialect_resources: {{builtin: {{r: "0x04000000{data}"}}}} #-}}'
    (found,) = spmdc.evaluate(spmdc.from_mlir(text))
    assert found.tolist() == value
