"""Charts of a page, as SVG: the step by streams, memory, the roofline, bars.

Lines and letters have the colour of the page; elements that belong to a line of the source have it in `data-line`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from passes.cost.machine import Machine
from spmdc.pictures.placement import Placement
from spmdc.reports.cost import CostRow
from spmdc.reports.cost_text import seconds_text

_WIDTH, _LANE, _LABEL = 1000, 26, 130
_MOST_EVENTS, _MOST_STEPS, _MOST_BARS, _MOST_DEVICES = 3_000, 2_000, 20, 32
_CELL = 20
FONT = 'font-family="ui-monospace, Menlo, Consolas, monospace"'
_COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b")


def timeline(events: Sequence[Mapping[str, Any]]) -> str:
    """The timeline of a device: a lane for computation and for each set of axes, with the critical path outlined. If a
    step has very many ops, the longest are drawn."""
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    done = [e for e in events if e["ph"] == "X"]
    end = max((e["ts"] + e["dur"] for e in done), default=0.0)
    if not done or not end:
        return ""
    drawn = sorted(done, key=lambda e: -e["dur"])[:_MOST_EVENTS]
    kinds = {kind: _COLORS[i % len(_COLORS)] for i, kind in enumerate(_kinds(done))}
    places = {tid: i for i, tid in enumerate(lanes)}
    scale = (_WIDTH - _LABEL) / end
    parts = [_text(name, 0, _LANE * places[tid] + 17) for tid, name in lanes.items()]
    for e in drawn:
        x, width = _LABEL + e["ts"] * scale, max(0.5, e["dur"] * scale)
        style = f'fill="{kinds.get(e["cat"], _COLORS[0])}"'
        style += ' stroke="currentColor" stroke-width="1.2"' if "critical path" in e["args"] else ""
        about = [e["name"], e["cat"], seconds_text(e["dur"] / 1e6), *map(str, e["args"].values())]
        parts.append(_rect(x, _LANE * places[e["tid"]] + 3, width, _LANE - 6, style, about, e["args"].get("line", "")))
    height = _LANE * len(lanes)
    parts += [_text("0", _LABEL, height + 14), _text(seconds_text(end / 1e6), _WIDTH, height + 14, "end")]
    left_out = f"; {len(done) - len(drawn):,} short ones are not drawn" if len(done) > len(drawn) else ""
    legend = "  ".join(f'<tspan fill="{color}">■</tspan> {escape(kind)}' for kind, color in list(kinds.items())[:8])
    parts.append(f'<text x="0" y="{height + 34}">{legend}  ▯ critical path{left_out}</text>')
    return _svg(_WIDTH, height + 42, parts)


def _kinds(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """The kinds of ops, the slowest first."""
    seconds: dict[str, float] = {}
    for e in events:
        seconds[e["cat"]] = seconds.get(e["cat"], 0.0) + e["dur"]
    return sorted(seconds, key=lambda kind: -seconds[kind])


def memory(events: Sequence[Mapping[str, Any]]) -> str:
    """The bytes of live values over the step, with the peak."""
    points = [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    end = max((e["ts"] + e["dur"] for e in events if e["ph"] == "X"), default=0.0)
    most = max((nbytes for _, nbytes in points), default=0)
    if not points or not end or not most:
        return ""
    step = max(1, len(points) // _MOST_STEPS)
    kept = [max(points[i : i + step], key=lambda p: p[1]) for i in range(0, len(points), step)]
    height, scale = 130, (_WIDTH - _LABEL) / end
    path, y = f"M{_LABEL} {height}", float(height)
    for ts, nbytes in kept:
        x = _LABEL + ts * scale
        path += f"H{x:.1f}"
        y = height - 100 * nbytes / most
        path += f"V{y:.1f}"
    path += f"H{_WIDTH}V{height}Z"
    peak = _LABEL + next(ts for ts, nbytes in points if nbytes == most) * scale
    parts = [
        f'<path d="{path}" fill="{_COLORS[0]}" fill-opacity=".45" stroke="{_COLORS[0]}"/>',
        f'<line x1="{peak:.1f}" x2="{peak:.1f}" y1="18" y2="{height}" stroke="currentColor" stroke-dasharray="3"/>',
        _text(f"{most:,} bytes", min(peak + 4, _WIDTH - 120), 16),
        _text("values, op by op", 0, height - 4),
    ]
    return _svg(_WIDTH, height + 6, parts)


def roofline(rows: Sequence[CostRow], machine: Machine) -> str:
    """Operations a second against operations for each byte of memory, with the machine's limits."""
    points = [(r, r.flops / r.touched, r.flops / r.seconds) for r in rows if r.flops and r.touched and r.seconds]
    if not points:
        return ""
    ridge = machine.flops / machine.memory_bandwidth
    left = math.floor(math.log10(min(ridge, *(x for _, x, _ in points)) / 2))
    right = math.ceil(math.log10(max(ridge, *(x for _, x, _ in points)) * 2))
    top = math.ceil(math.log10(machine.flops))
    low = math.floor(math.log10(min(y for _, _, y in points)))
    width, height = 620, 300

    def at(x: float, y: float) -> tuple[float, float]:
        along = (math.log10(x) - left) / (right - left)
        up = (math.log10(max(y, 10.0**low)) - low) / max(1, top - low)
        return 60 + along * (width - 70), height - 30 - up * (height - 50)

    corner = [at(10.0**left, 10.0**left * machine.memory_bandwidth), at(ridge, machine.flops)]
    corner.append(at(10.0**right, machine.flops))
    roof = " ".join(f"{x:.1f},{y:.1f}" for x, y in corner)
    parts = [f'<polyline points="{roof}" fill="none" stroke="currentColor" stroke-width="1.5"/>']
    for r, x, y in points:
        cx, cy = at(x, y)
        about = f"{r.what}: {x:.3g} flop/byte, {y:.3g} flop/s, {r.share:.1%} of peak, bound by {r.bound}"
        color = _COLORS[("compute", "network", "memory", "overhead").index(r.bound or "overhead")]
        parts.append(
            f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="5" fill="{color}" fill-opacity=".8" {_line(r.what)}>'
            f"<title>{escape(about)}</title></circle>"
        )
    for power in range(left, right + 1):
        parts.append(_text(f"{10.0**power:g}", at(10.0**power, 10.0**low)[0], height - 12, "middle"))
    for power in range(low, top + 1, max(1, (top - low) // 5)):
        parts.append(_text(f"1e{power}", 54, at(10.0**left, 10.0**power)[1] + 4, "end"))
    parts.append(_text("flop for each byte of memory; flop/s upwards", width, height, "end"))
    return _svg(width, height + 4, parts).replace('class="chart"', 'class="chart small"')


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """A bar for each label and number, followed by a text, for the largest numbers."""
    shown = sorted((row for row in rows if row[1]), key=lambda row: -row[1])[:_MOST_BARS]
    if not shown:
        return ""
    most, left = shown[0][1], 260
    parts: list[str] = []
    for i, (label, number, text) in enumerate(shown):
        y, width = 20 * i, max(1.0, (_WIDTH / 2) * number / most)
        parts += [
            _text(label if len(label) <= 36 else f"…{label[-35:]}", left - 8, y + 14, "end"),
            _rect(left, y + 3, width, 14, f'fill="{_COLORS[0]}"', [f"{label}: {text}"], label),
            _text(text, left + width + 6, y + 14),
        ]
    return _svg(_WIDTH, 20 * len(shown) + 4, parts)


def exchange(before: Placement, after: Placement, itemsize: float) -> str:
    """The bytes between each sender and receiver when a tensor goes from one placement to another: a row for each
    sender, a column for each receiver. Elements that several devices have come from the first of them. Empty if there
    are many devices."""
    if not 1 < after.sharding.mesh.size <= _MOST_DEVICES:
        return ""
    devices = sorted(device for block in after.blocks() for device in block.devices)
    sent = _sent(before, after)
    most = max(sent.values(), default=0)
    parts = [_text("to", 26 + _CELL * len(devices) / 2, 10, "middle"), _text("from", 0, 24)]
    for i, device in enumerate(devices):
        parts.append(_text(str(device), 44 + _CELL * i + _CELL / 2, 24, "middle"))
        parts.append(_text(str(device), 38, 42 + _CELL * i, "end"))
        for j, other in enumerate(devices):
            count = sent.get((device, other), 0)
            style = f'fill="{_COLORS[1]}" fill-opacity="{count / most if count else 0:.2f}" stroke="currentColor"'
            about = [f"{device} to {other}: {count * itemsize:,.0f} bytes"] if count else []
            parts.append(_rect(44 + _CELL * j, 28 + _CELL * i, _CELL, _CELL, f'{style} stroke-opacity=".3"', about, ""))
    side = 46 + _CELL * len(devices)
    return _svg(side, side, parts).replace('class="chart"', f'width="{side}"')


def _sent(before: Placement, after: Placement) -> dict[tuple[int, int], int]:
    """Elements by sender and receiver."""
    sent: dict[tuple[int, int], int] = {}
    had = list(before.blocks())
    for block, held in itertools.product(after.blocks(), had):
        ends = zip(block.stop, held.stop, block.start, held.start, strict=True)
        count = math.prod(max(0, min(a, b) - max(c, d)) for a, b, c, d in ends)
        for device in set(block.devices) - set(held.devices) if count else ():
            pair = held.devices[0], device
            sent[pair] = sent.get(pair, 0) + count
    return sent


def _rect(x: float, y: float, width: float, height: float, style: str, about: Sequence[str], line: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style} {_line(line)}>'
        f"<title>{escape(chr(10).join(about))}</title></rect>"
    )


def _line(place: str) -> str:
    """The file and line of an element, without a column."""
    parts = place.split(":")
    numbers = [part for part in parts[1:] if part.isdecimal()]
    return f'data-line="{escape(":".join([parts[0], numbers[0]]), quote=True)}"' if numbers else ""


def _text(text: str, x: float, y: float, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" class="chart" '
        f'{FONT} font-size="12" fill="currentColor">{"".join(parts)}</svg>'
    )
