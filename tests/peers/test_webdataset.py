"""WebDataset passes the suite of readers on tar shards of the same samples, and what is its own."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

from dlio_bench.benchmarks.registry import find as find_workload
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError, EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.commands.bench_readers.job import WEBDATASETS
from dlio_bench.harness.commands.run.measured.consumer import find_damage
from dlio_bench.harness.plan.policies import find
from dlio_bench.harness.readers import web_shards
from dlio_bench.harness.readers.registry import open_reader
from dlio_bench.harness.readers.resources import Resources
from dlio_bench.harness.readers.session import Reader, SampleView, Tally, plan_batches
from tests.contract import test_readers
from tests.contract.test_readers import ReaderContract
from tests.datasets import made, stored_fields
from tests.peers import test_torch_loader

# a fixture belongs to the module that has its name
dataset, world, nothing_is_left = test_readers.dataset, test_readers.world, test_readers.nothing_is_left
server = test_torch_loader.server


def nothing(done: int, total: int) -> None:
    """No progress."""


class TestWebDataset(ReaderContract):
    policy = "webdataset"
    workloads = ("cdb",)  # of many files: ranks have shards of their own
    test_nothing_is_read_in_a_pause_and_what_is_kept_stays = None  # it begins anew with each epoch
    harms = ()  # it reads no file of the dataset: see below what it says of bad shards

    def make(self, dataset: Dataset, world: Comm, **settings: Any) -> Reader:
        web_shards.make(dataset, self.form(dataset).fields, nothing)
        return super().make(dataset, world, **settings)

    def test_a_flipped_byte_is_seen_by_the_verification_of_content(
        self, dataset: Dataset, world: Comm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        form = self.form(dataset)
        reader, plan = self.make(dataset, world), self.everything(dataset, world.size, world.rank)
        with spoiled(form) as shard:
            flip(shard)
            with reader.session(plan, Tally()) as batches:
                lines = [line for batch in batches for line in find_damage(batch, form)]
            assert len(lines) == 1
            assert "sample 0" in lines[0]
            checking = self.make(dataset, world, check_crc=True)
            with checking.session(plan, Tally()) as batches, pytest.raises(DataError, match="Sample 0 has another CRC"):
                list(batches)


class spoiled:  # noqa: N801 - a context manager
    """The first shard, as it was before when it is left."""

    def __init__(self, form: SampleView) -> None:
        [self.shard] = web_shards.paths(form.dataset, form.fields, [0])

    def __enter__(self) -> Path:
        self.content = self.shard.read_bytes()
        return self.shard

    def __exit__(self, *_: object) -> None:
        self.shard.write_bytes(self.content)


def flip(shard: Path) -> None:
    """A byte of the first sample."""
    content = bytearray(shard.read_bytes())
    content[tarfile.BLOCKSIZE + 5] ^= 1
    shard.write_bytes(content)


@pytest.fixture
def form(tmp_path: Path) -> SampleView:
    form = SampleView(made(tmp_path / "data", "hepcnnb", 3), find_workload("hepcnnb").view)
    web_shards.make(form.dataset, form.fields, nothing)
    return form


def reader_of(form: SampleView, *, threads: int = 2) -> Reader:
    return open_reader(find("webdataset"), form, Resources(threads, 64_000_000, 1 << 20))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # WebDataset leaves its files to the garbage collector
def test_its_shards_are_what_webdataset_reads(form: SampleView) -> None:
    shards = web_shards.paths(form.dataset, form.fields, range(3))
    samples = list(webdataset.WebDataset([str(path) for path in shards], shardshuffle=False))
    assert [int(sample["__key__"]) for sample in samples] == list(range(form.dataset.samples))
    for number in (0, form.dataset.samples - 1):
        contents = [samples[number][str(place)] for place in range(len(form.fields))]
        assert contents == [bytes(field) for field in stored_fields(form.dataset, form.fields, number)]
    sizes = [path.stat().st_size for path in shards]
    assert sizes == [web_shards.shard_bytes(form.dataset, form.fields, file) for file in range(3)]
    assert not {path.name for path in shards[0].parent.iterdir()} - {path.name for path in shards}


def test_shards_are_made_once_and_only_those_that_are_missing(form: SampleView) -> None:
    first, second, _ = web_shards.paths(form.dataset, form.fields, range(3))
    kept = first.stat().st_mtime_ns
    second.write_bytes(b"")
    told: list[tuple[int, int]] = []
    total = web_shards.make(form.dataset, form.fields, lambda done, all_bytes: told.append((done, all_bytes)))
    assert told[-1] == (total, total)
    assert first.stat().st_mtime_ns == kept
    assert second.stat().st_size > 0
    told.clear()
    assert web_shards.make(form.dataset, form.fields, lambda done, all_bytes: told.append((done, all_bytes))) == total
    assert told == []


@pytest.mark.parametrize(
    ("harm", "error", "reason"),
    [
        (Path.unlink, DataError, "000000.tar is missing"),
        (lambda shard: os.truncate(shard, 2000), DataError, "000000.tar is damaged"),
        (lambda shard: shard.write_bytes(b""), DataError, "000000.tar is damaged"),
        (lambda shard: shard.write_bytes(bytes(20480)), DataError, "samples less"),
        (lambda shard: (shard.unlink(), shard.mkdir()), EnvironmentFailure, "000000.tar cannot be read"),
    ],
)
def test_a_bad_shard_ends_the_session_with_its_reason(form: SampleView, harm: Any, error: Any, reason: str) -> None:
    harm(web_shards.paths(form.dataset, form.fields, [0])[0])
    plan = plan_batches(form, [(0, [np.arange(form.dataset.samples)])])
    with reader_of(form).session(plan, Tally()) as batches, pytest.raises(error, match=reason):
        list(batches)


def test_what_an_application_decodes_is_decoded_by_workers(tmp_path: Path) -> None:
    workload = find_workload("cosmoflow")
    dataset = made(tmp_path / "data", "cosmoflow", 4)
    assert workload.decode is not None
    form, tally = SampleView(dataset, workload.view, workload.decode(dataset)), Tally()
    web_shards.make(dataset, form.fields, nothing)
    with reader_of(form).session(plan_batches(form, [(0, [np.array([2, 0]), np.array([3, 1])])]), tally) as batches:
        assert [find_damage(batch, form) for batch in batches] == [[], []]
    assert tally.of(0).decode_seconds > 0


def test_samples_that_pad_an_epoch_come_as_often_as_planned(form: SampleView) -> None:
    ids = [np.array([0, 1, 2]), np.array([3, 0, 1])]
    with reader_of(form).session(plan_batches(form, [(0, ids)]), Tally()) as batches:
        delivered = np.concatenate([batch.ids.copy() for batch in batches])
    assert sorted(delivered.tolist()) == [0, 0, 1, 1, 2, 3]


def test_run_and_bench_readers_hold_it_against_ours_by_the_same_checks(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "dlio_bench"]
    asked = ["run", "cdb", "--tiny", "--nodes", "2", "--cache", "cold", "--reader", "webdataset,prefetch"]
    places = ["--cache-dir", str(tmp_path / "cache"), "--json"]
    done = subprocess.run(
        [*command, *asked, *places, "--out", str(tmp_path / "out")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "tar shards" in done.stderr
    theirs, ours = json.loads(done.stdout)
    assert theirs["policy"]["options"]["processes"] >= 1
    assert [check["name"] for check in theirs["checks"]] == [check["name"] for check in ours["checks"]]
    for result in (theirs, ours):
        assert all(check["ok"] for check in result["checks"])
        trial = result["trials"][-1]
        assert trial["bytes_device"] >= trial["bytes_requested"]

    done = subprocess.run(
        [*command, "bench-readers", "imagenet", *places, "--trials", "1", "--size", "130MB"],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    [compared] = json.loads(done.stdout)
    [row] = [row for row in compared["ratios"] if row["yardstick"] == "webdataset"]
    assert row["fastest"] in WEBDATASETS
    for name in WEBDATASETS:
        assert compared["checked"][name] == "every byte"
