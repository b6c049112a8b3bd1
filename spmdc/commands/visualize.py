"""`spmdc visualize`: which part of a value each device holds."""

from __future__ import annotations

import shutil
import sys

import spmdc
from spmdc.commands.shared.arrays import write_text
from spmdc.commands.shared.failures import finish
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.programs import load_program
from spmdc.commands.shared.terminal import Stopwatch, use_color


def run(options: Options, *, file: str, name: str, out: str | None) -> int:
    """Draws the value in letters, or writes a picture of it."""
    watch = Stopwatch()
    propagated = spmdc.propagate(load_program(file, options, watch))
    watch.add({"propagate": propagated.seconds})
    picture = propagated.picture(name)
    if out is not None:
        write_text(out, picture.svg())
    width = shutil.get_terminal_size((100, 24)).columns
    text = picture.text(color=use_color(sys.stdout), width=width)
    return finish(options, watch, text if out is None else "", picture.to_json())
