"""Engines end with their kernel, however that ends; and the network of the notebooks is the published one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.notebooks import engines
from dlio_bench.harness.notebooks.network import PUBLISHED, PUBLISHED_SHAPE, build_network
from tests.processes import descendants, gone, until

KERNEL = """
import sys
from dlio_bench.harness.notebooks.engines import Engines
engines = Engines(2, mpi=len(sys.argv) > 1)
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_network_has_the_published_number_of_parameters() -> None:
    assert build_network(PUBLISHED_SHAPE, PUBLISHED).count_params() == 547_841


@pytest.mark.parametrize("words", [[], ["mpi"]], ids=["processes", "ranks"])
def test_a_killed_kernel_leaves_no_engine(words: list[str], tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", KERNEL, *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as kernel:
        assert kernel.stdout is not None
        assert kernel.stdout.readline() == "ready\n"
        begun = descendants(kernel.pid)
        assert len(begun) >= 3
        kernel.send_signal(signal.SIGKILL)
    gone(begun)


def test_an_engine_that_cannot_start_is_told_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MODULE", "notebooks.no_such_module")
    with pytest.raises(EnvironmentFailure, match="no_such_module"):
        engines.Engines(1)
    until(lambda: not descendants(os.getpid()))
