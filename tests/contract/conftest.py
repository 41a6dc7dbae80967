"""Under mpirun a rank whose test fails ends, and all others with it: they would wait for it at the next barrier."""

import os
import sys

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and int(os.environ.get("DLIO_TEST_WORLD", "1")) > 1:
        print(f"\n{report.nodeid} failed in {report.when}:\n{report.longreprtext}", flush=True)
        sys.stderr.flush()
        os._exit(1)
