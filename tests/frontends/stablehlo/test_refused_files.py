"""Files of MLIR and HLO that cannot be imported: each is refused with a code, its place, and a way out.

The parser of MLIR trusts much of what it reads; what it would crash on, or pass over, is checked. XLA's ends its
process over much, and says why in words that depend on its version.
"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from jaxlib.mlir import ir

import spmdc
from spmdc import SpmdcError
from spmdc.cli import main
from spmdc.frontends.stablehlo.mlir_modules import new_context

TENSOR = "tensor<4x6xf32>"


def mlir(body: str = f"  return %x : {TENSOR}", argument: str = "", head: str = "", attributes: str = "") -> str:
    signature = f"func.func @main(%x: {TENSOR} {argument}) -> {TENSOR}"
    return f"module {attributes} {{\n{head}\n{signature} {{\n{body}\n}}\n}}\n"


def annotated(sharding: str) -> str:
    return mlir(argument=f'{{mhlo.sharding = "{sharding}"}}')


def call(target: str, rest: str = "", operands: str = "%x", types: str = f"({TENSOR}) -> {TENSOR}") -> str:
    return mlir(f"  %0 = stablehlo.custom_call @{target}({operands}) {rest} : {types}\n  return %0 : {TENSOR}")


def hlo(body: str, head: str = "HloModule m", before: str = "") -> str:
    return f"{head}\n\n{before}ENTRY main {{\n{body}\n}}\n"


MESH = 'sdy.mesh @m = <["x"=4]>'
TWO = "combine {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\n"
X = "  x = f32[8,8] parameter(0)\n"

MLIR = {
    "E305 3 more tiles than memory": annotated("{devices=[1000000000000,1]<=[1000000000000]}"),
    "E309 3 an empty sharding": annotated(""),
    "E309 3 junk": annotated("{junk}"),
    "E303 3 rank": annotated("{devices=[2,2,2]<=[8]}"),
    "E304 3 a device twice": annotated("{devices=[2,1]0,0}"),
    "E305 3 tiles and devices": annotated("{devices=[4,1]<=[5]}"),
    "E309 3 permutation": annotated("{devices=[2,4]<=[2,4]T(0,0)}"),
    "E702 3 a sharding that is a number": mlir(argument="{mhlo.sharding = 3 : i32}"),
    "E702 0 partitions that are a text": mlir(attributes='attributes {mhlo.num_partitions = "8"}'),
    "E709 1 replicas": mlir(
        argument='{mhlo.sharding = "{devices=[2,1]<=[2]}"}', attributes="attributes {mhlo.num_replicas = 2 : i32}"
    ),
    "E702 0 no meshes": mlir(attributes='attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "junk"}}'),
    "E702 0 no mesh": mlir(attributes='attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{m = 3 : i32}"}}'),
    "E305 2 a mesh too small": mlir(head=MESH, attributes="attributes {mhlo.num_partitions = 8 : i32}"),
    "E304 2 meshes of different sizes": mlir(
        f'  %0 = sdy.sharding_constraint %x <@m, [{{"x"}}, {{}}]> : {TENSOR}\n'
        f'  %1 = sdy.sharding_constraint %0 <@k, [{{"y"}}, {{}}]> : {TENSOR}\n  return %1 : {TENSOR}',
        head=MESH + ' sdy.mesh @k = <["y"=8]>',
    ),
    "E701 4 a file of no name": mlir(f'  %0 = stablehlo.sine %x : {TENSOR} loc("f\\92":1:2)\n  return %0 : {TENSOR}'),
    "E701 2 an axis of no name": mlir(head=' sdy.mesh @m = <["\\92"=4]>'),
    "E701 3 a sharding that is a place": mlir(argument='{mhlo.sharding = loc("f":1:2)}'),
    "E702 3 a sharding that is no text": annotated("\\92"),
    "E702 0 meshes that are no text": mlir(
        attributes='attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "\\92"}}'
    ),
    "E702 4 a configuration that is no text": call("f", '{backend_config = "\\92"}'),
    "E309 4 annotation without a sharding": call("Sharding"),
    "E701 4 a result beyond any op": mlir(f"  return %x#2147483648 : {TENSOR}"),
    "E701 4 more results than memory": mlir(f'  %0:4000000000 = "f"() : () -> {TENSOR}\n  return %x : {TENSOR}'),
    "E702 4 annotation of nothing": call("Sharding", operands="", types=f"() -> {TENSOR}"),
    "E309 4 annotation of ours that is none": call("spmdc.shard", '{backend_config = "junk"}'),
    "E309 4 annotation of ours without text": call("spmdc.shard"),
    "E702 4 annotation of ours that is no text": call("spmdc.shard", '{backend_config = "\\92"}'),
    "E702 4 results of top_k": call("mhlo.topk"),
    "E702 4 results of a matrix factor": call("lapack_spotrf_ffi"),
    "E702 4 options of a triangular system": call(
        "lapack_strsm_ffi", operands="%x, %x", types=f"({TENSOR}, {TENSOR}) -> {TENSOR}"
    ),
    "E702 4 types of a custom call": call("mhlo.sinh", types=f"({TENSOR}) -> tensor<4x6xi32>").replace(
        f"-> {TENSOR} {{", "-> tensor<4x6xi32> {"
    ).replace(f"%0 : {TENSOR}", "%0 : tensor<4x6xi32>"),
    "E309 4 frontend attribute": call("Sharding", '{mhlo.frontend_attributes = {xla.sdy.sharding = "junk"}}'),
    "E701 4 types": mlir(f"  %0 = stablehlo.add %x, %x : tensor<4x5xf32>\n  return %x : {TENSOR}"),
    "E301 4 an axis": mlir(
        f'  %0 = sdy.sharding_constraint %x <@m, [{{"z"}}, {{}}]> : {TENSOR}\n  return %0 : {TENSOR}', head=MESH
    ),
    "E709 4 a sum over replicas": mlir(
        '  %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({\n'
        "  ^b(%a: tensor<f32>, %b: tensor<f32>):\n    %s = stablehlo.add %a, %b : tensor<f32>\n"
        f"    stablehlo.return %s : tensor<f32>\n  }}) : ({TENSOR}) -> {TENSOR}\n  return %0 : {TENSOR}",
        argument='{mhlo.sharding = "{devices=[2,1]<=[2]}"}',
    ),
    "E709 4 shards that are returned": mlir(
        f'  %0 = stablehlo.custom_call @SPMDFullToShardShape(%x) {{mhlo.sharding = "{{manual}}"}} : '
        f"({TENSOR}) -> {TENSOR}\n  return %0 : {TENSOR}",
        argument='{mhlo.sharding = "{devices=[2,1]<=[2]}"}',
    ),
    "E409 4 shards of another shape": mlir(
        f'  %0 = stablehlo.custom_call @SPMDFullToShardShape(%x) {{mhlo.sharding = "{{manual}}"}} : ({TENSOR}) -> '
        'tensor<1x6xf32>\n  %1 = stablehlo.custom_call @SPMDShardToFullShape(%0) {mhlo.sharding = '
        f'"{{devices=[2,1]<=[2]}}"}} : (tensor<1x6xf32>) -> {TENSOR}\n  return %1 : {TENSOR}',
        argument='{mhlo.sharding = "{devices=[2,1]<=[2]}"}',
    ),
    "E709 5 regions on two meshes": mlir(
        "".join(
            f'  %{i + 1} = sdy.manual_computation({v}) in_shardings=[<@{mesh}, [{{"{axis}"}}, {{}}]>] '
            f'out_shardings=[<@{mesh}, [{{"{axis}"}}, {{}}]>] manual_axes={{"{axis}"}} (%a: tensor<{n}x6xf32>) '
            f"{{ sdy.return %a : tensor<{n}x6xf32> }} : ({TENSOR}) -> {TENSOR}\n"
            for i, (v, mesh, axis, n) in enumerate((("%x", "m", "x", 1), ("%1", "k", "b", 2)))
        )
        + f"  return %2 : {TENSOR}",
        head=MESH + ' sdy.mesh @k = <["a"=2, "b"=2]>',
    ),
    "E402 4 recursion": mlir(f"  %0 = call @main(%x) : ({TENSOR}) -> {TENSOR}\n  return %0 : {TENSOR}"),
    "E003 0 functions that call one another too deep": "".join(
        f"func.func {'private' if i else ''} @{f'f{i}' if i else 'main'}(%x: {TENSOR}) -> {TENSOR} {{\n"
        f"  %0 = call @f{i + 1}(%x) : ({TENSOR}) -> {TENSOR}\n  return %0 : {TENSOR}\n}}\n" for i in range(400)
    ) + f"func.func private @f400(%x: {TENSOR}) -> {TENSOR} {{\n  return %x : {TENSOR}\n}}\n",
    "E702 4 a resource that is not there": mlir(
        f"  %0 = stablehlo.constant dense_resource<elided> : {TENSOR}\n  return %0 : {TENSOR}"
    ),
    "E702 4 a resource of another size": mlir(
        f"  %0 = stablehlo.constant dense_resource<r> : {TENSOR}\n  return %0 : {TENSOR}"
    ) + '{-# dialect_resources: {builtin: {r: "0x0400000001000000"}} #-}',
    "E403 0 nothing": "",
    "E403 0 two modules": mlir() + mlir(),
}  # fmt: skip

HLO = {
    "E701 5 parameter 5": hlo("  x = f32[4] parameter(0)\n  ROOT y = f32[4] parameter(5)"),
    "E701 4 sized token": hlo("  ROOT x = token[4] parameter(0)"),
    "E305 4 tiles and devices": hlo("  ROOT x = f32[8,8] parameter(0), sharding={devices=[2,4]<=[99,4]T(1,0)}"),
    "E701 4 no tiles": hlo("  ROOT x = f32[8,8] parameter(0), sharding={devices=[0,1]<=[0]}"),
    "E701 4 negative tiles": hlo("  ROOT x = f32[8,8] parameter(0), sharding={devices=[-2,1]<=[-2]}"),
    "E701|E305 4 listed devices": hlo("  ROOT x = f32[8,8] parameter(0), sharding={devices=[1,1]0,1,3,2,4,5,7,6}"),
    "E301 4 unknown axis": hlo("  ROOT x = f32[8,8] parameter(0), sharding={mesh['a'=4], [{'a'}, {'q'}]}"),
    "E303 4 rank of axes": hlo("  ROOT x = f32[8,8] parameter(0), sharding={mesh['a'=4], [{'a'}]}"),
    "E304 4 devices of axes": hlo(
        "  ROOT x = f32[8,8] parameter(0), sharding={mesh['a'=4], device_ids=(1,0), [{'a'}, {}]}"
    ),
    "E305 0 too large a mesh": hlo(
        "  ROOT x = f32[8,8] parameter(0), sharding={mesh['a'=16], [{'a'}, {}]}", "HloModule m, num_partitions=8"
    ),
    "E701 4 tuple sharding": hlo("  ROOT x = f32[8,8] parameter(0), sharding={{replicated},{replicated}}"),
    "E701 5 too few shardings": hlo(X + "  ROOT t = (f32[8,8], f32[8,8]) tuple(x, x), sharding={{replicated}}"),
    "E701 5 reshape": hlo(X + "  y = f32[2,12] reshape(x)  ROOT z = f32[2,12] copy(y)"),
    "E701 5 element of no tuple": hlo(X + "  ROOT y = f32[8,8] get-tuple-element(x), index=0"),
    "E701 6 element out of range": hlo(
        X + "  t = (f32[8,8]) tuple(x)\n  ROOT y = f32[8,8] get-tuple-element(t), index=5"
    ),
    "E701 5 tuple": hlo(X + "  ROOT t = f32[8,8] tuple(x)"),
    "E701 5 unknown operand of dot": hlo(X + "  ROOT y = f32[8,8] dot(dot, x)"),
    "E701 11 call": hlo(X + "  ROOT y = (f32[], f32[]) call(x, x), to_apply=combine", before=TWO),
    "E701 11 branch": hlo(
        "  p = pred[] parameter(0)\n"
        "  ROOT y = f32[] conditional(p, p, p), true_computation=combine, false_computation=combine", before=TWO
    ),
    "E701 5 types": hlo(X + "  ROOT y = f32[8,9] add(x, x)"),
    "E701 4 constant whose numbers are left out": hlo("  ROOT y = f32[8,8]{1,0} constant({...})"),
    "E701 5 opcode": hlo(X + "  ROOT y = f32[8,8] frobnicate(x)"),
    "E304 0 devices beyond any mesh": hlo(
        X + '  ROOT y = f32[8,8] custom-call(x), custom_call_target="Sharding", sharding={devices=[4,2]<=[8]}',
        "HloModule m, num_partitions=4294967296",
    ),
    "E709 0 replicas": hlo(
        X.replace("(0)", "(0), sharding={devices=[2,1]<=[2]}") + "  ROOT y = f32[8,8] add(x, x)",
        "HloModule m, replica_count=2, num_partitions=2",
    ),
    "E701 5 groups of no devices": hlo(
        X + "  ROOT y = f32[8,8] all-to-all(x), replica_groups=mesh['a'=8], device_ids=([9]) {'a'}, dimensions={0}"
    ),
    "E701 1 nothing": "",
}  # fmt: skip


def refused(text: str, language: str) -> SpmdcError:
    with pytest.raises(SpmdcError) as caught:
        (spmdc.from_mlir if language == "mlir" else spmdc.from_hlo)(text, f"bad.{language}")
    return caught.value


@pytest.mark.parametrize(("language", "what"), [*(("mlir", what) for what in MLIR), *(("hlo", what) for what in HLO)])
def test_a_file_is_refused_with_its_code_its_line_and_a_way_out(language: str, what: str) -> None:
    """Line 0 is that of what has no line of its own, the module. Of two codes, that depends on XLA's version."""
    code, line, *_ = what.split()
    diagnostic = refused((MLIR if language == "mlir" else HLO)[what], language).diagnostics[0]
    assert diagnostic.code in code.split("|")
    assert diagnostic.span is None if line == "0" else diagnostic.span is not None and diagnostic.span.line == int(line)
    assert diagnostic.help


