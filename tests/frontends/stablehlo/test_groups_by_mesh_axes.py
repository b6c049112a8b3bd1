"""Collectives whose groups are said by axes of a mesh, as JAX writes them from 0.11 on."""

from __future__ import annotations

import numpy as np
import pytest

import spmdc
from ir.program import all_ops

X = np.arange(64, dtype=np.float32).reshape(8, 8)
INLINE = (
    '#stablehlo.mesh<axes = [#stablehlo.mesh_axis<name = "{}", size = 4>, #stablehlo.mesh_axis<name = "b", size = 2>]>'
)


def module(mesh: str, *axes: str) -> str:
    """A sum over shards of rows by groups along `axes` of `mesh`, in a region that is manual along x."""
    groups = ", ".join(f"#stablehlo.axis_ref<name = {axis}>" for axis in axes)
    return f"""sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%a: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) -> tensor<8x8xf32> {{
  %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{{"x"}}, {{}}]>] out_shardings=[<@mesh, [{{"x"}}, {{}}]>]
      manual_axes={{"x"}} (%b: tensor<2x8xf32>) {{
    %1 = "stablehlo.all_reduce"(%b) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>,
        replica_groups = #stablehlo.replica_group_mesh_axes<mesh = {mesh}, axes = [{groups}]>,
        use_global_device_ids}}> ({{
    ^bb0(%c: tensor<f32>, %d: tensor<f32>):
      %2 = stablehlo.add %c, %d : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }}) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    sdy.return %1 : tensor<2x8xf32>
  }} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}}"""


WHOLE = np.tile(X.reshape(4, 2, 8).sum(0), (4, 1))
HALVES = X.reshape(2, 2, 2, 8).sum(1, keepdims=True).repeat(2, axis=1).reshape(8, 8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (module("@mesh", '"x"'), WHOLE),
        (module("@mesh", '"x", sub_axis_info = (2)2'), HALVES),
        (module(INLINE.format("x"), '"x"'), WHOLE),
        (module(INLINE.format("another"), '"another", sub_axis_info = (2)2'), HALVES),
        (module("@mesh"), X),
    ],
    ids=["whole axis", "part of an axis", "mesh in the op", "its axes have other names", "no axis"],
)
def test_groups_along_axes_of_a_mesh(text: str, expected: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    program = spmdc.from_mlir(text)
    assert any(op.name == "manual" for op in all_ops(program))
    np.testing.assert_array_equal(spmdc.partition(program).simulate(X)[0], expected)


def test_an_axis_that_is_not_manual_is_refused() -> None:
    with pytest.raises(spmdc.SpmdcError, match=r"(?s)E709.*are not along the manual axes \(x\)"):
        spmdc.from_mlir(module("@mesh", '"y"'))


def test_an_axis_that_the_mesh_lacks_is_refused() -> None:
    with pytest.raises(spmdc.SpmdcError, match=r"(?s)E301.*q, which is no axis of the mesh"):
        spmdc.from_mlir(module("@mesh", '"q"'))


def test_a_mesh_that_is_not_declared_is_refused() -> None:
    with pytest.raises(spmdc.SpmdcError, match=r"(?s)E701.*mesh symbol 'other' not found"):
        spmdc.from_mlir(module("@other", '"x"'))
