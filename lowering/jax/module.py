"""Assembles a module: imports, the mesh, the helpers in use, a function for each function of the program, main."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ir.diagnostics import Span, error
from ir.manual import has_manual
from ir.mesh import Mesh
from ir.ops.control import mapped_functions
from ir.ops.opaque import calls_of_functions
from ir.program import Function, Op, Program, Result, Value, values_within
from ir.spelling.printer import print_type
from lowering.jax.axes import ProgramAxes
from lowering.jax.boundary import Boundary, boundary, gathered, sharded
from lowering.jax.device_numbers import Position, positioned, positions_in
from lowering.jax.names import Identifiers, tuple_text
from lowering.jax.ops import EMITTERS, host, opaque
from lowering.jax.runtime_text import helpers, needed
from lowering.jax.swapped_products import swap_products
from lowering.jax.varying import Version, Versions
from lowering.jax.writer import Annotation, FunctionWriter, ModuleWriter, dtype_text, in_docstring

__all__ = ["EMITTERS", "Entry", "Written", "has_64_bits", "write_entry", "write_module"]

_GLOBALS = (
    "annotations", "base64", "functools", "math", "zlib", "Any", "Mapping", "Sequence", "jax", "jnp", "np", "lax",
    "Mesh", "NamedSharding", "P", "MESH_AXES", "DEVICE_IDS", "IN_SPECS", "OUT_SPECS", "KEPT_SPECS", "make_mesh",
    "mapped", "on_mesh", "kept", "main", "annotated", "mesh", "on_devices", "donate", "shards", "compiled", "carry",
    "divided", "undivided", "positioned", "POSITION_SPECS",
    "io_callback", "CALLBACKS", "FAILURES", "FUNCTIONS",
)  # fmt: skip

_LONGEST_SIGNATURE = 100
"""The number of characters on one line of a docstring."""


@dataclass(frozen=True)
class Written:
    """A module's text, and for each function of its program the op of each line, counted from the function's first
    line, which is 0."""

    text: str
    origins: Mapping[str, Mapping[int, Op]]

    def op_of_line(self) -> dict[int, Op]:
        """The op of each line of the text. The first line is 1."""
        found: dict[int, Op] = {}
        for number, line in enumerate(self.text.split("\n"), 1):
            name = line[4 : line.find("(")] if line.startswith("def ") else ""
            found.update({number + i: op for i, op in self.origins.get(name, {}).items()})
        return found

    def with_ops(self, before: Mapping[Op, Op]) -> Written:
        """The same text, with these ops in place of others."""
        if not before:
            return self
        origins = {name: {i: before.get(op, op) for i, op in lines.items()} for name, lines in self.origins.items()}
        return Written(self.text, origins)

    def span_of_line(self) -> dict[int, Span]:
        """The source location of each line of the text. The first line is 1."""
        return {line: op.span for line, op in self.op_of_line().items() if op.span is not None}


@dataclass(frozen=True)
class Entry:
    """How an SPMD program's arrays cross the entry of its module. `divided` and `undivided` say which parameters and
    results are not on the devices as they are given: the module has functions of these names that convert between the
    two forms. `passed` says whether the devices get the parameters."""

    divided: tuple[bool, ...]
    undivided: tuple[bool, ...]
    passed: bool


def write_module(program: Program, *, portable: bool = False) -> str:
    """The text of the program's module. A `portable` one has no workarounds for faults of a backend."""
    return _written(program, None, is_portable=portable)[0].text


def write_entry(program: Program, *, is_for_cpu: bool = True, is_sealed: bool = False) -> tuple[Written, Entry]:
    """The module of an SPMD program, for the CPU devices of a host or for others, and how its entry is called. JAX does
    not differentiate one that `is_sealed`."""
    swapped, before = (program, {}) if is_for_cpu else swap_products(program)
    written, entry = _written(swapped, None, is_for_cpu=is_for_cpu, is_for_others=not is_for_cpu, is_sealed=is_sealed)
    assert entry is not None
    return written.with_ops(before), entry


def write_annotated(program: Program, *, differentiable: bool = False) -> tuple[Written, str, list[Annotation]]:
    """The module of a global program, in which annotations are calls `annotated(x, i)` of a function that the text does
    not define; the name of its main function; and the annotation of each i. A `differentiable` one is written with
    functions that JAX has derivatives of, and manual regions with `shard_map`."""
    annotations: list[Annotation] = []
    return _written(program, annotations, is_differentiated=differentiable)[0], "global_main", annotations


def _written(
    program: Program,
    annotations: list[Annotation] | None,
    *,
    is_portable: bool = False,
    is_for_cpu: bool = True,
    is_for_others: bool = True,
    is_differentiated: bool = False,
    is_sealed: bool = False,
) -> tuple[Written, Entry | None]:
    spmd = program.stage == "spmd"
    has_devices = spmd or (is_differentiated and has_manual(program))
    _require_devices(program, has_devices=has_devices)
    names = Identifiers((*_GLOBALS, *helpers()))
    axes = ProgramAxes(program) if has_devices else None
    versions = Versions(program, axes)
    entry = names.fresh("device_main" if spmd else "global_main")
    spellings = {v: entry if v is versions.entry else names.fresh(v.function.name) for v in versions.reached()}
    module = ModuleWriter(
        program,
        axes,
        versions,
        names,
        spellings,
        mapped_functions(program),
        annotations=annotations,
        is_portable=is_portable,
        is_for_cpu=is_for_cpu,
        is_for_others=is_for_others,
        is_differentiated=is_differentiated,
        is_sealed=is_sealed,
    )
    taken = (*_GLOBALS, *helpers(), *spellings.values())
    bodies = [_function(module, v, taken) for v in spellings if v is not versions.entry]
    written, facts = _spmd_entry(module, taken) if spmd else (_global_entry(module, taken), None)
    bodies.extend(written)
    blocks = [_docstring(program, taken), _imports(bodies, module), *_mesh(module)]
    blocks.extend([host.TABLES] if module.helpers & {"call_host", "call_host_of_jax", "raise_failures"} else [])
    blocks.extend([opaque.TABLE] if calls_of_functions(program) else [])
    blocks.extend(helper.text for helper in needed(module.helpers))
    head, *rest = blocks
    return Written(head + "\n\n" + "\n\n\n".join([*rest, *bodies]) + "\n", module.origins), facts


def _require_devices(program: Program, *, has_devices: bool) -> None:
    """Raises SpmdcError if the program runs on devices and has no mesh (E306), or cannot be written for the purpose
    (E412)."""
    if program.stage == "spmd" and not program.meshes:
        raise error("E306", "the SPMD program declares no mesh", help="declare one: mesh (x=8)")
    if not has_devices and has_manual(program):
        message = "the program has manual regions, which run on the devices of its mesh"
        help = "partition it: what it becomes runs on its devices"
        raise error("E412", message, help=help)


def _docstring(program: Program, taken: Iterable[str]) -> str:
    source = f" from {in_docstring(PurePath(program.source.name).name)}" if program.source is not None else ""
    names = Identifiers(taken)
    params = ", ".join([names.fresh(p.name) for p in program.main.params])
    if program.stage == "global":
        return f'"""The program for one device, written by spmdc{source}.\n\n`main({params})` runs it.\n"""'
    size = program.mesh.size
    return f'''"""The program that each of {size} devices runs, written by spmdc{source}.

`main({params})` takes global arrays, runs it on the mesh ({program.mesh}) and returns global arrays.
For {size} devices on the host's CPU, before the first use of jax:

    jax.config.update("jax_num_cpu_devices", {size})
"""'''


