"""What the contract suites share: the workloads of a class, and how a failure under mpirun ends."""

import os
import sys

import pytest

from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.mpi import connect
from tests.ranks import WORLD


@pytest.fixture(scope="module")
def comm() -> Comm:
    """All ranks of this launch: one, or those of mpirun."""
    return connect(WORLD)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A class of a suite says on which workloads it runs: the `dataset` fixture of its module makes their data."""
    workloads = getattr(metafunc.cls, "harmed" if "harm" in metafunc.fixturenames else "workloads", None)
    if workloads is not None and "dataset" in metafunc.fixturenames:
        metafunc.parametrize("dataset", workloads, indirect=True, scope="module")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A rank whose test fails ends, and all others with it: they would wait for it at the next barrier."""
    if report.failed and WORLD > 1:
        print(f"\n{report.nodeid} failed in {report.when}:\n{report.longreprtext}", flush=True)
        sys.stderr.flush()
        os._exit(1)
