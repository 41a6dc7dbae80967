"""How long a run is said to take: its data by what a few files take, its reads by what is emulated."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from dlio_bench.harness.commands.run.asked.data import source
from dlio_bench.harness.commands.run.asked.jobs import jobs
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import look_up
from dlio_bench.harness.commands.run.told import foresight
from dlio_bench.harness.storage.pfs.spec import parse_spec
from tests.datasets import layout


def seconds(folder: Path, workload: str, reader: str, pfs: str, **options: Any) -> float:
    """Of a trial that is not verified, over data that are there."""
    asked = Options(
        workload, readers=(reader,), cache_dir=folder, tiny=True, epochs=3, batch=4, compute="none", trials=1,
        warmup_trials=0, emulate_pfs=parse_spec(pfs), **options,
    )  # fmt: skip
    request = look_up(asked)
    found = replace(source(request), files=None)
    (job,) = jobs(request, request.trial_size(found.samples), folder, None)
    told = foresight.least_seconds(request, found, replace(job, options=replace(job.options, verify=False)))
    return (told - foresight.START_SECONDS) / found.stored_bytes


def test_an_emulated_file_system_decides_how_long_a_run_takes(tmp_path: Path) -> None:
    tiers = {"ram": 1 << 30}
    slow = "bandwidth=1kB/s"
    assert seconds(tmp_path, "hepcnnb", "shuffled", slow) == pytest.approx(3e-3, rel=0.1)
    assert seconds(tmp_path, "hepcnnb", "shuffled", "bandwidth=10kB/s,per-node=1kB/s") == pytest.approx(3e-3, rel=0.1)
    assert seconds(tmp_path, "hepcnnb", "prefetch", slow, tiers=tiers) == pytest.approx(1e-3, rel=0.1)
    cached = f"{slow},cache=1GB"
    assert seconds(tmp_path, "hepcnnb", "shuffled", cached) == pytest.approx(3e-3, rel=0.1)
    once = seconds(tmp_path, "hepcnnb", "shuffled", cached, cache="first-epoch-cold")
    assert once == pytest.approx(1e-3, rel=0.1)


def test_opens_are_waited_for_one_by_one_unless_threads_read_ahead(tmp_path: Path) -> None:
    opens = "bandwidth=unlimited,open=1s"
    alone, ahead = (seconds(tmp_path, "imagenet", row, opens, variant="raw") for row in ("shuffled", "double-buffer"))
    assert alone > 10 * ahead > 0


def test_workers_share_the_storage_that_data_are_made_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(0.0, 0.1)
    monkeypatch.setattr(foresight, "time", SimpleNamespace(monotonic=lambda: next(ticks), process_time=lambda: 0.0))
    making = foresight.making_seconds(layout("imagenet", "raw"), {"train": 1000}, tmp_path / "not" / "there")
    assert making == pytest.approx(0.1 + 1000 * 0.1, rel=0.01)  # the first file, and all
    assert list(tmp_path.iterdir()) == []
