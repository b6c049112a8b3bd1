"""Modules that XLA's and MLIR's parsers accept, with every construct that shards a tensor, communicates, or computes by
a function: generated from tables, in all combinations of a spelling and a place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Construct:
    """A module, and its expected results: from a numpy function, from XLA on one device (None), or, for a manually
    partitioned module, from its own text (`is_by_hand`)."""

    name: str
    text: str
    expected: Callable[[Array], Array] | None = None
    is_by_hand: bool = False

    @property
    def is_hlo(self) -> bool:
        return self.text.startswith("HloModule")


def hlo(body: str, before: str = "", head: str = "num_partitions=8") -> str:
    return f"HloModule m, {head}\n\n{before}ENTRY e {{\n{body}\n}}\n"


HLO_SHARDINGS = (
    "{replicated}", "{maximal device=0}", "{maximal device=5}", "{unknown}", "{devices=[2,4]<=[8]}",
    "{devices=[4,2]<=[2,4]T(1,0)}", "{devices=[8,1]<=[8]}", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}",
    "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}", "{devices=[2,1,4]<=[8] last_tile_dims={replicated}}",
    "{devices=[2,1,4]<=[8] last_tile_dims={maximal}}", "{devices=[4,2]3,1,2,0,7,5,6,4}", "{devices=[4,1]0,1,2,3}",
    "{devices=[2,2]1,3,5,7}", "{devices=[3,1]0,1,2}", "{devices=[2,2]<=[2,2]T(1,0)}",
    '{devices=[2,4]<=[8] metadata={op_name="q"}}', "{devices=[2,4]<=[8] shard_as 3}", "{unknown shard_like 2}",
    "{mesh['x'=2,'y'=4], [{'x'}, {'y'}]}", "{mesh['x'=2,'y'=4] [{'y'}, {}]}", "{mesh['x'=2,'y'=4], [{'x', ?}, {?}]}",
    "{mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)), [{'x'}, {'y'}]}",
    "{mesh['x'=2,'y'=4], device_ids=(0,2,4,6,1,3,5,7), [{}, {'y'}]}",
    "{mesh['x'=2,'y'=4], [{}, {'y'}], replicated={'x'}}", "{mesh['x'=8], [{'x':(1)2}, {'x':(2)4}]}",
    "{mesh['x'=8], [{'x':(4)2, 'x':(1)2}, {'x':(2)2}]}", "{mesh['a b'=2,'c-d'=4], [{'a b'}, {'c-d'}]}",
    "{maximal_mesh[device_id=0]}",
)  # fmt: skip
HLO_PLACES = {
    "a parameter": "  p = f32[8,8] parameter(0), sharding=@\n  c = f32[8,8] copy(p)\n  ROOT r = f32[8,8] negate(c)",
    "an op": "  p = f32[8,8] parameter(0)\n  c = f32[8,8] copy(p), sharding=@\n  ROOT r = f32[8,8] negate(c)",
    "a call": '  p = f32[8,8] parameter(0)\n  c = f32[8,8] custom-call(p), custom_call_target="Sharding", sharding=@\n'
              "  ROOT r = f32[8,8] negate(c)",
    "the result": "  p = f32[8,8] parameter(0)\n  c = f32[8,8] copy(p)\n  ROOT r = f32[8,8] negate(c), sharding=@",
}  # fmt: skip


def hlo_shardings() -> Iterator[Construct]:
    for sharding, (place, body) in itertools.product(HLO_SHARDINGS, HLO_PLACES.items()):
        yield Construct(f"{sharding} of {place}", hlo(body.replace("@", sharding)), np.negative)


T = "tensor<8x8xf32>"
MESHES = """sdy.mesh @m = <["x"=2, "y"=4]>
sdy.mesh @k = <["a"=2, "b"=2, "c"=2]>
sdy.mesh @one = <[], device_ids=[3]>
sdy.mesh @none = <[]>
sdy.mesh @ids = <["x"=2, "y"=4], device_ids=[0, 2, 4, 6, 1, 3, 5, 7]>
sdy.mesh @unused = <["q"=3]>
"""
SHARDY = (
    '<@m, [{"x"}, {"y"}]>', '<@m, [{"x", ?}, {?}]>', '<@m, [{}, {"y"}], replicated={"x"}>', "<@m, [{}, {}]>",
    '<@k, [{"c", "a"}, {}], replicated={"b"}>', '<@m, [{"y":(1)2}, {"y":(2)2}]>', '<@m, [{"y":(2)2, "x"}, {"y":(1)2}]>',
    '<@m, [{"y":(2)2, "y":(1)2}, {"x"}]>', '<mesh<["x"=2, "y"=4]>, [{"x"}, {"y"}]>', '<mesh<["q"=8]>, [{"q"}, {}]>',
    '<mesh<["x"=2, "y"=4], device_ids=[0, 2, 4, 6, 1, 3, 5, 7]>, [{"x"}, {"y"}]>', "<mesh<[]>, [{}, {}]>",
    "<mesh<[], device_ids=[0]>, []>", "<@one, []>", "<@none, [{}, {}]>", '<@m, [{"x"}p1, {?}p0]>',
    '<@ids, [{"x"}, {"y"}]>',
)  # fmt: skip
SHARDY_PLACES = {
    "an argument": f"(%x: {T} {{sdy.sharding = #sdy.sharding@}}) -> {T} {{\n  %0 = stablehlo.negate %x : {T}",
    "a constraint": f"(%x: {T}) -> {T} {{\n  %1 = stablehlo.negate %x : {T}\n  %0 = sdy.sharding_constraint %1 @ : {T}",
    "a reshard": f"(%x: {T}) -> {T} {{\n  %1 = stablehlo.negate %x : {T}\n  %0 = sdy.reshard %1 @ : {T}",
    "an op": f"(%x: {T}) -> {T} {{\n"
             f"  %0 = stablehlo.negate %x {{sdy.sharding = #sdy.sharding_per_value<[@]>}} : {T}",
    "a result": f"(%x: {T}) -> ({T} {{sdy.sharding = #sdy.sharding@}}) {{\n  %0 = stablehlo.negate %x : {T}",
    "an edge": f"(%x: {T}) -> {T} {{\n  %1 = stablehlo.negate %x : {T}\n  %0 = sdy.data_flow_edge %1 sharding=@ : {T}",
}  # fmt: skip


def shardy_shardings() -> Iterator[Construct]:
    for sharding, (place, body) in itertools.product(SHARDY, SHARDY_PLACES.items()):
        spelt = body.replace("@", sharding)
        text = f"module {{\n{MESHES}func.func @main{spelt}\n  return %0 : {T}\n}}\n}}\n"
        yield Construct(f"{sharding} of {place}", text, np.negative)


def _shardy(name: str, body: str, argument: str = '[{"x"}, {}]') -> Construct:
    head = f"func.func @main(%x: {T} {{sdy.sharding = #sdy.sharding<@m, {argument}>}}) -> {T} {{"
    return Construct(name, f"module {{\n{MESHES}{head}\n{body}\n  return %0 : {T}\n}}\n}}\n", lambda x: x)


def shardy_ops() -> Iterator[Construct]:
    ops = {
        "all_gather": ('[{"x"}, {}] %x out_sharding=<@m, [{}, {}]>', '[{"x"}, {}]'),
        "all_gather of a part": ('[{"y":(2)2}, {}] %x out_sharding=<@m, [{"y":(1)2}, {}]>', '[{"y"}, {}]'),
        "all_slice": ('[{}, {"y"}] %x out_sharding=<@m, [{"x"}, {"y"}]>', '[{"x"}, {}]'),
        "all_to_all": ('[{"x"}: 0->1] %x out_sharding=<@m, [{}, {"x"}]>', '[{"x"}, {}]'),
        "collective_permute": ('%x out_sharding=<@m, [{"y":(1)2}, {}]>', '[{"x"}, {}]'),
        "all_reduce": ('{"y"} %x out_sharding=<@m, [{"x"}, {}]>', '[{"x"}, {}]'),
        "reduce_scatter": ('[{"y"}, {}] %x out_sharding=<@m, [{"x", "y"}, {}]>', '[{"x"}, {}]'),
        "replicated_to_unreduced": ('{"y"} %x out_sharding=<@m, [{"x"}, {}], unreduced={"y"}>', '[{"x"}, {}]'),
        "sharded_to_unreduced": ('[{"x"}, {}] %x out_sharding=<@m, [{}, {}], unreduced={"x"}>', '[{"x"}, {}]'),
    }
    for name, (rest, argument) in ops.items():
        yield _shardy(f"sdy.{name}", f"  %0 = sdy.{name.partition(' ')[0]} {rest} : {T}", argument)
    for direction in ("NONE", "FORWARD", "BACKWARD"):
        yield _shardy(f"barrier {direction}", f"  %0 = sdy.propagation_barrier %x allowed_direction={direction} : {T}")
    for said in ("", 'in_shardings=[<@m, [{"x"}, {}]>] out_shardings=[<@m, [{}, {"y"}]>] '):
        body = f'  %0 = sdy.named_computation<"f">(%x) {said}(%a: {T}) {{\n  sdy.return %a : {T}\n  }} : ({T}) -> {T}'
        yield _shardy(f"named computation {said}", body)
    group = f"  %0 = stablehlo.abs %x : {T}\n  sdy.sharding_group %0 group_id=3 : {T}\n"
    text = _shardy("", f"{group}  sdy.sharding_group %x group_id=3 : {T}").text
    yield Construct("sharding group", text, np.abs)


CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
ADD = """({
  ^b(%p: tensor<f32>, %q: tensor<f32>):
    %s = stablehlo.BODY %p, %q : tensor<f32>
    stablehlo.return %s : tensor<f32>
  })"""
AXIS = {
    "x": ("[[0, 4], [1, 5], [2, 6], [3, 7]]", 2),
    "y": ("[[0, 1, 2, 3], [4, 5, 6, 7]]", 4),
}


def collectives_in_regions() -> Iterator[Construct]:
    """Collectives along each axis, in groups that are listed, expressed in axes of a declared mesh, or in axes of a
    mesh in the op."""
    for (axis, (listed, n)), how in itertools.product(
        AXIS.items(), ("listed", "of axes", "of axes of a mesh in the op")
    ):
        named = f'axes = [#stablehlo.axis_ref<name = "{axis}">]>'
        inline = "#stablehlo.mesh<axes = [" + ", ".join(
            f'#stablehlo.mesh_axis<name = "{a}", size = {size}>' for a, (_, size) in AXIS.items()
        ) + "]>"  # fmt: skip
        groups = {
            "listed": f"dense<{listed}> : tensor<{8 // n}x{n}xi64>",
            "of axes": f"#stablehlo.replica_group_mesh_axes<mesh = @m, {named}",
            "of axes of a mesh in the op": f"#stablehlo.replica_group_mesh_axes<mesh = {inline}, {named}",
        }[how]
        given, all_ids = f"replica_groups = {groups}, {CHANNEL}", ", use_global_device_ids"
        rows = 8 // n
        ops = {
            "all_reduce": (given + all_ids, ADD.replace("BODY", "add"), (rows, 8)),
            "all_reduce by any body": (given + all_ids, ADD.replace("BODY", "atan2"), (rows, 8)),
            "all_reduce by max": (given + all_ids, ADD.replace("BODY", "maximum"), (rows, 8)),
            "all_gather": (f"all_gather_dim = 1 : i64, {given}{all_ids}", "", (rows, 8 * n)),
            "reduce_scatter": (f"scatter_dimension = 1 : i64, {given}{all_ids}", ADD.replace("BODY", "add"),
                               (rows, 8 // n)),
            "all_to_all": (f"split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = {n} : i64, {given}",
                           "", (8, 8 // n)),
            "collective_broadcast": (given, "", (rows, 8)),
        }  # fmt: skip
        for name, (attributes, region, shape) in ops.items():
            local, made = f"tensor<{rows}x8xf32>", f"tensor<{shape[0]}x{shape[1]}xf32>"
            whole = f"tensor<{shape[0] * n}x{shape[1]}xf32>"
            text = (
                f"module {{\n{MESHES}func.func @main(%x: {T}) -> {whole} {{\n  %0 = sdy.manual_computation(%x) "
                f'in_shardings=[<@m, [{{"{axis}"}}, {{}}]>] out_shardings=[<@m, [{{"{axis}"}}, {{}}]>] '
                f'manual_axes={{"{axis}"}} (%a: {local}) {{\n    %1 = "stablehlo.{name.partition(" ")[0]}"(%a) '
                f"<{{{attributes}}}> {region} : ({local}) -> {made}\n    sdy.return %1 : {made}\n"
                f"  }} : ({T}) -> {whole}\n  return %0 : {whole}\n}}\n}}\n"
            )
            yield Construct(f"{name} {how} along {axis}", text, is_by_hand=True)


COMPARATORS = {
    "bits": "i = s32[] bitcast-convert(a)\n  j = s32[] bitcast-convert(b)\n"
            "  ROOT r = pred[] compare(i, j), direction=GT",
    "sizes": "i = T[] abs(a)\n  j = T[] abs(b)\n  ROOT r = pred[] compare(i, j), direction=LT",
    "negated": "i = T[] negate(a)\n  j = T[] negate(b)\n  ROOT r = pred[] compare(i, j), direction=LT",
    "difference": "d = T[] subtract(a, b)\n  z = T[] constant(0)\n  ROOT r = pred[] compare(d, z), direction=LT",
    "not": "n = pred[] compare(a, b), direction=GE\n  ROOT r = pred[] not(n)",
    "select": "l = pred[] compare(a, b), direction=LT\n  t = pred[] constant(true)\n  f = pred[] constant(false)\n"
              "  ROOT r = pred[] select(l, t, f)",
    "remainders": "k = T[] constant(3)\n  i = T[] remainder(a, k)\n  j = T[] remainder(b, k)\n"
                  "  ROOT r = pred[] compare(i, j), direction=LT",
    "sizes, then signs": "i = T[] abs(a)\n  j = T[] abs(b)\n  s = pred[] compare(i, j), direction=LT\n"
                         "  e = pred[] compare(i, j), direction=EQ\n  l = pred[] compare(a, b), direction=LT\n"
                         "  t = pred[] and(e, l)\n  ROOT r = pred[] or(s, t)",
    "two classes": "k = T[] constant(1)\n  i = pred[] compare(a, k), direction=LT\n"
                   "  j = pred[] compare(b, k), direction=GE\n  ROOT r = pred[] and(i, j)",
}  # fmt: skip


def sorts() -> Iterator[Construct]:
    for (name, body), type, split in itertools.product(COMPARATORS.items(), ("f32", "s32"), ("[8,1]", "[1,8]")):
        if name == "bits" and type == "s32":
            continue
        before = f"before {{\n  a = T[] parameter(0)\n  b = T[] parameter(1)\n  {body}\n}}\n\n"
        entry = (
            f"  p = T[8,16] parameter(0), sharding={{devices={split}<=[8]}}\n"
            "  ROOT s = T[8,16] sort(p), dimensions={1}, is_stable=true, to_apply=before"
        )
        yield Construct(f"sort {name} {type} {split}", hlo(entry, before).replace("T[", f"{type}["))


BODIES = {
    "hypotenuse": "i = f32[] multiply(a, a)\n  j = f32[] multiply(b, b)\n  s = f32[] add(i, j)\n"
                  "  ROOT r = f32[] sqrt(s)",
    "first": "ROOT r = f32[] copy(a)",
    "second": "ROOT r = f32[] copy(b)",
    "larger by size": "i = f32[] abs(a)\n  j = f32[] abs(b)\n  ROOT r = f32[] maximum(i, j)",
    "difference": "ROOT r = f32[] subtract(a, b)",
}  # fmt: skip
_ROWS = (
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
    "to_apply=body"
)
USES = {
    "reduce": "  z = f32[] constant(0)\n  ROOT r = f32[8] reduce(p, z), dimensions={1}, to_apply=body",
    "reduce_window": "  z = f32[] constant(0)\n"
                     "  ROOT r = f32[8,7] reduce-window(p, z), window={size=1x2}, to_apply=body",
    "map": "  ROOT r = f32[8,8] map(p, p), dimensions={0,1}, to_apply=body",
    "scatter": "  i = s32[3,1] constant({{1},{5},{1}})\n  u = f32[3,8] parameter(1)\n"
               f"  ROOT r = f32[8,8] scatter(p, i, u), {_ROWS}",
    "unique scatter": "  i = s32[3,1] constant({{1},{5},{9}})\n  u = f32[3,8] parameter(1)\n"
                      f"  ROOT r = f32[8,8] scatter(p, i, u), unique_indices=true, {_ROWS}",
}  # fmt: skip


def bodies() -> Iterator[Construct]:
    for (name, body), (use, entry), split in itertools.product(BODIES.items(), USES.items(), ("[8,1]", "[2,4]")):
        if name == "difference" and use in ("reduce", "reduce_window"):
            continue  # It is not associative, and its result depends on an unspecified order.
        before = f"body {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  {body}\n}}\n\n"
        param = f"  p = f32[8,8] parameter(0), sharding={{devices={split}<=[8]}}\n"
        yield Construct(f"{use} {name} {split}", hlo(param + entry, before))


SELECTORS = {
    "the larger": "ROOT r = pred[] compare(a, b), direction=GE",
    "the larger by size": "i = f32[] abs(a)\n  j = f32[] abs(b)\n  ROOT r = pred[] compare(i, j), direction=GT",
    "the last": "ROOT r = pred[] constant(false)",
}
ADDED, LARGER = "ROOT r = f32[] add(a, b)", "ROOT r = f32[] maximum(a, b)"
WINDOWS = {
    "apart": ("[4,8]", "size=2x1 stride=2x1"),
    "that overlap": ("[7,6]", "size=2x3"),
    "with padding": ("[5,4]", "size=2x2 stride=2x2 pad=1_1x0_0"),
}


def selections() -> Iterator[Construct]:
    """Each selecting function with each scattering one, and each with all windows."""
    bodies, windows = {"sum": ADDED, "maximum": LARGER, "second": BODIES["second"]}, list(WINDOWS.items())
    for (i, (name, select)), (j, (combine, body)) in itertools.product(
        enumerate(SELECTORS.items()), enumerate(bodies.items())
    ):
        where, (shape, window) = windows[(i + j) % len(windows)]
        before = "".join(
            f"{function} {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  {text}\n}}\n\n"
            for function, text in (("select", select), ("body", body))
        )
        entry = (
            "  p = f32[8,8] parameter(0), sharding={devices=[2,4]<=[8]}\n"
            f"  s = f32{shape} parameter(1)\n  z = f32[] constant(-2)\n"
            f"  ROOT r = f32[8,8] select-and-scatter(p, s, z), window={{{window}}}, select=select, scatter=body"
        )
        yield Construct(f"select {name} and scatter by {combine} in windows {where}", hlo(entry, before))


def rounded_at_random() -> Iterator[Construct]:
    for (given, bits), made in itertools.product({"f32": "u32", "bf16": "u16", "f16": "u16"}.items(), ("s8", "s32")):
        entry = (
            f"  p = {given}[8,8] parameter(0), sharding={{devices=[2,4]<=[8]}}\n  u = {bits}[8,8] parameter(1)\n"
            f"  k = {given}[] constant(0.3)\n  c = {given}[8,8] broadcast(k), dimensions={{}}\n"
            f"  m = {given}[8,8] multiply(p, c)\n  ROOT r = {made}[8,8] stochastic-convert(m, u)"
        )
        yield Construct(f"{given} to {made} at random", hlo(entry))


def shapes_that_are_told() -> Iterator[Construct]:
    """Shapes from run-time values, with result types that are static anyway."""
    ops = {
        "dynamic_reshape": (f'"stablehlo.dynamic_reshape"(%x, %s) : ({T}, tensor<2xi32>) -> ', (4, 16)),
        "dynamic_iota": ('"stablehlo.dynamic_iota"(%s) <{iota_dimension = 1 : i64}> : (tensor<2xi32>) -> ', (4, 16)),
        "dynamic_broadcast_in_dim": ('"stablehlo.dynamic_broadcast_in_dim"(%x, %s) <{broadcast_dimensions = '
                                     f'array<i64: 0, 1>}}> : ({T}, tensor<2xi32>) -> ', (8, 8)),
    }  # fmt: skip
    expected: dict[str, Callable[[Array], Array]] = {
        "dynamic_reshape": lambda x: x.reshape(4, 16),
        "dynamic_iota": lambda _: np.tile(np.arange(16, dtype=np.float32), (4, 1)),
        "dynamic_broadcast_in_dim": lambda x: x,
    }
    for name, (op, (rows, columns)) in ops.items():
        made = f"tensor<{rows}x{columns}xf32>"
        text = (
            f'module {{\n{MESHES}func.func @main(%x: {T} {{sdy.sharding = #sdy.sharding<@m, [{{"x"}}, {{"y"}}]>}}, '
            f"%s: tensor<2xi32>) -> {made} {{\n  %0 = {op}{made}\n  return %0 : {made}\n}}\n}}\n"
        )
        yield Construct(name, text, expected[name])


def shapes_that_follow() -> Iterator[Construct]:
    """Shapes that follow from those of the arguments: through arithmetic, and into a function."""
    sizes = (
        f"func.func @main(%x: {T}) -> tensor<?xf32> {{\n"
        f"  %d = stablehlo.get_dimension_size %x, dim = 0 : ({T}) -> tensor<i32>\n"
        "  %m = stablehlo.multiply %d, %d : tensor<i32>\n"
        "  %r = stablehlo.reshape %m : (tensor<i32>) -> tensor<1xi32>\n"
        f"  %0 = stablehlo.dynamic_reshape %x, %r : ({T}, tensor<1xi32>) -> tensor<?xf32>\n"
        "  return %0 : tensor<?xf32>\n}\n"
    )
    called = (
        f"func.func @main(%x: {T}) -> tensor<?x8xf32> {{\n"
        f"  %0 = call @f(%x) : ({T}) -> tensor<?x8xf32>\n  return %0 : tensor<?x8xf32>\n}}\n"
        f"func.func private @f(%x: {T}) -> tensor<?x8xf32> {{\n"
        f"  %0 = stablehlo.negate %x : ({T}) -> tensor<?x8xf32>\n  return %0 : tensor<?x8xf32>\n}}\n"
    )
    yield Construct("a shape that is computed", f"module {{\n{sizes}}}\n", np.ravel)
    yield Construct("a shape that a call returns", f"module {{\n{called}}}\n", np.negative)


_OF_SHARDY = r"""HloModule m, num_partitions=8, frontend_attributes={xla.sdy.meshes={m = #sdy.mesh<["x"=2, "y"=4]>}}

add {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT r = f32[] add(p, q)
}

sum {
  p = f32[4,4] parameter(0)
  ROOT r = f32[4,4] all-reduce(p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true,
    to_apply=add
}

half {
  i = u32[] partition-id()
  c = u32[] constant(4)
  d = u32[] divide(i, c)
  t = u32[] constant(2)
  m = u32[] remainder(d, t)
  ROOT r = f32[] convert(m)
}

along_x {
  p = f32[4,16] parameter(0)
  i = f32[4,4] custom-call(p), custom_call_target="xla.sdy.GlobalToLocalShape", custom_call_has_side_effect=true,
    frontend_attributes={xla.sdy.in_shardings="#sdy.sharding_per_value<[<@m, [{?}, {\"y\", ?}]>]>",
                         xla.sdy.manual_axes="#sdy<manual_axes{\"y\"}>"}
  s = f32[4,4] call(i), to_apply=sum
  o = f32[4,4] custom-call(s), custom_call_target="xla.sdy.LocalToGlobalShape", custom_call_has_side_effect=true,
    frontend_attributes={xla.sdy.out_shardings="#sdy.sharding_per_value<[<@m, [{?}, {?}]>]>",
                         xla.sdy.manual_axes="#sdy<manual_axes{\"y\"}>"}
  h = f32[] call(), to_apply=half
  n = f32[] custom-call(h), custom_call_target="xla.sdy.LocalToGlobalShape", custom_call_has_side_effect=true,
    frontend_attributes={xla.sdy.out_shardings="#sdy.sharding_per_value<[<@m, []>]>",
                         xla.sdy.manual_axes="#sdy<manual_axes{\"y\"}>"}
  b = f32[4,4] broadcast(n), dimensions={}
  ROOT r = f32[4,4] add(o, b)
}

ENTRY e {
  p = f32[8,16] parameter(0), sharding={devices=[2,4]<=[8]}
  i = f32[4,16] custom-call(p), custom_call_target="xla.sdy.GlobalToLocalShape", custom_call_has_side_effect=true,
    frontend_attributes={xla.sdy.in_shardings="#sdy.sharding_per_value<[<@m, [{\"x\", ?}, {?}]>]>",
                         xla.sdy.manual_axes="#sdy<manual_axes{\"x\"}>"}
  c = f32[4,4] call(i), to_apply=along_x
  ROOT o = f32[8,4] custom-call(c), custom_call_target="xla.sdy.LocalToGlobalShape", custom_call_has_side_effect=true,
    frontend_attributes={xla.sdy.out_shardings="#sdy.sharding_per_value<[<@m, [{\"x\", ?}, {?}]>]>",
                         xla.sdy.manual_axes="#sdy<manual_axes{\"x\"}>"}
}
"""
_OF_TILES = r"""module attributes {mhlo.num_partitions = 8 : i32} {
func.func @main(%p: tensor<8x16xf32> {mhlo.sharding = "{devices=[2,4]<=[8]}"}, %q: tensor<4x4xf32>
                {mhlo.sharding = "{devices=[2,2,2]<=[8] last_tile_dim_replicate}"}) -> tensor<8x4xf32> {
  %0 = ANNOTATED(%p) {backend_config = "unspecified_dims=[0,1]",
    mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = INTO(%0) {mhlo.sharding = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"}
    : (tensor<8x16xf32>) -> tensor<4x16xf32>
  %2 = ANNOTATED(%q) {backend_config = "unspecified_dims=[0,1]", mhlo.sharding = "{replicated}"}
    : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = INTO(%2) {mhlo.sharding = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"}
    : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = stablehlo.subtract %3, %3 : tensor<4x4xf32>
  %5 = call @along_x(%1, %4) : (tensor<4x16xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %6 = OUT(%5) {mhlo.sharding = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"}
    : (tensor<4x4xf32>) -> tensor<8x4xf32>
  return %6 : tensor<8x4xf32>
}
func.func private @along_x(%p: tensor<4x16xf32>, %q: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = ANNOTATED(%p) {mhlo.sharding = "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dims={manual}}"}
    : (tensor<4x16xf32>) -> tensor<4x16xf32>
  %1 = INTO(%0) {mhlo.sharding = "{manual}"} : (tensor<4x16xf32>) -> tensor<4x4xf32>
  %2 = "stablehlo.all_reduce"(%1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, use_global_device_ids}> ({
  ^b(%a: tensor<f32>, %b: tensor<f32>):
    %s = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = OUT(%2) {mhlo.sharding = "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"}
    : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = call @half() : () -> tensor<f32>
  %5 = ANNOTATED(%4) {mhlo.sharding = "{manual}"} : (tensor<f32>) -> tensor<f32>
  %6 = OUT(%5) {mhlo.sharding = "{devices=[2,4]<=[8] last_tile_dims={manual, replicated}}"}
    : (tensor<f32>) -> tensor<f32>
  %7 = stablehlo.broadcast_in_dim %6, dims = [] : (tensor<f32>) -> tensor<4x4xf32>
  %8 = stablehlo.add %3, %7 : tensor<4x4xf32>
  %9 = stablehlo.add %8, %q : tensor<4x4xf32>
  return %9 : tensor<4x4xf32>
}
func.func private @half() -> tensor<f32> {
  %i = stablehlo.partition_id : tensor<ui32>
  %c = stablehlo.constant dense<4> : tensor<ui32>
  %d = stablehlo.divide %i, %c : tensor<ui32>
  %t = stablehlo.constant dense<2> : tensor<ui32>
  %m = stablehlo.remainder %d, %t : tensor<ui32>
  %r = stablehlo.convert %m : (tensor<ui32>) -> tensor<f32>
  return %r : tensor<f32>
}
}
"""


def regions_in_regions() -> Iterator[Construct]:
    """A region along an axis of the mesh, with two nested ones along the other axis, one of which has no operands."""

    def expected(x: Array) -> Array:
        sums: Array = x.reshape(8, 4, 4).sum(1) + np.arange(8, dtype=np.float32)[:, None] // 4
        return sums

    yield Construct("regions in regions of Shardy in HLO", _OF_SHARDY, expected)
    targets = {"ANNOTATED": "Sharding", "INTO": "SPMDFullToShardShape", "OUT": "SPMDShardToFullShape"}
    text = _OF_TILES
    for name, target in targets.items():
        text = text.replace(name, f"stablehlo.custom_call @{target}")
    yield Construct("regions in regions of tiles", text, expected)


P = "  p = f32[8,8] parameter(0), sharding={devices=[2,4]<=[8]}\n"
REFUSED = {
    "infeed after outfeed": ("E704", P + "  t = token[] after-all()\n  o = token[] outfeed(p, t)\n"
                                     "  i = ((f32[8,8]), token[]) infeed(o)\n"
                                     "  j = (f32[8,8]) get-tuple-element(i), index=0\n"
                                     "  ROOT r = f32[8,8] get-tuple-element(j), index=0"),
    "recv from a device": ("E704", "  t = token[] after-all()\n  s = (f32[8,8], u32[], token[]) recv(t), channel_id=1\n"
                     "  d = (f32[8,8], token[]) recv-done(s), channel_id=1\n"
                     "  ROOT r = f32[8,8] get-tuple-element(d), index=0"),
    "a size at run time": ("E703", "  p = f32[8] parameter(0)\n  n = s32[] parameter(1)\n"
                                   "  ROOT s = f32[<=8] set-dimension-size(p, n), dimensions={0}"),
    "stochastic rounding to floats": ("E702", "  p = f32[8] parameter(0)\n  r = u32[8] parameter(1)\n"
                                    "  ROOT s = bf16[8] stochastic-convert(p, r)"),
}  # fmt: skip
"""Modules that are rejected with this diagnostic code."""


def all_constructs() -> list[Construct]:
    """All constructs that are imported."""
    return [
        *hlo_shardings(), *shardy_shardings(), *shardy_ops(), *collectives_in_regions(), *sorts(), *bodies(),
        *selections(), *rounded_at_random(), *shapes_that_are_told(), *shapes_that_follow(), *regions_in_regions(),
    ]  # fmt: skip
