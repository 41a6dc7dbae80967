"""What holds for all tests: their files are on a disk, as data in memory can never be cold and many tests ask for cold
data; and no example fails because the machine is busy.
"""

import os
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from dlio_bench.harness.machine.mounts import memory_backed

if memory_backed(Path(tempfile.gettempdir())):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/var/tmp")  # pytest's own variable for the root of tmp_path

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_configure(config: pytest.Config) -> None:
    """Ranks that run one suite together must not tidy up each other's folders: each has one of its own.

    Shells start background jobs with SIGINT ignored, and what a test then starts and interrupts would ignore it too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    shared = os.environ.get("DLIO_TEST_TEMP")
    if shared and config.option.basetemp is None:
        config.option.basetemp = Path(shared) / str(os.getpid())
