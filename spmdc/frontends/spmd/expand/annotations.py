"""GShard's annotations (section 3.2): replicate(x), split(x, dim, n) and shard(x, device_assignment).

They become `shard` ops, whose results carry the sharding.
"""

from __future__ import annotations

from collections.abc import Callable

from ir.diagnostics import Span, error
from ir.mesh import AxisRef
from ir.program import Value
from ir.sharding import DimSharding, Sharding
from ir.spelling.shardings import NestedInts, assign_devices, parse_sharding, split_sharding
from spmdc.frontends.spmd.expand.attributes import axis_nodes
from spmdc.frontends.spmd.expand.context import Expressions
from spmdc.frontends.spmd.expand.sharded_types import Meshes, check_sharding
from spmdc.frontends.spmd.items import Item, describe, expect_int, normal_dim
from spmdc.frontends.spmd.syntax import nodes as s

ANNOTATIONS = frozenset({"replicate", "split", "shard"})
USAGE = {
    "replicate": "replicate(x)",
    "split": "split(x, dim, partitions), or split(x, dim, axis)",
    "shard": "shard(x, [[0, 1], [2, 3]]), or shard(x, 'P(\"x\", None)')",
}


def annotate(given: Expressions, node: s.Call) -> Value:
    """The annotated tensor. Raises SpmdcError (E203, E207, E301 to E309)."""
    if node.keywords or not node.args or (node.name == "replicate" and len(node.args) > 1):
        raise error("E203", f"{node.name} is not called like this", node.span, help=USAGE[node.name])
    if given.context.stage == "spmd":
        raise error(
            "E406",
            f"{node.name} belongs to global programs",
            node.span,
            help="in an SPMD program, every value is a shard already: write the collectives, or a global program",
        )
    x = given.value(node.args[0], f"what {node.name} annotates")
    meshes = given.context.meshes
    if meshes.faulty:
        return x
    if not meshes.meshes:
        raise error("E306", f"{node.name} needs a mesh, and the program has none", node.span, help="write mesh (d=8)")
    if node.name == "replicate":
        sharding = Sharding.replicate(meshes.default, x.type.rank)
    elif node.name == "split":
        sharding = _split(given, node, x)
    else:
        sharding = _assigned(given, node, x)
    check_sharding(sharding, x.shape, node.span)
    meshes.add(sharding.mesh)
    (result,) = given.emitter.ops("shard", (x,), {}, shardings=(sharding.closed(),))
    return result


def _split(given: Expressions, node: s.Call, x: Value) -> Sharding:
    if len(node.args) < 3:
        message = "split takes a tensor, a dim, and a number of partitions or mesh axes"
        raise error("E203", message, node.span, help=USAGE["split"])
    dim = normal_dim(expect_int(given.expr(node.args[1]), node.args[1].span, "the dim"), x.type.rank, node.span)
    meshes = given.context.meshes
    named = _named_axes(given, node.args[2:])
    if named is not None:
        mesh = meshes.owner[named[0].name] if named else meshes.default
        return Sharding(mesh, tuple(DimSharding(named if d == dim else ()) for d in range(x.type.rank)))
    if len(node.args) > 3:
        raise error("E203", "split takes one number of partitions", node.args[3].span, help=USAGE["split"])
    count = expect_int(given.expr(node.args[2]), node.args[2].span, "the number of partitions")
    return split_sharding(meshes.default, x.type.rank, dim, count, span=node.span)


def _named_axes(given: Expressions, nodes: tuple[s.Expr, ...]) -> tuple[AxisRef, ...] | None:
    """The mesh axes that the arguments name; None if they are not axes."""
    places: list[s.Axis] = []
    for node in nodes:
        axes = axis_nodes(node)
        if axes is None:
            return None
        places.extend(axes)
    owner = given.context.meshes.owner
    if not any(p.name in owner for p in places) and any(given.scope.find(p.name) is not None for p in places):
        return None
    return tuple(given.context.meshes.ref(p) for p in places)


def _assigned(given: Expressions, node: s.Call, x: Value) -> Sharding:
    if len(node.args) != 2:
        raise error("E203", "shard takes a tensor and a device assignment", node.span, help=USAGE["shard"])
    item = given.expr(node.args[1])
    meshes = given.context.meshes
    span = node.args[1].span
    if isinstance(item, str):
        return _freshly_named(
            meshes, lambda prefix: parse_sharding(item, meshes.default, x.type.rank, prefix=prefix, span=span)
        )
    ids = _device_ids(item, span)
    if _rank(ids) != x.type.rank:
        message = f"the device assignment has {_rank(ids)} dims, and the tensor {x.type} has {x.type.rank}"
        help = "nest the ids as deep as the tensor has dims, with one entry where a dim is not split"
        raise error("E303", message, span, help=help)
    return _freshly_named(meshes, lambda prefix: assign_devices(meshes.default, ids, prefix, span=span))


def _freshly_named(meshes: Meshes, make: Callable[[str], Sharding]) -> Sharding:
    """A sharding whose mesh, if it is new, has a name and axes that no other mesh has."""
    count = 0
    while True:
        prefix = f"assigned{count or ''}"
        sharding = make(prefix)
        mesh = sharding.mesh
        clash = any(name in meshes.owner for name in mesh.names) or meshes.named(mesh.name) is not None
        if mesh in meshes.meshes or not clash:
            return sharding
        same = next((m for m in meshes.meshes if (m.axes, m.devices) == (mesh.axes, mesh.devices)), None)
        if same is not None:
            return Sharding(same, sharding.dims, sharding.partial, sharding.replicated)
        count += 1


def _device_ids(item: Item, span: Span) -> NestedInts:
    if isinstance(item, tuple):
        return [_device_ids(i, span) for i in item]
    if isinstance(item, int) and not isinstance(item, bool):
        return item
    raise error(
        "E203",
        f"a device assignment is a nested list of device ids, not {describe(item)}",
        span,
        help="write [[0, 1], [2, 3]]: a list for each dim",
    )


def _rank(ids: NestedInts) -> int:
    return 0 if isinstance(ids, int) else 1 + (_rank(ids[0]) if ids else 0)
