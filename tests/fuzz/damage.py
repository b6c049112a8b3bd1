"""Programs damaged where it hurts: in their tokens, numbers, shardings, attributes and lines, not in their bytes.

Most of a damaged text is as it was, so that a good part of them gets past the parser and into what comes behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

Rng = np.random.Generator
Damage = Callable[[Rng, str, Sequence[str]], str]

_TOKEN = re.compile(r'"[^"\n]*"|[A-Za-z_][\w.\-]*|\d+(?:\.\d+)?(?:e[+-]?\d+)?|->|<=|[^\w\s]')
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])|(?<=x)\d+(?=x)|(?<=[<,x])\d+(?=x)")
_WORD = re.compile(r"[A-Za-z_][\w.\-]*")
_EXTREMES = (
    *("0", "1", "-1", "2", "3", "7", "8", "64", "65", "127", "128", "255", "256", "-2", "-128", "1000", "20000"),
    *("65536", "1000000", "2147483647", "2147483648", "-2147483648", "4294967296", "9223372036854775807"),
    *("-9223372036854775808", "9223372036854775808", "18446744073709551616", "1e999", "0.5", "1.0", "-0.0", "1e-45"),
    *("nan", "inf", "99999999999999999999999999999999"),
)
_TYPES = (
    *("f32", "f64", "bf16", "f16", "s32", "s8", "u8", "u32", "s64", "u64", "s4", "u4", "s2", "u2", "pred", "c64"),
    *("f8e4m3fn", "f8e5m2", "f4e2m1fn", "f8e8m0fnu"),
)
_MLIR_TYPES = ("f32", "f64", "bf16", "f16", "i32", "i8", "ui8", "i64", "i1", "i4", "ui4", "complex<f32>", "index")
_PIECES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "spmd": (
            *("@x", "@y", "@(x,y)", "@?", "@(x,?)", "@x:(1)2", "@x:(2)2", "@x!1", "@z", "{partial: x}"),
            *("{replicated}", "{partial: max y}", "{replicated: y}", "{partial: x; replicated: y}"),
            *(" of f32[8@x, 4]", "f32[]", "s32[0]", "dim=0", "dim=-1", "dim=9", "shape=[]", "shape=[0]", "axes=(x)"),
            *("axes=()", "axis=x", "kind=max", "true", "mesh (x=4, y=2)", "mesh other (q=8)", "devices=[1, 0]"),
            *(
                "spmd",
                "plan",
                "const N = 3",
                "return",
                "def",
                "manual(",
                "while(",
                "case(",
                "repeat k < 3 (",
                "loop k < 3 (",
            ),
            *(
                "cond {",
                "} do {",
                "} or {",
                "checkpoint {",
                "precision(bf16) {",
                "precision (bf16)",
                "}",
                "{",
                "trip_count=3",
                'strategy="i=x"',
            ),
            *('steps="all_reduce (y) sum -> [x, -]"', "padding=same", "[0:2]", "[::-1]", "# a:b:3  c", "None"),
            *("nan", "inf", "e", "%", "**", "//", "->", "==", "0x10", "é", "\0", '"', "'", "mesh ()", "devices=[]"),
            *('config="{"', 'config="{a = 1 : i8}"', 'config="[[[["', 'rule="i j -> i"', 'rule="i -> i {i: scan}"'),
            *(
                "effect=true",
                "api_version=1",
                "aliases=[[0, 0]]",
                "operand_layouts=[[1, 0]]",
                "dense<",
                "array<",
                ": i32",
            ),
        ),
        "toml": (
            *("[device]", "[link]", "[[network]]", "[[measured]]", "[network]", "size = 4", 'kind = "switch"', "true"),
            *('kind = "all_to_all"', "group = 2", "bytes = [1, 2]", "seconds = [1e-3, 0.0]", "nan", "inf", "[]", "{}"),
            *('name = "x"', "rates = { f32 = 1.0 }", "latency = 0", "bandwidth = 1e300", "flops = 1e-300", '"', "'"),
            *("asynchronous = false", "0x10", "1979-05-27", "a.b = 1", "\0", "é", '"""', "=", "-0.0", "memory = 0"),
        ),
        "hlo": (
            *("sharding={devices=[2,4]<=[8]}", "sharding={replicated}", "sharding={maximal device=0}"),
            *("sharding={manual}", "sharding={devices=[8]0,1,2,3,4,5,6,7}"),
            *("sharding={devices=[2,1,4]<=[8] last_tile_dim_replicate}", "sharding={devices=[4,2]<=[2,4]T(1,0)}"),
            *("sharding={unknown}", "sharding={unreduced}", "metadata={}"),
            *("sharding={devices=[2,4]<=[8] last_tile_dims={manual}}", "sharding={{replicated},{replicated}}"),
            *("sharding={mesh['x'=4,'y'=2], [{'x'}, {}]}", "replica_groups={{0,1},{2,3}}"),
            *("replica_groups=[4,2]<=[8]", "channel_id=1", "use_global_device_ids=true", "dimensions={0}"),
            *("dimensions={}", "dimensions={1,0}", "{1,0}", "to_apply=add", "calls=add", "is_host_transfer=true"),
            *("num_partitions=8", "replica_count=2", "<=16", "?", "window={size=2x2 stride=2x2 pad=0_1x0_1}"),
            *("window={size=3 rhs_dilate=2}", "dim_labels=b0f_0io->b0f", "ROOT", "f32[]", "f32[0]"),
            *("(f32[4], s32[])", "tuple", "parameter(0)", "constant({1, 2})", "/*index=5*/", "ENTRY"),
        ),
        "mlir": (
            *('{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}', '#sdy.sharding<@mesh, [{"y", ?}]>', '{"x"}'),
            *("{?}", '{mhlo.sharding = "{devices=[2,4]<=[8]}"}', '"{replicated}"', '"{manual}"'),
            *('"{maximal device=3}"', '{"x":(1)2}', '{"x":(2)2}', "p1", 'replicated={"y"}', 'unreduced={"x"}'),
            *('manual_axes={"x"}', "{}", 'sdy.mesh @mesh = <["x"=4, "y"=2]>', "device_ids=[3, 2, 1, 0]", "@mesh"),
            *("@empty", "<[]>", "tensor<f32>", "tensor<0xf32>", "tensor<?xf32>", "tensor<*xf32>", "dense<0>"),
            *("dense<[]>", "array<i64: 0>", "array<i64>", "[]", "loc(unknown)", 'loc("a:b":1:2)', "private"),
            *("public", "true", "unit", ": i64", "[0]", "[[0, 1], [2, 3]]", "stablehlo.custom_call @Sharding"),
            *('backend_config = ""', "has_side_effect = true", "tuple<tensor<f32>>"),
        ),
    }
)
"""What may be put in: words of each language that mean much."""


