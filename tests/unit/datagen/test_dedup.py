"""Duplicate chunks: found wherever they lie, and not where there are none."""

from pathlib import Path

import numpy as np
import pytest

from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.dedup import LEAST_CHUNK, MOST_CHUNK, chunks, cuts, duplicates
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import RANDOM

pytestmark = pytest.mark.slow

MB = 1 << 20


def content(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def test_chunks_are_within_their_sizes_and_lose_no_byte(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content(1, 2 * MB + 77))
    _, lengths = chunks((tmp_path / "a", 0, 2 * MB + 77))
    assert sum(lengths) == 2 * MB + 77
    assert all(LEAST_CHUNK <= length <= MOST_CHUNK for length in lengths[:-1])
    assert 5000 < np.mean(lengths) < 6500


def test_cuts_follow_the_content_wherever_it_lies() -> None:
    shared = np.frombuffer(content(2, MB), dtype=np.uint8)
    moved = np.concatenate([np.frombuffer(content(3, 12_345), dtype=np.uint8), shared])
    here, there = set(cuts(shared)), {end - 12_345 for end in cuts(moved)}
    assert len(here & there) > 0.9 * len(here)


def test_a_moved_copy_is_a_duplicate_and_random_bytes_are_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content(1, 2 * MB))
    (tmp_path / "b").write_bytes(b"shifted" + content(1, 2 * MB)[:MB] + content(4, MB))
    (tmp_path / "c").write_bytes(content(5, 2 * MB))
    assert duplicates([tmp_path / "a", tmp_path / "c"]).duplicate_bytes == 0
    found = duplicates([tmp_path / "a", tmp_path / "b"])
    assert found.bytes == 4 * MB + 7
    assert found.duplicate_bytes == pytest.approx(MB, rel=0.05)


def test_only_so_many_bytes_are_looked_at(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / str(number)).write_bytes(content(number, MB))
    found = duplicates([tmp_path / str(number) for number in range(8)], most_bytes=3 * MB)
    assert 2 * MB <= found.bytes <= 3 * MB


@pytest.mark.parametrize(("workload", "files"), [("cdb", 1), ("cosmoflow", 9)])
def test_random_fill_has_no_duplicates(workload: str, files: int, tmp_path: Path) -> None:
    layout = next(iter(WORKLOADS[workload].variants.values()))(False, RANDOM)
    dataset = generate(layout, files, tmp_path / "set", 3, workers=1)
    found = duplicates([dataset.path(n) for n in range(files)], most_bytes=25 * MB)
    assert found.bytes > 20 * MB
    assert found.share < 0.01
