"""What some tests need and some machines lack: such a test is skipped there, with a reason that says what would run it.

The last lines of a run count the skipped tests by reason (`conftest.py`).
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def _fuse() -> bool:
    from dlio_bench.harness.storage.pfs.emulation import available

    return available() is None


def _mounts() -> bool:
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


# What a test names -> whether this machine has it, and the reason of a skip: what is missing, and the remedy.
NEEDS: dict[str, tuple[Callable[[], object], str]] = {
    "fuse": (_fuse, "no FUSE (apt-get install fuse3, and /dev/fuse)"),
    "root": (lambda: os.geteuid() == 0, "no root (repeat as root)"),
    "mounts": (_mounts, "mounts are refused (repeat as root; a container needs --cap-add SYS_ADMIN)"),
    "browser": (lambda: any(map(shutil.which, BROWSERS)), "no browser (apt-get install chromium)"),
    "h5dump": (lambda: shutil.which("h5dump"), "no h5dump (apt-get install hdf5-tools)"),
    "strace": (lambda: shutil.which("strace"), "no strace (apt-get install strace)"),
    "horovod": (lambda: find_spec("horovod"), "no Horovod (./scripts/install-horovod)"),
}


@cache
def is_met(name: str) -> bool:
    """Whether this machine has what is named."""
    return bool(NEEDS[name][0]())


def needs(name: str) -> pytest.MarkDecorator:
    """Mark a test, or a module by `pytestmark`, as one that needs what is named."""
    return pytest.mark.skipif(not is_met(name), reason=NEEDS[name][1])


def require(name: str) -> None:
    """Skip the test that runs where what is named is missing."""
    if not is_met(name):
        pytest.skip(NEEDS[name][1])
