"""The table in docs/collectives.md is what ops declare and are lowered to; `--update-golden` writes it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

import spmdc
from ir.ops import OPS
from ir.ops.collective import COLLECTIVES, communication_of
from ir.program import Program
from lowering.jax import hlo_text, jax_source

PAGE = Path(__file__).resolve().parents[2] / "docs" / "collectives.md"
_CALLS = {
    "all_reduce": "all_reduce(v, axes=(d))",
    "all_gather": "all_gather(v, axes=(d), dim=0)",
    "reduce_scatter": "reduce_scatter(v, axes=(d), dim=0)",
    "all_to_all": "all_to_all(v, axes=(d), split=0, concat=0)",
    "collective_permute": "collective_permute(v, target=(d), source=(d), shift=1)",
    "axis_index": "v + f32(axis_index(axes=(d)))",
    "box_permute": "box_permute(v, axes=(d), boxes=[16, 4, 1, 4, 4], round=1)",
    "box_permutes": "box_permutes(v, v, axes=(d), boxes=[[16, 4, 1, 4, 4], [16, 4, 1, 4, 4]], round=[1, -1])",
}
_RECEIVED = {
    "all_reduce": "2 * (n - 1) / n * b",
    "all_gather": "(n - 1) * b",
    "reduce_scatter": "(n - 1) / n * b",
    "all_to_all": "(n - 1) / n * b",
    "collective_permute": "b",
    "box_permute": "b",
    "box_permutes": "b",
}
_ONE_MESSAGE = {"collective_permute", "box_permute", "box_permutes"}
_JAX = re.compile(r"lax\.(psum|psum_scatter|ppermute|all_gather|all_to_all|axis_index)\b")
_HLO = re.compile(r" (all-[a-z-]+|reduce-scatter|collective-[a-z-]+|partition-id)\(")
_TABLE = re.compile(r"(?<=from the declarations of the ops\. -->\n).*?(?=\n\n)", re.DOTALL)


def _table() -> str:
    head = ["| op | attributes | received | messages | in JAX | in HLO |", "| --- | --- | --- | --- | --- | --- |"]
    return "\n".join([*head, *map(_row, _CALLS)])


def _row(name: str) -> str:
    attributes = ", ".join(
        f"`{attr.name}`" + ("" if attr.required else f" = {attr.default}") for attr in OPS[name].attrs
    )
    program = _program(_CALLS[name])
    jax, hlo = _only(_JAX, jax_source(program)), _only(_HLO, hlo_text(program))
    received = f"`{_RECEIVED[name]}`" if name in _RECEIVED else "nothing"
    messages = "" if name not in _RECEIVED else "1" if name in _ONE_MESSAGE else "`log2(n)`"
    return f"| `{name}` | {attributes} | {received} | {messages} | `lax.{jax}` | `{hlo}` |"


def _program(call: str) -> Program:
    """The call, as one device of four runs it."""
    size = {"all_gather": 64, "reduce_scatter": 4}.get(call.partition("(")[0], 16)
    names = ("y", "z") if call.startswith("box_permutes") else ("y",)
    results = ", ".join(f"{name}: f32[{size}@d]" for name in names)
    body = f"  {results} = manual(v of f32[16@d] = x) {{ return {call} }}\n  return {', '.join(names)}\n"
    return spmdc.partition(spmdc.parse(f"mesh (d=4)\ndef main(x: f32[16@d]) -> ({results}) {{\n{body}}}\n")).program


def _only(pattern: re.Pattern[str], text: str) -> str:
    """The one name that occurs, besides that of a device's own place."""
    names = {*pattern.findall(text)}
    (found,) = names - {"axis_index", "partition-id"} or names
    return str(found)


def test_the_table_of_collectives_is_what_they_declare(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        PAGE.write_text(_TABLE.sub(lambda _: _table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    assert _table() in PAGE.read_text(encoding="utf-8"), f"{PAGE} is old; --update-golden rewrites it"


def test_the_page_has_every_collective() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert {*_RECEIVED} == COLLECTIVES
    assert all(re.search(rf"^### .*\b{name}\b", text, re.MULTILINE) for name in _CALLS)


@pytest.mark.parametrize("name", sorted(COLLECTIVES))
def test_the_formulas_are_those_of_the_model(name: str) -> None:
    communication = communication_of(name)
    for n, b in ((2, 64), (4, 4096), (16, 12)):
        assert eval(_RECEIVED[name], {"n": n, "b": b}) == communication.received(n, b)
        assert communication.messages(n) == (1 if name in _ONE_MESSAGE else math.log2(n))
