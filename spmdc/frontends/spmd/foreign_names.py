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

_ROWS = "update_window_dims=[1], inserted_window_dims=[0], scatter_dims_to_operand_dims=[0], index_vector_dim=1"
_DIAGONAL = "expand_dims(arange(8), 1) == arange(8)"
_SOLVE = "triangular_solve(cholesky(a), triangular_solve(cholesky(a), b), transpose=T)"
EXPRESSIONS = MappingProxyType(
    {
        "eye": f"f32({_DIAGONAL})",
        "identity": f"f32({_DIAGONAL})",
        "diag": 'einsum("ii->i", a)',
        "diagonal": 'einsum("ii->i", a)',
        "trace": 'einsum("ii", a)',
        "triu": "where(expand_dims(arange(8), 1) <= arange(8), a, 0)",
        "linspace": "arange(9, f32) / 8",
        "meshgrid": "iota(s32[8, 4], 0)",
        "roll": "concatenate([x[-1:], x[:-1]], 0)",
        "tile": "concatenate([x, x, x], 0)",
        "repeat": "reshape(broadcast(expand_dims(x, 1), [8, 3, 4]), [24, 4])",
        "ravel": "reshape(x, [-1])",
        "flatten": "reshape(x, [-1])",
        "view": "reshape(x, [4, 8])",
        "permute": "transpose(x, [1, 0])",
        "moveaxis": "transpose(x, [1, 0])",
        "unsqueeze": "expand_dims(x, 0)",
        "vstack": "concatenate([x, x], 0)",
        "hstack": "concatenate([x, x], 1)",
        "dstack": "stack([x, x], 2)",
        "chunk": "x[:4]",
        "array_split": "x[:4]",
        "mm": "matmul(a, b)",
        "bmm": "matmul(a, b)",
        "outer": 'einsum("i,j->ij", v, v)',
        "inner": 'einsum("i,i", v, v)',
        "vdot": 'einsum("i,i", v, v)',
        "tensordot": 'einsum("ij,jk->ik", a, b)',
        "norm": "sqrt(sum(square(x)))",
        "normalize": "x / sqrt(sum(square(x), dim=1, keepdims=true))",
        "std": "sqrt(variance(x, dim=0))",
        "average": "mean(x, dim=0)",
        "count_nonzero": "sum(x != 0)",
        "floor_divide": "a // b",
        "mod": "a % b",
        "fmod": "remainder(a, b)",
        "logaddexp": "maximum(a, b) + log1p(exp(-abs(a - b)))",
        "sinh": "(exp(x) - exp(-x)) / 2",
        "cosh": "(exp(x) + exp(-x)) / 2",
        "trunc": "where(x < 0, ceil(x), floor(x))",
        "isnan": "x != x",
        "isinf": "abs(x) == inf",
        "isfinite": "is_finite(x)",
        "nan_to_num": "where(x == x, x, 0)",
        "int": "s32(x)",
        "float": "f32(x)",
        "bool": "x != 0",
        "segment_sum": f"scatter(zeros([8, 4]), i, x, {_ROWS}, kind=sum)",
        "index_add": f"scatter(zeros([8, 4]), i, x, {_ROWS}, kind=sum)",
        "scatter_add": f"scatter(zeros([8, 4]), i, x, {_ROWS}, kind=sum)",
        "segment_max": f"scatter(full([8, 4], -inf), i, x, {_ROWS}, kind=max)",
        "bincount": "sum(one_hot(i, 8, s32), dim=0)",
        "take_along_axis": "sum(where(expand_dims(i, 1) == arange(4), x, 0), dim=1)",
        "embedding": "take(x, i, 0)",
        "linear": "matmul(a, b) + v",
        "cross_entropy": "-sum(log_softmax(x) * one_hot(i, 4), dim=1)",
        "nll_loss": "-sum(log_softmax(x) * one_hot(i, 4), dim=1)",
        "mse_loss": "mean(square(a - b))",
        "batch_norm": "(x - mean(x, dim=0)) * rsqrt(variance(x, dim=0) + 1e-5)",
        "leaky_relu": "where(x > 0, x, 0.01 * x)",
        "elu": "where(x > 0, x, expm1(x))",
        "relu6": "clip(x, 0, 6)",
        "glu": "a * sigmoid(b)",
        "log_sigmoid": "-softplus(-x)",
        "bernoulli": "uniform(key(0), f32[8, 4]) < 0.9",
        "dropout": "where(uniform(key(0), f32[8, 4]) < 0.9, x / 0.9, 0)",
        "detach": "stop_gradient(x)",
        "solve": _SOLVE,
    }
)
"""Functions, by the last part of their name, with an example of what computes the same, for operands of some shape."""

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
    if last in EXPRESSIONS:
        return f"written with what there is, for example {EXPRESSIONS[last]}"
    return CALLS.get(last) or ATTRIBUTES.get(last, "").format("x")
