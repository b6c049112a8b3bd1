"""The factor rules that users register for custom calls, by target. They apply to all programs that are imported
afterwards."""

from __future__ import annotations

from ir.diagnostics import error, require
from ir.ops.declaration import TypeRuleError
from ir.ops.factor_text import parse_rule

RULES: dict[str, str] = {}


def register_rule(target: str, rule: str) -> None:
    """Specifies which dims of a custom call's operands and results may be split, and what that means.

    `rule` names each dim, with the same name for dims that are split equally:
    `"... i j, ... j k -> ... i k {j: reduction(sum)}"` is that of a matrix product, summed over j. A factor that some
    operand and every result has is parallel: the call computes each part separately. Any other needs replication,
    unless braces specify its kind: `{i: need_replication}`, `{i: parallel}`, or `{j: reduction(sum)}`, for which the
    results of the call on parts are reduced. `...` stands for any leading dims. The rule applies to calls of `target`
    in programs imported afterwards, and takes precedence over those in the program. `spmdc verify FILE --rules` tests
    whether the calls of a program satisfy theirs. Raises SpmdcError (E601; E201 if the text is no rule).
    """
    require(isinstance(target, str), "a rule is registered for the name of a target", target)
    require(isinstance(rule, str), "a rule is a text", rule, '"... i j -> ... i j"')
    try:
        parse_rule(rule)
    except TypeRuleError as problem:
        raise error("E201", f"{target}: {problem.message}", help=problem.help) from None
    RULES[target] = rule
