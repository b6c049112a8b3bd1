"""Which of the meshes that a module declares are those of the program."""

from __future__ import annotations

import numpy as np
import pytest

import spmdc
from ir.program import Program, all_ops

T = "tensor<8x8xf32>"
MESH = 'sdy.mesh @m = <["x"=2, "y"=4]>'
X = np.arange(64, dtype=np.float32).reshape(8, 8)


def module(meshes: str, sharding: str = '<@m, [{"x"}, {}]>', attributes: str = "") -> str:
    """The sine of a tensor that is sharded so."""
    return f"""module {attributes} {{
{meshes}
func.func @main(%x: {T} {{sdy.sharding = #sdy.sharding{sharding}}}) -> {T} {{
  %0 = stablehlo.sine %x : {T}
  return %0 : {T}
}}
}}"""


def region(meshes: str, mesh: str, axis: str) -> str:
    """A region by hand along an axis of size 2."""
    return f"""module {{
{meshes}
func.func @main(%x: {T}) -> {T} {{
  %0 = sdy.manual_computation(%x) in_shardings=[<{mesh}, [{{"{axis}"}}, {{}}]>]
      out_shardings=[<{mesh}, [{{"{axis}"}}, {{}}]>] manual_axes={{"{axis}"}} (%a: tensor<4x8xf32>) {{
    %1 = stablehlo.sine %a : tensor<4x8xf32>
    sdy.return %1 : tensor<4x8xf32>
  }} : ({T}) -> {T}
  return %0 : {T}
}}
}}"""


def check(text: str) -> Program:
    """The program, whose devices together compute the sine."""
    program = spmdc.from_mlir(text)
    found = spmdc.partition(program).simulate(X)[0] if program.meshes[0].size > 1 else spmdc.evaluate(program, X)[0]
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6, atol=1e-6)
    return program


@pytest.mark.parametrize("other", ['<["q"=4]>', "<[]>", "<[], device_ids=[0]>", '<["x"=2]>'])
@pytest.mark.parametrize("first", [True, False])
def test_a_mesh_that_nothing_uses_is_nothing(other: str, first: bool) -> None:
    meshes = [f"sdy.mesh @other = {other}", MESH]
    program = check(
        module("\n".join(meshes if first else meshes[::-1]), attributes="attributes {mhlo.num_partitions = 8 : i32}")
    )
    assert [str(mesh) for mesh in program.meshes] == ["x=2, y=4"]


def test_of_meshes_that_nothing_uses_those_count_that_are_as_large_as_the_module() -> None:
    text = module('sdy.mesh @a = <["p"=4]>\nsdy.mesh @b = <["q"=8]>', "<mesh<[]>, [{}, {}]>")
    assert [str(mesh) for mesh in check(text).meshes] == ["p=4"]
    text = text.replace("module ", "module attributes {mhlo.num_partitions = 8 : i32}", 1)
    assert [str(mesh) for mesh in check(text).meshes] == ["q=8"]


@pytest.mark.parametrize("sharding", ["<mesh<[]>, [{}, {}]>", "<mesh<[], device_ids=[0]>, []>", "<@one, []>"])
def test_a_mesh_without_axes_splits_nothing(sharding: str) -> None:
    program = check(module(MESH + "\nsdy.mesh @one = <[], device_ids=[3]>", sharding))
    assert not spmdc.partition(program).collectives()
    assert "arg0: f32[8, 8]" in spmdc.propagate(program).text()
    assert check(module("sdy.mesh @one = <[], device_ids=[3]>", sharding)).meshes[0].size == 1


@pytest.mark.parametrize(
    ("meshes", "mesh", "axis"),
    [
        (MESH, "@m", "x"),
        (MESH + '\nsdy.mesh @k = <["a"=4, "b"=2]>', "@k", "b"),
        ("", 'mesh<["q"=2, "r"=4]>', "q"),
    ],
    ids=["the only mesh", "the second mesh", "a mesh in the op"],
)
def test_a_region_by_hand_is_on_any_one_mesh(meshes: str, mesh: str, axis: str) -> None:
    program = check(region(meshes, mesh, axis))
    assert any(op.name == "manual" for op in all_ops(program))


@pytest.mark.parametrize("meshes", ["", "sdy.mesh @none = <[]>", MESH])
def test_a_region_along_no_axis_is_what_it_computes(meshes: str) -> None:
    sharding = "<@none, [{}, {}]>" if "@none" in meshes else "<mesh<[]>, [{}, {}]>"
    text = region(meshes, sharding[1:].partition(",")[0], "").replace('{""}', "{}").replace("4x8", "8x8")
    check(text)


def test_a_region_of_nothing_without_a_mesh_is_nothing() -> None:
    nothing = "sdy.manual_computation() in_shardings=[] out_shardings=[] manual_axes={} () {sdy.return} : () -> ()"
    program = spmdc.from_mlir(f"func.func @main(%x: {T}) -> {T} {{\n  {nothing}\n  return %x : {T}\n}}")
    assert program.meshes[0].size == 1
    assert not list(all_ops(program))
