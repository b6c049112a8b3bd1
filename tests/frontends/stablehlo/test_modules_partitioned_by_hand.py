"""Modules that are what one device runs: each device gets the shard that is its own, as XLA executes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import pytest
from jaxlib import xla_client
from jaxlib._hlo import XlaComputation, hlo_module_from_text
from jaxlib._jax import mlir as conversions

import spmdc
from ir.ops.collective import axes_attr
from ir.program import all_ops

Array = npt.NDArray[Any]
SPEC: Any = jax.sharding.PartitionSpec
SUM = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\n"
X = "  p = f32[4,8] parameter(0)\n"
PARTITIONS = "num_partitions=8"
GROUPS = ["{{0,1,2,3},{4,5,6,7}}", "[2,4]<=[8]", "[4,2]<=[2,4]T(1,0)", "[1,8]<=[8]", "{{7,6},{5,4},{3,2},{1,0}}"]
ONE_EACH = "{{0},{1},{2},{3},{4},{5},{6},{7}}"
BY_AXES = "mesh['x'=2,'y'=4] {'y'}"
PLACED = "  p = f32[4,8] parameter(0), sharding={{devices={}}}\n"
SCALES = "  m = f32[] parameter(1)\n"


def module(body: str, head: str = PARTITIONS) -> str:
    return f"HloModule m, {head}\n\n{SUM}ENTRY e {{\n{body}\n}}\n"


def all_reduce(groups: str, rest: str = ", channel_id=1, use_global_device_ids=true", head: str = PARTITIONS) -> str:
    return module(f"{X}  ROOT r = f32[4,8] all-reduce(p), replica_groups={groups}{rest}, to_apply=add", head)


CASES: dict[str, str] = {
    **{f"all_reduce {groups}": all_reduce(groups) for groups in [*GROUPS, ONE_EACH]},
    **{
        f"all_gather {groups}": module(
            f"{X}  ROOT r = f32[{4 * n},8] all-gather(p), channel_id=1, replica_groups={groups}, dimensions={{0}}, "
            "use_global_device_ids=true"
        )
        for groups, n in zip(GROUPS, (4, 4, 2, 8, 2), strict=True)
    },
    **{
        f"reduce_scatter {groups}": module(
            f"{X}  ROOT r = f32[4,{8 // n}] reduce-scatter(p), channel_id=1, replica_groups={groups}, "
            "dimensions={1}, use_global_device_ids=true, to_apply=add"
        )
        for groups, n in zip(GROUPS, (4, 4, 2, 8, 2), strict=True)
    },
    **{
        f"all_to_all {groups}": module(
            f"{X}  ROOT r = f32[4,8] all-to-all(p), channel_id=1, replica_groups={groups}, dimensions={{0}}"
        )
        for groups in GROUPS[:3]
    },
    "all_to_all of several": module(
        f"{X}  q = f32[4,8] negate(p)\n  ROOT r = (f32[4,8], f32[4,8]) all-to-all(p, q), channel_id=1, "
        "replica_groups={{0,1},{2,3},{4,5},{6,7}}"
    ),
    "collective_permute": module(
        f"{X}  ROOT r = f32[4,8] collective-permute(p), channel_id=1, source_target_pairs={{{{0,1}},{{1,2}},{{5,0}}}}"
    ),
    "collective_permute in halves": module(
        f"{X}  s = (f32[4,8], f32[4,8]) collective-permute-start(p), channel_id=1, "
        "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}\n  ROOT r = f32[4,8] collective-permute-done(s)"
    ),
    "all_reduce in halves": module(
        f"{X}  s = f32[4,8] all-reduce-start(p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, "
        "to_apply=add\n  ROOT r = f32[4,8] all-reduce-done(s)"
    ),
    "partition_id": module("  ROOT i = u32[] partition-id()"),
    "replica_id of one replica": module(
        "  i = u32[] replica-id()\n  j = u32[] partition-id()\n  ROOT r = u32[] add(i, j)"
    ),
    "a scalar argument": module(
        f"{X}{SCALES}  b = f32[4,8] broadcast(m), dimensions={{}}\n  s = f32[4,8] multiply(p, b)\n"
        "  t = f32[] all-reduce(m), channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true, to_apply=add\n"
        "  ROOT r = (f32[4,8], f32[]) tuple(s, t)"
    ),
    "replicas": all_reduce("{{0,1,2,3},{4,5,6,7}}", "", "replica_count=8"),
    "all replicas": all_reduce("{}", "", "replica_count=8"),
    "a replica's number": module("  ROOT i = u32[] replica-id()", "replica_count=8"),
    "replicas of partitions": all_reduce("{{0,1}}", "", "replica_count=2, num_partitions=4"),
    "replicas with their partitions": all_reduce("{{0},{1}}", ", channel_id=1", "replica_count=2, num_partitions=4"),
    "all devices": all_reduce("{{0,1}}", ", channel_id=1", "replica_count=2, num_partitions=4"),
    "partitions of each replica": module(
        f"{X}  ROOT r = f32[4,8] all-to-all(p), channel_id=1, replica_groups={{{{0,1}},{{2,3}}}}, dimensions={{0}}",
        "replica_count=2, num_partitions=4",
    ),
    "permuted replicas": module(
        f"{X}  ROOT r = f32[4,8] collective-permute(p), source_target_pairs={{{{0,1}}}}",
        "replica_count=2, num_partitions=4",
    ),
    "numbers of both": module(
        "  i = u32[] replica-id()\n  j = u32[] partition-id()\n  ROOT r = (u32[], u32[]) tuple(i, j)",
        "replica_count=2, num_partitions=4",
    ),
}

OTHERWISE = "channel_id=2, replica_groups={{7,5,6,4},{3,1,2,0}}"
"""Groups that list their devices in another order than those of a collective before."""
IN_TWO_ORDERS = {
    "all_gather": f"f32[16,8] all-gather(q), {OTHERWISE}, dimensions={{0}}, use_global_device_ids=true",
    "reduce_scatter": f"f32[1,8] reduce-scatter(q), {OTHERWISE}, dimensions={{0}}, use_global_device_ids=true, "
                      "to_apply=add",
    "all_to_all": f"f32[4,8] all-to-all(q), {OTHERWISE}, dimensions={{0}}",
    "all_to_all of several": f"(f32[4,8], f32[4,8], f32[4,8], f32[4,8]) all-to-all(p, q, p, q), {OTHERWISE}",
    "all_reduce": f"f32[4,8] all-reduce(q), {OTHERWISE.replace('3,1,2,0', '2,1,3,0')}, use_global_device_ids=true, "
                  "to_apply=add",
}  # fmt: skip
CASES |= {
    f"{name} in two orders": module(
        f"{X}  s = f32[4,8] all-reduce(p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, "
        f"to_apply=add\n  q = f32[4,8] subtract(s, p)\n  ROOT r = {text}"
    )
    for name, text in IN_TWO_ORDERS.items()
}

CROSSED = "channel_id=2, replica_groups={{0,3,5,6},{1,2,4,7}}"
"""Groups that are along no axes of a mesh that those of `[2,4]<=[8]` are along."""
ALONG_NO_AXES = {
    "all_gather": f"f32[16,8] all-gather(q), {CROSSED}, dimensions={{0}}, use_global_device_ids=true",
    "reduce_scatter": f"f32[4,2] reduce-scatter(q), {CROSSED}, dimensions={{1}}, use_global_device_ids=true, "
                      "to_apply=add",
    "all_to_all": f"f32[4,8] all-to-all(q), {CROSSED}, dimensions={{0}}",
    "all_to_all of several": f"(f32[4,8], f32[4,8], f32[4,8], f32[4,8]) all-to-all(p, q, p, q), {CROSSED}",
    "all_reduce": f"f32[4,8] all-reduce(q), {CROSSED}, use_global_device_ids=true, to_apply=add",
    "all_reduce of groups of two sizes": "f32[4,8] all-reduce(q), channel_id=2, "
                      "replica_groups={{6,1},{0,2,3},{7,4,5}}, use_global_device_ids=true, to_apply=add",
}  # fmt: skip
CASES |= {
    f"{name} along no axes": module(
        f"{X}  s = f32[4,8] all-reduce(p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, "
        f"to_apply=add\n  q = f32[4,8] subtract(s, p)\n  ROOT r = {text}"
    )
    for name, text in ALONG_NO_AXES.items()
}


def as_manual(text: str) -> str:
    """The module with the word for XLA's partitioner that it is partitioned already, and with every op in one."""
    text = re.sub(r"  s = .*-start(.*)\n  ROOT r = (\S+) (.*)-done\(s\)", r"  ROOT r = \2 \3\1", text)
    head, entry = text.split("ENTRY e {\n")
    lines = entry.splitlines()[:-1] if "num_partitions" in head else []
    tuples = (re.search(r" = \(([^)]*)\)", line) for line in lines)
    counts = [0 if found is None else len(re.findall(r"\[", found[1])) for found in tuples]
    shardings = ["{manual}" if not n else "{" + ", ".join(["{manual}"] * n) + "}" for n in counts]
    marked = [f"{line}, sharding={sharding}" for line, sharding in zip(lines, shardings, strict=True)]
    return f"{head}ENTRY e {{\n" + "\n".join([*(marked or entry.splitlines()[:-1]), "}\n"])


