"""Runs generated modules: finds or creates the devices, executes the text, and checks the arguments."""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from ir.diagnostics import SpmdcError, error, require
from ir.host import HostFunction
from ir.ops.host import callbacks_of
from ir.ops.opaque import calls_of_functions, is_opaque
from ir.program import Op, Program, all_ops
from ir.spelling.printer import print_type
from lowering.inputs import check_inputs
from lowering.jax.donation import check_given, usable
from lowering.jax.module import Entry, Written, has_64_bits, write_entry, write_module
from lowering.jax.untyped import constrained, settings, spec_of, struct_of

FEWEST_DEVICES = 8
"""The least number of CPU devices that is requested, so that a later program with a larger mesh still finds enough."""

MOST_CPU_DEVICES = 2048
"""XLA assigns further ones to another process, with which its CPU backend does not compute."""

HOST_DEVICES = "--xla_force_host_platform_device_count"

_serial = itertools.count()

_OF_LAPACK = "LAPACK is the CPU's: run the program on devices of the CPU, or compute this in jax.pure_callback"

_behind_barrier: Any = jax.lax.optimization_barrier

_NOT_OPTIMISED: Any = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""XLA options that skip the optimisations of LLVM, for CPUs. Without them, some kernels for GPUs are wrong (jaxlib
0.11.2), such as those of cumulative ops in reverse."""


@dataclass(frozen=True)
class Executable:
    """A program that jax runs. Called with global arrays, it returns a tuple of global arrays.

    `written` is the generated module, `module` its names. The memory of the arrays at positions `donate` may be reused.
    `entry` specifies how the arrays of an SPMD program enter and leave it.
    """

    program: Program
    written: Written
    module: dict[str, Any]
    mesh: Mesh | None
    donate: tuple[int, ...] = ()
    entry: Entry | None = None

    def __repr__(self) -> str:
        return f"<Executable {self.program.summary}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Executable:
        """An executable is its own copy, like Python's functions."""
        return self

    def __call__(self, *arrays: Any) -> tuple[jax.Array, ...]:
        arguments = checked_arguments(self.program, arrays)
        check_given(self.program, self.donate, arguments)
        if not any(isinstance(a, jax.core.Tracer) for a in arguments):
            devices = [jax.devices()[0]] if self.mesh is None else list(self.mesh.devices.flat)
            each = sum(v.type.nbytes for v in self.program.main.body.results)
            _require_memory(self.program, len(devices) * each, devices)
        main: Callable[..., tuple[jax.Array, ...]] = self.module["main"]
        try:
            return main(*arguments) if self.mesh is None else main(*arguments, mesh=self.mesh, donate=self.donate)
        except jax.errors.JaxRuntimeError as problem:
            raise explained(self.program, problem) from None

    def ahead(self) -> jax.stages.Compiled:
        """The executable of an SPMD program's devices, compiled before there are arrays, or devices."""
        mesh, entry = self.mesh, self.entry
        assert mesh is not None
        assert entry is not None
        given = [struct_of((p.of or p.type).shape, p.dtype.numpy) for p in self.program.main.params]
        with jax.enable_x64(True) if has_64_bits(self.program) else nullcontext():
            shards = jax.eval_shape(self.module["divided"], *given) if any(entry.divided) else given
            placed = [
                struct_of(s.shape, s.dtype, sharding=NamedSharding(mesh, spec))
                for s, spec in zip(shards, self.module["IN_SPECS"] if entry.passed else (), strict=False)
            ]
            compiled: jax.stages.Compiled = self.module["on_mesh"](mesh, self.donate).lower(*placed).compile()
        return compiled


@dataclass(frozen=True)
class InOne:
    """A program that jax runs as one module, including cutting arrays into shards; see
    `lowering.jax.compile_in_one`."""

    run: Executable

    def __call__(self, *arrays: Any) -> tuple[jax.Array, ...]:
        with jax.enable_x64(True) if has_64_bits(self.run.program) else nullcontext():
            results: tuple[jax.Array, ...] = self.compiled(*arrays)(*arrays)
        return results

    def compiled(self, *arrays: Any) -> jax.stages.Compiled:
        """The compiled module for arrays like these."""
        devices = [jax.devices()[0]] if self.run.mesh is None else self.run.mesh.devices.flat
        options = _NOT_OPTIMISED if all(device.platform == "cpu" for device in devices) else None
        return jax.jit(self._main).lower(*arrays).compile(compiler_options=options)

    def _main(self, *arrays: Any) -> tuple[jax.Array, ...]:
        """XLA must not optimise across the cutting of the arrays, which each device has whole: it would drop
        communication that is needed where arrays are sharded already."""
        entry, module, mesh = self.run.entry, self.run.module, self.run.mesh
        if entry is None or mesh is None or not entry.passed:
            return self.run(*arrays)
        given = checked_arguments(self.run.program, arrays)
        shards = module["divided"](*given) if any(entry.divided) else tuple(given)
        whole = NamedSharding(mesh, spec_of())
        results = module["mapped"](mesh)(*constrained(_behind_barrier(constrained(shards, whole)), whole))
        found: tuple[jax.Array, ...] = module["undivided"](*results) if any(entry.undivided) else results
        return found


