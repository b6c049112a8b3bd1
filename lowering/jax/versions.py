"""The differences between the versions of JAX that spmdc supports, and all undocumented names of JAX that it uses.

The rest of spmdc imports these names from here, so that only this file changes when JAX moves one. A test looks for
each of them in the installed JAX.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src import ad_util as _ad_util
from jax._src import api_util as _api_util
from jax._src import callback as _callback
from jax._src import checkify as _checkify
from jax._src import config as _config
from jax._src import core as _core
from jax._src import custom_partitioning as _custom_partitioning
from jax._src import custom_partitioning_sharding_rule as _sharding_rules
from jax._src import debugging as _debugging
from jax._src import ffi as _ffi
from jax._src import mesh as _mesh
from jax._src import sharding_impls as _sharding_impls
from jax._src import source_info_util as _source_info_util
from jax._src import util as _util
from jax._src import xla_bridge as _xla_bridge
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax.experimental import checkify, io_callback
from jax.experimental import jet as _jet
from jax.interpreters import mlir as jax_mlir
from jax.interpreters import partial_eval
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxlib import _jax
from jaxlib.mlir import ir as mlir

from ir.types import dtype_of

VERSION: tuple[int, ...] = jax.__version_info__

HLO_TO_STABLEHLO = (
    "jaxlib._hlo:hlo_module_from_text",
    "jaxlib._hlo:HloModule.as_serialized_hlo_module_proto",
    "jaxlib._jax:mlir.hlo_to_stablehlo",
)
"""The functions, in `pkgutil.resolve_name` form, that convert HLO text to StableHLO bytecode one after another.

They raise RuntimeError or ValueError for text that XLA cannot parse or StableHLO cannot express, and abort the process
on some texts. So they run in another process, which imports no more than it needs.
"""

REFINE_SHAPES = "jaxlib._jax:mlir.refine_polymorphic_shapes"
"""The function, in the same form, by which JAX makes the shapes of a module static before it is compiled."""

REGISTER_DIALECTS = "jaxlib.mlir._mlir_libs._jax_mlir_ext:register_dialects"
"""The function, in the same form, that adds the dialects of JAX's modules to a registry."""


def layout_of(array: Any) -> Any:
    """The layout in memory of an array of JAX's."""
    return array.format.layout


def is_of_layouts(problem: ValueError) -> bool:
    """Whether JAX refuses to call a compiled function because of an argument's layout in memory."""
    return str(problem).startswith("Computation was compiled for input layouts that disagree")


def abstract_mesh(sizes: tuple[int, ...], names: tuple[str, ...], device: Any = None) -> AbstractMesh:
    """A mesh without devices, all of whose axes JAX leaves to the partitioner. `device` is the kind of its devices.

    From JAX 0.11 on, axes are Explicit by default.
    """
    return AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names), abstract_device=device)


def legacy_mesh() -> jax.sharding.Mesh:
    """The mesh of JAX's deprecated context `with mesh:`; an empty one outside of any."""
    found: jax.sharding.Mesh = _mesh.thread_resources.env.physical_mesh
    return found


def is_for_lack_of_a_mesh(problem: Exception) -> bool:
    """Whether JAX refuses a function because it uses axes and there is no mesh."""
    text = str(problem)
    return "requires a non-empty mesh in context" in text or text.startswith("The context mesh cannot be empty")


def compiled_takes(dtypes: Iterable[np.dtype[Any]]) -> bool:
    """Whether executables that JAX compiled ahead of time accept its own arrays of these element types.

    Before JAX 0.12 they do not if elements share a byte: JAX confuses the layout. Functions that it compiles when they
    are called do.
    """
    return VERSION >= (0, 12) or all(t.isbuiltin == 1 or dtype_of(t).bits >= 8 for t in map(np.dtype, dtypes))


def groups_as_lists() -> AbstractContextManager[None]:
    """A context in which JAX lowers collectives with the device ids of each group, which all readers of StableHLO
    accept.

    From JAX 0.11 on, it writes mesh axes instead by default.
    """
    setting: Any = getattr(_config, "use_rgv3", None)
    return nullcontext() if setting is None else setting(False)


