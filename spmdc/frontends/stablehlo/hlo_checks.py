"""What XLA's parser of HLO takes for granted, and ends the whole process over: checked in the text before it is parsed.

Computations are read line by line, as XLA itself writes them. What does not look like an instruction is left to XLA's
parser, which tells what is wrong with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ir.diagnostics import Diagnostic, Diagnostics, Source, Span
from spmdc.frontends.stablehlo.meshes import in_shardys_words

_INSTRUCTION = re.compile(r"^\s*(ROOT\s+)?%?([\w.\-]+)\s*=\s*(.*)$")
_COMMENT = re.compile(r"/\*.*?\*/")
_CALL = re.compile(r"\s*([a-z][\w\-]*)\((.*)$")
_COMPUTATION = re.compile(r"^\s*(?:ENTRY\s+)?%?([\w.\-]+)\s.*\{\s*$|^\s*(?:ENTRY\s+)?%?([\w.\-]+)\s*\{\s*$")
_OPERAND = re.compile(r"(?:.*[\s\]}])?%?([\w.\-]+)\s*$")
_DIMS = re.compile(r"^\w+\[([\d,]*)\]")
_SIZED = re.compile(r"\b(token|opaque)\[\s*[\d<]")
_TILES = re.compile(r"\bdevices=\[([-\d, ]+)\]<=\[([-\d, ]+)\](?:T\(([-\d, ]*)\))?")
_LISTED = re.compile(r"\bdevices=\[([-\d, ]+)\]([\d, ]*\d)")
_CALLED = re.compile(r"\bto_apply=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:true_computation|false_computation)=%?([\w.\-]+)|\bbranch_computations=\{([^}]*)\}")


@dataclass(frozen=True)
class _Instruction:
    name: str
    shape: str
    opcode: str
    rest: str
    span: Span
    is_root: bool

    @property
    def operands(self) -> list[str]:
        """The names of its operands."""
        inside = _split(_enclosed("(" + self.rest)[0])
        return [match[1] for part in inside if (match := _OPERAND.match(part)) is not None]


@dataclass
class _Computation:
    span: Span
    instructions: dict[str, _Instruction] = field(default_factory=dict[str, _Instruction])

    def first_operand(self, instruction: _Instruction) -> _Instruction | None:
        names = instruction.operands
        return self.instructions.get(names[0]) if names else None

    @property
    def root(self) -> _Instruction:
        """What it returns: the instruction that is marked, or the last."""
        *_, last = self.instructions.values()
        return next((i for i in self.instructions.values() if i.is_root), last)

    @property
    def parameters(self) -> list[_Instruction]:
        return [i for i in self.instructions.values() if i.opcode == "parameter"]


def check_hlo(text: str, source: Source) -> None:
    """Raises SpmdcError (E305, E701) with what XLA's parser would not survive."""
    problems = Diagnostics()
    computations = _read(text, source)
    for computation in computations.values():
        problems.extend(_faulty_parameters(computation))
        for instruction in computation.instructions.values():
            problems.extend(_faulty_instruction(instruction, computation, computations))
    problems.raise_errors()


def _read(text: str, source: Source) -> dict[str, _Computation]:
    found: dict[str, _Computation] = {}
    current: _Computation | None = None
    for number, written in enumerate(text.splitlines(), 1):
        line = _COMMENT.sub("", written)
        span = Span(source, number, 1, number, len(written) + 1)
        instruction = _INSTRUCTION.match(line)
        if instruction is not None and current is not None:
            is_root, name = bool(instruction[1]), instruction[2]
            shape, rest = _shape(instruction[3])
            called = _CALL.match(rest)
            if called is not None:
                current.instructions[name] = _Instruction(name, shape, called[1], called[2], span, is_root)
            continue
        head = _COMPUTATION.match(line)
        if head is not None:
            current = found[head[1] or head[2]] = _Computation(span)
    return found


def _shape(text: str) -> tuple[str, str]:
    """The shape that the text begins with, and what follows: a tuple ends with its bracket, a tensor with a space."""
    if text.startswith("("):
        return _enclosed(text)
    shape, _, rest = text.partition(" ")
    return shape, rest


