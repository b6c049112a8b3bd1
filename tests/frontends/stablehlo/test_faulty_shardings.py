"""Shardings that jaxlib's parsers refuse are reported as those of any language: the code, what was meant, the word."""

from __future__ import annotations

import pytest

import spmdc
from ir.diagnostics import Diagnostic

TENSOR = "tensor<4x6xf32>"
MESH = 'sdy.mesh @grid = <["rows"=4, "columns"=2]>'


def mlir(body: str = "", argument: str = "", mesh: str = MESH) -> str:
    return (
        f"module {{\n{mesh}\nfunc.func @main(%x: {TENSOR} {argument}) -> {TENSOR} {{\n{body}\n"
        f"  return %x : {TENSOR}\n}}\n}}\n"
    )


def on_argument(sharding: str) -> str:
    return mlir(argument=f"{{sdy.sharding = #sdy.sharding<{sharding}>}}")


def constraint(sharding: str) -> str:
    return mlir(f"  %0 = sdy.sharding_constraint %x <{sharding}> : {TENSOR}")


def region(sharding: str, inside: str) -> str:
    return mlir(
        f"  %0 = sdy.manual_computation(%x) in_shardings=[<{sharding}>] out_shardings=[<{sharding}>] "
        f'manual_axes={{"rows"}} (%a: {inside}) {{ sdy.return %a : {inside} }} : ({TENSOR}) -> {TENSOR}'
    )


def hlo(sharding: str) -> str:
    return (
        f"HloModule m, num_partitions=8\n\nENTRY main {{\n  ROOT x = f32[8,8] parameter(0), sharding={sharding}\n}}\n"
    )


FAULTS = {
    "an undeclared mesh": (
        constraint('@gird, [{"rows"}, {}]'),
        "E301 4:37", "a sharding is on mesh @gird, which is not declared", "did you mean grid",
    ),
    "an undeclared mesh of an argument": (
        on_argument('@else, [{"rows"}, {}]'),
        "E301 3:68", "a sharding is on mesh @else, which is not declared", "the module declares @grid",
    ),
    "an unknown axis": (
        constraint('@grid, [{"rwos"}, {}]'),
        "E301 4:46", "axis 'rwos' is not in the mesh (rows=4, columns=2)", "did you mean rows",
    ),
    "an unknown axis that is replicated": (
        on_argument('@grid, [{}, {}], replicated={"z"}'),
        "E301 3:97", "axis 'z' is not in the mesh (rows=4, columns=2)", "name some of rows, columns",
    ),
    "an axis twice": (
        constraint('@grid, [{"rows"}, {"rows"}]'), "E302 4:8", "axis 'rows' is used twice", "each axis",
    ),
    "rank": (
        constraint('@grid, [{"rows"}]'), "E303 4:8", "the sharding has 1 dims, the tensor has 2", "for each dim",
    ),
    "a part that does not divide": (
        constraint('@grid, [{"rows":(3)2}, {}]'),
        "E303 4:8", "rows:(3)2 is no part of axis 'rows' of size 4", "divides",
    ),
    "a part that is the axis": (
        constraint('@grid, [{"rows":(1)4}, {}]'), "E303 4:8", "rows:(1)4 is no proper part of axis 'rows'", "2 or more",
    ),
    "a part before nothing": (
        constraint('@grid, [{"rows":(0)2}, {}]'), "E303 4:8", "rows:(0)2 is no proper part of axis 'rows'", "2 or more",
    ),
    "a dim that the manual axes do not divide": (
        region('@grid, [{}, {"rows"}]', "tensor<4x2xf32>"),
        "E409 4:8", "the manual axes split a dim of size 6 into 4 parts", "divide",
    ),
    "shards of another shape": (
        region('@grid, [{"rows"}, {}]', "tensor<2x6xf32>"),
        "E409 4:8",
        "a shard that a manual region takes or returns is tensor<1x6xf32>, and the region says tensor<2x6xf32>",
        "divide",
    ),
    "two axes of one name": (
        mlir(mesh='sdy.mesh @m = <["x"=2, "x"=2]>'), "E304 2:15", "the mesh has two axes 'x'", "a name of its own",
    ),
    "an axis of negative size": (
        mlir(mesh='sdy.mesh @m = <["x"=-4]>'), "E304 2:17", "an axis of the mesh has size -4", "each device is listed",
    ),
    "a negative device": (
        mlir(mesh='sdy.mesh @m = <["x"=2], device_ids=[-1, 0]>'),
        "E304 2:15", "the mesh has a device -1", "listed once",
    ),
    "a device twice": (
        mlir(mesh='sdy.mesh @m = <["x"=2], device_ids=[0, 0]>'),
        "E304 2:15", "the mesh does not list each of its devices once, but, in order, 0, 0", "listed once",
    ),
    "too few devices": (
        mlir(mesh='sdy.mesh @m = <["x"=4], device_ids=[0, 1]>'),
        "E304 2:15", "the axes of the mesh make 4 devices, and it lists 2", "listed once",
    ),
    "an unknown axis of HLO": (
        hlo("{mesh['a'=8], [{'b'}, {}]}"), "E301 4", "axis 'b' is not in the mesh (a=8)", "name some of a",
    ),
    "an axis twice in HLO": (hlo("{mesh['a'=8], [{'a'}, {'a'}]}"), "E302 4", "an axis is used twice", "each axis"),
    "a part in HLO": (
        hlo("{mesh['a'=8], [{'a':(3)2}, {}]}"), "E303 4", "a part of an axis of size 8 is none of it", "divides",
    ),
    "two axes of one name in HLO": (
        hlo("{mesh['a'=4,'a'=2], [{'a'}, {}]}"), "E304 4", "the mesh has two axes 'a'", "a name of its own",
    ),
    "an empty axis in HLO": (
        hlo("{mesh['a'=0], [{'a'}, {}]}"),
        "E304 4", "an axis of the mesh has a size below 1", "each device is listed",
    ),
    "too few devices in HLO": (
        hlo("{mesh['a'=8], device_ids=(1,0), [{'a'}, {}]}"),
        "E304 4", "the axes of the mesh make 8 devices, and it lists 2", "listed once",
    ),
    "tiles and devices in HLO": (
        hlo("{devices=[4,1]<=[5]}"), "E305 4", "the tiles of a sharding are not as many as the devices", "multiply",
    ),
}  # fmt: skip


def told_of(text: str) -> Diagnostic:
    read = spmdc.from_hlo if text.startswith("HloModule") else spmdc.from_mlir
    with pytest.raises(spmdc.SpmdcError) as caught:
        read(text, "f")
    return caught.value.diagnostics[0]


@pytest.mark.parametrize("what", FAULTS)
def test_a_faulty_sharding_is_reported_in_our_words(what: str) -> None:
    """The column of a fault of HLO depends on the version of XLA."""
    text, place, message, help = FAULTS[what]
    diagnostic = told_of(text)
    code, where = place.split()
    assert diagnostic.code == code
    assert f"{diagnostic.span}:".startswith(f"f:{where}:")
    assert diagnostic.message.startswith(message)
    assert help in (diagnostic.help or "")
    assert diagnostic.notes[0].startswith("the parser says: ")