def compile_in_one(program: Program) -> InOne:
    """The program as a callable; see `lowering.jax.compile_in_one`."""
    return InOne(compile_program(program, None))


def compile_program(
    program: Program, devices: Sequence[jax.Device] | None, donate: tuple[int, ...] = (), *, is_sealed: bool = False
) -> Executable:
    """The program as a callable; see `lowering.jax.compile`. JAX does not differentiate one that `is_sealed`."""
    if program.stage == "global":
        source = write_module(program)
        return Executable(program, Written(source, {}), load(source, program), None)
    size = program.mesh.size
    chosen = ensure_devices(size) if devices is None else _devices_of(devices)
    if len(chosen) < size:
        raise error(
            "E502",
            f"the mesh ({program.mesh}) has {size} devices, and {len(chosen)} are given",
            help=f"give {size}, or partition the program over a smaller mesh",
        )
    is_for_cpu = all(device.platform == "cpu" for device in chosen)
    written, entry = write_entry(program, is_for_cpu=is_for_cpu, is_sealed=is_sealed)
    module = load(written.text, program)
    return Executable(program, written, module, module["make_mesh"](chosen), donate, entry)


def _devices_of(given: Iterable[jax.Device]) -> list[jax.Device]:
    """These devices. Raises SpmdcError (E601) for something else."""
    found = list(given) if isinstance(given, Iterable) else []
    fit = isinstance(given, Iterable) and all(isinstance(device, jax.Device) for device in found)
    require(fit, "devices are a sequence of JAX's", given, "jax.devices() has them")
    return found


def compile_donating(program: Program, devices: Sequence[jax.Device] | None, donate: Sequence[int]) -> Executable:
    """The program as a callable that uses the memory of arguments; see `lowering.jax.compile`."""
    executable = compile_program(program, devices)
    entry = executable.entry
    return executable if entry is None else replace(executable, donate=usable(program, entry, donate, stacklevel=4))


def explained(program: Program, problem: Exception) -> Exception:
    """The exception to raise for a JAX error in the program: E510 for a call that it cannot make, otherwise the error
    itself."""
    return _of_a_call(program, problem) or problem


def _of_a_call(program: Program, problem: Exception) -> SpmdcError | None:
    """The error E510, if the problem is a call of code outside the program that cannot be made."""
    message = str(problem).splitlines()[0]
    calls = [op for op in all_ops(program) if is_opaque(op)]
    failed = next((op for op in calls if str(op.attrs["target"]) in message), None)
    if failed is None:
        return None
    target = str(failed.attrs["target"])
    help = f'the runtime knows a function once it is registered: jax.ffi.register_ffi_target("{target}", …)'
    help = _OF_LAPACK if target.startswith("lapack_") else help
    return error("E510", f"the call of {target} fails: {message}", failed.span, help=help)


def check_memory(program: Program, compiled: jax.stages.Compiled, mesh: Mesh) -> None:
    """Raises SpmdcError (E505) if all devices are this host's CPU, and a call takes more memory than it has, which
    could end the process."""
    found: Any = compiled.memory_analysis()
    each = found.output_size_in_bytes - found.alias_size_in_bytes + found.temp_size_in_bytes
    _require_memory(program, mesh.size * each, list(mesh.devices.flat))


def _require_memory(program: Program, needed: int, devices: Sequence[jax.Device]) -> None:
    """Systems that do not report their memory are assumed to have enough."""
    if any(device.platform != "cpu" for device in devices) or not hasattr(os, "sysconf"):
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed <= there:
        return
    values = [(p, p.span) for p in program.main.params] + [(v, op.span) for op in all_ops(program) for v in op.results]
    largest, span = max(values, key=lambda pair: pair[0].type.nbytes)
    gibibytes = f"{needed / 2**30:,.0f} GiB"
    raise error(
        "E505",
        f"a call takes {gibibytes} on {len(devices)} devices, and this machine has {there / 2**30:,.0f} GiB",
        span,
        notes=[f"the largest value of each device is {largest.name}: {print_type(largest.type)}"],
        help="make it smaller, or run it on other devices: those of a host's CPU share its memory",
    )


