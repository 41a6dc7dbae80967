"""Under mpirun a rank whose test fails ends, and all others with it: they would wait for it at the next barrier.

What ranks do not share is tested alone: of the pipelines that start slowly, worlds run what ranks have in common.
"""

import os
import sys

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and int(os.environ.get("DLIO_TEST_WORLD", "1")) > 1:
        print(f"\n{report.nodeid} failed in {report.when}:\n{report.longreprtext}", flush=True)
        sys.stderr.flush()
        os._exit(1)


TOGETHER = (
    "delivers_the_plan",
    "uneven_shares",
    "bytes_recorded",
    "leaving_early",
    "in_the_step_that_needs_it[missing]",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if int(os.environ.get("DLIO_TEST_WORLD", "1")) > 1:
        items[:] = [
            item
            for item in items
            if item.path.name != "test_pipelines.py" or any(name in item.name for name in TOGETHER)
        ]
