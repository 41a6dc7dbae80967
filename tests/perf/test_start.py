"""What a rank does before its run begins, timed as the readers are (see test_readers)."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from dlio_bench.harness.cluster import environment


@pytest.mark.benchmark(group="start of a rank")
def test_digest_of_the_code(benchmark: BenchmarkFixture) -> None:
    assert len(benchmark(environment.code_digest)) == 64
