"""docs/ops.md, a page of all ops, is what their declarations say; `--update-golden` writes it anew."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from ir.ops import OPS, Factor, OpDef
from ir.program import Op
from lowering.jax.module import EMITTERS
from lowering.reference import KERNELS
from passes.factors import factor_rule, other_rules
from passes.partition.registry import partitioning_of
from spmdc.verification.op_instances import instances_of
from spmdc.verification.op_rules import op_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ops.md"
_HEAD = """# The ops

This page lists all ops by family. The factor rule is that of one instance of the op: the factors of the dims of each
operand and each result, and the kind of each factor that is not parallel; `or` begins another view of the op. *Linear
in* gives the numbers of operands that may be partial: from parts of a sum (or of another reduction), the op computes
parts of its result. *On shards* an op is itself, or is written by a function in `passes/partition/ops`, followed by
what it exchanges. The tests write this page from the declarations.
"""


def _page() -> str:
    lines = [_HEAD]
    ordered = sorted(OPS.values(), key=lambda opdef: (opdef.family, opdef.name))
    for family, opdefs in groupby(ordered, key=lambda opdef: opdef.family):
        lines.append(f"## {family}\n")
        lines.extend(f"- **{opdef.name}**{''.join(f' {part}' for part in _told(opdef))}" for opdef in opdefs)
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _told(opdef: OpDef) -> Iterator[str]:
    if opdef.doc:
        yield opdef.doc
    op = _instance(opdef)
    rule = factor_rule(op) if op is not None else None
    if op is not None and rule is not None:
        yield f"`{' or '.join(map(str, (rule, *other_rules(op))))}`"
        yield from _linear(op)
    where = [stage for stage in ("global", "plan", "spmd") if stage in opdef.stages]
    if where != ["global", "plan", "spmd"]:
        yield f"In {' and '.join(where)} programs."
    yield from _on_shards(opdef)
    yield f"Kernel in `{_file(KERNELS[opdef.name])}`" + (
        f", JAX in `{_file(EMITTERS[opdef.name])}`." if opdef.name in EMITTERS else "."
    )


def _instance(opdef: OpDef) -> Op | None:
    """The op on some operands; None if it has regions, or a function that says what it gives."""
    instances = instances_of(opdef.name) if not opdef.is_typed_by_contents else ()
    return op_of(instances[0]) if instances else None


def _linear(op: Op) -> Iterator[str]:
    groups = [
        f"{' and '.join(map(str, linear.group))} ({', '.join(linear.kinds)})" for linear in OPS[op.name].linearity(op)
    ]
    if groups:
        yield f"Linear in {'; in '.join(groups)}."


def _on_shards(opdef: OpDef) -> Iterator[str]:
    op = _instance(opdef)
    if op is None:
        return
    own = partitioning_of(op)
    if own.write.__name__ == "<lambda>":
        yield "On shards: itself."
        return
    exchanged = [
        words
        for words, has in (
            ("halos", own.halo is not None or own.kernel_halo is not None),
            ("totals", own.scan_seconds is not None),
            ("parts that travel in a windowed einsum", own.in_parts),
            ("candidates", any(f.has_candidates for f in _factors(op))),
        )
        if has
    ]
    yield f"On shards: `{_file(own.write)}`{', ' + ', '.join(exchanged) if exchanged else ''}."


def _factors(op: Op) -> tuple[Factor, ...]:
    rule = factor_rule(op)
    return rule.factors if rule is not None else ()


def _file(function: object) -> str:
    return str(getattr(function, "__module__", "")).replace(".", "/") + ".py"


def test_the_page_of_all_ops_is_what_they_declare(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        PAGE.write_text(_page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == _page(), f"{PAGE} is old; --update-golden rewrites it"


def test_the_page_names_every_op_once() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(text.count(f"- **{name}**") == 1 for name in OPS)
