"""Timings, to be compared as ratios within one run: `pytest tests/perf --benchmark-group-by=group`.

Without `--benchmark-only` each runs once, as a test that it still works. Data are warm: these are the readers' own
costs, not the storage's.
"""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from dlio_bench.benchmarks.registry import find as find_workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import RANDOM
from dlio_bench.harness.commands.run.measured.consumer import marks
from dlio_bench.harness.plan.orders import every_sample_once
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import SampleView, Tally, largest, plan_batches

CHANNELS = [0, 1, 2, 10]


@pytest.fixture(scope="module")
def cdb(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Four files of the true shape, 60 MB each."""
    return generate(find_workload("cdb").variants["cori"](False, RANDOM), 4, tmp_path_factory.mktemp("cdb"), seed=1)


def through(dataset: Dataset, policy: str) -> Callable[[], int]:
    view = find_workload(dataset.manifest.workload).view
    form = SampleView(dataset, view)
    plan = plan_batches(form, [(0, every_sample_once(dataset.samples, 1, 0, 1))])
    resources = Resources(threads=2, staging_bytes=64_000_000, batch_bytes=largest(plan))
    reader = open_reader(find(policy), form, resources)

    def epoch() -> int:
        with reader.session(plan, Tally()) as batches:
            return sum(int(marks(batch)[0] & np.uint64(1)) for batch in batches)

    return epoch


@pytest.mark.benchmark(group="cdb, one epoch of 4 samples, warm")
@pytest.mark.parametrize("policy", ["naive", "double-buffer"])
def test_cdb_through_a_reader(benchmark: BenchmarkFixture, cdb: Dataset, policy: str) -> None:
    assert benchmark(through(cdb, policy)) == 4


@pytest.mark.benchmark(group="cdb, one epoch of 4 samples, warm")
def test_cdb_through_h5py(benchmark: BenchmarkFixture, cdb: Dataset) -> None:
    def epoch() -> int:
        seen = 0
        for number in range(cdb.samples):
            with h5py.File(cdb.path(number)) as file:
                data = np.stack([file["climate/data"][channel] for channel in CHANNELS])
                seen += bool(data.shape) and bool(file["climate/labels"][...].shape)
        return seen

    assert benchmark(epoch) == 4


@pytest.mark.benchmark(group="manifest")
def test_locating_ten_thousand_samples(benchmark: BenchmarkFixture, cdb: Dataset, tmp_path: Path) -> None:
    ids = np.arange(10_000) % cdb.samples
    files, *_ = benchmark(cdb.locate, ids, find_workload("cdb").view)
    assert len(files) == len(ids)
