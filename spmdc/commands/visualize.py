"""`spmdc visualize`: the part of a value that each device has."""

from __future__ import annotations

import sys

from spmdc.commands.shared.bindings import looking_for
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Verbatim, finish
from spmdc.commands.shared.programs import load_program, propagate_program
from spmdc.commands.shared.terminal import Stopwatch, use_color, width_of
from spmdc.files import write_text
from spmdc.pictures.svg import standalone


def run(options: Options, *, file: str, name: str, out: str | None) -> int:
    """Draws the value in letters, or writes a picture of it."""
    watch = Stopwatch()
    program = load_program(file, options, watch)
    with looking_for(name, program, options):
        picture = propagate_program(program, watch).picture(name)
    if out is not None:
        write_text(out, standalone(picture.svg()))
    text = picture.text(color=use_color(sys.stdout), width=width_of(sys.stdout) or 100)
    return finish(options, watch, Verbatim(text) if out is None else "", picture.to_json(), wrote=out)
