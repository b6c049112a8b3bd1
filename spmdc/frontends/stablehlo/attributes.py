"""Reads MLIR types and attributes as plain Python values, with a single call into C++ for each kind."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from jaxlib.mlir import ir as mlir

from ir.diagnostics import Span, SpmdcError, error
from ir.program import Attr
from ir.types import DTYPES, DType, TensorType, dtype_of

_ELEMENT_TYPES = {
    "i1": "pred", "i2": "s2", "i4": "s4", "i8": "s8", "i16": "s16", "i32": "s32", "i64": "s64", "ui2": "u2",
    "ui4": "u4", "ui8": "u8", "ui16": "u16", "ui32": "u32", "ui64": "u64", "f4E2M1FN": "f4e2m1fn",
    "f8E3M4": "f8e3m4", "f8E4M3": "f8e4m3", "f8E4M3B11FNUZ": "f8e4m3b11fnuz", "f8E4M3FN": "f8e4m3fn",
    "f8E4M3FNUZ": "f8e4m3fnuz", "f8E5M2": "f8e5m2", "f8E5M2FNUZ": "f8e5m2fnuz", "f8E8M0FNU": "f8e8m0fnu",
    "bf16": "bf16", "f16": "f16", "f32": "f32", "f64": "f64", "complex<f32>": "c64", "complex<f64>": "c128",
}  # fmt: skip


def tensor_type(type: mlir.Type, span: Span | None) -> TensorType:
    """The tensor type. Raises SpmdcError for types that are no tensors of static shape: E703, E704, E706."""
    if not isinstance(type, mlir.RankedTensorType):
        raise _no_tensor(type, span)
    if not type.has_static_shape:
        help = "spmdc compiles for static shapes: lower the function for arguments of known shapes"
        raise error("E703", f"the shape of {type} is known only when the program runs", span, help=help)
    return TensorType(tuple(type.shape), element_type(type.element_type, span))


def element_type(type: mlir.Type, span: Span | None) -> DType:
    """The element type. Raises SpmdcError (E706) for one that the language does not have."""
    name = _ELEMENT_TYPES.get(str(type))
    if name is None:
        known = ", ".join(_ELEMENT_TYPES)
        raise error("E706", f"there is no element type {type}", span, help=f"convert to one of {known}")
    return DTYPES[name]


def _no_tensor(type: mlir.Type, span: Span | None) -> Exception:
    spelt = str(type)
    if "token" in spelt:
        message = "a token orders effects, and a program here has none"
        return error("E704", message, span, help="leave out ordered effects, callbacks, infeed and outfeed")
    return error("E703", f"{spelt} is no tensor of static shape", span,
                 help="spmdc computes with tensors: a scalar is tensor<f32>")  # fmt: skip


def operations(module: mlir.Module) -> list[mlir.Operation]:
    """All ops of a module, nested ops before the op that contains them."""
    found: list[mlir.Operation] = []

    def visit(op: mlir.Operation) -> mlir.WalkResult:
        found.append(op)
        return mlir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def outermost(module: mlir.Module, name: str) -> list[mlir.Operation]:
    """The top-level ops with that name: `func.func`, `sdy.mesh`."""
    return [view.operation for view in module.body.operations if view.operation.name == name]


def is_token(value: mlir.Value[Any]) -> bool:
    """Whether an MLIR value is a token, which orders effects."""
    return is_token_type(value.type)


def is_token_type(type: mlir.Type) -> bool:
    """Whether it is the type of tokens."""
    return not isinstance(type, mlir.RankedTensorType) and str(type).endswith("token")


def ints(attribute: mlir.Attribute) -> tuple[int, ...]:
    """The integers of an array or of a dense literal, in row-major order."""
    if isinstance(attribute, mlir.DenseI64ArrayAttr):
        return tuple(attribute)
    if isinstance(attribute, mlir.DenseIntElementsAttr):
        return tuple(np.asarray(attribute).ravel().tolist())
    if isinstance(attribute, mlir.DenseBoolArrayAttr):
        return tuple(map(int, attribute))
    assert isinstance(attribute, mlir.ArrayAttr), attribute
    return tuple(mlir.IntegerAttr(a).value for a in attribute)


def int_of(attribute: mlir.Attribute) -> int:
    if not isinstance(attribute, mlir.IntegerAttr | mlir.BoolAttr):
        raise _expected("an integer", attribute)
    return int(attribute.value)


def text_of(attribute: mlir.Attribute) -> str:
    if isinstance(attribute, mlir.StringAttr):
        try:
            return attribute.value_bytes.decode()
        except UnicodeDecodeError:
            raise _expected("a text in UTF-8", attribute) from None
    if not isinstance(attribute, mlir.FlatSymbolRefAttr):
        raise _expected("a text", attribute)
    return str(attribute.value)


def _expected(what: str, attribute: mlir.Attribute) -> SpmdcError:
    """The error for an attribute of another kind. MLIR does not check attributes of custom calls, or of other
    dialects."""
    return error("E702", f"the attribute {attribute} is not {what}", help="write it as the op that it is for takes it")


Kind = TypeVar("Kind", bound=mlir.Attribute)


def cast(kind: type[Kind], attribute: mlir.Attribute) -> Kind:
    """The attribute as one of that kind. Raises SpmdcError (E702)."""
    try:
        return kind(attribute)
    except ValueError:
        raise _expected(f"of the kind {kind.__name__}", attribute) from None


def parsed(text: str, name: str) -> mlir.Attribute:
    """The attribute that a text spells, which is the value of `name`. Raises SpmdcError (E702)."""
    try:
        return mlir.Attribute.parse(text)
    except (mlir.MLIRError, ValueError):
        raise error("E702", f"{name}: {text[:80]!r} is no MLIR attribute", help="write it as Shardy does") from None


def entries(attribute: mlir.Attribute) -> dict[str, mlir.Attribute]:
    """The entries of a dictionary."""
    if not isinstance(attribute, mlir.DictAttr):
        raise _expected("a dictionary", attribute)
    named = [attribute[i] for i in range(len(attribute))]
    return {n.name: n.attr for n in named}


def dictionary(op: mlir.Operation, name: str) -> dict[str, mlir.Attribute]:
    """The entries of a dictionary among an op's attributes; empty if there is no such attribute."""
    return entries(op.attributes[name]) if name in op.attributes else {}


