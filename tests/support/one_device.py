"""The results of XLA for an HLO text module on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jaxlib import xla_client
from jaxlib._hlo import XlaComputation, hlo_module_from_text
from jaxlib._jax import mlir as conversions

Array = npt.NDArray[Any]


def compiled_and_run(text: str, arrays: Sequence[Array]) -> list[Array]:
    """The module's results, compiled by XLA for one device."""
    proto = hlo_module_from_text(text).as_serialized_hlo_module_proto()
    module = conversions.xla_computation_to_mlir_module(XlaComputation(proto))
    device = jax.devices()[0]
    options = xla_client.CompileOptions()
    executable = device.client.compile_and_load(module, xla_client.DeviceList((device,)), options)
    with jax.enable_x64(True):
        given = [jax.device_put(a) for a in arrays]
    results = executable.execute_sharded(given).disassemble_into_single_device_arrays()
    return [np.asarray(r[0]) for r in results]
