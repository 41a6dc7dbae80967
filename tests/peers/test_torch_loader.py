"""PyTorch's DataLoader passes the suite of readers, and what is its own. scripts/peers-venv makes the environment."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.benchmarks.registry import find as find_workload
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.commands.bench_readers.job import TORCHES
from dlio_bench.harness.commands.run.measured.consumer import find_damage
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import Reader, SampleView, Tally, plan_batches
from dlio_bench.harness.storage.cache import device_bytes, drop
from tests.contract import test_readers
from tests.contract.test_readers import ReaderContract
from tests.datasets import made
from tests.processes import PATIENCE, descendants, gone

# a fixture belongs to the module that has its name
dataset, world, nothing_is_left = test_readers.dataset, test_readers.world, test_readers.nothing_is_left


@pytest.fixture(scope="module", autouse=True)
def server() -> None:
    """The process that forks all workers starts with the first of them, and stays."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dlio_bench.harness.readers.torch_samples"])
    process = context.Process(target=os.getpid)
    process.start()
    process.join()


class TestTorch(ReaderContract):
    policy = "torch"
    test_nothing_is_read_in_a_pause_and_what_is_kept_stays = None  # it begins anew with each epoch
    harms = ("missing", "empty", "truncated", "flipped")  # no patch of this process reaches its workers


def reader_of(form: SampleView, *, threads: int = 2) -> Reader:
    return open_reader(find("torch"), form, Resources(threads, 64_000_000, 1 << 20))


def test_what_an_application_decodes_is_decoded_by_workers(tmp_path: Path) -> None:
    workload = find_workload("cosmoflow")
    dataset = made(tmp_path / "data", "cosmoflow", 4)
    assert workload.decode is not None
    form = SampleView(dataset, workload.view, workload.decode(dataset))
    tally = Tally()
    with reader_of(form).session(plan_batches(form, [(0, [np.array([2, 0]), np.array([3, 1])])]), tally) as batches:
        assert [find_damage(batch, form) for batch in batches] == [[], []]
    assert tally.of(0).decode_seconds > 0


def test_its_processes_count_what_came_from_the_device_even_when_they_are_gone(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data", "imagenet", 8)
    form = SampleView(dataset, find_workload("imagenet").view)
    reader = reader_of(form)
    drop([dataset.path(file) for file in range(len(dataset.manifest.files))])
    with reader.session(plan_batches(form, [(0, [np.arange(dataset.samples)])]), Tally()) as batches:
        assert len(reader.processes) == 3  # two workers, and who forked them
        before = device_bytes(reader.processes)
        next(batches)
        during = device_bytes(reader.processes)
    after = device_bytes(reader.processes)
    assert before is not None
    assert during is not None
    assert after is not None
    assert after >= during >= before + form.stored_size(np.arange(dataset.samples))


def test_a_worker_that_is_killed_ends_the_session_with_its_reason(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data", "imagenet", 4)
    form = SampleView(dataset, find_workload("imagenet").view)
    reader = reader_of(form, threads=1)
    with reader.session(plan_batches(form, [(0, [np.array([0])])]), Tally()) as batches:
        os.kill(reader.processes[1], signal.SIGKILL)
        with pytest.raises(EnvironmentFailure, match="worker process of PyTorch's DataLoader is gone"):
            next(batches)


RANK = """
import sys, time
from pathlib import Path
from dlio_bench.datagen.dataset import open_dataset
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import Tally, plan_batches

form = SampleView(open_dataset(Path(sys.argv[1])), ("record",))
reader = open_reader(find("torch"), form, Resources(2, 64_000_000, 1 << 20))
with reader.session(plan_batches(form, []), Tally()):
    print("ready", flush=True)
    time.sleep(300)
"""


def test_its_processes_end_with_a_rank_that_is_killed_and_let_go_of_its_output(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data", "imagenet", 4)
    command = [sys.executable, "-P", "-c", RANK, str(dataset.folder)]
    rank = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    assert rank.stdout.readline() == "ready\n"
    started = descendants(rank.pid)
    assert len(started) == 4  # the server, its two workers, and who tracks what they share
    rank.kill()
    assert rank.communicate(timeout=PATIENCE) == ("", None)  # whoever launched it waits for the end of its output
    gone(started)


def test_bench_readers_holds_it_against_ours_on_the_same_samples_every_byte_checked(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "dlio_bench", "bench-readers", "imagenet", "--cache-dir", str(tmp_path)]
    asked = ["--trials", "1", "--size", "130MB", "--json"]
    done = subprocess.run([*command, *asked], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)
    [row] = [row for row in found["ratios"] if row["yardstick"] == "torch"]
    assert row["fastest"] in TORCHES
    assert row["ratio"] > 0
    for name in (*TORCHES, "prefetch"):
        assert found["checked"][name] == "every byte"
        assert found["bytes_per_second"][name] > 0


def test_run_compares_it_with_ours_by_the_same_checks(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "dlio_bench", "run", "cdb", "--tiny", "--nodes", "2", "--cache", "cold"]
    asked = [
        "--reader",
        "torch,prefetch",
        "--cache-dir",
        str(tmp_path / "cache"),
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    done = subprocess.run([*command, *asked, "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    theirs, ours = json.loads(done.stdout)
    assert theirs["policy"]["options"]["processes"] >= 1
    assert [check["name"] for check in theirs["checks"]] == [check["name"] for check in ours["checks"]]
    for result in (theirs, ours):
        assert all(check["ok"] for check in result["checks"])
        trial = result["trials"][-1]
        assert trial["bytes_device"] >= trial["bytes_requested"]  # of worker processes too
