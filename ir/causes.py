"""Why a pass put an op into a program, as data, with conversion to a sentence and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Literal

CauseKind = Literal[
    "annotation", "argument", "branch", "caller", "candidates", "carried", "condition", "even_result", "halo", "index",
    "initial", "invariant", "joined", "manual_operand", "manual_result", "mask", "operand", "remark", "result",
    "totals", "windowed_einsum", "written",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an op is in the program. Fields that do not apply are empty.

    `op` is the name of the op that needs it, `operand` the number of the operand that it becomes, and `name` the result
    or parameter that it is for; `function` is the function that is called, or returned from. `values` are those that
    are moved, from the sharding `source` to `target`, as reports spell them; `axes` are those along which data travels,
    and `reduced` those over which a pending reduction is done. The cause of a reshard in a plan leaves out its operand
    and shardings, which the reshard itself has; the ops that are written for it have them.

    If ops are sent as one, `parts` has the cause of each. `text` is a remark, or the text that was read for `parts`.
    """

    kind: CauseKind
    op: str = ""
    operand: int | None = None
    name: str = ""
    function: str = ""
    values: tuple[str, ...] = ()
    source: str = ""
    target: str = ""
    axes: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    parts: tuple[Cause, ...] = ()
    text: str = ""

    def __str__(self) -> str:
        """The sentence: `[-, x] -> [-, -], operand 1 of dot_general h`."""
        moved = f"{self.source} -> {self.target}, " if self.source else ""
        if self.parts:
            return f"{moved}{len(self.parts)} in one: {_summary(self.parts)}"
        return moved + _SENTENCES[self.kind].format(
            op=self.op,
            operand=self.operand,
            name=self.name,
            function=self.function,
            values=_listed(self.values),
            axes=", ".join(self.axes),
            text=self.text,
        )

    @property
    def is_decided(self) -> bool:
        """Whether a pass put the op there: it is not the user's own, with a remark or without."""
        return self.kind not in ("remark", "written") or bool(self.source)

    def to_json(self) -> dict[str, object]:
        """The fields that apply, as plain data."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) not in ("", None, ())}
        return {**found, "parts": [part.to_json() for part in self.parts]} if self.parts else found


def _listed(names: Sequence[str]) -> str:
    """`a and b`, or `a, b and 7 others` for more than three names: an op can have hundreds of operands."""
    return " and ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} others"


_SENTENCES: Mapping[CauseKind, str] = {
    "annotation": "{name} is annotated so",
    "argument": "argument {name} of {function}",
    "branch": "result {name} of the case",
    "caller": "{values} of the device that calls",
    "candidates": "candidates of {op} {name} over {axes}",
    "carried": "{name}, carried by the loop",
    "condition": "{name}, condition of the loop",
    "even_result": "result {name} in even shards",
    "halo": "halo exchange: {op} along {axes} needs elements of {values} from other devices",
    "index": "index of the case",
    "initial": "initial value of {name}",
    "invariant": "{name} of the loop",
    "joined": "{text}",
    "manual_operand": "operand {name} of the manual region",
    "manual_result": "result {name} of the manual region",
    "mask": "padding of {values} masked for {op} {name}",
    "operand": "operand {operand} of {op} {name}",
    "remark": "{text}",
    "result": "result {name} of {function}",
    "totals": "totals of {op} {name} over {axes}",
    "windowed_einsum": "windowed einsum: parts of {values} travel along {axes}",
    "written": "written so in the program",
}

_OPS: Mapping[CauseKind, str] = {
    "annotation": "shard",
    "argument": "call",
    "branch": "case",
    "carried": "while",
    "condition": "while",
    "index": "case",
    "initial": "while",
    "invariant": "while",
    "manual_operand": "manual",
    "manual_result": "manual",
}
"""The op that a cause of some kinds is for, which is not spelled."""


def _summary(parts: tuple[Cause, ...]) -> str:
    """The first two causes, and the number of others."""
    distinct = list(dict.fromkeys(parts))
    more = f" and {len(distinct) - 2} more" if len(distinct) > 2 else ""
    return "; ".join(map(str, distinct[:2])) + more


def _pattern(sentence: str) -> re.Pattern[str]:
    """The pattern of a sentence, after the shardings that it may begin with. Its groups are the fields."""
    words = {"operand": r"\d+", "values": ".+", "axes": ".+"}
    parts = re.split(r"\{(\w+)\}", sentence)
    matched = [f"(?P<{p}>{words.get(p, r'[^ ,;]+')})" if i % 2 else re.escape(p) for i, p in enumerate(parts)]
    return re.compile(rf"(?:(?P<source>[\[<].*?) -> (?P<target>[\[<].*), )?{''.join(matched)}")


_PATTERNS = [(kind, _pattern(sentence)) for kind, sentence in _SENTENCES.items() if sentence != "{text}"]
_JOINED = re.compile(r"\d+ in one: .+")


@lru_cache(maxsize=4096)
def read_cause(text: str) -> Cause:
    """The cause that a sentence states, or a remark if this module writes no such sentence."""
    if _JOINED.fullmatch(text):
        return Cause("joined", text=text)
    for kind, pattern in _PATTERNS:
        match = pattern.fullmatch(text)
        if match is None:
            continue
        found = match.groupdict(default="")
        operand, values, axes = (found.get(name, "") for name in ("operand", "values", "axes"))
        return Cause(
            kind,
            op=found.get("op", _OPS.get(kind, "")),
            operand=int(operand) if operand else None,
            name=found.get("name", ""),
            function=found.get("function", ""),
            values=tuple(values.split(" and ")) if values else (),
            source=found["source"],
            target=found["target"],
            axes=tuple(axes.split(", ")) if axes else (),
        )
    return Cause("remark", text=text)
