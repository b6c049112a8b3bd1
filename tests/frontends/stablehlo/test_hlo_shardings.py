"""What each spelling of an HLO sharding says, over 8 devices, of where a tensor is."""

from __future__ import annotations

import numpy as np
import pytest

import spmdc
from spmdc.frontends.spmd import print_program

SPELLINGS = {
    "{maximal device=3}": "p: f32[8, 8]{replicated}",
    "{maximal_mesh[device_id=3]}": "p: f32[8, 8]{replicated}",
    "{devices=[2,1,4]<=[8] last_tile_dims={maximal}}": "p: f32[8@x, 8]",
    "{devices=[4,1]0,1,2,3}": "p: f32[8@y, 8]",
    "{devices=[2,2]1,3,5,7}": "p: f32[8@x, 8@y]",
    "{devices=[2,2]<=[2,2]T(1,0)}": "p: f32[8@z, 8@y]",
    "{devices=[3,1]0,1,2}": "p: f32[8, 8]{replicated}",
    "{devices=[1,2,2,2]<=[8] last_tile_dims={unreduced, replicated}}": "p: f32[8, 8@x]{partial: y}",
    "{unreduced}": "p: f32[8, 8]{partial: x}",
    '{devices=[2,4]<=[8] metadata={op_name="maximal"}}': "p: f32[8@x, 8@y]",
    "{mesh['x'=2,'y'=4], [{'x'}, {'y'}]}": "p: f32[8@x, 8@y]",
    "{mesh['x'=2,'y'=4] [{'x'}, {'y'}]}": "p: f32[8@x, 8@y]",
    "{mesh['x'=2,'y'=4], [{'x', ?}, {?}]}": "p: f32[8@(x,?), 8@?]",
    "{mesh['x'=2,'y'=4], [{}, {'y'}], replicated={'x'}}": "p: f32[8, 8@y]{replicated: x}",
    "{mesh['x'=2,'y'=4], [{}, {'y'}], unreduced={'x'}}": "p: f32[8, 8@y]{partial: x}",
    "{mesh['x'=2,'y'=4], [{'x'}, {'y'}], metadata={op_name=\"q\"}}": "p: f32[8@x, 8@y]",
    "{mesh['a b'=2,'c-d'=4], [{'a b'}, {'c-d'}]}": "p: f32[8@a_b, 8@c_d]",
    "{mesh['x'=8], [{'x':(2)4}, {'x':(1)2}]}": "p: f32[8@x:(2)4, 8@x:(1)2]",
    "{mesh['x'=8], [{'x':(4)2, 'x':(1)2}, {'x':(2)2}]}": "p: f32[8@(x:(4)2,x:(1)2), 8@x:(2)2]",
}


def module(sharding: str, opcode: str = "parameter(0)") -> str:
    body = f"  p = f32[8,8] {opcode}, sharding={sharding}\n  ROOT n = f32[8,8] negate(p)"
    return f"HloModule m, num_partitions=8\n\nENTRY e {{\n{body}\n}}\n"


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_sharding_of_a_parameter(spelling: str) -> None:
    program = spmdc.from_hlo(module(spelling))
    assert f"main({SPELLINGS[spelling]})" in print_program(program)
    arrays = spmdc.random_inputs(program, seed=1)
    np.testing.assert_array_equal(spmdc.partition(program).simulate(*arrays)[0], -arrays[0])


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_sharding_of_an_op(spelling: str) -> None:
    text = module(spelling, "negate(q)").replace("ENTRY e {\n", "ENTRY e {\n  q = f32[8,8] parameter(0)\n")
    assert SPELLINGS[spelling] in print_program(spmdc.from_hlo(text))


@pytest.mark.parametrize("devices", ["0,2,4,6,1,3,5,7", "[4,2]T(1,0)"])
def test_an_order_of_the_devices_of_a_named_mesh(devices: str) -> None:
    program = spmdc.from_hlo(module(f"{{mesh['x'=2,'y'=4], device_ids=({devices}), [{{'x'}}, {{'y'}}]}}"))
    assert program.meshes[0].axes == (("x", 2), ("y", 4))
    assert program.meshes[0].devices == (0, 2, 4, 6, 1, 3, 5, 7)