def executed(text: str, arrays: Sequence[Array], order: Sequence[int]) -> list[Array]:
    """What 8 devices give that XLA has the module run on, each with its part of the arrays; side by side, in this
    order."""
    proto = hlo_module_from_text(as_manual(text)).as_serialized_hlo_module_proto()
    computation = conversions.xla_computation_to_mlir_module(XlaComputation(proto))
    options = xla_client.CompileOptions()
    replicas = 8 if "replica_count=8" in text else 2 if "replica_count=2" in text else 1
    options.num_replicas, options.num_partitions = replicas, 8 // replicas
    ids = np.arange(8).reshape(replicas, -1)
    options.executable_build_options.use_spmd_partitioning = True
    options.device_assignment = xla_client.DeviceAssignment.create(ids)
    devices = jax.devices()[:8]
    executable = devices[0].client.compile_and_load(computation, xla_client.DeviceList(tuple(devices)), options)
    mesh = jax.make_mesh((8,), ("d",), devices=devices)
    by_device = jax.sharding.NamedSharding(mesh, SPEC("d"))
    is_scalar = [f"m = f32[] parameter({i})" in text for i in range(len(arrays))]
    given = []
    for array, scalar in zip(arrays, is_scalar, strict=True):
        in_order = np.split(array, 8)
        parts = [in_order[order.index(i)].reshape(() if scalar else (-1, *array.shape[1:])) for i in range(8)]
        shape = () if scalar else array.shape
        where = jax.sharding.NamedSharding(mesh, SPEC()) if scalar else by_device
        held = [jax.device_put(part, device) for part, device in zip(parts, devices, strict=True)]
        given.append(jax.make_array_from_single_device_arrays(shape, where, held))
    results = executable.execute_sharded(given).disassemble_into_single_device_arrays()
    wholes = [[np.asarray(parts[i]) for i in order] for parts in results]
    return [np.concatenate([part.reshape(-1, *part.shape[1:]) for part in parts]) for parts in wholes]