def damage(rng: Rng, text: str, others: Sequence[str], language: str) -> str:
    """The text with one to four faults. `others` are texts that pieces are taken from."""
    kinds = _KINDS if language in ("spmd", "toml") else _CAREFUL_KINDS
    if text.startswith(_STAGES):
        kinds = (*_KINDS, *_OF_DECISIONS)
    for _ in range(int(rng.choice((1, 1, 1, 2, 2, 3, 4) if language in ("spmd", "toml") else (1, 1, 1, 1, 2)))):
        kind = kinds[int(rng.integers(len(kinds)))]
        text = kind(rng, text, _PIECES[language]) if kind is not _splice else _splice(rng, text, others)
    return text


def _pick(rng: Rng, choices: Sequence[str]) -> str:
    return choices[int(rng.integers(len(choices)))]


def _place(rng: Rng, pattern: re.Pattern[str], text: str) -> tuple[int, int]:
    found = [m.span() for m in pattern.finditer(text)]
    return found[int(rng.integers(len(found)))] if found else (len(text), len(text))


def _number(rng: Rng, text: str, _: Sequence[str]) -> str:
    """A number becomes an extreme one, one next to it, or another one of the text; sometimes, wherever it stands."""
    start, end = _place(rng, _NUMBER, text)
    old = text[start:end]
    near = [str(int(old) + d) for d in (-1, 1)] + [str(2 * int(old))] if re.fullmatch(r"-?\d{1,18}", old) else []
    new = _pick(rng, (*_EXTREMES, *near * 6, *_NUMBER.findall(text)[:20]))
    if old and rng.integers(6) < (4 if "tensor<" in text or "HloModule" in text else 1):
        return re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w.])|(?<=[<x]){re.escape(old)}(?=x)", new, text)
    return text[:start] + new + text[end:]


def _exchange(rng: Rng, text: str, _: Sequence[str]) -> str:
    """A token becomes another one of the text, of the same kind if there is one."""
    start, end = _place(rng, _TOKEN, text)
    old = text[start:end]
    alike = _WORD if _WORD.fullmatch(old) else _TOKEN
    a, b = _place(rng, alike, text)
    return text[:start] + text[a:b] + text[end:]


def _swap(rng: Rng, text: str, _: Sequence[str]) -> str:
    """Two tokens change places."""
    (a, b), (c, d) = sorted((_place(rng, _TOKEN, text), _place(rng, _TOKEN, text)))
    return text if c < b else text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]


