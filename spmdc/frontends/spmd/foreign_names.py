"""Names of JAX and numpy, with their equivalents in the .spmd language."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

_BETWEEN_DEVICES = "between devices in a manual region"

CALLS = MappingProxyType(
    {
        "ppermute": f"collective_permute(x, target=…, source=…, shift=1) sends {_BETWEEN_DEVICES}",
        "pshuffle": f"collective_permute(x, target=…, source=…) sends {_BETWEEN_DEVICES}",
        "psum": f"all_reduce(x, axes=(d)) adds up {_BETWEEN_DEVICES}; elsewhere sum(x, dim=0) is enough",
        "pmean": f"all_reduce(x, axes=(d)) / D is the mean {_BETWEEN_DEVICES}; elsewhere mean(x, dim=0) is enough",
        "pmax": f"all_reduce(x, axes=(d), kind=max) is it {_BETWEEN_DEVICES}; elsewhere max(x, dim=0) is enough",
        "pmin": f"all_reduce(x, axes=(d), kind=min) is it {_BETWEEN_DEVICES}; elsewhere min(x, dim=0) is enough",
        "psum_scatter": f"reduce_scatter(x, dim=0, axes=(d)) adds up {_BETWEEN_DEVICES}",
        "with_sharding_constraint": "split(x, 0, d), replicate(x), or a type with its sharding: y: f32[8@d] = x",
        "shard_map": "manual(v of f32[8@d] = x, axes=(d)) { … } is code for one device",
        "scan": "loop k < 3 (x = a) { … } is a loop",
        "fori_loop": "loop k < 3 (x = a) { … } is a loop",
        "while_loop": "while(x = a) cond { … } do { … } is a loop",
        "cond": "case(i) { … } or { … } computes one of several",
        "grad": "`spmdc grad FILE --wrt NAME` writes the gradient of a program",
        "vmap": "ops take dims of any number: einsum says which are batch dims",
        "astype": "a type is called: bf16(x)",
        "print": "spmdc run prints the results of main; callback(x, …, function=f, effect=true) calls Python",
        "array": "a list is a tensor: [1.0, 2.0]",
    }
)
"""Functions, by the last part of their name."""

ATTRIBUTES = MappingProxyType(
    {
        "T": "transpose({})",
        "mT": "transpose({}, perm=[0, 2, 1]), for three dims",
        "shape": "shapes are in types: give a size a name, const N = 8, and write f32[N]",
        "size": "sizes are in types: give one a name, const N = 8",
        "ndim": "the number of dims is in the type",
        "dtype": "types of elements are in types: f32[8]",
        "at": "scatter(…) and dynamic_update_slice(…) write into tensors",
        "real": "real({})",
        "imag": "imag({})",
    }
)
"""Attributes of a value, by name."""

WORDS = MappingProxyType(
    {
        "None": "an argument without a value is left out",
        "lambda": "functions begin with def, outside of other functions",
        "np": "ops are called by their names alone: tanh(x)",
        "jnp": "ops are called by their names alone: tanh(x)",
    }
)

ARGUMENTS = MappingProxyType(
    {
        "axis": ("dim", "dims"),
        "axes": ("dims", "perm"),
        "axis_name": ("axes",),
        "concat_axis": ("concat",),
        "dimension": ("dim",),
        "dimensions": ("dims",),
        "scatter_dimension": ("dim",),
        "split_axis": ("split",),
    }
)
"""Arguments by name, with the names that ops may have for them."""


_OF_TWO = {"max": ("maximum", "larger"), "min": ("minimum", "smaller")}
"""Reductions whose names are functions of two numbers elsewhere, with the ops that these are."""


def instead_of_reduction(name: str) -> str:
    """What a reduction with a second operand, where its dims belong, was probably meant to be."""
    if name not in _OF_TWO:
        return ""
    op, of = _OF_TWO[name]
    return f"{op}(a, b) has the {of} of each two elements, and {name}(x, dim=0) reduces a dim of x"


def instead_of_name(name: str) -> str:
    """The equivalent of an unknown name, if other systems have it."""
    base, _, last = name.rpartition(".")
    if not base:
        return WORDS.get(name, "")
    return ATTRIBUTES.get(last, "").format(base) if base not in WORDS else WORDS[base]


def instead_of_argument(name: str, known: Sequence[str]) -> str:
    """The name of an argument in an op with the `known` arguments, if other systems have it."""
    return next((f"{own}=… is what it is called here" for own in ARGUMENTS.get(name, ()) if own in known), "")


def instead_of_call(name: str) -> str:
    """The equivalent of an unknown function, if other systems have it."""
    last = name.rpartition(".")[2]
    return CALLS.get(last) or ATTRIBUTES.get(last, "").format("x")
