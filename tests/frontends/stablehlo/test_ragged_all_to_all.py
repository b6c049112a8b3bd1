"""ragged_all_to_all: rows that go to other devices, as many as the data says, compared with what JAX documents."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import spmdc

P: Any = jax.sharding.PartitionSpec
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int32]]
ROWS, SPACE = 7, 12
"""Rows that a device has to send, and that its output has."""


def requests(devices: int, per: int, seed: int) -> tuple[Ints, Ints, Ints, Ints]:
    """What each device sends to each, a row for each sender: where its rows begin, how many, where they go, and how
    many a device gets of each. What a device gets does not overlap."""
    draw = np.random.default_rng(seed)
    count = devices * per
    sizes = draw.integers(0, SPACE // count + 1, (devices, count), np.int32)
    begins = draw.integers(0, ROWS - sizes + 1, dtype=np.int32)
    lands, gets = np.zeros_like(sizes), np.zeros_like(sizes)
    for receiver in range(devices):
        place = 1
        for sender in range(devices):
            for i in range(receiver * per, receiver * per + per):
                lands[sender, i] = place
                place += sizes[sender, i]
                gets[receiver, sender * per + i % per] = sizes[sender, i]
    return begins, sizes, lands, gets


def exchanged(rows: Any, output: Any, begins: Ints, sizes: Ints, lands: Ints) -> Any:
    """What devices have then: arrays of a row for each of them."""
    result, per = output.copy(), begins.shape[1] // len(begins)
    for sender, (first, many, to) in enumerate(zip(begins, sizes, lands, strict=True)):
        for i, (begin, size, land) in enumerate(zip(first, many, to, strict=True)):
            result[i // per, land : land + size] = rows[sender, begin : begin + size]
    return result


def exchange(mesh: jax.sharding.Mesh, spec: Any) -> Any:
    ragged_all_to_all: Any = jax.lax.ragged_all_to_all

    def local(*arrays: Any) -> Any:
        return ragged_all_to_all(*arrays, axis_name="x")

    sharded: Any = jax.shard_map
    return sharded(local, mesh=mesh, in_specs=(spec,) * 6, out_specs=spec, check_vma=False)


@pytest.mark.parametrize("language", ["mlir", "hlo"])
@pytest.mark.parametrize(("per", "shape", "dtype"), [(1, (), "f4"), (2, (3,), "i4"), (1, (2, 2), "?")])
def test_each_device_gets_the_rows_that_are_for_it(per: int, shape: tuple[int, ...], dtype: str, language: str) -> None:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
    draw = np.random.default_rng(per)
    rows, output = (draw.integers(0, 99, (4, n, *shape)).astype(dtype) for n in (ROWS, SPACE))
    requested = requests(4, per, seed=len(shape))
    given = [a.reshape(-1, *a.shape[2:]) for a in (rows, output, *requested)]
    lowered = jax.jit(exchange(mesh, P("x"))).lower(*given)
    if language == "mlir":
        program = spmdc.from_mlir(lowered.as_text())
    else:
        hlo: Any = lowered.compiler_ir("hlo")
        program = spmdc.from_hlo(hlo.as_hlo_text())
    (found,) = spmdc.partition(program).simulate(*given)
    np.testing.assert_array_equal(found.reshape(output.shape), exchanged(rows, output, *requested[:3]))


def test_groups_are_along_an_axis_of_the_mesh() -> None:
    mesh = jax.make_mesh((2, 2), ("y", "x"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4])
    draw = np.random.default_rng(5)
    rows, output = (draw.integers(0, 99, (2, 2, n, 2)).astype("f4") for n in (ROWS, SPACE))
    requested = [requests(2, 1, seed=y) for y in range(2)]
    given: list[Any] = [a.reshape(-1, 2) for a in (rows, output)]
    given += [np.concatenate([requested[y][i].reshape(-1) for y in range(2)]) for i in range(4)]
    run = spmdc.jit(exchange(mesh, P(("y", "x"))), mesh=mesh)
    found = np.asarray(run(*given)).reshape(output.shape)
    for y in range(2):
        np.testing.assert_array_equal(found[y], exchanged(rows[y], output[y], *requested[y][:3]))


def test_operands_that_do_not_fit_one_another_are_refused_at_their_line() -> None:
    call = (
        "stablehlo.custom_call @ragged_all_to_all(%a, %b, %c, %c, %c, %c) {api_version = 4 : i32, backend_config = {}}"
    )
    types = "(tensor<4x2xf32>, tensor<6x2xf32>" + ", tensor<3xi32>" * 4 + ") -> tensor<6x2xf32>"
    inside = "(%a: tensor<4x2xf32>, %b: tensor<6x2xf32>, %c: tensor<3xi32>)"
    whole = "tensor<8x2xf32>", "tensor<12x2xf32>", "tensor<6xi32>"
    rows, numbers = '<@m, [{"x"}, {}]>', '<@m, [{"x"}]>'
    text = f"""sdy.mesh @m = <["x"=2]>