def _delete(rng: Rng, text: str, _: Sequence[str]) -> str:
    start, end = _place(rng, _TOKEN, text)
    return text[:start] + text[end:]


def _double(rng: Rng, text: str, _: Sequence[str]) -> str:
    start, end = _place(rng, _TOKEN, text)
    return f"{text[:end]} {text[start:end]}{text[end:]}"


def _insert(rng: Rng, text: str, pieces: Sequence[str]) -> str:
    _, end = _place(rng, _TOKEN, text)
    return f"{text[:end]} {_pick(rng, pieces)}{text[end:]}"


def _replace(rng: Rng, text: str, pieces: Sequence[str]) -> str:
    start, end = _place(rng, _TOKEN, text)
    return f"{text[:start]}{_pick(rng, pieces)}{text[end:]}"


_TYPE = re.compile(rf"\b(?:{'|'.join(_TYPES)})(?=\[)")
_MLIR_TYPE = re.compile(r"(?<=[x<])(?:[fi]\d+|ui\d+|bf16)(?=>)")
_SHARDING = re.compile(r"@\([^)\n]*\)|@[\w?:()!]+|\{partial[^}\n]*\}|\{replicated[^}\n]*\}")
_HLO_SHARDING = re.compile(
    r"sharding=\{[^=]*?(?:\}(?=[,\n])|\}\})|\{devices=[^}]*\}|#sdy\.sharding<[^>\n]*>|\{\"[^}\n]*\}"
)
_ATTRIBUTE = re.compile(r"[\w.]+ ?= ?(?:\[[^\]\n]*\]|\{[^}\n]*\}|\([^)\n]*\)|[\w.\"<>:-]+)")


def _type(rng: Rng, text: str, _: Sequence[str]) -> str:
    """An element type becomes another one, here or wherever it stands."""
    mlir = "tensor<" in text
    start, end = _place(rng, _MLIR_TYPE if mlir else _TYPE, text)
    new = _pick(rng, _MLIR_TYPES if mlir else _TYPES)
    if start < end and rng.integers(2):
        ending = ">" if mlir else "["
        return text.replace(f"{text[start:end]}{ending}", f"{new}{ending}")
    return text[:start] + (new if start < end else "") + text[end:]


def _sharding(rng: Rng, text: str, pieces: Sequence[str]) -> str:
    """A sharding becomes another one: of the text, or of the pieces."""
    pattern = _SHARDING if _SHARDING.search(text) and "tensor<" not in text else _HLO_SHARDING
    (start, end), (a, b) = _place(rng, pattern, text), _place(rng, pattern, text)
    shardings = [p for p in pieces if any(mark in p for mark in ("@", "sharding", "partial", "{"))]
    new = text[a:b] if rng.integers(3) == 0 else _pick(rng, shardings)
    return text[:start] + new + text[end:]


def _attribute(rng: Rng, text: str, _: Sequence[str]) -> str:
    """An attribute is left out, doubled, or given the value of another."""
    (start, end), (a, b) = _place(rng, _ATTRIBUTE, text), _place(rng, _ATTRIBUTE, text)
    old, other = text[start:end], text[a:b]
    match int(rng.integers(3)):
        case 0:
            new = ""
        case 1:
            new = f"{old}, {other}"
        case _:
            new = f"{old.partition('=')[0]}={other.partition('=')[2]}"
    return text[:start] + new + text[end:]


def _lines(rng: Rng, text: str, _: Sequence[str]) -> str:
    """A line is deleted, doubled, moved, or exchanged with another one."""
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return text
    i, j = (int(n) for n in rng.integers(len(lines), size=2))
    match int(rng.integers(4)):
        case 0:
            del lines[i]
        case 1:
            lines.insert(j, lines[i])
        case 2:
            lines.insert(j, lines.pop(i))
        case _:
            lines[i], lines[j] = lines[j], lines[i]
    return "".join(lines)


def _splice(rng: Rng, text: str, others: Sequence[str]) -> str:
    """A line of another program takes the place of one."""
    lines, other = text.splitlines(keepends=True), _pick(rng, others).splitlines(keepends=True)
    if not lines or not other:
        return text
    lines[int(rng.integers(len(lines)))] = other[int(rng.integers(len(other)))]
    return "".join(lines)