def typed_options(op: mlir.Operation) -> dict[str, mlir.Attribute]:
    """The options of a custom call with a dictionary, which has different names in JAX and in HLO text."""
    found = (op.attributes.get(name, None) for name in ("mhlo.backend_config", "backend_config"))
    return next((entries(options) for options in found if isinstance(options, mlir.DictAttr)), {})


def flag(op: mlir.Operation, name: str, default: bool = False) -> bool:
    """A boolean among an op's attributes."""
    return bool(int_of(op.attributes[name])) if name in op.attributes else default


def items(attributes: mlir.OpAttributeMap, name: str) -> list[mlir.Attribute]:
    """The items of an array among an op's attributes; empty if there is no such array."""
    if name not in attributes:
        return []
    array = attributes[name]
    if not isinstance(array, mlir.ArrayAttr):
        raise _expected("an array", array)
    return list(array)


@functools.lru_cache(maxsize=1024)
def _word(spelt: str) -> str:
    match = re.search(r"([A-Za-z_0-9]+)>?$", spelt)
    assert match is not None, spelt
    return match[1]


def word_of(attribute: mlir.Attribute) -> str:
    """The word of an enumeration: GT for `#stablehlo<comparison_direction GT>`."""
    return _word(str(attribute))


_LITERAL = re.compile(r"dense<(.*)> : tensor<", re.DOTALL)
_RESOURCE = re.compile(r'dialect_resources:.*: "0x([0-9A-Fa-f]*)"', re.DOTALL)
_ALIGNMENT = 4
_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")


def literal(op: mlir.Operation, type: TensorType) -> npt.NDArray[np.generic]:
    """The value of a constant: an array of its shape, or a 0-dim array if all elements are equal.

    The bindings have no view of complex literals, or of those of types that numpy lacks. These are read from the text
    that MLIR prints.
    """
    if type.dtype.is_complex or type.dtype.numpy.isbuiltin != 1:
        return _printed_literal(op, type)
    value = op.attributes["value"]
    if isinstance(value, mlir.DenseElementsAttr) and value.is_splat and type.size:
        element: Any = value.get_splat_value()
        return np.asarray(element.value, type.dtype.numpy)
    if isinstance(value, mlir.DenseElementsAttr):
        return np.asarray(value).reshape(type.shape)
    return _resource(op, type)


def _printed(op: mlir.Operation) -> str:
    """The text of an op by itself. MLIR numbers the values of the whole function to print an op of it; here it prints a
    copy that is in none."""
    return str(op.clone(ip=False).get_asm(enable_debug_info=False))


def _resource(op: mlir.Operation, type: TensorType) -> npt.NDArray[np.generic]:
    """A literal that is stored as a resource of the module, of which the bindings have no view. The op is printed with
    the resource, after four bytes for its alignment. Raises SpmdcError (E702)."""
    found = _RESOURCE.search(_printed(op))
    data = bytes.fromhex(found[1])[_ALIGNMENT:] if found is not None else b""
    dtype = type.dtype.numpy
    if len(data) != type.size * dtype.itemsize:
        message = f"its value is in a resource of {len(data):,} bytes, and {type} takes {type.size * dtype.itemsize:,}"
        help = "write the module with its resources, not elided, or the value in its place: dense<[1, 2]>"
        raise error("E702", message, help=help)
    return np.frombuffer(data, dtype).reshape(type.shape)


def _printed_literal(op: mlir.Operation, type: TensorType) -> npt.NDArray[np.generic]:
    match = _LITERAL.search(_printed(op))
    if match is None:
        return _resource(op, type)
    written, part = match[1], type.dtype.component
    if written.startswith('"0x'):
        flat = np.frombuffer(bytes.fromhex(written[3:-1]), part.numpy)
    else:
        flat = np.array([_number(n, part) for n in _NUMBER.findall(written)], part.numpy)
    flat = flat.view(type.dtype.numpy) if type.dtype.is_complex else flat
    return flat.reshape(()) if flat.size == 1 and type.size != 1 else flat.reshape(type.shape)


def _number(written: str, dtype: DType) -> np.generic:
    if not written.startswith("0x"):
        return dtype.numpy.type(int(written) if dtype.is_integer else float(written))
    bits = np.array([int(written, 16)], f"u{dtype.numpy.itemsize}")
    value: np.generic = bits.view(dtype.numpy)[0]
    return value


def constant_value(array: npt.NDArray[np.generic]) -> Attr:
    """A literal in the form of the language: a number, or nested tuples of numbers."""
    return _nested(array.astype(dtype_of(array.dtype).computed.numpy).tolist())


def _nested(rows: Any) -> Attr:
    if not isinstance(rows, list):
        number: Attr = rows
        return number
    if rows and not isinstance(rows[0], list):
        return tuple(rows)
    return tuple(map(_nested, rows))


def pairs(flat: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first and the second numbers of consecutive pairs."""
    return tuple(flat[::2]), tuple(flat[1::2])
