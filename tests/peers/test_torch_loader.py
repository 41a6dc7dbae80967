"""PyTorch's DataLoader passes the suite of readers; what is its own is below. `scripts/peers-venv` makes its environment."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.benchmarks.registry import find as find_workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.solo import Solo
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.registry import Resources, open_reader
from dlio_bench.harness.readers.sample_view import SampleView
from dlio_bench.harness.readers.session import Reader, Tally, planned
from dlio_bench.harness.run.measured.consumer import damaged
from dlio_bench.harness.storage.cache import drop
from dlio_bench.harness.storage.counters import device_bytes
from tests.contract import test_readers
from tests.contract.test_readers import ReaderContract
from tests.datasets import made

# a fixture belongs to the module that has its name
dataset, world, nothing_is_left = test_readers.dataset, test_readers.world, test_readers.nothing_is_left


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """The process that forks all workers starts with the first of them, and stays."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dlio_bench.harness.readers.torch_samples"])
    process = context.Process(target=os.getpid)
    process.start()
    process.join()
    yield


class TestTorch(ReaderContract):
    policy = "torch"
    workloads = ("imagenet", "cdb")  # of samples of varying length, and of one
    harms = ("missing", "empty", "truncated", "flipped")  # no patch of this process reaches its workers


def reader_of(form: SampleView, *, threads: int = 2) -> Reader:
    return open_reader(find("torch"), form, Resources(threads, 64_000_000, 1 << 20))


def test_what_an_application_decodes_is_decoded_by_workers(tmp_path: Path) -> None:
    workload = find_workload("cosmoflow")
    dataset = made(tmp_path / "data", "cosmoflow", 4)
    assert workload.decode is not None
    form = SampleView(dataset, workload.view, workload.decode(dataset))
    tally = Tally()
    with reader_of(form).session(planned(form, [(0, [np.array([2, 0]), np.array([3, 1])])]), tally) as batches:
        assert [damaged(batch, form) for batch in batches] == [[], []]
    assert tally.of(0).decode_seconds > 0


def test_its_processes_count_what_came_from_the_device_even_when_they_are_gone(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data", "imagenet", 8)
    form = SampleView(dataset, find_workload("imagenet").view)
    reader = reader_of(form)
    drop([dataset.path(file) for file in range(len(dataset.manifest.files))])
    with reader.session(planned(form, [(0, [np.arange(dataset.samples)])]), Tally()) as batches:
        assert len(reader.processes) == 3  # two workers, and who forked them
        before = device_bytes(reader.processes)
        next(batches)
        during = device_bytes(reader.processes)
    after = device_bytes(reader.processes)
    assert before is not None
    assert during is not None
    assert after is not None
    assert after >= during >= before + form.stored(np.arange(dataset.samples))


def test_a_worker_that_is_killed_ends_the_session_with_its_reason(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data", "imagenet", 4)
    form = SampleView(dataset, find_workload("imagenet").view)
    reader = reader_of(form, threads=1)
    with reader.session(planned(form, [(0, [np.array([0])])]), Tally()) as batches:
        os.kill(reader.processes[1], signal.SIGKILL)
        with pytest.raises(EnvironmentFailure, match="worker process of PyTorch's DataLoader is gone"):
            next(batches)