def _enclosed(text: str) -> tuple[str, str]:
    """What the bracket that the text begins with encloses, brackets included, and the rest."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if depth == 0:
            return text[: i + 1], text[i + 1 :]
    return text, ""


def _split(enclosed: str) -> list[str]:
    """What stands between brackets, taken apart at the commas that are in no brackets of their own."""
    parts, depth = [""], 0
    for c in enclosed[1:-1]:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts if len(parts) > 1 or parts[0].strip() else []


def _arity(shape: str) -> int | None:
    """The number of elements of a tuple shape; None of any other."""
    return len(_split(shape)) if shape.startswith("(") else None


def _faulty_parameters(computation: _Computation) -> Iterator[Diagnostic]:
    numbers = [re.match(r"\s*(\d+)\s*\)", i.rest) for i in computation.parameters]
    count = len(numbers)
    for instruction, number in zip(computation.parameters, numbers, strict=True):
        if number is not None and (len(number[1]) > 9 or int(number[1]) >= count):
            yield _fault(
                instruction,
                f"parameter {number[1]} of a computation with {count} parameter{'s' * (count != 1)}",
                "number the parameters from 0, without a gap",
            )


def _faulty_instruction(
    i: _Instruction, computation: _Computation, computations: dict[str, _Computation]
) -> Iterator[Diagnostic]:
    sized = _SIZED.search(i.shape)
    if sized is not None:
        yield _fault(i, f"a {sized[1]} has no dims", f"write {sized[1]}[]")
    for tiles, devices, permutation in _TILES.findall(i.rest):
        yield from _faulty_tiles(i, _numbers(tiles), _numbers(devices), _numbers(permutation))
    for tiles, listed in _LISTED.findall(i.rest):
        yield from _faulty_tiles(i, _numbers(tiles), [len(_numbers(listed))], [])
    for begins in re.finditer(r"\{mesh\[", i.rest):
        yield from _faulty_axes(i, _enclosed(i.rest[begins.start() :])[0])
    yield from _faulty_tuple_sharding(i)
    check = _CHECKS.get(i.opcode)
    if check is not None:
        yield from check(i, computation, computations)


def _faulty_tiles(
    i: _Instruction, tiles: list[int], devices: list[int], permutation: list[int]
) -> Iterator[Diagnostic]:
    parts, count = math.prod(tiles), math.prod(devices)
    if min(tiles + devices, default=0) < 1 or parts != count:
        message = f"{i.opcode}: there are {parts} tiles, and {count} devices are listed"
        yield Diagnostic("E305", message, i.span, help="the tiles multiply to the number of devices")
    elif permutation and sorted(permutation) != list(range(len(devices))):
        message = f"{i.opcode}: T({', '.join(map(str, permutation))}) is no permutation of {len(devices)} dims"
        yield Diagnostic("E309", message, i.span, help="name each dim once, counted from 0")


def _faulty_axes(i: _Instruction, sharding: str) -> Iterator[Diagnostic]:
    """What is wrong with a sharding that names axes."""
    mesh, _, dims = sharding.partition("]")
    known, used = re.findall(r"'([^']*)'=", mesh), re.findall(r"'([^']*)'", dims)
    unknown = next((name for name in used if name not in known), None)
    if in_shardys_words(sharding) is None:
        message = f"{i.opcode}: {sharding} is no sharding by axes"
        yield Diagnostic("E309", message, i.span, help="write {mesh['x'=2,'y'=4], [{'x'}, {'y'}]}")
    elif unknown is not None:
        message = f"{i.opcode}: axis '{unknown}' is not in the mesh of {sharding}"
        yield Diagnostic("E301", message, i.span, help=f"name some of {', '.join(known)}")


def _faulty_tuple_sharding(i: _Instruction) -> Iterator[Diagnostic]:
    _, given, sharding = i.rest.partition(" sharding={{")
    if not given:
        return
    shardings, tensors = _split(_enclosed("{{" + sharding)[0]), _leaves(i.shape)
    if len(shardings) != tensors:
        message = f"{i.opcode}: it has {len(shardings)} shardings, and its shape {_plain(i.shape)} {tensors} tensors"
        yield Diagnostic("E303", message, i.span, help="give a sharding for each tensor of a tuple")


def _leaves(shape: str) -> int:
    """The number of tensors in a shape."""
    return sum(map(_leaves, map(str.strip, _split(shape)))) if shape.startswith("(") else 1


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"-?\d{1,18}", text)]


def _product(numbers: str) -> int:
    return math.prod(_numbers(numbers))


def _faulty_reshape(
    i: _Instruction, computation: _Computation, computations: dict[str, _Computation]
) -> Iterator[Diagnostic]:
    operand = computation.first_operand(i)
    given, taken = _DIMS.match(operand.shape) if operand is not None else None, _DIMS.match(i.shape)
    if given is None or taken is None or operand is None or _product(given[1]) == _product(taken[1]):
        return
    message = f"{_plain(operand.shape)} has {_product(given[1])} elements, and {_plain(i.shape)} {_product(taken[1])}"
    yield _fault(i, message, "a reshape keeps all elements")


def _plain(shape: str) -> str:
    return re.sub(r"\{[^}]*\}", "", shape)


def _faulty_element(
    i: _Instruction, computation: _Computation, computations: dict[str, _Computation]
) -> Iterator[Diagnostic]:
    operand, index = computation.first_operand(i), re.search(r"\bindex=(\d+)", i.rest)
    if operand is None or index is None:
        return
    arity = _arity(operand.shape)
    if arity is None:
        yield _fault(i, f"{operand.name} is no tuple, but {_plain(operand.shape)}", "use it as it is")
    elif len(index[1]) > 9 or int(index[1]) >= arity:
        yield _fault(i, f"{operand.name} has {arity} elements, and none at {index[1]}", "count from 0")


def _faulty_branches(
    i: _Instruction, computation: _Computation, computations: dict[str, _Computation]
) -> Iterator[Diagnostic]:
    names = [n.strip(" %") for one, several in _BRANCHES.findall(i.rest) for n in (one or several).split(",")]
    for name in names:
        count = len(computations[name].parameters) if name in computations else 1
        if count != 1:
            yield _fault(i, f"its branch {name} has {count} parameters", "a branch takes one, which may be a tuple")


def _faulty_tuple(
    i: _Instruction, computation: _Computation, computations: dict[str, _Computation]
) -> Iterator[Diagnostic]:
    count = len(i.operands)
    if _arity(i.shape) != count:
        yield _fault(i, f"it has {count} operands, and its shape is {i.shape}", "give the shape of each operand")


def _faulty_call(
    i: _Instruction, computation: _Computation, computations: dict[str, _Computation]
) -> Iterator[Diagnostic]:
    name = next(iter(_CALLED.findall(i.rest)), "")
    if name not in computations or not computations[name].instructions:
        return
    root = computations[name].root
    if _arity(root.shape) != _arity(i.shape):
        yield _fault(i, f"{name} returns {root.shape}, and not {i.shape}", "give the shape that it returns")


def _faulty_operands(
    i: _Instruction, computation: _Computation, computations: dict[str, _Computation]
) -> Iterator[Diagnostic]:
    names = i.operands
    unknown = next((n for n in names if n not in computation.instructions), None)
    if unknown is not None:
        yield _fault(i, f"there is no {unknown} in its computation", "name an instruction that stands before it")
    elif len(names) != _OPERANDS[i.opcode]:
        yield _fault(i, f"it has {len(names)} operands, and takes {_OPERANDS[i.opcode]}", "name its operands")


_OPERANDS = {"dot": 2, "rng-bit-generator": 1}
_Check = Callable[[_Instruction, _Computation, "dict[str, _Computation]"], Iterator[Diagnostic]]
_CHECKS: dict[str, _Check] = {
    "bitcast": _faulty_reshape,
    "call": _faulty_call,
    "conditional": _faulty_branches,
    "dot": _faulty_operands,
    "get-tuple-element": _faulty_element,
    "reshape": _faulty_reshape,
    "rng-bit-generator": _faulty_operands,
    "tuple": _faulty_tuple,
}


def _fault(i: _Instruction, message: str, help: str) -> Diagnostic:
    return Diagnostic("E701", f"{i.opcode}: {message}", i.span, help=help)
