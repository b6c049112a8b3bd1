"""Ops that HLO has and StableHLO lacks, and calls that XLA's own passes make: each computes what it means there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import spmdc
from ir.program import all_ops

Array = npt.NDArray[Any]
X = np.arange(64, dtype=np.float32).reshape(8, 8) % 13
P = "  p = f32[8,8] parameter(0), sharding={devices=[2,4]<=[8]}\n"
SINE = "f {\n  a = f32[8,8] parameter(0)\n  ROOT r = f32[8,8] sine(a)\n}\n\n"
STEP = (
    "f {\n  x = f32[8] parameter(0)\n  c = f32[8] parameter(1)\n  s = f32[8] add(x, c)\n  t = f32[8] negate(s)\n"
    "  ROOT r = (f32[8], f32[8]) tuple(t, s)\n}\n\n"
)


def module(body: str, before: str = "") -> str:
    return f"HloModule m, num_partitions=8\n\n{before}ENTRY e {{\n{body}\n}}\n"


def call(target: str, config: str, types: str, operands: str = "p", before: str = "") -> str:
    return module(
        f'{P}{before}  ROOT c = {types} custom-call({operands}), custom_call_target="{target}", '
        f'backend_config="{config}", sharding={{devices=[2,4]<=[8]}}'
    )


def called(target: str, rest: str = "") -> str:
    return module(f'{P}  c = f32[8,8] custom-call(p), custom_call_target="{target}"{rest}\n  ROOT r = f32[8,8] sine(c)')


def padded(low: int, high: int) -> Array:
    return np.pad(X, ((low, high), (0, 0)))


CASES: dict[str, tuple[str, Callable[[Array], Sequence[Array]]]] = {
    "rotate": (
        call("_SPMDInternalOp_RotateRight", "dimension=1,amount=3", "f32[8,8]"), lambda x: [np.roll(x, 3, 1)],
    ),
    "rotations": (
        call("_SPMDInternalOp_MultiRotate", "dimension=0,left_amount=2,right_amount=1", "(f32[8,8], f32[8,8], "
             "f32[8,8], f32[8,8])").replace("sharding={devices=[2,4]<=[8]}\n}", "sharding={{replicated}, {replicated}, "
             "{replicated}, {replicated}}\n}"),
        lambda x: [np.roll(x, n, 0) for n in (-2, -1, 0, 1)],
    ),
    "slices": (
        call("_SPMDInternalOp_MultiSlice", "dimension=0,amount=1,start_indices=[1,2],limit_indices=[6,8],strides=[1,2],"
             "bufferize=0", "(f32[5,3], f32[5,3])").replace(", sharding={devices=[2,4]<=[8]}\n}", "\n}"),
        lambda x: [x[1:6, 2:8:2], x[2:7, 2:8:2]],
    ),
    "pads": (
        call("_SPMDInternalOp_MultiPad", "dimension=0,amt=2,bufferize=0", "(f32[10,8], f32[10,8], f32[10,8])", "p, z",
             "  z = f32[] constant(0)\n").replace(", sharding={devices=[2,4]<=[8]}\n}", "\n}"),
        lambda _: [padded(2, 0), padded(1, 1), padded(0, 2)],
    ),
    "wrap": (
        call("_SPMDInternalOp_Wrap", "dimension=1,lhs=1,rhs=2", "f32[8,11]"), lambda x: [np.pad(x, ((0, 0), (1, 2)),
                                                                                         mode="wrap")],
    ),
    "an async call": (
        module(f"{P}  s = ((f32[8,8]), f32[8,8], s32[]) async-start(p), calls=f\n  ROOT r = f32[8,8] async-done(s)",
               SINE), lambda x: [np.sin(x)],
    ),
    "an async copy": (
        module(f"{P}  s = (f32[8,8], f32[8,8], u32[]) copy-start(p)\n  ROOT r = f32[8,8] copy-done(s)"), lambda x: [x],
    ),
    "an async call that is updated": (
        module(f"{P}  s = ((f32[8,8]), f32[8,8], s32[]) async-start(p), calls=f\n"
               "  u = ((f32[8,8]), f32[8,8], s32[]) async-update(s)\n  ROOT r = f32[8,8] async-done(u)", SINE),
        lambda x: [np.sin(x)],
    ),
    "the high half of a product": (
        module("  p = f32[8,8] parameter(0), sharding={devices=[2,4]<=[8]}\n  i = s32[8,8]{1,0} convert(p)\n"
               "  c = s32[] constant(-700000000)\n  b = s32[8,8] broadcast(c), dimensions={}\n"
               "  ROOT r = s32[8,8] mulhi(s32[8,8]{1,0:T(8,128)} i, s32[8,8]{1,0} b)"),
        lambda x: [((x.astype(np.int64) * -700000000) >> 32).astype(np.int32)],
    ),
    "a token that orders nothing": (
        module(f"{P}  t = token[] after-all()\n  ROOT r = f32[8,8] add-dependency(p, t)"), lambda x: [x],
    ),
    "a bitcast to columns": (
        module("  p = f32[8,8]{1,0} parameter(0)\n  ROOT r = f32[2,32]{0,1} bitcast(p)"),
        lambda x: [x.reshape(32, 2).T],
    ),
    "a bitcast from columns": (
        module("  p = f32[8,8]{1,0} parameter(0)\n  c = f32[8,8]{0,1} bitcast(p)\n  ROOT r = f32[64]{0} bitcast(c)"),
        lambda x: [x.ravel()],
    ),
    "a bitcast to integers": (
        module(f"{P}  ROOT r = s32[64] bitcast(p)"), lambda x: [x.view(np.int32).ravel()],
    ),
    "the smallest elements": (
        module(f"{P}  ROOT r = (f32[8,3], s32[8,3]) topk(p), k=3, largest=false"),
        lambda x: [np.sort(x, 1)[:, :3], np.argsort(x, 1, kind="stable")[:, :3].astype(np.int32)],
    ),
    "a size that is known": (
        module(f"{P}  n = s32[] constant(8)\n  ROOT r = f32[8,8] set-dimension-size(p, n), dimensions={{0}}"),
        lambda x: [x],
    ),
    "a scan": (
        module(f"{P}  z = f32[8] constant({{0,0,0,0,0,0,0,0}})\n  ROOT s = (f32[8,8], f32[8]) scan(p, z), "
               "dimensions={0}, num_carries=1, to_apply=f", STEP),
        lambda x: [-np.cumsum(x, 0), x.sum(0)],
    ),
    "a scan of columns backwards": (
        module(f"{P}  z = f32[8] constant({{0,0,0,0,0,0,0,0}})\n  ROOT s = (f32[8,8], f32[8]) scan(p, z), "
               "dimensions={1}, is_reverse=true, num_carries=1, to_apply=f", STEP),
        lambda x: [-np.cumsum(x[:, ::-1], 1)[:, ::-1], x.sum(1)],
    ),
    "a layout": (called("LayoutConstraint"), lambda x: [np.sin(x)]),
    "a move to the host": (called("MoveToHost"), lambda x: [np.sin(x)]),
    "a place in memory": (
        called("annotate_device_placement", ', custom_call_has_side_effect=true, frontend_attributes='
               '{_xla_buffer_placement="pinned_host"}'), lambda x: [np.sin(x)],
    ),
    "a barrier": (
        called("xla.sdy.PropagationBarrier", ', frontend_attributes={xla.sdy.allowed_direction="1 : i64"}'),
        lambda x: [np.sin(x)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_op_computes_what_it_means(name: str) -> None:
    text, compute = CASES[name]
    program = spmdc.from_hlo(text)
    expected = compute(X)
    for found in (spmdc.evaluate(program, X), spmdc.partition(program).simulate(X)):
        for have, want in zip(found, expected, strict=True):
            assert have.dtype == want.dtype
            np.testing.assert_allclose(have, want, rtol=1e-6, atol=1e-6)


def test_a_group_of_tensors_that_are_sharded_alike() -> None:
    group = 'custom_call_has_side_effect=true, frontend_attributes={xla.sdy.sharding_group_id="3 : i64"}'
    program = spmdc.from_hlo(
        module(
            f"{P}  q = f32[8,8] parameter(1)\n"
            f'  g = () custom-call(p), custom_call_target="xla.sdy.ShardingGroup", {group}\n'
            f'  h = () custom-call(q), custom_call_target="xla.sdy.ShardingGroup", {group}\n'
            "  c = f32[8,8] cosine(p)\n  d = f32[8,8] sine(q)\n  ROOT r = (f32[8,8], f32[8,8]) tuple(c, d)"
        )
    )
    assert "d: f32[8@x, 8@y]" in spmdc.propagate(program).text()


def test_a_sharding_of_a_call_of_an_unknown_function_is_that_of_its_result() -> None:
    program = spmdc.from_hlo(call("somebodys_function", "", "f32[8,8]"))
    (opaque,) = (op for op in all_ops(program) if op.name == "opaque")
    sharding = opaque.results[0].sharding
    assert sharding is not None
    assert [[axis.name for axis in dim] for dim in sharding.axes] == [["x"], ["y"]]


def test_ragged_dot() -> None:
    a, b = np.arange(32, dtype=np.float32).reshape(8, 4), np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    sizes = np.array([3, 1, 4], np.int32)
    program = spmdc.from_hlo(
        module(
            "  a = f32[8,4] parameter(0), sharding={devices=[8,1]<=[8]}\n  b = f32[3,4,2] parameter(1)\n"
            "  g = s32[3] parameter(2)\n  ROOT r = f32[8,2] ragged-dot(a, b, g), lhs_contracting_dims={1}, "
            "rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}"
        )
    )
    expected = np.concatenate([rows @ m for rows, m in zip(np.split(a, [3, 4]), b, strict=True)])
    np.testing.assert_array_equal(spmdc.partition(program).simulate(a, b, sizes)[0], expected)


def drawn(low: str, high: str, type: str, distribution: str) -> Array:
    """64 by 64 numbers, which two devices draw alike."""
    program = spmdc.from_hlo(
        "HloModule m, num_partitions=2\n\nENTRY e {\n"
        f"  a = {type}[] constant({low})\n  b = {type}[] constant({high})\n"
        f"  ROOT r = {type}[64,64] rng(a, b), distribution=rng_{distribution}, sharding={{devices=[2,1]<=[2]}}\n}}\n"
    )
    whole = spmdc.evaluate(program)[0]
    np.testing.assert_array_equal(spmdc.partition(program).simulate()[0], whole)
    return whole


def test_numbers_of_a_uniform_distribution() -> None:
    for type in ("f32", "f64"):
        found = drawn("-1", "3", type, "uniform")
        assert found.min() >= -1
        assert found.max() < 3
        assert abs(found.mean() - 1) < 0.1
    assert set(drawn("-2", "2", "s32", "uniform").ravel().tolist()) == {-2, -1, 0, 1}
    assert abs(drawn("false", "true", "pred", "uniform").mean() - 0.5) < 0.05


def test_numbers_of_a_normal_distribution() -> None:
    found = drawn("5", "2", "f32", "normal")
    assert abs(found.mean() - 5) < 0.2
    assert abs(found.std() - 2) < 0.1


def test_ops_draw_different_numbers() -> None:
    body = "".join(f"  {n} = f32[9] rng(a, b), distribution=rng_uniform\n" for n in "rs")
    program = spmdc.from_hlo(
        module(f"  a = f32[] constant(0)\n  b = f32[] constant(1)\n{body}  ROOT t = (f32[9], f32[9]) tuple(r, s)")
    )
    first, second = spmdc.evaluate(program)
    assert not np.any(first == second)


def test_numbers_that_a_loop_draws_are_refused() -> None:
    loop = """func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %n = stablehlo.constant dense<1> : tensor<1xi64>
  %0 = stablehlo.while(%i = %x) : tensor<f32>
  cond {
    %c = stablehlo.compare LT, %i, %x : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %r = "stablehlo.rng"(%i, %x, %n) <{rng_distribution = #stablehlo<rng_distribution UNIFORM>}>
        : (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<1xf32>
    %s = stablehlo.reshape %r : (tensor<1xf32>) -> tensor<f32>
    stablehlo.return %s : tensor<f32>
  }
  return %0 : tensor<f32>
}"""
    with pytest.raises(spmdc.SpmdcError, match=r"(?s)E704.*it draws other numbers each time"):
        spmdc.from_mlir(loop)


@pytest.mark.parametrize(
    "text",
    [
        call("_SPMDInternalOp_RotateRight", "amount=3", "f32[8,8]"),
        call("_SPMDInternalOp_RotateRight", "dimension=2,amount=3", "f32[8,8]"),
        call("_SPMDInternalOp_Wrap", "dimension=1,lhs=1,rhs=2", "f32[8,12]"),
        called("xla.sdy.PropagationBarrier"),
        call("_SPMDInternalOp_RotateRight", "dimension=1,amount=3", "f32[8,8]", ""),
        call("_SPMDInternalOp_MultiRotate", "dimension=0,left_amount=99999999,right_amount=1", "f32[8,8]"),
    ],
    ids=["without a dim", "of another dim", "of another type", "without a direction", "of nothing", "of many results"],
)
def test_a_call_that_does_not_say_what_it_computes_is_refused(text: str) -> None:
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.from_hlo(text)
    (diagnostic, *_) = refused.value.diagnostics
    assert diagnostic.code == "E702"
    assert diagnostic.span is not None
    assert diagnostic.help
