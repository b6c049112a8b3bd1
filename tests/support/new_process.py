"""Code that is run in a new process."""

from __future__ import annotations

import subprocess
import sys


def in_a_new_process(code: str) -> str:
    """What Python code prints in a process of its own, without the environment of this one."""
    clean = {"PATH": "", "JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout
