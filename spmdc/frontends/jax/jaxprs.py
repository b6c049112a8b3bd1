"""What a function that JAX has traced consists of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal


def uses(jaxpr: Any, met: set[int] | None = None) -> Iterator[tuple[Any, Any]]:
    """The constants of a jaxpr and the parameters of its equations, with those of nested jaxprs, in order; each with
    its equation, or None. The equations of a function that is called several times come once."""
    met = set() if met is None else met
    yield from ((constant, None) for constant in getattr(jaxpr, "consts", ()))
    opened = getattr(jaxpr, "jaxpr", jaxpr)
    if id(opened) in met:
        return
    met.add(id(opened))
    for equation in opened.eqns:
        yield from ((operand.val, equation) for operand in equation.invars if isinstance(operand, Literal))
        parameters: Iterable[Any] = jax.tree.leaves(list(equation.params.values()))
        for parameter in parameters:
            if isinstance(parameter, Jaxpr | ClosedJaxpr):
                yield from uses(parameter, met)
            else:
                yield parameter, equation
