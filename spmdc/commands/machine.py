"""`spmdc machine`: the machines that costs can be estimated for, and a machine file for the available devices."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

from ir.diagnostics import error
from ir.records import as_json
from lowering.jax.measure import MeasuredDevices, measure
from passes.cost.kernels import Kernels
from passes.cost.machine import Machine, machine, machine_names
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Table, Verbatim, finish
from spmdc.commands.shared.terminal import Stopwatch
from spmdc.files import write_text

_HEADERS = ("machine", "flop/s", "bytes/s", "bytes", "network")


def run(options: Options, *, action: str, name: str | None, out: str | None) -> int:
    """Lists all machines, prints one, or measures the available devices."""
    watch = Stopwatch()
    if (action == "show") != (name is not None):
        what = f"{action} takes no machine" if name is not None else "show takes a machine"
        raise error("E601", what, help="spmdc machine --help")
    if (out is not None or options.devices is not None) and action != "measure":
        raise error("E601", f"-o and --devices are for measure, and not for {action}", help="spmdc machine --help")
    if action == "list":
        machines = [machine(each) for each in machine_names()]
        rows = [[m.name, f"{m.flops:.3g}", f"{m.memory_bandwidth:.3g}", f"{m.memory:,}", _network(m)] for m in machines]
        figures: dict[str, object] = {"machines": [_figures(each) for each in machines]}
        return finish(options, watch, Table(_HEADERS, rows, (1, 2, 3)), figures)
    if action == "show":
        found = machine(name or "")
        return finish(options, watch, "\n".join(_shown(found)), _figures(found))
    with watch.step("measure"):
        devices = measure(options.devices)
    text = machine_text(devices)
    if out is None:
        return finish(options, watch, Verbatim(text.rstrip()), {"text": text})
    write_text(out, text)
    return finish(options, watch, "", {"file": out}, wrote=out)


def _network(found: Machine) -> str:
    if not found.network:
        return "equal links"
    return " x ".join(f"{dim.name}{f'={dim.size}' if dim.size else ''} ({dim.kind})" for dim in found.network)


def _shown(found: Machine) -> Iterator[str]:
    rows = [
        ["arithmetic", f"{found.flops:.4g} flop/s"],
        *[["", f"{rate:.4g} flop/s in {name}"] for name, rate in found.rates],
        ["memory", f"{found.memory:,} bytes, {found.memory_bandwidth:.4g} bytes/s"],
        ["a turn of a loop", f"{found.turn:.3g} s"],
        ["while it sends", "it computes" if found.asynchronous else "it waits"],
        *[["cycles", f"{found.clock:.4g} a second"]] * bool(found.clock),
        *(_kernel_rows(found.kernels) if found.kernels is not None else ()),
    ]
    for dim in found.network:
        size = f"{dim.size} devices" if dim.size else "as many devices as the mesh asks for"
        about = f"a {dim.kind} of {size}, {dim.bandwidth:.4g} bytes/s a link and direction, {dim.latency:.3g} s a hop"
        rows.append([f"network {dim.name}", about])
    if not found.network:
        link = found.usual_link
        rows.append(["links", f"{link.bandwidth:.4g} bytes/s, {link.latency:.3g} s a message"])
    for table in found.measured:
        pairs = zip(table.nbytes, table.seconds, strict=True)
        shown = ", ".join(f"{int(nbytes):,} bytes {seconds:.3g} s" for nbytes, seconds in pairs)
        rows.append([f"measured {table.kind}", f"of {table.group}: {shown}"])
    yield found.name
    yield from (f"  {what:<16} {value}".rstrip() for what, value in rows)


def _kernel_rows(kernels: Kernels) -> Iterator[list[str]]:
    tiles = "" if kernels.tile == (1, 1) else ", in tiles of {} x {}".format(*kernels.tile)
    yield ["a kernel", f"{kernels.bandwidth:.4g} bytes/s, {kernels.vector:.4g} elementwise operations/s"]
    yield ["", f"{kernels.launch:.3g} s, {kernels.fill:.3g} s more with a product{tiles}"]
    if kernels.cache:
        yield ["", f"{kernels.cached:.4g} bytes/s of up to {kernels.cache:,} bytes in the cache"]


def _figures(found: Machine) -> dict[str, object]:
    return {
        **as_json(found, "name", "flops"),
        "rates": dict(found.rates),
        **as_json(found, "memory_bandwidth", "memory", "turn", "asynchronous", "clock"),
        "link": as_json(found.usual_link, "bandwidth", "latency"),
        **as_json(found, "network", "measured", "kernels"),
    }


def machine_text(devices: MeasuredDevices) -> str:
    """The machine file of measured devices. Without measured collectives, links have no cost."""
    rates = dict(devices.rates)
    permutes = [table for table in devices.collectives if table.kind == "collective_permute"]
    bandwidth = permutes[0].nbytes[-1] / permutes[0].seconds[-1] if permutes else devices.memory_bandwidth
    latency = permutes[0].seconds[0] if permutes else 0.0
    name = re.sub(r"[^\w.+-]", "-", f"{devices.kind}-{devices.count}")[:64]
    today = datetime.datetime.now(datetime.UTC).date()
    lines = [
        f'name = "{name}"',
        f'about = "Measured on {today}: one of {devices.count} devices of kind {devices.kind}, all busy"',
        "",
        "[device]",
        f"flops = {rates['f32']:.4g}",
        f"rates = {{ {', '.join(f'{each} = {rate:.4g}' for each, rate in rates.items())} }}",
        f"memory_bandwidth = {devices.memory_bandwidth:.4g}",
        f"memory = {devices.memory}",
        f"turn = {devices.turn:.3g}",
        "asynchronous = false",
        "",
        "[link]",
        f"bandwidth = {bandwidth:.4g}",
        f"latency = {latency:.3g}",
    ]
    for table in devices.collectives:
        times = ", ".join(f"{each:.4g}" for each in table.seconds)
        lines += ["", "[[measured]]", f'kind = "{table.kind}"', f"group = {table.group}"]
        lines += [f"bytes = {list(table.nbytes)}", f"seconds = [{times}]"]
    return "\n".join(lines) + "\n"
