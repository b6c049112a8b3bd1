"""The file of a training: all that is wrong with it is reported at once, each with its line and a way out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from training import CONFIG, PHRASES, PROGRAM, run_of, written

import spmdc
from ir.diagnostics import SpmdcError
from spmdc.reading import load
from spmdc.training.config import SETTINGS, Config, read_config
from spmdc.training.feed import feed_of
from spmdc.training.programs import trained_program
from spmdc.training.translate import can_translate


def config(tmp_path: Path, text: str) -> Config:
    (tmp_path / "train.toml").write_text(text)
    return read_config(tmp_path / "train.toml")


def test_what_is_left_out_is_as_in_the_paper(tmp_path: Path) -> None:
    found = config(tmp_path, 'program = "a.spmd"\nout = "out"\nsteps = 5\n')
    own = found.optimizer
    assert (found.program, found.out, found.steps) == (tmp_path / "a.spmd", tmp_path / "out", 5)
    assert (own.name, own.settings, own.schedule, own.rate) == ("adafactor", SETTINGS["adafactor"], "square_root", 1)
    assert (own.warmup, found.data.temperature) == (10_000, 5)


def test_all_that_is_wrong_is_reported_at_once_with_its_line(tmp_path: Path) -> None:
    text = """\
program = 5
out = "out"
stepps = 3

[data]
locales = ["dee"]
kinds = ["month"]
held_out = 1.5

[optimizer]
name = "adan"
b1 = 0.5
schedule = "constant"

