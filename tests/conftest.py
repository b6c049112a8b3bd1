"""What all tests share: how many examples hypothesis draws, and eight devices for jax.

`ci` draws the same examples in every run, so that only a change can make a test fail; `soak` looks for new ones.
jax reads the environment when a test first imports it, so no test needs to ask, and tests without jax do not wait for it.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

settings.register_profile("ci", derandomize=True, deadline=None, database=None, print_blob=True)
settings.register_profile("soak", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")