def _imports(bodies: Iterable[str], module: ModuleWriter) -> str:
    text = "\n".join([*bodies, *(h.text for h in needed(module.helpers))])
    lines = ["from __future__ import annotations", ""]
    lines.extend(f"import {name}" for name in ("base64", "functools", "math", "zlib") if f"{name}." in text)
    abstract = [name for name in ("Mapping", "Sequence") if f"{name}[" in text]
    if abstract:
        lines.append(f"from collections.abc import {', '.join(abstract)}")
    if "Any" in text:
        lines.append("from typing import Any")
    lines.extend([""] if lines[-1] else [])
    lines.extend(["import jax", "import jax.numpy as jnp", "import numpy as np", "from jax import lax"])
    if "io_callback" in text:
        lines.append("from jax.experimental import io_callback")
    if module.axes is not None:
        lines.append("from jax.sharding import Mesh, NamedSharding, PartitionSpec as P")
    return "\n".join(lines)


def _mesh(module: ModuleWriter) -> list[str]:
    if module.axes is None:
        return []
    lines = _mesh_constants("MESH_AXES", "DEVICE_IDS", module.program.mesh, module.axes)
    for mesh, (sizes, ids) in module.meshes.items():
        lines += _mesh_constants(sizes, ids, mesh, module.axes)
    if module.program.stage == "global":
        return ["\n".join(lines)]
    make = '''def make_mesh(devices=None):
    """The mesh over `devices`, or over the first ones that jax has."""
    devices = np.array(jax.devices() if devices is None else devices, dtype=object)
    return Mesh(devices[DEVICE_IDS].reshape(tuple(MESH_AXES.values())), tuple(MESH_AXES))'''
    return ["\n".join(lines), make]


def _mesh_constants(sizes: str, ids: str, mesh: Mesh, axes: ProgramAxes) -> list[str]:
    order = f"np.arange({mesh.size})" if mesh.devices is None else f"np.array({list(mesh.devices)})"
    pairs = ", ".join(f'"{name}": {size}' for name, size in axes.of(mesh).sizes.items())
    return [f"{sizes} = {{{pairs}}}", f"{ids} = {order}"]


def _function(module: ModuleWriter, version: Version, taken: Iterable[str]) -> str:
    w, function = FunctionWriter(module, version, taken), version.function
    decorator = "@jax.jit\n" if version in module.traced_once else ""
    params = ", ".join([w.define(p) for p in function.params])
    with w.block(f"def {module.functions[version]}({params}):"):
        _typed_docstring(w, function)
        w.ops(function.body)
        w.line(f"return {w.returned(w.names(function.body.results))}")
    module.origins[module.functions[version]] = w.ops_of_lines
    return decorator + "\n".join(w.lines)


def _typed_docstring(w: FunctionWriter, function: Function) -> None:
    params = [in_docstring(f"{p.name}: {p.type}") for p in function.params]
    results = [in_docstring(f"{r.name}: {r.type}") for r in function.results]
    signature = f"({', '.join(params)}) -> ({', '.join(results)})"
    if len(signature) <= _LONGEST_SIGNATURE:
        w.line(f'"""{signature}"""')
        return
    _lines_docstring(w, "Parameters and results:", [*params, *(f"-> {r}" for r in results)])


def _lines_docstring(w: FunctionWriter, head: str, lines: Iterable[str]) -> None:
    w.line(f'"""{head}')
    w.line("")
    for line in lines:
        w.line(line)
    w.line('"""')


def _global_entry(module: ModuleWriter, taken: Iterable[str]) -> list[str]:
    main = module.program.main
    w = FunctionWriter(module, module.versions.entry, taken)
    names = [w.define(p) for p in main.params]
    entry = module.functions[w.version]
    with w.block(f"def {entry}({', '.join(names)}):"):
        _typed_docstring(w, main)
        w.ops(main.body)
        w.line(f"return {tuple_text(w.names(main.body.results))}")
    module.origins[entry] = w.ops_of_lines
    runs = FunctionWriter(module, module.versions.entry, ())
    with runs.block(f"def main({', '.join(names)}):"):
        runs.line('"""The results, as a tuple."""')
        _body(runs, module.program, [f"return compiled({', '.join(names)})"])
    return ["\n".join(w.lines), f"compiled = jax.jit({entry})", "\n".join(runs.lines)]


