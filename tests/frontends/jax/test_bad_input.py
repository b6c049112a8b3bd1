"""What cannot be imported is reported with its place and a way out, never by a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import spmdc
from spmdc.cli import main

P: Any = jax.sharding.PartitionSpec
LAX: Any = jax.lax
STRUCT: Any = jax.ShapeDtypeStruct
X = np.ones((4, 6), "f4")


def mlir(body: str, arguments: str = "%x: tensor<4x6xf32>", result: str = "tensor<4x6xf32>", head: str = "") -> str:
    return f"module {{\n{head}\nfunc.func @main({arguments}) -> {result} {{\n{body}\n}}\n}}\n"


MLIR = {
    "E701 no MLIR at all": "module { func.func @main( }",
    "E701 types that do not fit": mlir("  %0 = stablehlo.add %x, %x : tensor<4x5xf32>\n  return %0 : tensor<4x5xf32>"),
    "E702 op of another dialect": mlir(
        "  %0 = math.sin %x : tensor<4x6xf32>\n  return %0 : tensor<4x6xf32>",
    ),
    "E703 dynamic argument": mlir("  return %x : tensor<?x6xf32>", "%x: tensor<?x6xf32>", "tensor<?x6xf32>"),
    "E703 dynamic reshape": mlir(
        "  %0 = stablehlo.dynamic_reshape %x, %s : (tensor<4x6xf32>, tensor<1xi32>) -> tensor<?xf32>\n"
        "  return %0 : tensor<?xf32>",
        "%x: tensor<4x6xf32>, %s: tensor<1xi32>",
        "tensor<?xf32>",
    ),
    "E704 send to another program": mlir(
        '  %t = stablehlo.create_token : !stablehlo.token\n  %1 = "stablehlo.send"(%x, %t) <{channel_handle = '
        "#stablehlo.channel_handle<handle = 1, type = 1>}> : (tensor<4x6xf32>, !stablehlo.token) -> !stablehlo.token\n"
        "  return %x : tensor<4x6xf32>"
    ),
    "E704 callback of a module that is read from text": mlir(
        "  %0 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%x) {mhlo.backend_config = {index = 0 : ui64}} : "
        "(tensor<4x6xf32>) -> tensor<4x6xf32>\n  return %0 : tensor<4x6xf32>"
    ),
    "E705 unknown custom call of a function": mlir(
        "  %0 = stablehlo.custom_call @magic(%x) {called_computations = [@main]} : "
        "(tensor<4x6xf32>) -> tensor<4x6xf32>\n  return %0 : tensor<4x6xf32>"
    ),
    "E706 element type": mlir("  return %x : tensor<4xi7>", "%x: tensor<4xi7>", "tensor<4xi7>"),
    "E708 comparator": mlir(
        "  %o = stablehlo.constant dense<0.0> : tensor<f32>\n  %k = stablehlo.reduce(%x init: %o) applies "
        "stablehlo.add across dimensions = [0, 1] : (tensor<4x6xf32>, tensor<f32>) -> tensor<f32>\n"
        '  %0 = "stablehlo.sort"(%x) <{dimension = 0 : i64}> ({\n'
        "  ^b(%a: tensor<f32>, %b: tensor<f32>):\n    %p = stablehlo.compare LT, %a, %k : "
        "(tensor<f32>, tensor<f32>) -> tensor<i1>\n    stablehlo.return %p : tensor<i1>\n  }) : "
        "(tensor<4x6xf32>) -> tensor<4x6xf32>\n  return %0 : tensor<4x6xf32>"
    ),
    "E709 collective outside of a manual region": mlir(
        '  %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<'
        "handle = 1, type = 1>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}> : "
        "(tensor<4x6xf32>) -> tensor<8x6xf32>\n  %1 = stablehlo.custom_call @Sharding(%0) {mhlo.sharding = "
        '"{replicated}"} : (tensor<8x6xf32>) -> tensor<8x6xf32>\n  return %1 : tensor<8x6xf32>',
        '%x: tensor<4x6xf32> {mhlo.sharding = "{devices=[2,1]<=[2]}"}',
        "tensor<8x6xf32>",
    ),
    "E301 an axis that the mesh does not have": mlir(
        '  %0 = sdy.sharding_constraint %x <@m, [{"z"}, {}]> : tensor<4x6xf32>\n  return %0 : tensor<4x6xf32>',
        head='sdy.mesh @m = <["x"=4]>',
    ),
    "E303 manual": mlir("  return %x : tensor<4x6xf32>", '%x: tensor<4x6xf32> {mhlo.sharding = "{manual}"}'),
    "E309 no sharding": mlir("  return %x : tensor<4x6xf32>", '%x: tensor<4x6xf32> {mhlo.sharding = "{tiles}"}'),
    "E403 no functions": "module {}",
}


@pytest.mark.parametrize("what", MLIR)
def test_a_module_that_cannot_be_imported_is_refused_with_its_code(what: str) -> None:
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.from_mlir(MLIR[what], "bad.mlir")
    assert refused.value.diagnostics[0].code == what.partition(" ")[0]


@pytest.mark.parametrize("what", [w for w in MLIR if w[:4] in ("E702", "E704", "E705", "E708", "E709")])
def test_what_is_refused_of_a_text_names_the_op_and_its_line(what: str) -> None:
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.from_mlir(MLIR[what], "bad.mlir")
    (first, *_) = refused.value.diagnostics
    assert first.span is not None
    op = first.message.partition(":")[0]
    assert op.partition(".")[2] in (first.span.source.line(first.span.line) or "")
    assert first.help


def test_all_ops_that_cannot_be_imported_are_reported_at_once() -> None:
    call = "{called_computations = [@main]} : (tensor<4x6xf32>) -> tensor<4x6xf32>"
    body = "".join(f"  %{i} = stablehlo.custom_call @magic{i}(%x) {call}\n" for i in range(3))
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.from_mlir(mlir(body + "  %s = stablehlo.add %0, %1 : tensor<4x6xf32>\n  return %s : tensor<4x6xf32>"))
    assert [d.code for d in refused.value.diagnostics] == ["E705"] * 3


def test_hlo_that_does_not_parse_is_reported_with_its_line() -> None:
    text = "HloModule m\n\nENTRY main {\n  ROOT x = f32[4] parametr(0)\n}\n"
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.from_hlo(text, "bad.hlo")
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.code == "E701"
    assert diagnostic.span is not None
    assert diagnostic.span.line == 4


@pytest.mark.parametrize(
    ("sharding", "code"),
    [
        ("{devices=[8]0,1,2,3,4,5,6,6}", "E304"),
        ("{devices=[4,2]<=[8]}", "E303"),
    ],
)
def test_a_sharding_that_does_not_fit_is_refused_where_it_stands(sharding: str, code: str) -> None:
    text = f"HloModule m, num_partitions=8\n\nENTRY main {{\n  ROOT x = f32[8] parameter(0), sharding={sharding}\n}}\n"
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.from_hlo(text, "bad.hlo")
    (diagnostic, *_) = refused.value.diagnostics
    assert diagnostic.code == code


def test_a_mesh_for_another_number_of_devices_than_the_module_is_refused() -> None:
    text = mlir("  return %x : tensor<4x6xf32>", head='sdy.mesh @m = <["x"=4]>')
    text = text.replace("module {", "module attributes {mhlo.num_partitions = 8 : i32} {", 1)
    with pytest.raises(spmdc.SpmdcError, match="E305"):
        spmdc.from_mlir(text)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "E704 numbers that a loop draws": lambda x: jax.lax.fori_loop(
        0, 3, lambda _, c: c + LAX.rng_uniform(0.0, 1.0, (4, 6)), x
    ),
}


@pytest.mark.parametrize("what", FUNCTIONS)
def test_a_jax_function_that_cannot_be_imported_is_refused_at_its_line(what: str) -> None:
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.from_jax(FUNCTIONS[what], X)
    (diagnostic, *_) = refused.value.diagnostics
    assert diagnostic.code == what.partition(" ")[0]
    assert diagnostic.span is not None
    assert diagnostic.span.source.name == __file__


@pytest.mark.parametrize(
    ("spec", "code"),
    [(P("z"), "E301"), (P("x", "x"), "E302"), (P("x", None, None), "E303"), ([P("x")], "E303")],
)
def test_in_shardings_that_do_not_fit_are_refused(spec: Any, code: str) -> None:
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.from_jax(lambda x: x, X, mesh={"x": 2}, in_shardings=(spec,))
    assert refused.value.diagnostics[0].code == code


def test_errors_of_the_function_itself_are_its_own() -> None:
    with pytest.raises(TypeError, match="dot_general"):
        spmdc.from_jax(lambda x: x @ x, X)


@pytest.mark.parametrize("ending", ["mlir", "hlo"])
def test_the_command_line_tells_a_file_that_does_not_parse(
    ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"bad.{ending}"
    path.write_text("nonsense")
    assert main(["check", str(path)]) == 1
    assert "E701" in capsys.readouterr().err


NOWHERE: Any = jax.extend.core.Primitive("nowhere")
"""An op that JAX can lower for no platform."""
NOWHERE.def_abstract_eval(lambda x: x)


@pytest.mark.parametrize(
    ("op", "dtype", "what", "line"),
    [
        (NOWHERE.bind, "float32", "nowhere of float32[4,4]", "return op(x * 2)"),
        (lambda v: LAX.map(lambda row: NOWHERE.bind(row + 1), v), "float32", "nowhere of float32[4]", "bind(row + 1)"),
        (jax.numpy.linalg.cholesky, "bfloat16", "cholesky of bfloat16[4,4]", "return op(x * 2)"),
        (lambda v: jax.numpy.linalg.qr(v[None]), "float16", "qr of float16[1,4,4]", "qr(v[None])"),
    ],
)
def test_an_op_that_jax_does_not_lower_is_named_with_its_line(
    op: Callable[[Any], Any], dtype: str, what: str, line: str
) -> None:
    """Newer versions of JAX refuse some when they are traced: that error is the function's own."""

    def function(x: Any) -> Any:
        return op(x * 2)

    x = np.eye(4).astype(dtype)
    with pytest.raises((NotImplementedError, TypeError)) as of_jax:
        jax.jit(function).lower(x)
    for call in (lambda: spmdc.jit(function, mesh={"x": 4})(x), lambda: spmdc.from_jax(function, x)):
        with pytest.raises((spmdc.SpmdcError, TypeError)) as refused:
            call()
        if of_jax.type is TypeError:
            assert str(refused.value) == str(of_jax.value)
            continue
        assert isinstance(refused.value, spmdc.SpmdcError)
        (found,) = refused.value.diagnostics
        assert (found.code, found.message) == ("E712", f"JAX does not have {what} for the CPU")
        assert found.span is not None
        assert found.span.source.name == __file__
        assert line in str(found.span.source.line(found.span.line))
        assert found.notes
        assert "astype" in found.help


def test_an_argument_of_any_size_is_refused() -> None:
    rows = STRUCT(jax.export.symbolic_shape("rows, 4"), jnp.float32)
    for call in (lambda: spmdc.jit(jnp.sin, mesh={"x": 4}).lower(rows), lambda: spmdc.from_jax(jnp.sin, rows)):
        with pytest.raises(spmdc.SpmdcError, match=r"E703.*sin has a dim of size rows"):
            call()


def test_a_function_that_jax_cannot_refer_to_is_refused_at_once() -> None:
    """jax.jit refuses the first call, and ends the process at a second use."""
    rows, add = STRUCT((4,), jnp.float32), np.add
    for call in (lambda: spmdc.jit(add, mesh={"x": 4}), lambda: spmdc.from_jax(add, rows, rows)):
        for _ in range(2):
            with pytest.raises(TypeError, match=r"cannot create weak reference to 'numpy\.ufunc' object"):
                call()


@pytest.mark.parametrize("given", [3, "f", [jnp.sin]])
def test_what_is_no_function_is_refused_as_by_jax(given: Any) -> None:
    for wrap in (jax.jit, spmdc.jit):
        with pytest.raises(TypeError, match="Expected a callable value, got"):
            wrap(given)
