"""`spmdc verify`: tests whether partitioning preserves what a program computes, or whether the rules of ops hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import spmdc
from ir.diagnostics import error
from ir.ops import OPS
from ir.ops.opaque import is_opaque
from ir.program import all_ops
from ir.records import as_json
from passes.cost.machine import machine
from spmdc.commands.shared.failures import report_errors
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Page
from spmdc.commands.shared.programs import load_program
from spmdc.commands.shared.terminal import Stopwatch, print_json
from spmdc.verification.equivalence import Verification
from spmdc.verification.op_instances import Instance, instances_of
from spmdc.verification.op_rules import RuleReport, verify_rules


def run(options: Options, *, file: str | None, examples: int, rules: str | None) -> int:
    """Verifies the program in a file; with `rules`, the rules of that op ("" for all); with "" and a file, those of its
    custom calls. Returns 1 if an error is found."""
    if file is not None and rules:
        raise error("E601", "a program and the rules of an op are verified one at a time", help="leave one of them out")
    if file is not None and rules is not None:
        return _verify_calls(options, file)
    if file is not None:
        return _verify_program(options, file, examples)
    if rules is None:
        raise error("E601", "verify takes a program, or --rules", help="spmdc verify --help")
    return _verify_rules(options, rules)


def _verify_program(options: Options, file: str, examples: int) -> int:
    watch = Stopwatch()
    program = load_program(file, options, watch)
    with watch.step("verify", examples) as advance:
        found = spmdc.verify(program, examples, seed=options.seed, machine=machine(options.machine), on_example=advance)
    problems = found.diagnostics()
    if options.json:
        print_json(options.verb, {**_figures(found), "timings": watch.seconds}, problems)
        return 1 if problems else 0
    if options.verbose:
        watch.print()
    if found.counterexample is not None:
        Page(wide=options.wide).code(found.counterexample.text())
        return report_errors(problems, options)
    Page(wide=options.wide).text(f"{file}: {_summary(found)}")
    return 0


def _summary(found: Verification) -> str:
    exact = f"{found.equal} bit for bit"
    close = f", {found.rounding} within rounding" if found.rounding else ""
    vague = f", {found.sensitive} undecided, as rounding decides what is computed" if found.sensitive else ""
    return f"{found.examples} {'example' if found.examples == 1 else 'examples'} agree: {exact}{close}{vague}"


def _figures(found: Verification) -> dict[str, object]:
    bad = found.counterexample
    return {
        **as_json(found, "examples", "equal", "rounding", "sensitive"),
        "counterexample": None if bad is None else {"program": bad.text(), "seed": bad.seed, "reason": bad.reason},
    }


def _verify_rules(options: Options, op: str) -> int:
    known = sorted(name for name, opdef in OPS.items() if opdef.factors is not None and instances_of(name))
    if op and op not in known:
        raise error("E601", f"{op!r} is no op with a factor rule", help=f"ops with one: {', '.join(known)}")
    names = [op] if op else known
    reports: list[RuleReport] = []
    with Stopwatch().step("verify", len(names)) as advance:
        for name in names:
            reports.append(verify_rules(name))
            advance()
    return _report(reports, options, reasons=bool(op))


def _verify_calls(options: Options, file: str) -> int:
    """Tests the rules of a program's custom calls, for the shapes that they have there."""
    program = load_program(file, options, Stopwatch())
    calls = [op for op in all_ops(program) if is_opaque(op) and op.attrs["rule"]]
    if not calls:
        raise error("E601", f"{file} has no custom call with a factor rule", help="verify it without --rules")
    instances: dict[object, Instance] = {}
    for op in calls:
        types = tuple(v.type for v in op.operands)
        instances[tuple(op.attrs.items()), types] = Instance(op.name, types, op.attrs)
    by_target: dict[str, list[Instance]] = {}
    for instance in instances.values():
        by_target.setdefault(str(instance.attrs["target"]), []).append(instance)
    reports = [replace(verify_rules("opaque", given), op=target) for target, given in by_target.items()]
    return _report(reports, options, reasons=True)


def _report(reports: Sequence[RuleReport], options: Options, *, reasons: bool) -> int:
    problems = [d for report in reports for d in report.diagnostics()]
    if options.json:
        print_json(options.verb, {"ops": [r.to_json() for r in reports]}, problems)
        return 1 if problems else 0
    rows = [[r.op, str(r.checked), str(len(r.wrong)), *_missing(r, reasons=reasons)] for r in reports]
    Page(wide=options.wide).table(("op", "claims", "wrong", "missing", ""), rows, right=(1, 2, 3))
    missing = sum(len(r.unexplained) for r in reports)
    claims = sum(r.checked for r in reports)
    ops = f"{len(reports)} {'op' if len(reports) == 1 else 'ops'}"
    print(f"{ops}, {claims} claims: {len(problems)} wrong, {missing} missing for no known reason")
    return report_errors(problems, options) if problems else 0


def _missing(report: RuleReport, reasons: bool) -> tuple[str, str]:
    """The number of claims that are missing without a known reason, and the claims; with `reasons`, also those that are
    accepted."""
    shown = report.missing if reasons else report.unexplained
    return str(len(report.unexplained)), "; ".join(f"{f.claim} ({f.accepted or 'no reason'})" for f in shown)