def _spmd_entry(module: ModuleWriter, taken: Iterable[str]) -> tuple[list[str], Entry]:
    """The function that the devices run, and `main`. If no parameter has elements, none is passed: XLA fails on empty
    parameters alone."""
    main = module.program.main
    w = FunctionWriter(module, module.versions.entry, taken)
    names = [w.define(p) for p in main.params]
    inputs = [boundary(module, p) for p in main.params]
    returned = zip(main.results, main.body.results, strict=True)
    outputs = [boundary(module, r, w.varying(v)) for r, v in returned]
    entry = module.functions[w.version]
    passed = any((p.of or p.type).size for p in main.params)
    positions = () if module.is_for_cpu else positions_in(main, module.spmd_axes)
    module.positions.update({p.axes: w.fresh(f"position_{'_'.join(p.axes)}") for p in positions})
    given = [*module.positions.values(), *(names if passed else ())]
    with w.block(f"def {entry}({', '.join(given)}):"):
        _shards_docstring(w, main)
        for name, p, b in zip(names, main.params, inputs, strict=True):
            if not passed:
                nothing = f"jnp.zeros({tuple_text(p.shape)}, {dtype_text(p.dtype)})"
                w.line(f"{name} = {w.cast(nothing, set(w.varying(p)))}")
            elif b.leading:
                w.line(f"{name} = lax.squeeze({name}, {tuple_text(b.leading)})")
        w.ops(main.body)
        results = [
            f"lax.expand_dims({name}, {tuple_text(b.leading)})" if b.leading else name
            for name, b in zip(w.names(main.body.results), outputs, strict=True)
        ]
        w.line(f"return {tuple_text(results)}")
    module.origins[entry] = w.ops_of_lines
    taken_in = inputs if passed else []
    fresh = Identifiers((*taken, *names))
    divide = _adjusting("divided", "The arrays as the devices take them: padded, or stacked", names,
                        [sharded(module, b, n) for n, b in zip(names, taken_in, strict=False)])  # fmt: skip
    results_names = [fresh.fresh(r.name) for r in main.results]
    undivide = _adjusting("undivided", "The global arrays that the devices have given the parts of", results_names,
                          [gathered(module, b, n) for n, b in zip(results_names, outputs, strict=True)])  # fmt: skip
    facts = Entry(tuple(map(bool, divide.steps)) if passed else (False,) * len(names),
                  tuple(map(bool, undivide.steps)), passed)  # fmt: skip
    blocks = [
        "\n".join(w.lines),
        *(positioned(positions, module.spmd_axes.default) if positions else ()),
        *_on_mesh(entry, taken_in, outputs, positions, is_checked=not calls_of_functions(module.program)),
        *([_ON_DEVICES] if taken_in else []),
        *(f.text for f in (divide, undivide) if f.text),
        _spmd_main(module, names, passed, divide, undivide),
    ]
    return blocks, facts


def _on_mesh(
    entry: str, inputs: list[Boundary], outputs: list[Boundary], positions: Sequence[Position], *, is_checked: bool
) -> list[str]:
    """The entry as a function of shards, side by side. JAX's check of varying values needs annotations that functions
    of users, which are written without devices, do not have."""
    specs = [f"IN_SPECS = {tuple_text(b.spec for b in inputs)}", f"OUT_SPECS = {tuple_text(b.spec for b in outputs)}"]
    given = "(*POSITION_SPECS, *IN_SPECS)" if positions else "IN_SPECS"
    mapped = f"jax.shard_map({entry}, mesh=mesh, in_specs={given}, out_specs=OUT_SPECS, check_vma=check_vma)"
    if positions:
        mapped = f"positioned({mapped}, mesh)"
    kept: list[str] = []
    if any(b.kept for b in outputs):
        specs.append(f"KEPT_SPECS = {tuple_text(b.kept or b.spec for b in outputs)}")
        mapped = f"kept({mapped}, mesh)"
        kept.append(_kept(outputs))
    on_mesh = f'''def mapped(mesh, check_vma={is_checked}):
    """`{entry}` on all devices of the mesh, as a function of arrays that are cut as IN_SPECS says."""
    return {mapped}


@functools.cache
def on_mesh(mesh, donate=()):
    """`mapped`, compiled at its first call."""
    return jax.jit(mapped(mesh), donate_argnums=donate)'''
    return ["\n".join(specs), *kept, on_mesh]


