"""The position of a device along axes, as accelerators get it: cut out of the device's number."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest
from loop_with_places import LOOP

import spmdc
from ir.program import Program
from lowering.jax.module import write_entry
from lowering.jax.running import load
from lowering.reference import simulate
from spmdc.frontends.spmd import parse

_struct: Any = jax.ShapeDtypeStruct


def _loaded(program: Program) -> tuple[str, dict[str, Any]]:
    """The module for accelerators, and its names."""
    text = write_entry(program, is_for_cpu=False)[0].text
    return text, load(text, program)


def _agrees(program: Program, names: dict[str, Any], *arrays: np.ndarray[Any, Any]) -> None:
    """The module gives on devices what the simulator gives."""
    for got, want in zip(names["main"](*arrays), simulate(program, *arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(got), want, strict=True)


@pytest.mark.parametrize(
    ("mesh", "axes", "given"),
    [
        ("(x=2, y=4)", ("x", "y", "x, y"), ("x", "y", "x_y")),
        ("(x=2, y=2, z=2)", ("y", "x, y", "y, z"), ("y", "x_y", "y_z")),
        ("(x=2, y=2, z=2)", ("x, z", "y, x"), ()),
        ("(x=4, y=2) devices=[3, 2, 1, 0, 7, 6, 5, 4]", ("x", "y"), ("x", "y")),
        ("(x=3, y=2)", ("x", "y"), ("y",)),
        ("(x=2, y=3)", ("x", "y"), ()),
        ("(x=8)", ("x:(2)2", "x:(1)2", "x"), ("x_1", "x_0", "x_0_x_1_x_2")),
    ],
)
def test_positions_are_given_to_devices_where_axes_end_between_bits_of_their_numbers(
    devices: list[jax.Device], mesh: str, axes: tuple[str, ...], given: tuple[str, ...]
) -> None:
    adding = "".join(
        f"""
  at.{i} = axis_index(axes=({of}))
  each.{i} = broadcast_in_dim(at.{i}, shape=[2], dims=[])
  a.{i + 1} = add(a.{i}, each.{i})"""
        for i, of in enumerate(axes)
    )
    (declared,) = parse(f"mesh {mesh}\ndef main(a: s32[1]) -> (r: s32[1]) {{\n return a + a\n}}\n").meshes
    split = f"s32[2] of s32[{2 * declared.size}@({', '.join(declared.names)})]"
    program = parse(f"""
spmd
mesh {mesh}
def main(a.0: {split}) -> (r: {split}) {{{adding}
  return a.{len(axes)}
}}
""")
    text, names = _loaded(program)
    assert f"def device_main({', '.join([*(f'position_{of}' for of in given), 'a_0'])}):" in text
    assert text.count("lax.axis_index(") == len(axes) - len(given)
    _agrees(program, names, np.arange(2 * declared.size, dtype=np.int32))


def test_called_functions_find_positions_by_themselves(devices: list[jax.Device]) -> None:
    program = parse("""
spmd
mesh (x=4)
def main(a: s32[2] of s32[8@x]) -> (r: s32[2] of s32[8@x]) {
  at = axis_index(axes=(x))
  each = broadcast_in_dim(at, shape=[2], dims=[])
  b = further(a)
  r = multiply(b, each)
  return r
}
def further(a: s32[2]) -> (r: s32[2]) {
  at = axis_index(axes=(x))
  each = broadcast_in_dim(at, shape=[2], dims=[])
  r = add(a, each)
  return r
}
""")
    text, names = _loaded(program)
    further, _, entry = text.partition("def device_main(position_x, a):")
    assert 'lax.axis_index("x")' in further
    assert "lax.axis_index" not in entry
    _agrees(program, names, np.arange(8, dtype=np.int32))


def test_bits_are_cut_out_of_the_converted_number(devices: list[jax.Device]) -> None:
    """What the TPU compiler keeps on the chip depends on scalars that are computed meanwhile, such as a conversion of
    bits, which `lax.axis_index` leaves to each of them."""
    program = spmdc.partition(
        spmdc.parse("""
    mesh (x=2, y=4)

    def main(a: f32[4@x, 16@y, 16]) -> (r: f32[4@x, 16@y, 16]) {
      mask = where(iota(s32[16, 16], 0) >= iota(s32[16, 16], 1), zeros([16, 16]), full([16, 16], -1.0))
      return a + mask
    }
    """)
    ).program
    _, names = _loaded(program)
    on_mesh = names["on_mesh"](names["make_mesh"]())
    lowered = on_mesh.lower(_struct((4, 16, 16), np.float32)).as_text()
    assert "partition_id" not in lowered
    assert lowered.count("stablehlo.iota dim = 0 : tensor<8xi32>") == 1
    assert lowered.count("stablehlo.and ") == 1
    _agrees(program, names, np.arange(4 * 16 * 16, dtype=np.float32).reshape(4, 16, 16))


def test_positions_reach_the_bodies_of_loops(devices: list[jax.Device]) -> None:
    program = spmdc.partition(spmdc.parse(LOOP)).program
    text, names = _loaded(program)
    _, _, entry = text.partition("def device_main(position_x, a, b):")
    _, _, body = entry.partition("def n_step")
    assert "lax.axis_index(" not in entry
    assert "lax.squeeze(position_x, (0,))" in entry
    assert re.search(r"at\(at_\d+_each, index", body)
    a, b = np.arange(36, dtype=np.int32).reshape(3, 12), -np.arange(60, dtype=np.int32).reshape(3, 20)
    _agrees(program, names, a, b)