def host_callbacks(lowered: jax.stages.Lowered) -> Sequence[Callable[..., Any]]:
    """The Python functions that a lowered function calls, in the order of their numbers in its module.

    Each takes arrays and returns a tuple of them; if its call in the module has a token, that is the first of both.
    """
    private: Any = lowered
    found: Sequence[Callable[..., Any]] = private._lowering.compile_args["host_callbacks"]
    return found


def is_pure(lowered: jax.stages.Lowered) -> bool:
    """Whether a lowered function has no effects."""
    private: Any = lowered
    given: Mapping[str, Any] = private._lowering.compile_args
    return not (given["unordered_effects"] or given["ordered_effects"])


def captured(traced: jax.stages.Traced) -> Sequence[Any]:
    """The values that a traced function closes over, which its jaxpr takes before the arguments."""
    private: Any = traced
    found: Sequence[Any] = private._consts
    return found


def argument_names(jaxpr: Any) -> Sequence[str]:
    """JAX's names for the arguments of a function, from its jaxpr: each is a name and the path to a leaf,
    `params['w']`."""
    plain = getattr(jaxpr, "jaxpr", jaxpr)
    found: Sequence[str] = plain.debug_info.safe_arg_names(len(plain.invars))
    return found


def name_arguments(function: Callable[..., Any], names: Sequence[str]) -> None:
    """Sets the names by which JAX calls the arguments of a function, which takes any number by position, when it is
    lowered.

    They may be paths, as in `argument_names`.
    """
    signature = _NamedArguments([inspect.Parameter("leaves", inspect.Parameter.VAR_POSITIONAL)])
    signature.names = names
    function.__signature__ = signature  # type: ignore[attr-defined]