func.func @main(%x: {whole[0]}, %y: {whole[1]}, %z: {whole[2]}) -> {whole[1]} {{
  %0 = sdy.manual_computation(%x, %y, %z) in_shardings=[{rows}, {rows}, {numbers}] out_shardings=[{rows}]
    manual_axes={{"x"}} {inside} {{
    %1 = {call} : {types}
    sdy.return %1 : tensor<6x2xf32>
  }} : ({", ".join(whole)}) -> {whole[1]}
  return %0 : {whole[1]}
}}"""
    with pytest.raises(spmdc.SpmdcError, match="nor groups of 2 devices") as caught:
        spmdc.from_mlir(text, "m.mlir")
    assert str(caught.value.diagnostics[0].span) == "m.mlir:5:10"


def test_in_a_module_of_a_device_whose_arguments_are_placed() -> None:
    """As what XLA's partitioner makes: the op alone tells that partitions communicate."""
    placed = "sharding={devices=[4,1]<=[4]}"
    told = "".join(
        f"  {name} = s32[4] parameter({i}), sharding={{devices=[4]<=[4]}}\n" for i, name in enumerate("bsld", 2)
    )
    program = spmdc.from_hlo(
        "HloModule m, num_partitions=4\n\nENTRY e {\n"
        f"  p = f32[{ROWS},2] parameter(0), {placed}\n  o = f32[{SPACE},2] parameter(1), {placed}\n{told}"
        f"  ROOT r = f32[{SPACE},2] ragged-all-to-all(p, o, b, s, l, d), channel_id=1, "
        "replica_groups={{0,1,2,3}}\n}\n"
    )
    draw = np.random.default_rng(2)
    rows, output = (draw.integers(0, 99, (4, n, 2)).astype("f4") for n in (ROWS, SPACE))
    requested = requests(4, 1, seed=2)
    given = [a.reshape(-1, *a.shape[2:]) for a in (rows, output, *requested)]
    (found,) = spmdc.partition(program).simulate(*given)
    np.testing.assert_array_equal(found.reshape(output.shape), exchanged(rows, output, *requested[:3]))


def test_outside_of_a_region_that_says_what_is_manual_it_is_refused_at_its_line() -> None:
    types = "(tensor<4x2xf32>, tensor<6x2xf32>" + ", tensor<2xi32>" * 4 + ") -> tensor<6x2xf32>"
    text = f"""func.func @main(%a: tensor<4x2xf32>, %b: tensor<6x2xf32>, %c: tensor<2xi32>) -> tensor<6x2xf32> {{
  %0 = stablehlo.custom_call @ragged_all_to_all(%a, %b, %c, %c, %c, %c) : {types}
  return %0 : tensor<6x2xf32>
}}"""
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.from_mlir(text, "m.mlir")
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, str(diagnostic.span)) == ("E709", "m.mlir:2:8")
    assert diagnostic.help
