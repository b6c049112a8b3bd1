"""The setup that all tests share: the number of hypothesis examples, eight devices for jax, and golden files.

Programs that run on devices are checked to communicate as reported (`tests/support/executed.py`).

`ci` draws the same examples in every run, so that only a change can make a test fail; `soak` draws new ones. jax reads
the environment when a test first imports it, so tests need not request anything, and tests without jax do not wait for
it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy_on_one_thread  # noqa: F401
import pytest
from executed import check_what_runs
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import jax

pytest_plugins = ["call_stack", "command_line", "compiling"]

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

check_what_runs()

settings.register_profile("ci", derandomize=True, deadline=None, database=None, print_blob=True)
settings.register_profile("soak", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")

_GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files from what the code gives")
    parser.addoption("--part", default="1/1", metavar="K/N", help="run part K of N, to which each N-th test belongs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests of other parts."""
    part, count = (int(n) for n in config.getoption("--part").split("/"))
    if not 1 <= part <= count:
        raise pytest.UsageError(f"--part={part}/{count}: the parts are 1/{count} to {count}/{count}")
    items[:] = items[part - 1 :: count]


def pytest_collection_finish() -> None:
    """Freezes the imported modules, so that garbage collection does not examine them, and collects less often.
    Collection took a tenth of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session")
def devices() -> list[jax.Device]:
    """Eight devices."""
    from lowering.jax import ensure_devices

    return ensure_devices(8)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the file of that name under `tests/golden`."""

    def check(name: str, text: str) -> None:
        path = _GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, f"{path} differs; --update-golden rewrites it"

    return check
