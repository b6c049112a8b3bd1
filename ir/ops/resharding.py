"""reshard: brings a value of a plan to another sharding."""

from __future__ import annotations

from ir.ops.declaration import AttrDef, declare
from ir.program import Op


def is_reshard(op: Op) -> bool:
    """Whether the op brings its operand to the sharding of its result."""
    return op.name == "reshard"


declare(
    "reshard",
    "plan",
    1,
    lambda types, attrs: types,
    None,
    (
        AttrDef(
            "steps",
            "text",
            default="",
            required=False,
            doc="collectives and local ops, and the shardings that they lead to; without them, the cheapest",
        ),
    ),
    stages=("plan",),
    doc="The operand in the sharding of the result. Only plans say so: see `passes.partition.plan`.",
)
