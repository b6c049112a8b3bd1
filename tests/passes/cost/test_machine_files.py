"""Machines are TOML files; what is wrong in one is said with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

import spmdc
from passes.cost.kernels import Kernels
from passes.cost.machine import TPU_V3, Machine, machine_called, machine_names
from passes.cost.network import Link

GOOD = """
name = "own"

[device]
flops = 1e12
rates = { bf16 = 2e12 }
memory_bandwidth = 1e11
memory = 1024
turn = 0
asynchronous = false

[[network]]
name = "x"
size = 4
kind = "ring"
bandwidth = 1e9
latency = 0

[[measured]]
kind = "all_gather"
group = 4
bytes = [100, 10000]
seconds = [1e-3, 1e-1]

[kernels]
bandwidth = 5e10
launch = 1e-6
fill = 0
lone = 0
vector = 1e11
tile = [8, 128]
narrow = true
near = 0
"""


def load(tmp_path: Path, text: str | bytes) -> Machine:
    path = tmp_path / "own.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Machine.load(path)


def test_the_fields_of_a_file_are_those_of_the_machine(tmp_path: Path) -> None:
    own = load(tmp_path, GOOD)
    assert (own.name, own.flops, own.memory_bandwidth, own.memory) == ("own", 1e12, 1e11, 1024)
    assert own.flops_of("bf16") == 2e12
    assert not own.asynchronous
    assert [(d.name, d.size, d.kind) for d in own.network] == [("x", 4, "ring")]
    assert own.measured[0].at(1000) == pytest.approx(1e-2)
    assert own.kernels == Kernels(5e10, 1e-6, 0.0, 0.0, 1e11, (8, 128), narrow=True)


def test_what_kernels_of_gpus_have_besides_may_be_left_out(tmp_path: Path) -> None:
    also = "reads = 1\nlibrary = true\nworkspace = 1024\ncache = 2048\ncached = 1e11\n"
    assert load(tmp_path, GOOD + also).kernels == Kernels(
        5e10, 1e-6, 0.0, 0.0, 1e11, (8, 128), True, reads=1.0, library=True, workspace=1024, cache=2048, cached=1e11
    )


def test_every_machine_that_is_shipped_can_be_read_and_names_its_sources() -> None:
    for name in machine_names():
        found = spmdc.machine(name)
        assert found.name == name
        assert found.flops > found.memory_bandwidth
    folder = Path(spmdc.__file__).parents[1] / "passes" / "cost" / "machines"
    for path in folder.glob("*.toml"):
        assert "http" in path.read_text() or "datasheet" in path.read_text() or "estimate" in path.read_text()


def test_the_default_machine_is_the_one_of_the_paper_with_equal_links() -> None:
    assert spmdc.machine("tpu-v3") == TPU_V3 == spmdc.TPU_V3
    assert (TPU_V3.flops, TPU_V3.memory_bandwidth, TPU_V3.turn, TPU_V3.memory) == (61e12, 450e9, 2e-6, 16 * 2**30)
    assert TPU_V3.usual_link == Link(70e9, 1e-7)
    assert TPU_V3.network == ()


@pytest.mark.parametrize(
    ("line", "instead", "place", "message"),
    [
        ("flops = 1e12", "flops = -1e12", "5:1", "flops is a number above 0, and not -1000000000000.0"),
        ("flops = 1e12", "flops = nan", "5:1", "flops is a number above 0, and not nan"),
        ("flops = 1e12", "flops = 1e-320", "5:1", "flops is 1e-320, and a number here is from 1e-30 to 1e+30"),
        ("flops = 1e12", "flops = 1e31", "5:1", "flops is 1e+31, and a number here is from 1e-30 to 1e+30"),
        ("bf16 = 2e12", "bf16 = 1e-31", "6:1", "bf16 is 1e-31, and a number here is from 1e-30 to 1e+30"),
        ("latency = 0", "latency = 1e-320", "17:1", "latency is 1e-320, and a number here is from 1e-30 to 1e+30"),
        ("flops = 1e12", "flops = true", "5:1", "flops is a number above 0, and not true"),
        ("flops = 1e12", "flop = 1e12", "5:1", "did you mean flops?"),
        ("flops = 1e12", "", "4:1", "flops is missing in device"),
        ("memory = 1024", "memory = 1.5", "8:1", "memory is a whole number above 0, and not 1.5"),
        ("turn = 0", "turn = inf", "9:1", "turn is a number from 0 on, and not inf"),
        ("asynchronous = false", "asynchronous = false\nclock = 0", "11:1", "clock is a number above 0, and not 0"),
        ("asynchronous = false", 'asynchronous = "no"', "10:1", "asynchronous is true or false, and not 'no'"),
        ("bf16 = 2e12", "bf17 = 2e12", "6:1", "did you mean bf16?"),
        ('kind = "ring"', 'kind = "rin"', "15:1", "did you mean ring?"),
        ('name = "x"', 'name = ""', "13:1", "the dim's name"),
        ("size = 4", "size = 0", "14:1", "size is a whole number above 0, and not 0"),
        ("[[network]]", "[network]", "12:1", "each network is a table of its own, [[network]]"),
        ('kind = "all_gather"', 'kind = "all_gathers"', "20:1", "did you mean all_gather?"),
        ("bytes = [100, 10000]", "bytes = [100, 100]", "22:1", "the numbers of bytes ascend"),
        ("bytes = [100, 10000]", "bytes = [100]", "23:1", "2 times were measured for 1 numbers of bytes"),
        ("seconds = [1e-3, 1e-1]", "seconds = [1e-3, 0]", "23:1", "seconds is a list of numbers above 0"),
        (
            "seconds = [1e-3, 1e-1]",
            "seconds = [1e-320, 1e-1]",
            "23:1",
            "seconds has 1e-320, and a number here is from 1e-30",
        ),
        ("[device]", "[devices]", "4:1", "there is no field 'devices' here"),
        ("launch = 1e-6", "launch = -1", "27:1", "launch is a number from 0 on, and not -1"),
        ("vector = 1e11\n", "", "25:1", "vector is missing in kernels"),
        ("tile = [8, 128]", "tile = [8]", "31:1", "tile is two whole numbers, of rows and of columns"),
        ("tile = [8, 128]", "tile = [8, 0.5]", "31:1", "tile is two whole numbers, of rows and of columns"),
        ("near = 0", "near = 0\nrows = 1", "34:1", "rows is true or false, and not 1"),
        ("near = 0", "near = 0\nproducts = 1.5", "34:1", "products is a fraction of what the device reaches"),
        ("near = 0", "near = 0\ncache = 1e6", "34:1", "cache is a whole number above 0, and not 1000000.0"),
        ("near = 0", "near = 0\ncached = 0", "34:1", "cached is a number above 0, and not 0"),
        ("near = 0", "near = 0\ncache = 1024", "25:1", "cached is missing in kernels"),
        ("near = 0", "near = 0\nrow = true", "34:1", "did you mean rows?"),
        ("flops = 1e12", "flops = = 1", "5:9", "own.toml is not TOML: Invalid value"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_at_its_place(
    line: str, instead: str, place: str, message: str, tmp_path: Path
) -> None:
    assert line in GOOD
    with pytest.raises(spmdc.SpmdcError) as raised:
        load(tmp_path, GOOD.replace(line, instead, 1))
    assert all(d.code == "E602" for d in raised.value.diagnostics)
    assert message in str(raised.value)
    assert f"own.toml:{place}" in str(raised.value)


def test_a_collective_that_is_measured_twice_among_as_many_devices_is_refused_at_the_second(tmp_path: Path) -> None:
    again = '[[measured]]\nkind = "all_gather"\ngroup = 4\nbytes = [1]\nseconds = [1e-3]\n'
    assert len(load(tmp_path, GOOD + again.replace("group = 4", "group = 2")).measured) == 2
    with pytest.raises(spmdc.SpmdcError) as raised:
        load(tmp_path, GOOD + again)
    (found,) = raised.value.diagnostics
    assert (found.code, found.span and found.span.line) == ("E602", 34)
    assert found.message == "all_gather among 4 devices is measured twice"
    assert found.help == "write all its bytes and seconds in one table"


def test_a_file_with_a_byte_order_mark_reads_as_without(tmp_path: Path) -> None:
    assert load(tmp_path, b"\xef\xbb\xbf" + GOOD.lstrip().encode()) == load(tmp_path, GOOD)


def test_a_link_beside_a_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(spmdc.SpmdcError) as raised:
        load(tmp_path, GOOD + "[link]\nbandwidth = 1e9\nlatency = 0\n")
    (found,) = raised.value.diagnostics
    assert (found.code, found.span and found.span.line) == ("E602", 34)
    assert found.message == "[link] joins devices that have no network, and these have one"
    assert found.help == "remove [link], or each [[network]]"


def test_all_that_is_wrong_in_a_file_is_said_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("flops = 1e12", "flops = 0").replace("size = 4", "size = -1")
    with pytest.raises(spmdc.SpmdcError) as raised:
        load(tmp_path, text)
    assert len(raised.value.diagnostics) == 2


def test_a_network_has_not_more_dims_than_can_be_looked_at(tmp_path: Path) -> None:
    dim = GOOD[GOOD.index("[[network]]") : GOOD.index("[[measured]]")]
    more = "".join(dim.replace('"x"', f'"d{i}"').replace("4", "2") for i in range(8))
    with pytest.raises(spmdc.SpmdcError, match=r"E602.*the network has 9 dims"):
        load(tmp_path, GOOD + more)


@pytest.mark.parametrize(
    "text", [b"\xff", b"a = " + b"[" * 10_000, b"", b"network = 1", b"device = [1]", b"[[device]]"]
)
def test_files_that_are_no_machine_at_all_are_refused(text: bytes, tmp_path: Path) -> None:
    with pytest.raises(spmdc.SpmdcError, match="E602"):
        load(tmp_path, text)


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(spmdc.SpmdcError, match="E005"):
        spmdc.machine(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tpu-v33", "did you mean tpu-v3"),
        ("", "there is no machine ''"),
        ("tpu-v3:", "'' is not the shape of a network"),
        ("tpu-v3:4x", "'4x' is not the shape of a network"),
        ("tpu-v3:0x4", "'0x4' is not the shape of a network"),
        ("tpu-v3:4", "1 sizes are no shape of tpu-v3"),
        ("tpu-v3:4x4x3", "the dim core of tpu-v3 has 2 devices, and not 3"),
        ("tpu-v3:9999x9999", "a network of 199,960,002 devices is beyond"),
    ],
)
def test_unknown_machines_and_shapes_are_refused(spec: str, message: str) -> None:
    with pytest.raises(spmdc.SpmdcError, match="E603") as raised:
        spmdc.machine(spec)
    assert message in str(raised.value)


def test_a_machine_may_be_given_by_its_name() -> None:
    program = spmdc.parse("mesh (d=8)\ndef main(a: f32[64@d]) -> (o: f32[64]) { return replicate(a) }")
    by_name, by_itself = (spmdc.plan(program, machine=m) for m in ("tpu-v4:2x2x2", spmdc.machine("tpu-v4:2x2x2")))
    assert by_name.text(costs=True) == by_itself.text(costs=True)
    assert spmdc.verify(program, 2, machine="h100").equal == 2
    with pytest.raises(spmdc.SpmdcError, match="E603"):
        spmdc.plan(program, machine="h10")


def test_a_shape_leaves_out_the_dims_that_have_a_size() -> None:
    assert spmdc.machine("tpu-v3:4x2") == spmdc.machine("tpu-v3:4x2x2")
    assert [dim.size for dim in spmdc.machine("h100:4").network] == [4, 8]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", None),
        ("TPU v4", None),
        ("cpu", None),
    ],
)
def test_a_machine_is_found_by_what_jax_calls_its_devices(kind: str, name: str | None) -> None:
    found = machine_called(kind)
    assert (found.name if found is not None else None) == name
