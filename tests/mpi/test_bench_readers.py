"""`dlio-bench bench-readers` compares what it says it does, with real ranks; no figure is judged here."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.benchmarks.registry import find as find_workload
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.errors import DataError, EnvironmentFailure
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.cluster.entry import Caller
from dlio_bench.harness.commands.bench_readers import yardsticks
from dlio_bench.harness.commands.bench_readers.command import ratios, summarise
from dlio_bench.harness.commands.bench_readers.job import H5PYS, PREFETCH, PREFETCH_CRC, TFDATAS, Job, raws
from dlio_bench.harness.commands.bench_readers.rank import measure, verify
from dlio_bench.harness.plan.orders import every_sample_once
from dlio_bench.harness.readers.session import largest, plan_batches
from tests.datasets import made, view_of


def bench(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "dlio_bench", "bench-readers", "--cache-dir", str(folder), "--trials", "1"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)


def test_small_samples_are_held_against_plain_loops(tmp_path: Path) -> None:
    done = bench(tmp_path, "--tiny", "--size", "1MB", "--ranks", "1", "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert [one["workload"] for one in found] == ["hepcnnb", "cdb", "cosmoflow", "imagenet", "wsi"]
    for one in found:
        assert {"prefetch", "shuffled", "naive", "plain loop"} == set(one["bytes_per_second"])
        assert all(rate > 0 for rate in one["bytes_per_second"].values())
        assert all(row["ratio"] > 0 and len(row["ratios"]) == 1 for row in one["ratios"])
        assert one["resident_share"] == 1
        assert one["checked"] == dict.fromkeys(one["bytes_per_second"], "every byte")


@pytest.mark.parametrize(
    ("workload", "ours", "library", "checked", "ranks"),  # each rank of tf.data loads TensorFlow
    [("imagenet", "prefetch + crc", TFDATAS, "number", 1), ("cdb", "prefetch", H5PYS, "nothing", 2)],
)
def test_true_samples_are_held_against_the_libraries(
    workload: str, ours: str, library: Collection[str], checked: str, ranks: int, tmp_path: Path
) -> None:
    done = bench(tmp_path, workload, "--size", "130MB", "--ranks", str(ranks))
    assert done.returncode == 0, done.stderr
    yardsticks = [*library, *raws(ranks)]
    for contender in (*yardsticks, ours):
        assert f"  {contender:<30}" in done.stdout
    assert re.search("^  prefetch .* every byte$", done.stdout, re.MULTILINE)
    for contender in library:
        assert re.search(f"^  {re.escape(contender)} .* {checked}$", done.stdout, re.MULTILINE)
    for yardstick in ("raw preadv", next(iter(library)).split()[0]):  # the fastest of each kind, by name
        fastest = re.findall(f"^  prefetch(?: . crc)? / ({yardstick}.*?)  ", done.stdout, re.MULTILINE)
        assert fastest
        assert set(fastest) <= set(yardsticks)
    for peer in ("torch", "webdataset"):
        assert f"prefetch / {peer}" in done.stdout  # not measured where it is not installed


def test_small_files_are_held_against_the_reader_of_files_of_dali(tmp_path: Path) -> None:
    done = bench(tmp_path, "imagenet", "--variant", "raw", "--tiny", "--size", "500kB", "--ranks", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("imagenet raw (tiny)")
    assert "prefetch / dali" in done.stdout
    if find_spec("nvidia") is None:
        assert "not measured: DALI is not installed" in " ".join(done.stdout.split())
    done = bench(tmp_path, "imagenet", "--variant", "flat")
    assert done.returncode == 2
    assert "variant 'flat'" in done.stderr


def test_the_limit_is_the_fastest_of_one_or_all_ranks_by_its_median() -> None:
    assert {(one.ranks, one.threads) for one in raws(2).values()} == {(r, t) for r in (1, 2) for t in (1, 2, 4)}
    slow, fast, *others = raws(2)
    own = [{"bytes": rate, "seconds": 1.0, "cpu": 1.0, "samples": 1} for rate in (80, 80, 80)]
    times = dict.fromkeys(("prefetch", "prefetch + crc", "shuffled", "naive", "plain loop", *others), own)
    times[slow] = [own[0] | {"bytes": rate} for rate in (50, 50, 900)]  # once by chance
    times[fast] = [own[0] | {"bytes": rate} for rate in (100, 100, 100)]
    job = Job("imagenet", "", (), 2, 4, 1, 1, 3, 1)
    measured = {"times": times, "missing": {}, "checked": dict.fromkeys(times, "nothing"), "resident_share": 1.0}
    row = summarise(
        job, "tfrecord", measured, ratios(find_workload("imagenet"), CONTAINERS["tfrecord"], 2, tiny=False), tiny=False
    )["ratios"][0]
    assert (row["ours"], row["yardstick"], row["fastest"]) == ("prefetch", "raw preadv", fast)
    assert row["ratios"] == [0.8, 0.8, 0.8]


@pytest.mark.parametrize("threads", [1, 3])
def test_raw_reads_have_one_slot_a_thread(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = made(tmp_path / "data", "imagenet", 2)
    form = view_of(dataset)
    plan = plan_batches(form, [(0, every_sample_once(dataset.samples, 1, 0, 2))])
    slots, read = [], []
    monkeypatch.setattr(yardsticks, "touch_buffer", lambda size: slots.append(size) or bytearray(size))
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *call: read.append(real(*call)) or read[-1])
    with yardsticks.raw(form, plan, threads) as work:
        work()
    assert slots == [largest(plan)] * threads
    assert sum(read) == sum(batch.bytes for batch in plan)


def test_a_contender_that_delivers_another_byte_than_was_generated_ends_the_comparison(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data", "imagenet", 2)
    form = view_of(dataset)
    plan = plan_batches(form, [(0, every_sample_once(dataset.samples, 1, 0, 2))])
    path = dataset.path(1)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"plain loop delivered other bytes than were generated. .*{path.name}"):
        verify("plain loop", lambda: nullcontext(yardsticks.plain_batches(form, plan)), form)


def test_a_library_that_is_missing_is_told_in_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise EnvironmentFailure("TensorFlow cannot be loaded.")

    monkeypatch.setattr(yardsticks, "tensorflow", missing)
    monkeypatch.setattr(sys, "setswitchinterval", lambda _: None)  # other tests follow in this process
    dataset = made(tmp_path / "data", "imagenet", 2)
    expected = ratios(find_workload("imagenet"), CONTAINERS["tfrecord"], 1, tiny=False)
    contenders = (PREFETCH, PREFETCH_CRC, *TFDATAS, *raws(1))
    job = Job("imagenet", str(dataset.folder), contenders, 1, 2, 1 << 24, 4, 1, 7)
    measured = measure(job, Solo(), Caller(tmp_path))
    assert measured["missing"].keys() == set(TFDATAS)
    rows = {row["ours"]: row for row in summarise(job, "tfrecord", measured, expected[:2], tiny=False)["ratios"]}
    assert rows["prefetch + crc"]["ratio"] is None
    assert "TensorFlow is not installed" in rows["prefetch + crc"]["not_measured"]
    assert rows["prefetch"]["ratio"] > 0
