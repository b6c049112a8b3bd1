"""`spmdc new`: creates a first program, and a test for it."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from ir.diagnostics import error
from spmdc.commands.shared.options import Options
from spmdc.files import unwritable

_PROGRAM = Template("""\
# A layer of two products: tokens are split over the axis data, weights over the axis model. Nothing else is annotated:
#   spmdc propagate $name.spmd    the sharding of every value, and `spmdc why $name.spmd hidden` says why
#   spmdc plan $name.spmd         what each op does on shards, what is sent, and what that takes
#   spmdc run $name.spmd --check  the result, beside that of the program on one device
mesh (data=2, model=4)
const TOKENS = 64, WIDTH = 32, HIDDEN = 128

def main(tokens: f32[TOKENS@data, WIDTH], w_in: f32[WIDTH, HIDDEN@model], w_out: f32[HIDDEN@model, WIDTH])
    -> (out: f32[TOKENS@data, WIDTH]) {
  hidden = relu(matmul(tokens, w_in))
  return matmul(hidden, w_out)
}
""")
_TEST = Template('''\
"""What $name.spmd computes and sends: `pytest $test`."""

from pathlib import Path

import numpy as np

import spmdc

PROGRAM = spmdc.load(Path(__file__).with_name("$name.spmd"))


def test_partitioning_changes_nothing():
    inputs = spmdc.random_inputs(PROGRAM, integers=True)  # whose sums are exact, in whatever order
    for result, wanted in zip(spmdc.partition(PROGRAM).simulate(*inputs), spmdc.evaluate(PROGRAM, *inputs)):
        np.testing.assert_array_equal(result, wanted)


def test_only_partial_sums_of_the_result_are_sent():
    sent = spmdc.partition(PROGRAM).collectives()
    assert [(c.kind, c.axes) for c in sent] == [("all_reduce", "model")]
''')


def run(options: Options, *, name: str) -> int:
    """Writes NAME.spmd and its test beside it. Raises SpmdcError (E005) if they exist, or cannot be written."""
    program = Path(name.removesuffix(".spmd") + ".spmd")
    if not re.fullmatch(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]*", program.stem):
        message = f"{name!r} is no name for a program"
        raise error("E601", message, help="the letters a to z, digits, - and _: spmdc new layer")
    test = program.with_name(f"test_{re.sub(r'[^0-9a-zA-Z_]', '_', program.stem)}.py")
    texts = {program: _PROGRAM, test: _TEST}
    for path in texts:
        if path.exists():
            raise error("E005", f"{path} is there already", help="choose another name: nothing is overwritten")
    for path, text in texts.items():
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text.substitute(name=program.stem, test=test.name))
        except OSError as problem:
            raise unwritable(path, problem) from None
        print(path)
    return 0
