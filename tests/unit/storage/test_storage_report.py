"""The storage document: medians, marks, the ceiling and what it is good for, as text and against its schema."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from dlio_bench.errors import DataError, UsageError
from dlio_bench.reports import storage
from dlio_bench.reports.document.typed import to_json
from tests.goldens import require_golden

BYTES = 1_000_000_000


def read_row(
    pattern: str, ranks: int, threads: int, seconds: list[float], device: int | None = BYTES
) -> dict[str, Any]:
    seen = {"resident_share": 0.0, "attestable": True, "memory_backed": False, "note": None}
    trials = [{"bytes": BYTES, "seconds": each, "device_bytes": device, **seen} for each in seconds]
    return {"pattern": pattern, "ranks": ranks, "threads": threads, "trials": trials}


def draft(**changes: Any) -> dict[str, Any]:
    return {
        "schema": storage.SCHEMA, "created": "2026-11-21T01:40:00+00:00", "version": "0.1.0", "folder": "/scratch",
        "mount": {"point": "/", "type": "ext4", "source": "/dev/vda", "options": ["rw"]}, "hosts": ["node01"],
        "workload": "cdb", "made": True, "seed": 7, "files": 16, "file_bytes": 60_000_000, "samples": 16,
        "sample_bytes": 60_000_000, "cache": "cold", "trials": 5,
        "attestation": {"attested": True, "found": "page cache dropped before each trial"},
        "reads": [
            read_row("sequential", 1, 1, [1.0, 1.01, 0.99, 1.0, 1.02]),
            read_row("random", 1, 1, [0.8, 0.81, 0.79, 0.8, 0.82]),
            read_row("sequential", 2, 2, [0.625, 0.62, 0.63, 0.61, 0.64]),
            read_row("random", 2, 2, [0.5, 0.49, 0.51, 0.505, 0.495]),
        ],
        "metadata": [{"operation": "open+fstat+close", "ranks": 1, "trials": [9000.0, 10000.0, 11000.0]}],
    } | changes  # fmt: skip


def test_the_ceiling_is_the_row_with_the_highest_median() -> None:
    document = storage.complete(draft())
    assert document.ceiling == storage.Best(
        pattern="random", ranks=2, threads=2, median=2e9, min=BYTES / 0.51, max=BYTES / 0.49, noisy=False
    )
    assert document.marks == []
    assert document.metadata.rates[0].median == 10000
    assert [row.pattern for row in document.reads] == ["sequential", "sequential", "random", "random"]
    assert storage.validate(json.loads(json.dumps(to_json(document)))) == document


def noisy() -> storage.Document:
    reads = [read_row("random", 1, 1, [0.4, 0.5, 0.6])]
    unproven = {"attested": False, "found": "not attestable: nfs"}
    return storage.complete(draft(reads=reads, trials=3, attestation=unproven))


def of_several_hosts() -> storage.Document:
    reads = [{**row, "hosts": row["ranks"] * 2, "ranks": row["ranks"] * 4} for row in draft()["reads"]]
    metadata = [{**row, "hosts": 2} for row in draft()["metadata"]]
    return storage.complete(draft(reads=reads, metadata=metadata, hosts=["a", "b", "c", "d"]))


def of_a_silent_device() -> storage.Document:
    return storage.complete(draft(reads=[read_row("sequential", 1, 1, [1.0] * 5, device=None)], mount=None))


def test_noise_few_trials_and_an_unproven_cache_are_marked() -> None:
    document = noisy()
    assert document.marks == ["CACHE NOT ATTESTED", "NOISY", "FEW TRIALS"]


def test_texts_are_the_golden_ones() -> None:
    cases = {
        "two patterns": storage.complete(draft()),
        "noise, few trials, an unproven cache": noisy(),
        "several hosts": of_several_hosts(),
        "a device that tells nothing": of_a_silent_device(),
    }
    require_golden("storage", {name: storage.view(document).text() for name, document in cases.items()})
    assert cases["several hosts"].ceiling.hosts == 4
    assert cases["a device that tells nothing"].reads[0].device_bytes is None


def test_what_a_file_says_reaches_the_terminal_without_what_it_would_obey() -> None:
    shown = storage.view(storage.complete(draft() | {"folder": "/data\x1b[2J\r"})).text()
    assert all(line.isprintable() for line in shown.split("\n"))
    assert "/data\N{REPLACEMENT CHARACTER}[2J" in shown


@pytest.mark.parametrize(
    ("changes", "sample_bytes", "found"),
    [
        ({}, 60e6, 2e9),
        ({}, 17.7e6, 2e9),  # the view of a CDB sample
        ({}, 10e6, None),
        ({}, 300e6, None),
        ({}, 0, None),
        ({"cache": "warm"}, 60e6, None),
        ({"attestation": {"attested": False, "found": "nfs"}}, 60e6, None),
        ({"reads": [read_row("sequential", 1, 1, [1.0] * 5)]}, 60e6, None),
        ({"reads": [read_row("sequential", 1, 1, [0.1] * 5), read_row("random", 1, 1, [1.0] * 5)]}, 60e6, 1e9),
    ],
)
def test_a_run_is_held_against_the_best_cold_random_rate_of_its_sample_size(
    changes: dict[str, Any], sample_bytes: float, found: float | None
) -> None:
    assert storage.ceiling_for(storage.complete(draft(**changes)), sample_bytes) == found


def test_what_is_no_storage_document_is_refused(tmp_path: Path) -> None:
    whole = storage.complete(draft())
    document = to_json(whole)
    path = tmp_path / "ceiling.json"
    path.write_text(json.dumps(document))
    assert storage.load(path) == whole
    with pytest.raises(UsageError, match="of schema 'dlio-bench/result/2'"):
        storage.validate(document | {"schema": "dlio-bench/result/2"})
    with pytest.raises(UsageError, match="of schema None"):
        storage.validate([])
    broken = copy.deepcopy(document)
    broken["reads"][0]["median"] = "fast"
    with pytest.raises(DataError, match=r"reads\[0\].median"):
        storage.validate(broken)
    del broken["ceiling"]
    path.write_text(json.dumps(document)[:-9])
    with pytest.raises(UsageError, match="is not JSON"):
        storage.load(path)
    with pytest.raises(UsageError, match="does not exist"):
        storage.load(tmp_path / "none.json")
    with pytest.raises(ValueError, match=r"at \$.seed"):
        storage.complete(draft(seed="seven"))