@pytest.mark.parametrize("name", CASES)
def test_each_device_computes_what_it_computes_under_xla(name: str) -> None:
    program = spmdc.from_hlo(CASES[name])
    arrays = [np.round(8 * a) for a in spmdc.random_inputs(program, seed=1)]
    found = spmdc.partition(program).simulate(*arrays)
    expected = executed(CASES[name], arrays, program.meshes[0].device_ids)
    for have, want in zip(found, expected, strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_array_equal(have, want)


OF_SEVERAL = {
    "reduce-scatter": ("f32[1,8]{1,0:T(8,128)}", "replica_groups=[2,4]<=[8], dimensions={0}, "
                       "use_global_device_ids=true, to_apply=add"),
    "collective-permute": ("f32[4,8]", "source_target_pairs={{0,3},{1,0}}"),
    "all-gather": ("f32[16,8]{1,0}", "replica_groups=[2,4]<=[8], dimensions={0}, use_global_device_ids=true"),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_a_collective_of_several_operands_is_one_of_each(name: str) -> None:
    type, rest = OF_SEVERAL[name]
    both = f"  ROOT %r = ({type}, {type}) {name}(f32[4,8]{{1,0}} p, q), channel_id=1, {rest}"
    each = "\n".join(f"  {to} = {type} {name}({of}), channel_id=1, {rest}" for to, of in (("a", "p"), ("b", "q")))
    texts = (both, f"{each}\n  ROOT r = ({type}, {type}) tuple(a, b)")
    programs = [spmdc.from_hlo(module(f"{X}  q = f32[4,8] negate(p)\n{text}")) for text in texts]
    (array,) = spmdc.random_inputs(programs[0], seed=1)
    found, expected = (spmdc.partition(program).simulate(array) for program in programs)
    assert len(found) == 2
    for have, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(have, want)


def test_a_broadcast_among_some_devices_gives_zeros_to_the_others() -> None:
    text = module(f"{X}  ROOT r = f32[4,8] collective-broadcast(p), channel_id=1, replica_groups={{{{6,1,3}}}}")
    (array,) = spmdc.random_inputs(spmdc.from_hlo(text), seed=1)
    shards = array.reshape(8, 4, 8)
    expected = [shards[6] if device in (6, 1, 3) else 0 * shards[0] for device in range(8)]
    np.testing.assert_array_equal(spmdc.partition(spmdc.from_hlo(text)).simulate(array)[0], np.concatenate(expected))


def test_a_module_whose_groups_are_along_axes_of_a_mesh() -> None:
    by_axes, by_list = (spmdc.from_hlo(all_reduce(groups)) for groups in (BY_AXES, GROUPS[0]))
    (array,) = spmdc.random_inputs(by_list, seed=1)
    first, second = (spmdc.partition(program).simulate(array)[0] for program in (by_axes, by_list))
    np.testing.assert_array_equal(first, second)


def test_what_tables_of_devices_say_alike_for_some_is_the_same_on_those() -> None:
    """As in a loop of conjugate gradients that XLA has partitioned: the condition is the same on all devices, though
    it follows from an entry of a table for each, whose place is looked up in another one."""
    text = f"""HloModule m, num_partitions=8

{SUM}turns {{
  s = (f32[], f32[4]) parameter(0)
  n = f32[] get-tuple-element(s), index=0
  k = f32[] constant(9)
  ROOT t = pred[] compare(n, k), direction=LT
}}

turn {{
  s = (f32[], f32[4]) parameter(0)
  n = f32[] get-tuple-element(s), index=0
  v = f32[4] get-tuple-element(s), index=1
  m = f32[] add(n, n)
  w = f32[4] all-reduce(v), channel_id=2, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=add
  ROOT r = (f32[], f32[4]) tuple(m, w)
}}

ENTRY e {{
  p = f32[4] parameter(0)
  i = u32[] partition-id()
  c = u32[8] constant({{0,0,0,0,1,1,1,1}})
  d = u32[1] dynamic-slice(c, i), dynamic_slice_sizes={{1}}
  j = u32[] reshape(d)
  k = s32[2] constant({{1,3}})
  b = s32[1] dynamic-slice(k, j), dynamic_slice_sizes={{1}}
  f = f32[1] convert(b)
  g = f32[] reshape(f)
  n = f32[] all-reduce(g), channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true, to_apply=add
  s = (f32[], f32[4]) tuple(n, p)
  l = (f32[], f32[4]) while(s), condition=turns, body=turn
  ROOT r = f32[4] get-tuple-element(l), index=1
}}
"""
    array = np.arange(32, dtype=np.float32)
    (found,) = spmdc.partition(spmdc.from_hlo(text)).simulate(array)
    sums = 4 * array.reshape(2, 4, 4).sum(1, keepdims=True)
    np.testing.assert_array_equal(found, np.broadcast_to(sums, (2, 4, 4)).ravel())


@pytest.mark.parametrize("attributes", ["", "attributes {mhlo.num_partitions = 2 : i32}"])
def test_a_module_of_stablehlo_that_may_not_say_for_how_many_devices_it_is(attributes: str) -> None:
    program = spmdc.from_mlir(
        f"""module {attributes} {{
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{
  %0 = "stablehlo.all_to_all"(%a) <{{concat_dimension = 0 : i64, replica_groups = #stablehlo.replica_group_mesh_axes<
      mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>, split_count = 2 : i64, split_dimension = 0 : i64}}>
      : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}}
}}"""
    )
    found = spmdc.partition(program).simulate(np.arange(8, dtype=np.float32))[0]
    np.testing.assert_array_equal(found, [0, 1, 4, 5, 2, 3, 6, 7])


MANUAL = {
    "all": ("{manual}", "{manual}", ("x",)),
    "a subgroup": (
        "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dims={manual}}",
        "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dims={manual}}",
        ("x",),
    ),
    "axes by name": (
        "{mesh['a'=4,'b'=2], [{}, {'b'}], manual={'a'}}", "{mesh['a'=4,'b'=2], [{'b'}, {}], manual={'a'}}", ("a",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", MANUAL)
def test_a_module_whose_shardings_are_manual(which: str) -> None:
    """Along the axes that are not manual it is partitioned."""
    argument, result, axes = MANUAL[which]
    program = spmdc.from_hlo(
        f"HloModule m, num_partitions=8\n\nENTRY e {{\n  p = f32[4,8] parameter(0), sharding={argument}\n"
        f"  ROOT r = f32[4,8] sine(p), sharding={result}\n}}\n"
    )
    (region,) = (op for op in all_ops(program) if op.name == "manual")
    assert [axis.name for axis in axes_attr(region.attrs)] == list(axes)
    (array,) = spmdc.random_inputs(program, seed=1)
    np.testing.assert_allclose(spmdc.partition(program).simulate(array)[0], np.sin(array), rtol=1e-6)


def test_a_permute_to_a_device_that_there_is_not_is_refused() -> None:
    text = module(f"{X}  ROOT r = f32[4,8] collective-permute(p), channel_id=1, source_target_pairs={{{{0,9}}}}")
    with pytest.raises(spmdc.SpmdcError, match=r"(?s)E304.*no device 9"):
        spmdc.from_hlo(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (module(f"{X}  ROOT r = f32[4,8] all-to-all(p), channel_id=1, replica_groups={{{{0,1}},{{2,3}}}}, "
                "dimensions={0}"), "are not along the manual axes"),
        (all_reduce("{{0,1},{2,3}}", head="replica_count=2, num_partitions=4").replace(
            "parameter(0)", "parameter(0), sharding={devices=[4,1]<=[4]}"), "runs as 2 replicas"),
        (module(f"{PLACED.format('[4,2]<=[8]')}  q = f32[4,8] custom-call(p), "
                'custom_call_target="Sharding", sharding={replicated}\n  ROOT i = u32[] partition-id()'),
         "the program is partitioned by hand here"),
        (module(f"{PLACED.format('[2,4]0,3,1,2,7,4,6,5')}{PLACED.format('[4,2]5,1,0,2,3,4,6,7')}".replace(
            "p = f32[4,8] parameter(0)", "q = f32[4,8] parameter(1)", 1) + "  ROOT i = u32[] partition-id()"),
         "along no axes of the mesh"),
    ],
    ids=["devices in no group", "replicas of a program that is to be partitioned", "values that are to be partitioned",
         "devices in orders that no mesh has"],
)  # fmt: skip
def test_what_is_partitioned_by_hand_only_in_part_is_refused(text: str, words: str) -> None:
    with pytest.raises(spmdc.SpmdcError, match=words) as refused:
        spmdc.from_hlo(text)
    assert refused.value.diagnostics[0].code == "E709"
    assert refused.value.diagnostics[0].help


def compiled(function: Any, inputs: Sequence[Array], specs: Sequence[Any]) -> tuple[str, list[dict[int, Array]]]:
    """What XLA's partitioner makes of a function, and what each device then has of each result."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    placed = [jax.device_put(a, jax.sharding.NamedSharding(mesh, s)) for a, s in zip(inputs, specs, strict=True)]
    executable = jax.jit(function).lower(*placed).compile()
    shards = [{s.device.id: np.atleast_1d(s.data) for s in r.addressable_shards} for r in executable(*placed)]
    return str(executable.as_text()), shards


def of_matrices(a: Any, w: Any) -> tuple[Any, ...]:
    product = a @ w
    return product.sum(0), product[::2], jax.numpy.flip(product, 1), product.sum(), jax.numpy.sort(product, 1)


def by_element(a: Any, w: Any) -> tuple[Any, ...]:
    return jax.numpy.sin(a), w * 2


Y = "[2,4]T(1,0) last_tile_dim_replicate}"
SHARDED: list[tuple[tuple[Any, ...], tuple[str, str]]] = [
    ((SPEC("x", "y"), SPEC("y")), ("{devices=[2,4]<=[8]}", f"{{devices=[4,1,2]<={Y}")),
    ((SPEC(("x", "y")), SPEC()), ("{devices=[8,1]<=[8]}", "{replicated}")),
    ((SPEC(("y", "x")), SPEC(None, "y")), ("{devices=[8,1]<=[2,4]T(1,0)}", f"{{devices=[1,4,2]<={Y}")),
    ((SPEC(None, ("x", "y")), SPEC(("x", "y"))), ("{devices=[1,8]<=[8]}", "{devices=[8,1]<=[8]}")),
]


@pytest.mark.parametrize("function", [of_matrices, by_element])
@pytest.mark.parametrize(("specs", "shardings"), SHARDED, ids=[str(specs) for specs, _ in SHARDED])
def test_a_module_that_xla_has_partitioned_takes_what_its_arguments_are_parts_of(
    specs: tuple[Any, ...], shardings: tuple[str, str], function: Callable[..., tuple[Any, ...]]
) -> None:
    """JAX 0.10 leaves the shardings of arguments in the text, later ones do not."""
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-4, 5, shape).astype(np.float32) for shape in ((16, 8), (8, 24))]
    text, expected = compiled(function, inputs, specs)
    if "sharding=" not in text:
        for i, sharding in enumerate(shardings):
            text = re.sub(rf"(%param(\.\d+)? = \S+ parameter\({i}\))", rf"\1, sharding={sharding}", text)
    program = spmdc.from_hlo(text)
    assert [param.type.shape for param in program.main.params] == [(16, 8), (8, 24)]
    for have, want in zip(spmdc.partition(program).simulate(*inputs), expected, strict=True):
        np.testing.assert_allclose(have, np.concatenate([want[i] for i in program.mesh.device_ids]), rtol=1e-6)
