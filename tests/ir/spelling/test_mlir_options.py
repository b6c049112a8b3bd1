"""Options of calls, read as MLIR reads them, and refused where it would refuse them, or end the process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jaxlib.mlir import ir as mlir

from ir.spelling.mlir_options import Option, OptionsError, parse_options

READ = [
    "{}",
    "{a = 1 : i32, b = -7 : i64, c = 255 : ui8, d = -128 : i8, e = 18446744073709551615 : ui64, f = 3}",
    "{a = 1.500000e+00 : f32, b = 2.5, c = -1.0E-3 : f16, d = 0x7FC00000 : f32, e = 0x7FF0000000000000 : f64}",
    "{a = 255 : i8, b = 0xFF : i32}",
    '{a = true, b = false, "a b" = "t\\22\\C3\\A9\\n\\\\", dotted.name$x = "é"}',
    "{a = [1 : i8, [], [2.0 : f32, {}]], b = {c = {d = []}}}",
    "{a = array<i64: 1, -2>, b = array<i1: true, false>, c = array<f32: 1.0, 0x7F800000>, d = array<i8>}",
    "{a = dense<[[1, 2], [3, 4]]> : tensor<2x2xi64>, b = dense<7> : tensor<2x3xui8>, c = dense<> : tensor<0x4xf32>}",
    "{a = dense<[true, false]> : tensor<2xi1>, b = dense<1.5> : tensor<f64>}",
    '{a = dense<"0x0100000002000000"> : tensor<2xi32>, b = dense<"0x0000C07F"> : tensor<3xf32>}',
    "{ a=1:i32 ,b = [ ] }",
]


def of_mlir(attribute: mlir.Attribute) -> Option:
    """What MLIR says that an attribute is."""
    match attribute:
        case mlir.DictAttr():
            return {attribute[i].name: of_mlir(attribute[i].attr) for i in range(len(attribute))}
        case mlir.ArrayAttr():
            return tuple(map(of_mlir, attribute))
        case mlir.StringAttr():
            return str(attribute.value)
        case mlir.BoolAttr():
            return bool(attribute.value)
        case mlir.IntegerAttr() | mlir.FloatAttr():
            name = str(attribute.type)
            letters = {"ui": "uint", "i": "int", "f": "float"}
            kind = name.rstrip("0123456789")
            return np.array(attribute.value, letters[kind] + name.removeprefix(kind))[()]
        case mlir.DenseElementsAttr():
            return np.asarray(attribute)
        case _:
            listed: Any = attribute
            kind, bits = (
                str(attribute)[len("array<")],
                str(attribute).partition("<")[2].partition(":")[0].strip(">")[1:],
            )
            return np.array(list(listed), "bool" if bits == "1" else {"i": "int", "f": "float"}[kind] + bits)


@pytest.mark.parametrize("text", READ)
def test_options_are_read_as_mlir_reads_them(text: str) -> None:
    with mlir.Context():
        expected = of_mlir(mlir.Attribute.parse(text))
        printed = str(mlir.Attribute.parse(text))
    for written in (text, printed):
        assert_same(parse_options(written), expected)


def assert_same(found: Option, expected: Option) -> None:
    assert type(found) is type(expected)
    if isinstance(found, dict) and isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in found:
            assert_same(found[name], expected[name])
    elif isinstance(found, tuple) and isinstance(expected, tuple):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
    elif isinstance(found, np.generic | np.ndarray) and isinstance(expected, np.generic | np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


REFUSED = {
    "": "the text ends",
    "7": "expected '{'",
    "{a = 1} b": "expected the end",
    "{a}": "has no value",
    "{a = 1, a = 2}": "given twice",
    "{= 1}": "expected a name",
    "{a = 300 : i8}": "no number of type i8",
    "{a = -1 : ui8}": "no number of type ui8",
    "{a = 1 : f32}": "no number of type f32",
    "{a = 1.0 : i32}": "no number of type i32",
    "{a = 1 : bf16}": "no numbers of type bf16",
    "{a = #stablehlo<x>}": "expected a number",
    '{a = "\\92"}': "is not UTF-8",
    '{a = "': "expected a number",
    f"{{a = {'9' * 5000}}}": "no type has the number",
    f"{{a = {'[' * 100_000}}}": "nest more than",
    f"{'{a = ' * 100_000}": "nest more than",
    f"{{a = dense<{'[' * 100_000}": "nest more than",
    "{a = dense<0> : tensor<4000000000xi8>}": "has 4,000,000,000 elements",
    "{a = dense<[1, 2]> : tensor<3xi8>}": "do not have the shape",
    "{a = dense<[[1], 2]> : tensor<2x1xi8>}": "do not have the shape",
    "{a = dense<[[1], [2]]> : tensor<2xi8>}": "do not have the shape",
    '{a = dense<"0x01"> : tensor<3xi32>}': "are no array",
    "{a = dense<> : tensor<3xi32>}": "are no array",
    "{a = array<i8: 1 2>}": "expected '>'",
}


@pytest.mark.parametrize("text", REFUSED, ids=[text[:30] for text in REFUSED])
def test_what_is_no_dictionary_of_options_is_refused(text: str) -> None:
    with pytest.raises(OptionsError, match=REFUSED[text]):
        parse_options(text)
