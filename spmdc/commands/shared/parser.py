"""The parser of the command line: its verbs and their options. Imports nothing heavy, so that `spmdc --help` answers at
once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ir.diagnostics import SpmdcError, error
from spmdc.commands.shared.options import (
    Options,
    parse_bytes,
    parse_define,
    parse_mesh,
    parse_names,
    parse_path,
    parse_positive,
    parse_seed,
    parse_sweep,
)

_DESCRIPTION = "A standalone SPMD partitioner: annotated tensor programs in, one program for all devices out."
_FILES = "FILE is a program: .spmd, .mlir (StableHLO) or .hlo (HLO text); `-` is standard input."
_STATUS = "exit status: 0 fine, 1 the program or its inputs have errors, 2 wrong usage, 3 a bug in spmdc"
COSTS_BY = ("line", "op", "kind", "axis", "value", "loop", "function")
"""What the rows of a cost may be of."""
_MACHINE = "NAME[:SHAPE]|FILE"


def usage_error(message: str, command: str) -> SpmdcError:
    """The error (E601) for arguments that a command does not take."""
    return error("E601", message, help=f"{command} --help")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are diagnostics, and whose output fails like all other output."""

    def error(self, message: str) -> NoReturn:
        raise usage_error(message, self.prog)

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)


def command_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        "spmdc", description=_DESCRIPTION, epilog=f"{_FILES}\n{_STATUS}", formatter_class=raw, allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)

    def verb(name: str, about: str, *, epilog: str = f"{_FILES}\n{_STATUS}") -> argparse.ArgumentParser:
        return verbs.add_parser(
            name, help=about, description=about, epilog=epilog, formatter_class=raw, allow_abbrev=False
        )

    def program_verb(
        name: str, about: str, add: Callable[[argparse.ArgumentParser], None] | None = None, *, partitions: bool = True
    ) -> None:
        """A verb that takes one program, its own arguments, the partitioner's options if it `partitions`, and the
        common ones."""
        p = verb(name, about)
        p.add_argument("file", type=parse_path, metavar="FILE", help="a program, or `-` for standard input")
        if add is not None:
            add(p)
        if partitions:
            _add_machine(p)
            _add_choices(p)
        _add_common(p)

    program_verb("run", "Run a program on given or random inputs.", _add_run)
    _add_check(verb("check", "Check programs for errors, without running them."))
    _add_fmt(verb("fmt", "Rewrite programs in the standard layout."))
    program_verb("propagate", "Print a program with the sharding of every value.", partitions=False)
    about = "Print what the partitioner decides: strategies, reshards, and their costs before ops are fused."
    program_verb("plan", about, _add_plan)
    program_verb("partition", "Print the program that each device runs, with its collectives.", _add_partition)
    _add_cost(verb("cost", "Print what a program takes on a machine, by line, op or kind, and what bounds it."))
    about = "Write what a device does when, by model, for Perfetto or chrome://tracing."
    program_verb("trace", about, _add_trace)
    about = "Write a page about a program: what it takes and sends, why, and what else could be."
    program_verb("report", about, _add_report)
    program_verb("why", "Print where the sharding of a value, or a collective, comes from.", _add_why)
    program_verb("visualize", "Draw which part of a value each device holds.", _add_visualize, partitions=False)
    _add_verify(verb("verify", "Test whether partitioning changes what a program computes, or check the rules of ops."))
    program_verb("lower", "Print a program as Python for JAX, as StableHLO or as HLO.", _add_lower)
    about = "Compile a program for TPUs, which need not be there, and print what came of it."
    program_verb("compile", about, _add_compile)
    program_verb("compare", "Compare what spmdc and XLA's own partitioner communicate.", _add_compare)
    program_verb("grad", "Print the program that computes the gradients of a program.", _add_grad, partitions=False)
    _add_train(verb("train", "Train a program as a file says, from where the last run got.", epilog=_STATUS))
    _add_explain(verb("explain", "Explain a diagnostic code, or list all.", epilog=_STATUS))
    _add_schema(verb("schema", "Print the JSON Schema of what a verb prints with --json, or list all.", epilog=_STATUS))
    _add_demo(verb("demo", "Partition a mixture-of-experts layer and run it on the bytes of a text.", epilog=_STATUS))
    program_verb("watch", "Check and plan a program again whenever it is saved, and print what changed.")
    _add_new(verb("new", "Write a first program, and a test of it for pytest.", epilog=_STATUS))
    _add_completion(verb("completion", "Print what a shell needs to complete commands.", epilog=_STATUS), parser)
    verb("lsp", "Serve an editor, by the language server protocol on standard input and output.", epilog=_STATUS)
    _add_machine_verb(verb("machine", "List or show machines, or measure the devices at hand.", epilog=_STATUS))
    return parser