[mesh]
x = 0
"""
    with pytest.raises(SpmdcError) as failed:
        config(tmp_path, text)
    found = {(d.span.line if d.span else 0, d.message) for d in failed.value.diagnostics}
    assert {d.code for d in failed.value.diagnostics} == {"E606"}
    lines = sorted(line for line, _ in found)
    assert lines == [1, 1, 3, 6, 7, 8, 10, 11, 16]
    for near in ("did you mean steps", "did you mean adam", "months", "de"):
        assert near in str(failed.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CONFIG.replace('"constant"', '"cosine"\nwarmup = 9'), "the rate grows for 9 steps, and there are 6"),
        (CONFIG.replace('"constant"', '"cosine"\nwarmup = 9'), "help: a shorter warmup, or more steps"),
        (
            CONFIG.replace("held_out", 'locales = ["de"]\nheld_out'),
            "Unicode's, and the phrases are a file's",
        ),
        (
            CONFIG.replace('"constant"', '"constant"\nwarmup = 3_000_000_000'),
            "warmup is at most 2,147,483,647 steps, and not 3,000,000,000",
        ),
        (CONFIG.replace("steps = 6", "steps = 3_000_000_000"), "steps is at most 2,147,483,647 steps"),
        (CONFIG + "[consts]\nB = true\n", "B is a number, and not true"),
        (CONFIG + "[consts]\nB = nan\n", "B is a number, and not nan"),
        (CONFIG + f"[consts]\nB = {'9' * 400}\n", "B is a number, and not 9999"),
        (CONFIG + f"[consts]\nB = {'9' * 400}\n", "help: from -1.8e+308 to 1.8e+308"),
        ("consts = 3\n" + CONFIG, "consts is a table, [consts]"),
        (CONFIG + "keep = 0\n", "keep is a whole number above 0, and not 0"),
        (CONFIG.replace('"constant"', '"constant"\nwarmup = -1'), "warmup is a whole number from 0 on, and not -1"),
        (
            CONFIG.replace('"adam"\nschedule = "constant"\nrate = 0.01', '"adafactor"\nfactored_from = 0.5'),
            "factored_from is a whole number from 0 on, and not 0.5",
        ),
        ("seed = -1\n" + CONFIG, "seed is a whole number from 0 on, and not -1"),
        (CONFIG.replace("rate = 0.01", "rate = 0.01\nb1 = 1"), "b1 is a number from 0 on and below 1, and not 1"),
        (
            CONFIG.replace('file = "phrases.tsv"', 'locales = ["de", "en_GB"]'),
            "'en_GB' is not among the locales: English is what phrases are translated into",
        ),
        (CONFIG.replace('file = "phrases.tsv"', 'locales = ["zh_Hans_CN"]'), "help: name zh_Hans"),
        (CONFIG.replace('file = "phrases.tsv"', 'locales = ["de", "nl", "de"]'), "'de' is listed 2 times"),
        (CONFIG.replace('file = "phrases.tsv"', 'locales = ["root"]'), "there are no locales called 'root'"),
        (CONFIG + "[translate]\nconsts = { BEAM = 1 }\n", "consts are those of a program that translates"),
        (CONFIG.replace("[data]", "[data"), "is not TOML"),
        ("", "program is missing"),
    ],
)
def test_contradictions_are_reported(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SpmdcError) as failed:
        config(tmp_path, text)
    assert said in str(failed.value)


@pytest.mark.parametrize(
    ("written_as", "column"),
    [("B = {}", 5), ("B =  {}", 6), ('B = ["1", {}]', 11), ("B = {{ x = {} }}", 11)],
)
@pytest.mark.parametrize("number", ["1_2" * 2500, f"0x{'f' * 6000}"])
def test_an_integer_of_more_digits_than_python_reads_has_a_place(
    written_as: str, column: int, number: str, tmp_path: Path
) -> None:
    text = f"{CONFIG}[consts]\nC = {'1' * 5001}.5\n{written_as.format(number)}\n"
    with pytest.raises(SpmdcError) as failed:
        config(tmp_path, text)
    (found,) = failed.value.diagnostics
    assert found.span is not None
    assert found.code == "E606"
    assert "is not TOML: an integer has more than 4,300 digits" in found.message
    assert (found.span.line, found.span.column) == (text.count("\n"), column)


def test_consts_are_floats_and_negative_where_those_of_the_program_are(tmp_path: Path) -> None:
    path = written(tmp_path, CONFIG + "[consts]\nSD = 0.5\nO = -3\n",
                   PROGRAM.replace("const B", "const SD = 0.1, O = 0, B").replace("normal(0.1)", "normal(SD)")
                   .replace("bias: f32[V] = 0", "bias: f32[V] = O"))  # fmt: skip
    weights = trained_program(read_config(path)).weights
    assert (weights["table"].numbers, weights["bias"].numbers) == ((0.5,), (-3,))


def test_what_is_wrong_with_a_number_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(SpmdcError) as failed:
        config(tmp_path, CONFIG.replace("held_out = 0.0", "held_out = -0.5"))
    (found,) = failed.value.diagnostics
    assert found.message == "held_out is a number from 0 on and below 1, and not -0.5"


@dataclass(frozen=True)
class Wrong:
    """A configuration, a program and phrases, of which something is wrong only when all are seen together."""

    code: str
    line: str
    said: str
    help: str
    config: str = CONFIG
    program: str = PROGRAM
    phrases: bytes = PHRASES.encode()


_NO_FILE = CONFIG.replace("phrases.tsv", "phases.tsv")
_ABROAD = CONFIG.replace("phrases.tsv", "there/phrases.tsv")
_VECTOR = PROGRAM.replace("(loss: f32[]", "(loss: f32[1]").replace("return -sum(probable * counted) / sum(counted)",
          "return expand_dims(-sum(probable * counted), 0)")  # fmt: skip


def _weight(dtype: str) -> str:
    return PROGRAM.replace("bias: f32", f"bias: {dtype}").replace("+ bias", "+ f32(real(bias))" if dtype == "c64" else
                           "+ f32(bias)")  # fmt: skip


def _result(declared: str, value: str) -> str:
    return PROGRAM.replace("right: f32[]", declared).replace("sum(hits * counted) / sum(counted)\n", f"{value}\n")


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize(
    "case",
    [
        Wrong("E005", 'file = "phases.tsv"', "No such file", "phrases.tsv", _NO_FILE),
        Wrong("E005", 'file = "there/phrases.tsv"', "No such file", "from the folder of the configuration", _ABROAD),
        Wrong("E005", 'program = "traind.spmd"', "No such file", "trained.spmd", CONFIG.replace("trained", "traind")),
        Wrong("E005", 'program = "no.spmd"', "No such file", "folder", CONFIG + '[translate]\nprogram = "no.spmd"'),
        Wrong("E005", 'out = "phrases.tsv"', "cannot make", "another", CONFIG.replace('"out"', '"phrases.tsv"')),
        Wrong("E104", "[consts]", "no const 'MM'", "B, S, T, V, M", CONFIG + "[consts]\nMM = 3"),
        Wrong("E104", "const B = 8", "'B' must be an integer, and is given 1.5", "", CONFIG + "[consts]\nB = 1.5"),
        Wrong("E205", "def main(source", "must not be negative, and is -2", "", CONFIG + "[consts]\nB = -2"),
        Wrong("E301", "def main(source", "axis 'y' is not in the mesh", "(x=2, y=2)", CONFIG + "[mesh]\nx = 2"),
        Wrong("E502", "[mesh]", "needs 4096 devices", "a smaller mesh", CONFIG + "[mesh]\nx = 64\ny = 64"),
        Wrong("E606", 'split = "z"', "no axis of this name", "x, y", CONFIG.replace("[ch", 'split = "z"\n[ch')),
        Wrong("E606", 'file = "phrases.tsv"', "has no phrases", "with tabs", phrases=b"\n"),
        Wrong("E606", 'file = "phrases.tsv"', "no phrase of 1 fits", "longer", phrases=b"de\tunglaublich\tno\n"),
        Wrong("E606", "de Mai May", "with tabs", "de<tab>Januar<tab>January", phrases=b"de Mai May\n"),
        Wrong("E606", "held_out = 0.9999", "is left", "a smaller", CONFIG.replace("0.0\n", "0.9999\n", 1)),
        Wrong("E002", "de\tM", "0xe4", "phrases are UTF-8", phrases=b"de\tM\xe4rz\tMarch\n"),
        Wrong("E606", "         wo: f32", "a float scalar", "the loss first", program=_VECTOR),
        Wrong("E606", "         wo: f32", "the weight bias is s32[260]", "converted", program=_weight("s32")),
        Wrong("E606", "         wo: f32", "the weight bias is c64[260]", "converted", program=_weight("c64")),
        Wrong("E606", "         wo: f32", "the weight bias is f8e4m3fn", "converted", program=_weight("f8e4m3fn")),
        Wrong("E606", "         wo: f32", "the weight bias is f64[260]", "JAX_ENABLE_X64", program=_weight("f64")),
        Wrong(
            "E606",
            "         wo: f32",
            "right is c64[]",
            "its real",
            program=_result("right: c64[]", "complex(sum(hits), sum(hits))"),
        ),
        Wrong(
            "E606",
            "         wo: f32",
            "s32[8, 9] for target",
            "each but",
            program=_result("predicted: s32[8, T]", "target"),
        ),
        Wrong("E606", "def main(source", "a batch of no phrases", "1 or more", CONFIG + "[consts]\nB = 0"),
    ],
    ids=lambda case: f"{case.code} {case.said}",
)
def test_what_is_found_behind_the_configuration_has_a_place_a_reason_and_a_way_out(case: Wrong, tmp_path: Path) -> None:
    path = written(tmp_path, case.config, case.program)
    (tmp_path / "phrases.tsv").write_bytes(case.phrases)
    with pytest.raises(SpmdcError) as failed:
        run_of(path).train(lambda record: None)
    found = failed.value.diagnostics[0]
    assert found.span is not None
    assert found.code == case.code
    assert (found.span.source.text or "").split("\n")[found.span.line - 1].startswith(case.line)
    assert case.said in found.message
    assert case.help in found.help


def test_a_mesh_that_lacks_axes_of_the_program_is_noted_where_it_is_asked_for(tmp_path: Path) -> None:
    path = written(tmp_path, CONFIG + "\n[mesh]\nx = 2\n")
    with pytest.raises(SpmdcError) as failed:
        run_of(path)
    assert {note for found in failed.value.diagnostics for note in found.notes} == {
        f"this mesh is asked for: {path}:17"
    }


def test_the_demo_is_of_a_program_that_can_translate_and_has_names_that_it_does_not_see(tmp_path: Path) -> None:
    demo = read_config(Path(spmdc.__file__).parent / "programs" / "translate_months.toml", tmp_path / "months")
    program = load(demo.program, demo.consts)
    feed = feed_of(program, demo)
    assert demo.out == tmp_path / "months"
    assert can_translate(program)
    assert (len(feed.trained.languages), len(feed.held_out) > 50) == (30, True)