_STAGES = ("plan\n", "spmd\n")
_PHRASE = re.compile(
    r'(?<=strategy=")[^"\n]+|(?<=steps=")[^"\n]+|(?<=cause=")[^"\n]+|(?<=  )[^\s#][^#"\n]*$', re.MULTILINE
)
"""What was decided, in words: strategies, steps, and causes, which stand behind ops when these are written."""
_ITEM = re.compile(r"[\w.]+=(?:\([^)\n]*\)|[\w:()]+)")
_LIST = re.compile(r"(?<=boxes=)\[\[.*?\]\]|(?<=boxes=)\[[^\[\]\n]*\]|(?<==)\[[-\d, ]+\]|(?<=round=)-?\d+")
_PHRASES = (
    *("i=x", "i=x, j=x", "i=y", "j=x, i=y", "k=x", "i=x:(1)2", "i=x:(2)2", "i=(x,y)", "i=(y,x)", "z=x", "i=", "=x"),
    *("local -> [x, -]", "all_gather (x) 0 -> [-, -]", "all_gather (x) -> [-, -]", "all_to_all (x) -> [-, x]"),
    *(
        "slice (x) -> [x, -]",
        "all_reduce (x) sum -> [x, -]",
        "all_reduce (y) max -> [-]",
        "reduce_scatter (x) sum -> [x]",
    ),
    *("result r of main", "operand 0 of add", "operand 9 of add r", "mask of padding", "totals of cumsum r over x"),
    *("halo exchange: pad along x needs elements of a from other devices", "argument 0 of f", "annotation"),
)


def _phrase(rng: Rng, text: str, _: Sequence[str]) -> str:
    """A decision becomes another one, of the text or not, or one of its words is damaged."""
    (start, end), (a, b) = _place(rng, _PHRASE, text), _place(rng, _PHRASE, text)
    phrase, other = text[start:end], text[a:b]
    match int(rng.integers(8)):
        case 0:
            new = other
        case 1:
            new = _pick(rng, _PHRASES)
        case 2:
            new = f"{phrase}, {other}"
        case 3:
            new = f"{phrase}; {other}"
        case n:
            words = (_number, _exchange, _delete, _double)[n - 4]
            new = words(rng, phrase, ()) if n != 5 else _exchange(rng, f"{phrase} {other}", ())[: len(phrase)]
    return text[:start] + new + text[end:]


def _strategy(rng: Rng, text: str, _: Sequence[str]) -> str:
    """A factor is split over what another one is, over nothing, over axes too many, or two change places."""
    (start, end), (a, b) = sorted((_place(rng, _ITEM, text), _place(rng, _ITEM, text)))
    (factor, _, axes), (other, _, others) = text[start:end].partition("="), text[a:b].partition("=")
    match int(rng.integers(5)):
        case 0:
            new = f"{factor}={others}"
        case 1:
            new = f"{other}={axes}"
        case 2:
            new = f"{factor}=({axes.strip('()')},{others.strip('()')})"
        case 3:
            new = f"{factor}={axes}, {other}={others}"
        case _:
            new = ""
    return text[:start] + new + text[end:]


def _list(rng: Rng, text: str, _: Sequence[str]) -> str:
    """Of boxes and other numbers in a row one is left out, doubled, negated, counted on, or they change places."""
    start, end = _place(rng, _LIST, text)
    parts = re.split(r"(-?\d+)", text[start:end])
    numbers = [i for i, part in enumerate(parts) if i % 2]
    if not numbers:
        return text
    i, j = (numbers[int(n)] for n in rng.integers(len(numbers), size=2))
    match int(rng.integers(6)):
        case 0:
            parts[i] = ""
        case 1:
            parts[i] = f"{parts[i]}, {parts[i]}"
        case 2:
            parts[i] = str(-int(parts[i]))
        case 3:
            parts[i] = str(int(parts[i]) + int(rng.choice((-1, 1, 2, 8))))
        case 4:
            parts[i], parts[j] = parts[j], parts[i]
        case _:
            parts[i] = _pick(rng, _EXTREMES)
    return text[:start] + "".join(parts) + text[end:]


_OF_DECISIONS: tuple[Damage, ...] = (
    *(_phrase, _phrase, _phrase, _phrase, _strategy, _strategy, _strategy, _list, _list, _list),
)
_KINDS: tuple[Damage, ...] = (
    *(_number, _number, _number, _exchange, _exchange, _swap, _delete, _double, _insert, _replace),
    *(_type, _sharding, _sharding, _attribute, _lines, _splice),
)
_CAREFUL_KINDS: tuple[Damage, ...] = (
    *(_number, _number, _number, _number, _type, _type, _sharding, _sharding, _sharding, _attribute, _attribute),
    *(_exchange, _swap, _delete, _double, _insert, _insert, _replace, _lines, _splice),
)
"""Of modules: what repeats itself on every line is easily found to be faulty."""