@pytest.mark.parametrize("what", [what for what in MLIR if what.endswith(("of no name", "is a place"))])
def test_bytecode_is_refused_for_what_its_text_is_refused_for(what: str) -> None:
    with new_context():
        bytecode = io.BytesIO()
        ir.Module.parse(MLIR[what]).operation.write_bytecode(bytecode)
    with pytest.raises(SpmdcError, match=r"E701.*(?:is not UTF-8|is a location)"):
        spmdc.from_mlir(bytecode.getvalue())


def test_what_is_wrong_with_an_op_names_the_op() -> None:
    diagnostic = refused(MLIR["E702 4 results of top_k"], "mlir").diagnostics[0]
    assert diagnostic.message.startswith("stablehlo.custom_call: ")


def test_an_unknown_sharding_leaves_the_choice_to_propagation() -> None:
    body = "  x = f32[8,8] parameter(0), sharding={unknown}\n  ROOT y = f32[8,8] sine(x), sharding={devices=[8,1]<=[8]}"
    text = hlo(body, "HloModule m, num_partitions=8")
    program = spmdc.from_hlo(text)
    assert "x: f32[8@x, 8]" in spmdc.propagate(program).text()


def test_a_mesh_that_a_sharding_brings_along_gets_names_of_its_own() -> None:
    text = mlir(f'  %0 = sdy.sharding_constraint %x <mesh<["x"=2, "y"=2]>, [{{"x"}}, {{"y"}}]> : {TENSOR}\n'
                f"  return %0 : {TENSOR}", head=MESH)  # fmt: skip
    program = spmdc.from_mlir(text)
    assert [str(m) for m in program.meshes] == ["mesh_1_x=2, y=2"]
    assert not spmdc.partition(program).collectives()