class _Version(argparse.Action):
    """Prints the versions of spmdc and its dependencies."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help="print versions and exit")

    def __call__(self, parser: argparse.ArgumentParser, *unused: object) -> NoReturn:
        # Imported late, so that `spmdc --help` answers at once.
        from spmdc.commands.shared.failures import versions

        print(versions())
        parser.exit()


def _add_run(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "inputs", nargs="*", default=[], type=parse_path, metavar="INPUT", help=(
            "inputs.npz, or name=file.npy for each input; default: random ones"
    ))  # fmt: skip
    p.add_argument("--backend", choices=("simulate", "jax", "reference"), default="simulate", help=(
        "simulate: all devices in this process, in numpy (default); jax: jax's devices; reference: not partitioned"
    ))  # fmt: skip
    p.add_argument("--check", action="store_true", help="compare with the unpartitioned program")
    p.add_argument("-o", "--out", type=parse_path, metavar="RESULTS.npz", help="write the results to a file")
    p.add_argument("--integers", action="store_true", help="draw random inputs that are small integers: sums are exact")
    p.add_argument("--seed", type=parse_seed, default=0, help="of the random inputs (default 0)")


def _add_check(p: argparse.ArgumentParser) -> None:
    p.add_argument("files", nargs="+", type=parse_path, metavar="FILE", help="programs")
    _add_common(p)


def _add_fmt(p: argparse.ArgumentParser) -> None:
    p.add_argument("files", nargs="+", type=parse_path, metavar="FILE", help=(
        "programs, rewritten in place; `-` goes to standard output, as do .mlir and .hlo, in the language of .spmd"
    ))  # fmt: skip
    p.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file would change")
    p.add_argument("--diff", action="store_true", help="write nothing; print what would change")
    p.add_argument("--json", action="store_true", help="print what happens to each file, and errors, as JSON")


def _add_plan(p: argparse.ArgumentParser) -> None:
    p.add_argument("--explain", metavar="VALUE", help=(
        "print the strategies that the op could have had which makes this value (or function.value), with the cost of "
        "each"
    ))  # fmt: skip
    p.add_argument(
        "--diff", type=parse_path, metavar="OTHER", help="print what the plan of another file does otherwise"
    )


def _add_partition(p: argparse.ArgumentParser) -> None:
    p.add_argument("--stats", action="store_true", help="also print a table of the collectives")
    p.add_argument("-p", "--passes", type=parse_names, metavar="NAME,…", help=(
        "apply these passes, and print what they make, as in -p specialize,propagate,plan"
    ))  # fmt: skip
    p.add_argument("--print-after", action="append", default=[], metavar="PASS", help=(
        "also print the program that a pass made; may be given several times"
    ))  # fmt: skip
    p.add_argument("--time-passes", action="store_true", help="print how long each pass took")


def _add_cost(p: argparse.ArgumentParser) -> None:
    _add_file(p)
    p.add_argument("--by", choices=COSTS_BY, help=(
        "what a row is of: a line (default), op, kind of op, mesh axis, value that is sent, loop or function"
    ))  # fmt: skip
    p.add_argument("--top", type=parse_positive, metavar="N", help="print the N rows that take longest (default all)")
    p.add_argument("--alive", action="store_true", help="also print the values that are alive at the peak of memory")
    p.add_argument("--machine", dest="machines", action="append", default=[], metavar=_MACHINE, help=(
        "the machine that costs are estimated for; may be given several times, as may --mesh and several values of -D, "
        "for a table with a row for each combination, and below it what --by, --top and --alive print of each"
    ))  # fmt: skip
    p.add_argument("-D", dest="sweeps", action="append", type=parse_sweep, default=[], metavar="NAME=NUMBER,…", help=(
        "override a const of the program; may be given several times"
    ))  # fmt: skip
    size = p.add_mutually_exclusive_group()
    size.add_argument("--devices", type=parse_positive, metavar="N", help="the size of a mesh of one axis")
    size.add_argument(
        "--mesh", dest="meshes", action="append", type=parse_mesh, default=[], metavar="x=4,y=2",
        help="sizes of the mesh's axes",
    )  # fmt: skip
    _add_choices(p)
    _add_output(p)


def _add_trace(p: argparse.ArgumentParser) -> None:
    p.add_argument("-o", "--out", type=parse_path, metavar="OUT.json", help="write to a file")
    p.add_argument("--measure", action="store_true", help=(
        "also run the program on JAX's devices, on random inputs, and show what its profiler saw beside the model"
    ))  # fmt: skip
    p.add_argument("--seed", type=parse_seed, default=0, help="of the random inputs (default 0)")


def _add_report(p: argparse.ArgumentParser) -> None:
    p.add_argument("-o", "--out", type=parse_path, default="report.html", metavar="OUT.html", help=(
        "the page (default report.html)"
    ))  # fmt: skip
    p.add_argument("--xla", action="store_true", help="also what XLA's own partitioner sends")
    p.add_argument("--diff", type=parse_path, metavar="OTHER", help="also what the plan of another file does otherwise")


def _add_why(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", metavar="NAME", help=(
        "a value, function.value, a kind of collective (all_gather), or the line that collectives come from (15)"
    ))  # fmt: skip


def _add_visualize(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", metavar="NAME", help="a value, or function.value")
    p.add_argument("-o", "--out", type=parse_path, metavar="OUT.svg", help="write a picture to a file")


def _add_verify(p: argparse.ArgumentParser) -> None:
    p.add_argument("file", nargs="?", type=parse_path, metavar="FILE", help="a program, or `-` for standard input")
    p.add_argument("--examples", type=parse_positive, default=100, metavar="N", help=(
        "meshes with annotations and inputs to try (default 100)"
    ))  # fmt: skip
    p.add_argument("--seed", type=parse_seed, default=0, help="of the examples (default 0)")
    p.add_argument("--rules", nargs="?", const="", metavar="OP", help=(
        "check the factor rule and the linearity of an op, or of all, by computing it in parts"
    ))  # fmt: skip
    _add_machine(p)
    _add_common(p)


def _add_lower(p: argparse.ArgumentParser) -> None:
    p.add_argument("--emit", choices=("jax", "stablehlo", "hlo"), default="jax", help=(
        "jax: a Python module (default); stablehlo, hlo: a module of what one device runs"
    ))  # fmt: skip
    p.add_argument("-o", "--out", type=parse_path, metavar="OUT", help="write to a file")
    p.add_argument("--unpartitioned", action="store_true", help="the program as it is, for one device")


def _add_compile(p: argparse.ArgumentParser) -> None:
    p.add_argument("--target", required=True, metavar="TARGET", help=(
        "TPUs (v2, v3, v4, v5e, v5p, v6e) by the layout of their chips, as in tpu-v3:4x4; or cpu"
    ))  # fmt: skip
    p.add_argument("--emit", choices=("report", "hlo"), default="report", help=(
        "report: memory, cycles and collectives (default); hlo: the optimised module"
    ))  # fmt: skip
    p.add_argument("-o", "--out", type=parse_path, metavar="OUT.hlo", help="write the optimised module to a file")


def _add_compare(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--pin",
        action="store_true",
        help="keep parameters and results without an annotation replicated, for both (by default both may shard them)",
    )
    p.add_argument("--target", metavar="TARGET", help=(
        "compile both for TPUs, as in tpu-v3:4x4 (see compile), or cpu, and compare cycles and memory too"
    ))  # fmt: skip


def _add_grad(p: argparse.ArgumentParser) -> None:
    help_text = "the parameters to differentiate by (default: the weights, those that are initialised)"
    p.add_argument("--wrt", type=parse_names, default=[], metavar="NAME,…", help=help_text)
    p.add_argument("--of", metavar="RESULT", help="the result to differentiate (default: the only float scalar)")
    p.add_argument("--value", action="store_true", help="return that result too, first")
    p.add_argument("--memory-limit", type=parse_bytes, metavar="BYTES", help=(
        "what the gradient may take of a device's memory, such as 8GiB: loops and functions are computed again on the "
        "way back until it takes no more (default: only what is in a checkpoint)"
    ))  # fmt: skip
    _add_machine(p)
    p.add_argument("-o", "--out", type=parse_path, metavar="OUT.spmd", help="write to a file")


def _add_train(p: argparse.ArgumentParser) -> None:
    p.add_argument("config", type=parse_path, metavar="CONFIG.toml", help=(
        "the program, its data, how it is trained, and where to (docs/training.md)"
    ))  # fmt: skip
    p.add_argument("-o", "--out", type=parse_path, metavar="FOLDER", help="of the run, in place of the file's")
    p.add_argument(
        "--processes", type=parse_positive, metavar="N", help="on this machine, each with a part of the devices"
    )
    p.add_argument("--cluster", action="store_true", help="as one process of those that a cluster has launched")
    _add_output(p)


def _add_explain(p: argparse.ArgumentParser) -> None:
    p.add_argument("code", nargs="?", metavar="CODE", help="such as E201; without it, all codes are listed")
    p.add_argument("--json", action="store_true", help="print code and text as JSON")


def _add_schema(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", nargs="?", metavar="VERB", help="a verb, errors or bug; without it, all are listed")


def _add_new(p: argparse.ArgumentParser) -> None:
    p.add_argument("name", metavar="NAME", help="of the program: NAME.spmd and test_NAME.py are written")


def _add_completion(p: argparse.ArgumentParser, whole: argparse.ArgumentParser) -> None:
    p.add_argument("shell", choices=("bash", "zsh", "fish"), help=(
        'bash, zsh: eval "$(spmdc completion bash)" in its start-up file; fish: spmdc completion fish | source'
    ))  # fmt: skip
    p.set_defaults(parser=whole)


def _add_demo(p: argparse.ArgumentParser) -> None:
    p.add_argument("--text", type=parse_path, metavar="FILE", help="the text to route (default: spmdc's own README)")
    p.add_argument("--devices", type=parse_positive, default=8, metavar="N", help="partitions (default 8)")
    p.add_argument("--no-jax", dest="jax", action="store_false", help="run on the simulator only")
    p.add_argument("--seed", type=parse_seed, default=0, help="of embeddings and weights (default 0)")
    _add_machine(p)
    p.add_argument("--json", action="store_true", help="print figures as JSON")


def _add_machine(p: argparse.ArgumentParser) -> None:
    p.add_argument("--machine", default=Options.machine, metavar=_MACHINE, help=(
        "the machine that costs are estimated for, such as tpu-v4:8x8x4 or own.toml (default tpu-v3: cores of a TPU v3 "
        "with equal links)"
    ))  # fmt: skip


def _add_machine_verb(p: argparse.ArgumentParser) -> None:
    p.add_argument("action", choices=("list", "show", "measure"), help=(
        "list: all that can be named; show: what is known of one; measure: microbenchmarks on jax's devices"
    ))  # fmt: skip
    p.add_argument("name", nargs="?", metavar=_MACHINE, help="the machine to show")
    p.add_argument("-o", "--out", type=parse_path, metavar="OUT.toml", help="write what was measured to a file")
    p.add_argument("--devices", type=parse_positive, metavar="N", help="measure so many devices (default: all)")
    p.add_argument("--json", action="store_true", help="print figures, and errors, as JSON")


def _add_choices(p: argparse.ArgumentParser) -> None:
    p.add_argument("--memory-limit", type=parse_bytes, metavar="BYTES", help=(
        "what one op may take of a device's memory, such as 64MiB (default: all of it)"
    ))  # fmt: skip
    p.add_argument("--windowed-einsum", choices=("auto", "always", "never"), default="auto", help=(
        "whether einsums whose operands clash loop over parts that travel around the devices: where that is faster or "
        "the memory limit asks for it (auto), where it is possible, or never"
    ))  # fmt: skip
    p.add_argument("--recompute", choices=("auto", "never"), default="auto", help=(
        "whether values are computed again where that is faster than sending them (auto), or never"
    ))  # fmt: skip


def _add_file(p: argparse.ArgumentParser) -> None:
    p.add_argument("file", type=parse_path, metavar="FILE", help="a program, or `-` for standard input")


def _add_common(p: argparse.ArgumentParser) -> None:
    p.add_argument("-D", dest="defines", action="append", type=parse_define, default=[], metavar="NAME=NUMBER", help=(
        "override a const of the program; may be given several times"
    ))  # fmt: skip
    size = p.add_mutually_exclusive_group()
    size.add_argument("--devices", type=parse_positive, metavar="N", help="the size of a mesh of one axis")
    size.add_argument("--mesh", type=parse_mesh, metavar="x=4,y=2", help="sizes of the mesh's axes")
    _add_output(p)


def _add_output(p: argparse.ArgumentParser) -> None:
    p.add_argument("--json", action="store_true", help="print figures, and errors, as JSON")
    p.add_argument("--verbose", action="store_true", help="print how long each step took")
    p.add_argument("--wide", action="store_true", help="print lines as long as they are, wider than the terminal too")
