"""Predictions of a run's readers, from its own plan on real extents and a machine of known rates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.environment import usable_cores
from dlio_bench.harness.cluster.system import Rates, Stream, System, Tier
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.jobs import jobs
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import look_up
from dlio_bench.harness.commands.run.predicted import prediction
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.storage.pfs.spec import parse_spec
from tests.datasets import made
from tests.needs import needs

pytestmark = pytest.mark.slow

MEMORY = 8_000_000_000
FAST = Rates(((1, 10_000.0), (4, 10_000.0)))
SYSTEM = System(
    name="known", compute=None, device=None, ranks_per_node=1, preprocess=float("inf"), network=1000.0, pfs_link=1.0,
    pfs=Rates(((1, 1.0), (8, 1.0))),
    tiers=(Tier("staging", 1 << 28, 4, FAST, FAST), Tier("ram", 1 << 30, 4, FAST, FAST)),
    pfs_stream=Stream(((1000, 1.0),)),
)  # fmt: skip
PFS = parse_spec("bandwidth=1MB/s")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return made(tmp_path_factory.mktemp("data") / "hepcnnb", "hepcnnb", 16)


def job(dataset: Dataset, *readers: str, **options: Any) -> Job:
    asked = Options(
        dataset.manifest.workload, readers=readers, data=dataset.folder, tiny=True, epochs=3, batch=4,
        compute="none", seed=5,
        **({"nodes": (4,), "emulate_pfs": PFS, "cache": "first-epoch-cold"} | options),
    )  # fmt: skip
    request = look_up(asked)
    (job,) = jobs(request, request.trial_size(dataset.training_samples), dataset.folder, None)
    return replace(job, node_memory=MEMORY)


def predict(dataset: Dataset, *readers: str, system: System = SYSTEM, **options: Any) -> list[dict[str, Any]]:
    return prediction.predict(job(dataset, *readers, **options), dataset, system)


def planned_bytes(dataset: Dataset) -> int:
    """Of the view, in an epoch without what fills no step."""
    ids = range(dataset.training_samples // 16 * 16)
    return int(dataset.locate(np.array(ids), find("hepcnnb").view)[2].sum())


@pytest.mark.parametrize("reader", ["naive", "shuffled", "double-buffer"])
def test_a_file_system_that_limits_decides(dataset: Dataset, reader: str) -> None:
    (row,) = predict(dataset, reader)
    # 1 MB/s for all nodes together, nothing to hide behind
    assert row["epoch_seconds"] == pytest.approx([planned_bytes(dataset) / 1e6] * 3, rel=0.15)
    assert sum(row["epoch_seconds"]) == pytest.approx(3 * planned_bytes(dataset) / 1e6, rel=0.05)
    assert row["bytes"]["pfs"] == 3 * planned_bytes(dataset)
    assert row["reason"] is None


def test_compute_that_is_longer_decides(dataset: Dataset) -> None:
    slow = replace(job(dataset, "double-buffer"), step_seconds=0.5)
    (row,) = prediction.predict(slow, dataset, SYSTEM)
    steps = dataset.training_samples // 16
    assert row["later_epochs_seconds"] == pytest.approx(0.5 * steps, rel=0.01)
    assert row["stall_share"] < 0.05


def test_staging_is_paid_in_the_first_epoch(dataset: Dataset) -> None:
    part, whole = predict(dataset, "staged", "staged-replicated")
    stored = sum(file.bytes for file in dataset.training_files)
    assert part["epoch_seconds"][0] == pytest.approx(stored / 1e6, rel=0.1)
    assert whole["epoch_seconds"][0] == pytest.approx(4 * stored / 1e6, rel=0.1)
    assert part["bytes"]["pfs"] * 4 == whole["bytes"]["pfs"] == 4 * stored
    assert max(part["epoch_seconds"][1:] + whole["epoch_seconds"][1:]) < 0.1


def test_readers_that_keep_samples_read_each_once(dataset: Dataset) -> None:
    tiers = {"ram": 100_000_000}
    rows = predict(dataset, "cooperative", "lbann-preload", "deepio-opportunistic", "clairvoyant", tiers=tiers)
    cooperative, preload, drawn, clairvoyant = (row["bytes"]["pfs"] for row in rows)
    stored = int(sum(dataset.locate(np.arange(dataset.training_samples), find("hepcnnb").view)[2].ravel()))
    assert preload == drawn == stored
    assert planned_bytes(dataset) <= cooperative <= stored
    assert cooperative < clairvoyant <= 3 * stored


def test_the_plan_is_that_of_the_first_measured_trial(dataset: Dataset) -> None:
    asked = job(dataset, "clairvoyant", tiers={"ram": 2_000_000})
    assert asked.warmup_trials == 1

    def row(**changed: int) -> dict[str, Any]:
        return prediction.predict(replace(asked, **changed), dataset, SYSTEM)[0]

    assert row(seed=5) == row(seed=6, warmup_trials=0) != row(seed=5, warmup_trials=0)


def test_ranks_of_a_node_are_predicted_too(dataset: Dataset) -> None:
    (row,) = predict(dataset, "cooperative", nodes=(2,), ranks_per_node=2, tiers={"ram": 100_000_000})
    assert row["epoch_seconds"][1] < row["epoch_seconds"][0] / 5


def test_caches_on_the_way_serve_what_was_read_before(dataset: Dataset) -> None:
    none, some, all_ = (
        predict(dataset, "naive", emulate_pfs=parse_spec(f"bandwidth=1MB/s{cache}"))[0]["epoch_seconds"]
        for cache in ("", ",cache=40kB", ",cache=1GB")
    )
    # the order is the same each epoch: what was read longest ago is what comes next
    assert some == pytest.approx(none, rel=0.01)
    assert all_[0] == pytest.approx(none[0])
    assert max(all_[1:]) < none[1] / 10


def test_each_epoch_is_cold_where_caches_are_dropped(dataset: Dataset) -> None:
    cached = {"emulate_pfs": parse_spec("bandwidth=1MB/s,cache=1GB"), "cache": "cold"}
    for row in predict(dataset, "naive", "double-buffer", **cached):
        assert row["epoch_seconds"] == pytest.approx([planned_bytes(dataset) / 1e6] * 3, rel=0.05)
    (kept,) = predict(dataset, "cooperative", tiers={"ram": 100_000_000}, **cached)
    assert kept["epoch_seconds"][1] < kept["epoch_seconds"][0] / 5


def test_unpacking_takes_the_time_of_cores(tmp_path: Path) -> None:
    packed = made(tmp_path / "cosmoflow", "cosmoflow", 32)
    asked = replace(job(packed, "naive", "double-buffer", "cooperative", tiers={"ram": 1 << 30}), nodes=2)
    quick = replace(SYSTEM, pfs_link=8e4, pfs=Rates(((1, 8e4), (8, 64e4))), pfs_stream=None, preprocess=1.0)
    naive, ahead, kept = (row["epoch_seconds"] for row in prediction.predict(asked, packed, quick))
    stored = sum(file.bytes for file in packed.training_files)
    assert naive == pytest.approx([stored / 2 / 1e6] * 3, rel=0.1)
    assert 0.8 * stored / usable_cores() / 1e6 < ahead[1] < 1.2 * naive[1]
    assert kept[0] > 10 * kept[2]  # what tiers keep is unpacked


def test_real_storage_is_cached_by_the_machine(dataset: Dataset) -> None:
    first, *later = predict(dataset, "naive", emulate_pfs=None)[0]["epoch_seconds"]
    assert max(later) < first / 10
    assert max(predict(dataset, "naive", emulate_pfs=None, cache="warm")[0]["epoch_seconds"]) < first / 10


def test_tiers_stay_empty_where_the_page_cache_has_the_files(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = {"ram": 100_000_000}
    (slow,) = predict(dataset, "cooperative", tiers=tiers)
    quick = replace(SYSTEM, pfs_link=8e4, pfs=Rates(((1, 8e4), (8, 64e4))), pfs_stream=None)
    monkeypatch.setattr("dlio_bench.harness.readers.placed.tiers.PROOF_BYTES", 100_000)
    (fast,) = predict(dataset, "cooperative", tiers=tiers, system=quick)
    (cold,) = predict(dataset, "cooperative", tiers=tiers, emulate_pfs=None)
    (cached,) = predict(dataset, "cooperative", tiers=tiers, emulate_pfs=None, cache="warm")
    assert slow["bytes"]["ram"] > 0
    assert fast["bytes"]["ram"] == slow["bytes"]["ram"]  # no rate makes a file system a cache
    assert cold["bytes"]["ram"] > 0  # the page cache has what the tiers have, too late
    assert "ram" not in cached["bytes"]


def test_a_local_tier_that_is_slower_than_the_file_system_is_passed_by(dataset: Dataset) -> None:
    asked = replace(job(dataset, "cooperative", tiers={"ram": 100_000_000}), nodes=1)
    rates = {"ram": 1e10, "remote": 1e10, "disk": 1e8}
    slow, fast = (
        prediction.predict(replace(asked, tiers=Tiers(200_000, 10**9, rates | {"pfs": pfs})), dataset, SYSTEM)[0][
            "bytes"
        ]
        for pfs in (1e7, 1e9)
    )
    assert fast["local"] < slow["local"]
    assert fast["pfs"] > slow["pfs"]
    assert fast["ram"] == slow["ram"] > 0


def test_a_large_run_is_predicted_from_its_beginning(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = predict(dataset, "double-buffer")
    monkeypatch.setattr(prediction, "MOST_READS", 16 * 5 * 3 * 5)
    part, kept = predict(dataset, "double-buffer", "cooperative", tiers={"ram": 100_000_000})
    assert 0 < part["simulated_share"] < 0.6
    assert part["elapsed_seconds"] == pytest.approx(whole["elapsed_seconds"], rel=0.2)
    assert len(part["epoch_seconds"]) == 3
    assert kept["epoch_seconds"] is None
    assert "depends on the whole run" in kept["reason"]


@needs("fuse")
def test_what_is_not_modelled_says_so(dataset: Dataset) -> None:
    for row, word in zip(predict(dataset, "tfdata", "upstream"), ("tf.data", "its own"), strict=True):
        assert row["epoch_seconds"] is None
        assert f"({word}) is not modelled" in row["reason"]
    alone = replace(SYSTEM, network=0.0)
    (row,) = predict(dataset, "cooperative", system=alone, tiers={"ram": 100_000_000})
    assert "no rate of the network" in row["reason"]
    (row,) = predict(dataset, "lbann-preload", tiers={"ram": 1000})
    assert "data store" in row["reason"]


def test_a_description_is_looked_at_before_it_is_believed(dataset: Dataset) -> None:
    asked = job(dataset, "naive")
    with pytest.raises(UsageError, match="calibrated on the dataset that this run reads"):
        prediction.require_known(asked, replace(SYSTEM, by={"data": dataset.digest}), dataset.digest)
    with pytest.raises(UsageError, match="calibrate --workload hepcnnb"):
        prediction.require_known(replace(asked, decode=True), SYSTEM, dataset.digest)
    few = replace(SYSTEM, pfs_stream=None, pfs=Rates(((1, 1.0),)), by={"data": "other"}, estimated=("network",))
    notes = " ".join(prediction.require_known(asked, few, dataset.digest))
    for said in ("how fast one thread reads", "known up to 1 nodes", "calibrated on real storage", "estimated"):
        assert said in notes
    same = replace(SYSTEM, by={"emulated": "1 MB/s shared by all nodes, no client cache"})
    assert prediction.require_known(asked, same, dataset.digest) == ()
