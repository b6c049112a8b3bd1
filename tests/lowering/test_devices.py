"""As many devices of JAX's are made as a program needs, or what is in the way is reported."""

from __future__ import annotations

from new_process import in_a_new_process


def test_jax_that_is_up_with_fewer_devices_is_reported_with_help() -> None:
    code = """
import lowering.jax, sys
from ir.diagnostics import SpmdcError
assert "jax" not in sys.modules
import jax
jax.devices()
try:
    lowering.jax.ensure_devices(3)
except SpmdcError as e:
    print(e)
"""
    diagnostic = in_a_new_process(code)
    assert "E503" in diagnostic
    assert 'jax.config.update("jax_num_cpu_devices", 3)' in diagnostic


def test_as_many_devices_as_the_users_xla_flags_ask_for() -> None:
    code = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
from ir.diagnostics import SpmdcError
from lowering.jax import ensure_devices
print(len(ensure_devices(3)))
try:
    ensure_devices(4)
except SpmdcError as e:
    print(e)
"""
    diagnostic = in_a_new_process(code)
    assert diagnostic.startswith("3\nerror[E502]: the program needs 4 devices, and there are 3")
    assert "XLA_FLAGS asks for 3" in diagnostic