def load(source: str, program: Program) -> dict[str, Any]:
    """Executes the text of a program's module, with its host functions. Tracebacks show its lines."""
    name = f"<spmdc program {next(_serial)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), names)
    names.get("CALLBACKS", {}).update(callbacks_of(program))
    called = calls_of_functions(program)
    names.get("FUNCTIONS", {}).update({n: functools.partial(_traced, *call) for n, call in called.items()})
    return names


def _traced(function: HostFunction, op: Op, arrays: Sequence[jax.Array], types: Sequence[Any]) -> list[jax.Array]:
    """The results of a function of JAX arrays. Raises SpmdcError: E513 if they do not have these types, or the function
    rejects such arrays."""
    try:
        given = list(function(*arrays))
    except SpmdcError:
        raise
    except (TypeError, ValueError) as problem:
        raise _not_on_shards(function, op, arrays, str(problem).partition("\n")[0]) from problem
    if [(x.shape, x.dtype) for x in given] != [(shape, np.dtype(dtype)) for shape, dtype in types]:
        gives = ", ".join(f"{x.dtype}{list(x.shape)}" for x in given) or "nothing"
        takes = ", ".join(f"{np.dtype(dtype)}{list(shape)}" for shape, dtype in types)
        raise _not_on_shards(function, op, arrays, f"it returns {gives}, and the program takes {takes}")
    return given


def _not_on_shards(function: HostFunction, op: Op, arrays: Sequence[jax.Array], why: str) -> SpmdcError:
    given = ", ".join(f"{x.dtype}{list(x.shape)}" for x in arrays)
    message = f"{function.name}, called with {given}: {why}"
    help = "its rule says along which dims it computes each part by itself: let it be true"
    return error("E513", message, op.span, help=help)


def ensure_devices(count: int) -> list[jax.Device]:
    """`count` devices; see `lowering.jax.ensure_devices`."""
    flagged, already_up = _devices_in_flags(), not _ask_for(count)
    chosen = usual_devices(count)
    if len(chosen) == count:
        return chosen
    default, cpu = jax.devices(), _cpu_devices()
    found = max(len(default), len(cpu))
    message = f"the program needs {count} devices, and there are {found}"
    if flagged is not None:
        help = f"XLA_FLAGS asks for {flagged}: raise its {HOST_DEVICES[2:]}, or leave that to spmdc"
        raise error("E502", message, help=help)
    if already_up and count <= MOST_CPU_DEVICES:
        message = f"the program needs {count} devices, and jax is already running with {found}"
        help = f'before the first use of jax: jax.config.update("jax_num_cpu_devices", {count})'
        raise error("E503", message, help=help)
    help = f"choose a smaller mesh (jax takes a host's CPU for up to {MOST_CPU_DEVICES} devices), or the simulator"
    raise error("E502", message, help=help)


def usual_devices(count: int) -> list[jax.Device]:
    """The devices of a mesh of that size by default: of jax's default platform if it has that many, else of the host's
    CPU. There may be fewer."""
    _ask_for(count)
    default, cpu = jax.devices(), _cpu_devices()
    return list((cpu if len(default) < count and cpu else default)[:count])


def _cpu_devices() -> list[jax.Device]:
    """The host's CPU devices; none if jax is set not to use them."""
    try:
        return list(jax.devices("cpu"))
    except RuntimeError:
        return []


def _devices_in_flags() -> int | None:
    """The number of devices that the user's XLA_FLAGS request of the host's CPU."""
    found = re.findall(rf"{HOST_DEVICES}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(found[-1]) if found else None


def _ask_for(count: int) -> bool:
    return ask_for_cpu_devices(max(count, FEWEST_DEVICES) if count <= MOST_CPU_DEVICES else FEWEST_DEVICES)


def ask_for_cpu_devices(count: int) -> bool:
    """Requests that many CPU devices, if jax is not yet initialised. Returns whether that was possible; more that were
    requested before are kept. Nothing is requested if the user's XLA_FLAGS specify a number."""
    if _devices_in_flags() is not None:
        return True
    if settings.jax_num_cpu_devices >= count:
        return True
    try:
        settings.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return False
    return True


def checked_arguments(program: Program, arrays: Sequence[Any]) -> list[Any]:
    """The arrays, with lists and numbers turned into arrays. Raises SpmdcError (E501) for each one that does not
    match."""
    checked = check_inputs(program, tuple(_on_the_host(a) if isinstance(a, jax.Array) else a for a in arrays))
    return [a if isinstance(a, jax.Array) else host for a, host in zip(arrays, checked, strict=True)]


def _on_the_host(array: jax.Array) -> Any:
    """An array of the same shape and element type, without moving any data."""
    is_plain = isinstance(array.dtype, np.dtype)
    return np.broadcast_to(np.zeros((), array.dtype), array.shape) if is_plain else None