def test_an_op_without_a_place_is_reported_where_its_function_is_called() -> None:
    called = "{called_computations = [@f]}"
    text = (
        f"module {{\nfunc.func @main(%x: {TENSOR}) -> {TENSOR} {{\n"
        f'  %0 = call @f(%x) : ({TENSOR}) -> {TENSOR} loc("f.py":7:3)\n  return %0 : {TENSOR}\n}}\n'
        f"func.func private @f(%y: {TENSOR}) -> {TENSOR} {{\n"
        f"  %0 = stablehlo.custom_call @magic(%y) {called} : ({TENSOR}) -> {TENSOR} loc(unknown)\n"
        f"  return %0 : {TENSOR}\n}} loc(unknown)\n}}\n"
    )
    diagnostic = refused(text, "mlir").diagnostics[0]
    assert diagnostic.code == "E705"
    assert str(diagnostic.span) == "f.py:7:4"


@pytest.mark.parametrize("verb", ["check", "fmt", "propagate", "partition", "run", "lower", "compare"])
@pytest.mark.parametrize("language", ["mlir", "hlo"])
def test_every_verb_tells_a_file_that_it_cannot_import(
    verb: str, language: str, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"{tmp_path}/bad.{language}"
    with open(path, "w") as file:
        file.write(MLIR["E702 4 results of top_k"] if language == "mlir" else HLO["E701 5 reshape"])
    assert main([verb, path]) == 1
    diagnostic = capsys.readouterr().err
    assert "error[E70" in diagnostic
    assert (":4:" if language == "mlir" else ":5:") in diagnostic
    assert "Traceback" not in diagnostic


@pytest.mark.parametrize("suffix", ["spmd", "mlir", "hlo", "txt"])
@pytest.mark.parametrize("text", [mlir(), hlo("  ROOT x = f32[4,6] parameter(0)")], ids=["MLIR", "HLO"])
def test_a_file_is_read_in_the_language_that_it_begins_in_whatever_it_is_called(
    text: str, suffix: str, tmp_path: Path
) -> None:
    file = tmp_path / f"module.{suffix}"
    file.write_text(text)
    assert spmdc.load(file).main.params[0].type.shape == (4, 6)