class _NamedArguments(inspect.Signature):
    """Arguments by position, under names that parameters in Python cannot have."""

    names: Sequence[str] = ()

    def bind(self, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        bound = super().bind(*args, **kwargs)
        if len(set(self.names)) == len(args):
            bound.arguments = dict(zip(self.names, args, strict=True))
        return bound


def with_constants(jaxpr: Any, constants: Sequence[Any]) -> Any:
    """A closed jaxpr with other constants."""
    return jaxpr.replace(consts=list(constants))


def reference_value(reference: Any) -> Any:
    """The array that a reference (`jax.new_ref`) holds at the moment. It is not a copy, so it must not be kept."""
    return reference._refs._buf


def set_reference_value(reference: Any, value: Any) -> None:
    """Stores an array in a reference, on the devices of the array that it holds. Both may be traced."""
    referent: Any = _core.get_referent(reference)
    is_known = not isinstance(referent, _core.Tracer)
    if not is_tracing():
        referent._refs._buf = jax.device_put(value, referent.sharding)
    elif is_known and isinstance(referent.sharding, SingleDeviceSharding):
        reference[...] = jax.device_put(value, referent.sharding)
    else:
        reference[...] = value


def register_series_rule(primitive: Any, rule: Callable[..., Any]) -> None:
    """Registers `rule` for `jax.experimental.jet` of a primitive with several results.

    It takes the operands, the terms of each operand's series, and the parameters; it returns the results and the terms
    of their series.
    """
    _jet.jet_rules[primitive] = rule


def register_error_check(primitive: Any, rule: Callable[..., Any]) -> None:
    """Registers `rule` for `checkify.checkify` of a primitive.

    It takes a function, the error so far, the operands and the parameters, and returns the error and the results. That
    function takes a jaxpr, and the tree and the types of the error's leaves and of the operands; it returns the jaxpr
    with errors, whose leaves come before its arguments and before its results, and the tree of both. A newer
    JAX passes a rule a context too, which numbers the errors.
    """

    def check(*given: Any, **params: Any) -> Any:
        context = () if isinstance(given[0], checkify.Error) else given[:1]
        error, enabled, *operands = given[len(context) :]

        def with_errors(jaxpr: Any, tree: Any, avals: Sequence[Any]) -> tuple[Any, Any]:
            checked, out_tree, _ = _checkify.jaxpr_to_checkify_jaxpr(*context, jaxpr, enabled, tree, *avals)
            return checked, out_tree

        return rule(with_errors, error, *operands, **params)

    _checkify.error_checks[primitive] = check


LoweringRule = Callable[[Any, Sequence[Any], Mapping[str, Any]], "Sequence[Any] | None"]
"""From JAX's lowering context, operands and parameters to results."""
CallRule = Callable[[Any, Any, Sequence[Any], Mapping[str, Any]], Sequence[Any]]
"""The same, after the context with the primitive."""


def lowered_for(
    traced: jax.stages.Traced, platform: str, call: CallRule, stop: LoweringRule | None = None
) -> jax.stages.Lowered:
    """A traced function, lowered for a platform ("cpu", "cuda", "tpu", …), in the CPU's ops where there are any.

    Where JAX has a lowering for the CPU, that is used, or else the one for all platforms. What has neither, such as
    Pallas kernels, is lowered by `call`. Python functions are called as on the CPU. What asks for the platform, such as
    `jax.lax.platform_dependent`, gets it. `stop` lowers each `jax.lax.stop_gradient`, which JAX drops by default.
    """
    rules: list[tuple[Any, Callable[..., Any]]] = []
    if platform != "cpu" or jax.default_backend() != "cpu":
        rules += _rules_of_callbacks()
    if platform != "cpu":
        rules += _rules_for(platform, call)
    rules += _rules_of_exported()
    if stop is not None:
        rules.append((_ad_util.stop_gradient_p, functools.partial(_by_rule, stop)))
    private: Any = traced
    overrides: Any = tuple(rules) or None
    parameters: Any = jax_mlir.LoweringParameters(override_lowering_rules=overrides)
    found: jax.stages.Lowered = private.lower(lowering_platforms=(platform,), _private_parameters=parameters)
    return found


def _rules_of_exported() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """How to lower calls of what `jax.export` has exported, if that is in use."""
    export: Any = sys.modules.get("jax._src.export._export")
    if export is not None:
        yield export.call_exported_p, functools.partial(_on_mesh, _EVERYWHERE[export.call_exported_p].rule)


def _on_mesh(rule: Callable[..., Any], context: Any, *values: Any, **params: Any) -> Any:
    """Lowers an op by a rule that asks for the number of devices, which is that of JAX's mesh here."""
    mesh: Any = jax.sharding.get_abstract_mesh()
    if not mesh.empty and isinstance(context.module_context.axis_context, _sharding_impls.ShardingContext):
        around = context.module_context.replace(axis_context=_sharding_impls.ShardingContext(mesh.size))
        context = context.replace(module_context=around)
    return rule(context, *values, **params)


def _by_rule(rule: LoweringRule, context: Any, *values: Any, **params: Any) -> Any:
    return rule(context, values, params)


_CALLBACKS = (_callback.pure_callback_p, _callback.io_callback_p, _debugging.debug_callback_p, _debugging.debug_print_p)
_ON_CPU: Mapping[Any, Any] = _mlir._platform_specific_lowerings["cpu"]
_EVERYWHERE: Mapping[Any, Any] = _mlir._lowerings


def _rules_of_callbacks() -> Iterator[tuple[Any, Callable[..., Any]]]:
    for primitive in _CALLBACKS:
        yield primitive, functools.partial(_as_on_cpu, _ON_CPU.get(primitive, _EVERYWHERE.get(primitive)).rule)


def _rules_for(platform: str, call: CallRule) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """All other primitives that JAX would lower otherwise for that platform than for the CPU, and how to lower each."""
    for primitive in (_ON_CPU.keys() | _mlir._platform_specific_lowerings[platform].keys()) - set(_CALLBACKS):
        known = _ON_CPU.get(primitive, _EVERYWHERE.get(primitive))
        yield primitive, known.rule if known is not None else functools.partial(_called, call, primitive)
    pallas: Any = sys.modules.get("jax._src.pallas.pallas_call")
    if pallas is not None:
        interpreted = _EVERYWHERE[pallas.pallas_call_p].rule
        yield pallas.pallas_call_p, functools.partial(_kernel, interpreted, call, pallas.pallas_call_p)


def _as_on_cpu(rule: Callable[..., Any], context: Any, *values: Any, **params: Any) -> Any:
    module = context.module_context.replace(platforms=("cpu",), backend=None)
    inner = context.replace(module_context=module)
    results = rule(inner, *values, **params)
    if inner.tokens_out is not None:
        context.set_tokens_out(inner.tokens_out)
    return results


def _called(rule: CallRule, primitive: Any, context: Any, *values: Any, **params: Any) -> Any:
    return rule(context, primitive, values, params)


def _kernel(
    interpreted: Callable[..., Any], rule: CallRule, primitive: Any, context: Any, *values: Any, **params: Any
) -> Any:
    """Lowers a Pallas kernel: one that JAX interprets, as its ops."""
    if params["interpret"]:
        return interpreted(context, *values, **params)
    return rule(context, primitive, values, params)


def bound_here(primitive: Any, arrays: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
    """The results of an op whose parameters come from another place: types among them are of the mesh there."""
    mesh = jax.sharding.get_abstract_mesh()

    def here(aval: Any) -> Any:
        spec: Any = PartitionSpec(*[None] * aval.ndim)  # type: ignore[no-untyped-call]
        return _core.ShapedArray(aval.shape, aval.dtype, aval.weak_type, sharding=NamedSharding(mesh, spec))

    moved = {name: tuple(map(here, given)) if _are_types(given) else given for name, given in params.items()}
    found = primitive.bind(*arrays, **moved)
    return list(found) if primitive.multiple_results else [found]


def _are_types(given: Any) -> bool:
    return type(given) is tuple and all(isinstance(x, _core.ShapedArray) for x in given)


def varying(x: Any) -> frozenset[Any]:
    """The axes of a mesh over which JAX considers a value of a `shard_map` to vary."""
    found: frozenset[Any] = jax.typeof(x).manual_axis_type.varying
    return found


def platform_of(device: Any) -> str:
    """The name of a device's platform by which JAX lowers for it: "cuda" or "rocm" for GPUs."""
    name: str = _xla_bridge.canonicalize_platform(device.platform)
    return name


@dataclass(frozen=True)
class NotLowered:
    """An op that JAX lacks for its element types, or on this platform. `frames` are the user's, innermost first: the
    file, line and column where the call begins, and line and column where it ends; columns count from 0."""

    name: str
    types: tuple[str, ...]
    frames: tuple[tuple[str, int, int, int, int], ...]


def not_lowered(traced: jax.stages.Traced, lower: Callable[[jax.stages.Traced], Any]) -> NotLowered | None:
    """The first op of a traced function that is not lowered. Each is tried separately."""
    private: Any = traced
    for equation, around in _equations(private.jaxpr):
        types = [variable.aval for variable in equation.invars]
        alone: Any = jax.jit(functools.partial(equation.primitive.bind, **equation.params))
        try:
            lower(alone.trace(*types))
        except NotImplementedError:
            frames = tuple(frame for e in (equation, *around) for frame in frames_of(e))
            return NotLowered(equation.primitive.name, tuple(t.str_short() for t in types), frames)
    return None


def frames_of(equation: Any) -> list[tuple[str, int, int, int, int]]:
    """The user's frames of an equation, as in `NotLowered`."""
    found = _source_info_util.user_frames(equation.source_info.traceback)
    return [(f.file_name, f.start_line, f.start_column, f.end_line, f.end_column) for f in found]


def live(jaxpr: Any) -> Any:
    """A closed jaxpr without the equations, in nested ones too, whose results are not used and that have no effects:
    what JAX lowers. Constants are left out."""
    return partial_eval.dce_jaxpr(jaxpr.jaxpr, used_outputs=True)[0]


def _equations(jaxpr: Any, around: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The equations without nested ones, in order, each with the equations that it is nested in, innermost first."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        inside = list(_core.jaxprs_in_params(equation.params))
        for each in inside:
            yield from _equations(each, (equation, *around))
        if not inside:
            yield equation, around


def register_custom_partitioning(rule: LoweringRule) -> None:
    """Registers the lowering of calls of functions with `jax.custom_partitioning`, unless all axes are manual.

    `rule` takes JAX's lowering context, the operands, and the parameters of the call, and returns the results, or None
    to leave the call to JAX.
    """

    def lowered(context: Any, *values: Any, **params: Any) -> Any:
        axes: Any = context.module_context.axis_context
        is_by_hand = isinstance(axes, jax_mlir.SPMDAxisContext) and set(axes.manual_axes) == set(axes.mesh.axis_names)
        found = None if is_by_hand else rule(context, values, params)
        if found is not None:
            return found
        return _custom_partitioning._custom_partitioning_lowering_rule(context, *values, **params)

    primitive: Any = _custom_partitioning.custom_partitioning_p
    jax_mlir.register_lowering(primitive, lowered)


def register_inspection(rule: Callable[[Any, Any, Callable[[Any], None]], bool]) -> None:
    """Registers the lowering of `jax.debug.inspect_array_sharding`.

    `rule` takes JAX's lowering context, the operand and the function to be called with the sharding. It returns whether
    it has lowered the call, and otherwise leaves it to JAX.
    """

    def lowered(context: Any, value: Any, *, callback: Callable[[Any], None]) -> Sequence[Any]:
        if rule(context, value, callback):
            return []
        found: Sequence[Any] = _debugging._inspect_sharding_lowering_rule(context, value, callback=callback)
        return found

    primitive: Any = _debugging.inspect_sharding_p
    jax_mlir.register_lowering(primitive, lowered)


def written_in_place(context: Any, values: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any]:
    """The results of a call of a function with `jax.custom_partitioning`, inlined as ops."""
    function: Any = _core.jaxpr_as_fun(params["call"])
    found: Sequence[Any] = jax_mlir.lower_fun(function, multiple_results=True)(context, *values)
    return found


def custom_partitioning_name(params: Mapping[str, Any]) -> str:
    """The name of the function of a call with these parameters."""
    name: str = params["call"].jaxpr.debug_info.func_name
    return name


def custom_partitioning_rule(
    params: Mapping[str, Any], mesh: Any, operands: Sequence[mlir.Type], results: Sequence[mlir.Type]
) -> mlir.Attribute:
    """The sharding rule of a call of a function with `jax.custom_partitioning`, as Shardy's `sdy.OpShardingRuleAttr`.

    A rule that is a function of the mesh and the types is called. Raises ValueError if the rule does not fit the
    tensors.
    """
    rule: Any = params["sharding_rule"]
    special: Mapping[str, Any] = {}
    types = list(operands), list(results)
    if callable(rule):
        rule = rule(*params["static_args"], mesh, *types)
    if isinstance(rule, list | tuple) and len(rule) == 2:
        rule, special = rule
    if isinstance(rule, str):
        rule = _sharding_rules.str_to_sdy_sharding_rule(rule, **special)
    if not isinstance(rule, _sharding_rules.SdyShardingRule):
        raise ValueError("sharding_rule must give an SdyShardingRule, or a text such as 'b i -> b'")
    attribute: mlir.Attribute = _sharding_rules.sdy_sharding_rule_to_mlir(rule, *types)
    return attribute


def linear_transpose(function: Callable[..., list[Any]], *avals: Any) -> Callable[[list[Any]], Sequence[Any]]:
    """The transpose of a linear function of arrays. `jax.linear_transpose` fails if it has references of its own (jax
    0.10 to 0.12, at least); `jax.vjp` does not."""
    traced: Any = jax.make_jaxpr(function)(*avals)
    flat: Any = _core.jaxpr_as_fun(traced)
    if any(isinstance(effect, _core.InternalMutableArrayEffect) for effect in traced.effects):
        zeros: Any = [jax.numpy.zeros(a.shape, a.dtype) for a in avals]
        pulled: Callable[[list[Any]], Sequence[Any]] = jax.vjp(flat, *zeros)[1]
        return pulled
    return jax.linear_transpose(flat, *avals)


def derivative_transpose(function: Callable[..., list[Any]], *avals: Any) -> Callable[[list[Any]], Sequence[Any]]:
    """The transpose of a function of tangents that `jax.linearize` returns. `jax.linear_transpose` would look for parts
    that depend on no tangents, and evaluate them first, although blocks of `jax.checkpoint` evaluate them again."""
    traced: Any = jax.make_jaxpr(function)(*avals)
    jaxpr = getattr(traced, "jaxpr", traced)
    undefined: Any = _ad.UndefinedPrimal
    instantiated: Any = _ad.instantiate_zeros

    def pulled(cotangents: list[Any]) -> Sequence[Any]:
        tangents = [undefined(variable.aval.to_ct_aval()) for variable in jaxpr.invars]
        return [instantiated(x) for x in _ad.backward_pass(jaxpr, True, traced.consts, tangents, cotangents)]

    return pulled


def unordered_effects(effects: Iterable[object]) -> frozenset[Any]:
    """The callback and FFI effects among a jaxpr's effects, as unordered effects."""
    effects = list(effects)
    debug, io = _callback_effects(ordered=False)
    kinds = {"Debug": debug, "OrderedDebug": debug, "IO": io, "OrderedIO": io}
    calls = [effect for effect in effects if isinstance(effect, _ffi.FfiEffect)]
    return frozenset([*calls, *(kinds[str(effect)] for effect in effects if str(effect) in kinds)])


def with_own_order(context: Any) -> Any:
    """JAX's lowering context for a function that is lowered in place of a call without ordered effects: its ordered
    callbacks have an order of their own."""
    return context.replace(tokens_in=_mlir.TokenSet.create(_callback_effects(ordered=True)))


@functools.cache
def _callback_effects(*, ordered: bool) -> tuple[Any, Any]:
    """The effects of a print and of other callbacks."""
    make_jaxpr: Any = jax.make_jaxpr
    (debug,) = make_jaxpr(lambda: jax.debug.callback(lambda: None, ordered=ordered))().effects
    (io,) = make_jaxpr(lambda: io_callback(lambda: None, None, ordered=ordered))().effects
    return debug, io


def stablehlo_to_hlo(text: str) -> str:
    """A StableHLO module as HLO text, converted by XLA. It returns a tuple."""
    computation = _jax.mlir.mlir_module_to_xla_computation(text, use_tuple_args=False, return_tuple=True)
    return str(computation.as_hlo_text(print_large_constants=True))


def trace_settings() -> Hashable:
    """All JAX settings that affect tracing, its mesh included, as one value."""
    settings: Hashable = _config.trace_context()
    return settings


InvalidNumberError: type[Exception] = _api_util.InternalFloatingPointError
"""The internal JAX exception if `jax.debug_nans` or `jax.debug_infs` finds such a number. Its arguments are the name of
the function that was called, and what was found."""


def named_axes() -> Hashable:
    """The axes, with their sizes, that enclosing transformations name: a function's collectives may run along them."""
    core: Any = _core
    return tuple(core.get_axis_env().axis_sizes.items())


def uses_named_axes(effects: Iterable[object]) -> bool:
    """Whether a jaxpr with these effects has collectives along axes that enclosing transformations name."""
    return any(isinstance(effect, _core.NamedAxisEffect) for effect in effects)


ShardingTypeError: type[Exception] = _core.ShardingTypeError
"""The JAX exception if the types of values do not determine over which Explicit axes an op is split."""


def is_batched(x: object) -> bool:
    """Whether a value in a function that `jax.vmap` traces is batched."""
    return isinstance(x, _batching.BatchTracer) and x.batch_dim is not None


def is_tracing() -> bool:
    """Whether JAX is tracing, so that calls become part of the trace."""
    return not _core.trace_state_clean()


class ClearedWithJax:
    """Caches that `jax.clear_caches()` clears along with its own, while this object is alive."""

    def __init__(self, *caches: dict[Any, Any]) -> None:
        self._caches = caches
        util: Any = _util
        util.register_cache(self, "spmdc")

    def cache_clear(self) -> None:
        for cache in self._caches:
            cache.clear()