def _kept(outputs: Sequence[Boundary]) -> str:
    """A function of the module. It is checked except for whether the entries of a stack are equal."""
    names = [f"r{i}" for i in range(len(outputs))]
    own = tuple_text(f"lax.squeeze({n}, (0,))" if b.kept else n for n, b in zip(names, outputs, strict=True))
    return f'''def kept(mapped, mesh):
    """`mapped`, and of results that are the same on several devices, as JAX cannot prove, what each of them has."""
    def own({", ".join(names)}):
        return {own}

    unchecked = jax.shard_map(own, mesh=mesh, in_specs=OUT_SPECS, out_specs=KEPT_SPECS, check_vma=False)
    return lambda *shards: unchecked(*mapped(*shards))'''


_ON_DEVICES = '''def on_devices(mesh, arrays):
    """The arrays where `on_mesh` takes them. Those that JAX is tracing, as for `jax.vmap`, it places itself."""
    if any(isinstance(a, jax.core.Tracer) for a in arrays):
        return arrays
    return jax.device_put(arrays, tuple(NamedSharding(mesh, spec) for spec in IN_SPECS))'''


@dataclass(frozen=True)
class _Adjusting:
    """A function of the module from arrays to arrays, with the lines for each; not written if no array has lines."""

    name: str
    text: str
    steps: list[list[str]]

    def call(self, arguments: str, names: str) -> str:
        """The call; the argument itself if there is nothing to convert."""
        return f"{self.name}({arguments})" if self.text else names


def _adjusting(name: str, what: str, names: list[str], steps: list[list[str]]) -> _Adjusting:
    lines = [f"    {line}" for of_one in steps for line in of_one]
    head = [f"def {name}({', '.join(names)}):", f'    """{what}."""']
    text = "\n".join([*head, *lines, f"    return {tuple_text(names)}"]) if lines else ""
    return _Adjusting(name, text, steps)


def _shards_docstring(w: FunctionWriter, main: Function) -> None:
    def shard(value: Value | Result) -> str:
        whole = print_type(value.of or value.type, value.sharding)
        return in_docstring(f"{value.name}: {value.type} of {whole}")

    lines = [*map(shard, main.params), *(f"-> {shard(r)}" for r in main.results)]
    _lines_docstring(w, "What each device runs on its shards.", lines)


def _spmd_main(module: ModuleWriter, names: list[str], passed: bool, divide: _Adjusting, undivide: _Adjusting) -> str:
    """`main` with the parameters `names`, which it passes on if the devices take any."""
    lines = ["mesh = make_mesh() if mesh is None else mesh"]
    if passed:
        lines.append(f"shards = on_devices(mesh, {divide.call(', '.join(names), tuple_text(names))})")
    call = "on_mesh(mesh, donate)(*shards)" if passed else "on_mesh(mesh)()"
    lines.append(f"return {undivide.call(f'*{call}', call)}")
    w = FunctionWriter(module, module.versions.entry, ())
    with w.block(f"def main({', '.join([*names, 'mesh=None', 'donate=()'])}):"):
        w.line('"""Global arrays in, a tuple of global arrays out; those at positions `donate` may be used up."""')
        _body(w, module.program, lines)
    return "\n".join(w.lines)


def _body(w: FunctionWriter, program: Program, lines: list[str]) -> None:
    if not has_64_bits(program):
        for line in lines:
            w.line(line)
        return
    with w.block("with jax.enable_x64(True):"):
        for line in lines:
            w.line(line)


def has_64_bits(program: Program) -> bool:
    """Whether some value of the program has 64-bit elements, which JAX only has when it is asked to."""
    dtypes = {v.type.dtype for function in program.functions.values() for v in values_within(function.body)}
    return any(dtype.component.bits == 64 for dtype in dtypes)
