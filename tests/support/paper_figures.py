"""Figures 7, 8 and 9 of GShard: the results of our model and compiler, beside what the paper's text states.

The paper prints no numbers for the points in these figures. Its text states how they grow, and that is drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import spmdc
from ir.mesh import Mesh
from ir.ops.collective import COLLECTIVES
from ir.program import Op
from passes.cost.machine import machine
from passes.cost.model import communication_seconds
from passes.cost.roofline import roofline
from spmdc.pictures.svg import FONT, lettered, rect

PAIR = Path(__file__).with_name("moe_pair.spmd")
TORI = {16: "4x2", 32: "4x4", 64: "8x4", 128: "8x8", 256: "16x8", 512: "16x16", 1024: "32x16", 2048: "32x32"}
"""The chips with that many TPU v3 cores, two on each chip."""
MB = 2**20

SENT = "MoE dispatch and combine"
GATE_EINSUM, CUMSUM, GATING = "Gate einsum", "Gate cumsum", "other gating"
EXPERTS, DENSE, ATTENTION, REST = "MoE feed-forward", "Transformer feed-forward", "Transformer attention", "the rest"
PARTS = (EXPERTS, DENSE, ATTENTION, REST, GATE_EINSUM, CUMSUM, GATING, SENT)

PAPER_SHARE = {128: 0.16, 2048: 0.36}
"""From Figure 8 (section 5.2): the fraction of time that AllToAll takes, by experts."""
PAPER_GROWTH = {128: 1.0, 2048: 1.7}
"""From Figure 8: the time of a layer with experts and the one beside it, relative to 128 experts, by experts."""
PAPER_ALL_TO_ALL = {16: 1.0, 2048: 9.0}
"""From Figure 9 (section 5.3): the relative time of an AllToAll, by partitions. It grows as their square root."""


def memory_by_model(page: str) -> dict[str, tuple[float, float]]:
    """For the models with experts in the table of docs/papers.md: GiB of weights, and GiB of everything else."""
    table = page.partition("<!-- end of papers -->")[0]
    rows = re.findall(r"^\| (MoE\(\d+E, \d+L\)) \| [\d,]+ \| [\d.]+ \| ([\d.]+) \| ([\d.]+) \|", table, re.MULTILINE)
    return {name: (float(weights), round(float(memory) - float(weights), 1)) for name, memory, weights in rows}


def layer_times(experts: int) -> dict[str, float]:
    """Seconds of each part of a layer with experts and of the layer before it, in a forward pass, on as many cores as
    experts, each with 2048 tokens; sizes of appendix A.2."""
    sizes = {"D": experts, "B": 16 * experts, "T": 128, "M": 1024, "N": 16, "K": 128, "H": 8192}
    partitioned = spmdc.partition(spmdc.load(PAIR, sizes), machine=f"tpu-v3:{TORI[experts]}")
    found = roofline(partitioned.program, machine(f"tpu-v3:{TORI[experts]}"))
    times = dict.fromkeys(PARTS, 0.0)
    for each in found.executed:
        times[part_of(each.op)] += each.times * each.time.seconds
    return times


def part_of(op: Op) -> str:
    """The part of Figure 8 that an op belongs to, by the line of the program that it comes from."""
    if op.name in COLLECTIVES:
        return SENT if op.name == "all_to_all" else REST
    if op.span is None or op.span.source.text is None:
        return REST
    lines = op.span.source.text.splitlines()
    line, function = lines[op.span.line - 1], _function_at(lines, op.span.line)
    if function == "mixture" and op.name == "dot_general":
        return EXPERTS if "EGCM,EMH" in line or "EGCH,EHM" in line else GATE_EINSUM
    if function == "top2_gating":
        return CUMSUM if op.name == "cumsum" else GATING
    if function == "mixture":
        return EXPERTS if "EGCM,EMH" in line else GATING
    return {"attention": ATTENTION, "feed_forward": DENSE}.get(function, REST)


def _function_at(lines: Sequence[str], number: int) -> str:
    heads = (re.match(r"def (\w+)", line) for line in reversed(lines[:number]))
    return next((head[1] for head in heads if head), "")


def collective_times(kind: str, nbytes: int) -> dict[int, float]:
    """Seconds of a collective of that many bytes on each device, by partitions."""
    found: dict[int, float] = {}
    for devices, shape in TORI.items():
        mesh = Mesh((("d", devices),))
        found[devices] = communication_seconds(
            machine(f"tpu-v3:{shape}").laid_out([mesh]), kind, mesh.whole_axes(), nbytes
        )
    return found


_COLORS = ("#2a7ae2", "#5b9bea", "#8fbcf2", "#c2daf8", "#2e9e5b", "#73c493", "#b5e0c6", "#e2762a")
_PAPER = "#8c8c8c"
_LEFT, _TOP, _HEIGHT, _BAR, _GAP, _LINE = 64, 30, 220, 46, 26, 16
_STYLE = "<style>:root{color:black}@media (prefers-color-scheme:dark){:root{color:white}}</style>"


def stacked(title: str, bars: Mapping[str, Mapping[str, float]], colors: Mapping[str, str], spell: str) -> str:
    """A bar for each name, made of parts, as SVG; `spell` is the format of a number, with its unit."""
    most = max(sum(parts.values()) for parts in bars.values())
    wide = max(_BAR, *(7 * len(name) + 6 for name in bars))
    drawn: list[str] = []
    for i, (name, parts) in enumerate(bars.items()):
        x, y = _LEFT + i * (wide + _GAP), float(_TOP + _HEIGHT)
        for part, number in parts.items():
            height = _HEIGHT * number / most
            y -= height
            box = rect(x, round(y, 1), wide, round(height, 1), _fill(colors[part]))
            drawn.append(f"<g>{_about(name, part, spell.format(number))}{box}</g>")
        drawn.append(lettered(spell.format(sum(parts.values())), x + wide / 2, round(y - 5, 1)))
        drawn.append(lettered(name, x + wide / 2, _TOP + _HEIGHT + _LINE))
    right = _LEFT + len(bars) * (wide + _GAP)
    for i, (part, color) in enumerate(reversed(list(colors.items()))):
        drawn.append(rect(right, _TOP + i * _LINE, 10, 10, _fill(color)))
        drawn.append(lettered(part, right + 16, _TOP + i * _LINE + 9, "start"))
    return _svg(title, right + 16 + 7 * max(map(len, colors)), _TOP + _HEIGHT + 2 * _LINE, drawn)


def curves_of(title: str, series: Mapping[str, Mapping[int, float]], colors: Mapping[str, str]) -> str:
    """A line for each name through its points, log scale on both axes, as SVG."""
    xs = sorted({x for points in series.values() for x in points})
    most, least = (f(y for points in series.values() for y in points.values()) for f in (max, min))
    width = 440

    def at(x: float, y: float) -> tuple[float, float]:
        along = math.log(x / xs[0]) / math.log(xs[-1] / xs[0])
        up = math.log(y / least) / math.log(most / least)
        return round(_LEFT + width * along, 1), round(_TOP + _HEIGHT * (1 - up), 1)

    drawn = [rect(_LEFT, _TOP, width, _HEIGHT, 'fill="none" stroke="currentColor" stroke-opacity="0.3"')]
    drawn += [lettered(f"{x:,}", at(x, least)[0], _TOP + _HEIGHT + _LINE) for x in xs]
    drawn += [lettered(f"{y:.3g}", _LEFT - 6, at(xs[0], y)[1] + 4, "end") for y in (least, most)]
    for i, (name, points) in enumerate(series.items()):
        places = {x: at(x, y) for x, y in points.items()}
        line = " ".join(f"{x:g},{y:g}" for x, y in places.values())
        dashes = ' stroke-dasharray="4"' if colors[name] == _PAPER else ""
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{colors[name]}" stroke-width="1.5"{dashes}/>')
        for x, (cx, cy) in places.items():
            about = _about(name, f"{x:,}", f"{points[x]:.3g}")
            drawn.append(f'<circle cx="{cx:g}" cy="{cy:g}" r="3" {_fill(colors[name])}>{about}</circle>')
        drawn.append(rect(_LEFT + width + 16, _TOP + i * _LINE, 10, 10, _fill(colors[name])))
        drawn.append(lettered(name, _LEFT + width + 32, _TOP + i * _LINE + 9, "start"))
    return _svg(title, _LEFT + width + 32 + 7 * max(map(len, series)), _TOP + _HEIGHT + 2 * _LINE, drawn)


def _fill(color: str) -> str:
    return f'fill="{color}"'


def _about(name: str, what: str, number: str) -> str:
    return f"<title>{escape(name)}, {escape(what)}: {number}</title>"


def _svg(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    body = "\n".join((_STYLE, lettered(title, _LEFT, 14, "start"), *parts))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title, quote=True)}" '
        f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" {FONT} fill="currentColor">\n'
        f"{body}</svg>\n"
    )


def figure_7(memory: Mapping[str, tuple[float, float]]) -> str:
    colors = {"weights": _COLORS[0], "all else": _COLORS[7]}
    bars = {name: dict(zip(colors, parts, strict=True)) for name, parts in memory.items()}
    return stacked("Memory of a core in GiB, by the TPU compiler", bars, colors, "{:.1f}")


def figure_8(times: Mapping[int, Mapping[str, float]]) -> str:
    """Bars relative to the time with 128 experts; those of the paper have the two parts that its text states."""
    colors = {**dict(zip(PARTS, _COLORS, strict=True)), "paper: all else": _PAPER, "paper: AllToAll": "#555555"}
    first = sum(times[min(times)].values())
    bars: dict[str, dict[str, float]] = {}
    for experts, parts in times.items():
        bars[f"{experts:,}"] = {part: parts[part] / first for part in PARTS}
        if experts in PAPER_SHARE:
            whole, share = PAPER_GROWTH[experts], PAPER_SHARE[experts]
            bars[f"paper: {experts:,}"] = {
                "paper: all else": whole * (1 - share), "paper: AllToAll": whole * share,
            }  # fmt: skip
    return stacked("Time of an MoE and a Transformer layer, by experts; 128 experts: 1", bars, colors, "{:.2f}")


def figure_9(times: Callable[[str, int], Mapping[int, float]]) -> str:
    """Milliseconds of the model, and the paper's growth, starting at the model's AllToAll of 8 MB."""
    series: dict[str, Mapping[int, float]] = {}
    for kind, name in (("all_reduce", "AllReduce"), ("all_to_all", "AllToAll")):
        for size in (8, 32):
            series[f"{name}, {size} MB"] = {n: s * 1e3 for n, s in times(kind, size * MB).items()}
    begin = series["AllToAll, 8 MB"][16]
    series["paper: AllToAll, 8 MB"] = {n: begin * growth for n, growth in PAPER_ALL_TO_ALL.items()}
    colors = dict(zip(series, (_COLORS[0], _COLORS[2], _COLORS[7], "#f0b48a", _PAPER), strict=True))
    return curves_of("Time of collectives in ms, by partitions", series, colors)
