"""Who reads what in `dlio-bench storage`: every byte once, fair shares, test files of the size that was asked for."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.commands.storage_bench import plan, reading, sizing
from dlio_bench.harness.storage.direct import require
from tests.direct_folder import direct_folder

COUNTS = st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 12))
def test_front_to_back_every_byte_has_one_reader(sizes: list[int], readers: int) -> None:
    seen = [np.zeros(size, dtype=int) for size in sizes]
    amounts = []
    for reader in range(readers):
        reads = plan.front_to_back(sizes, readers, reader)
        amounts.append(int(reads[:, 2].sum()))
        for file, offset, length in reads:
            assert 0 <= offset < offset + length <= sizes[file]
            seen[file][offset : offset + length] += 1
    assert all((count == 1).all() for count in seen)
    assert max(amounts) - min(amounts) <= 1


def test_whole_files_are_read_where_their_number_allows() -> None:
    assert plan.front_to_back([10] * 4, 2, 1).tolist() == [[2, 0, 10], [3, 0, 10]]


@given(st.integers(1, 200), st.integers(1, 9), st.integers(0, 99))
def test_at_random_every_sample_has_one_reader_and_each_trial_its_own_order(
    samples: int, readers: int, trial: int
) -> None:
    table = plan.samples_of(sizing.FileSetShape(sample_bytes=7, samples_per_file=samples, files=1))
    shares = [plan.shuffled_share(table, readers, reader, 5, trial) for reader in range(readers)]
    assert sorted(np.concatenate(shares)[:, 1].tolist()) == list(range(0, 7 * samples, 7))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    if samples > 50:
        assert (
            plan.shuffled_share(table, 1, 0, 5, trial).tolist()
            != plan.shuffled_share(table, 1, 0, 5, trial + 1).tolist()
        )


def test_samples_lie_one_behind_the_other_file_after_file() -> None:
    shape = sizing.FileSetShape(sample_bytes=3, samples_per_file=2, files=2)
    assert plan.samples_of(shape).tolist() == [[0, 0, 3], [0, 3, 3], [1, 0, 3], [1, 3, 3]]


def test_a_samples_longest_run_of_fields_is_what_is_read() -> None:
    offsets = np.array([[100, 0, 10, 140], [0, 10, 50, 60]])
    lengths = np.array([[40, 10, 20, 4], [10, 10, 5, 90]])
    first, length = plan.longest_runs(offsets, lengths)
    assert list(zip(first.tolist(), length.tolist(), strict=True)) == [(100, 44), (60, 90)]


@given(st.integers(1, 10**8), st.integers(1, 2000), st.integers(1, 10**10), COUNTS)
def test_test_files_hold_what_was_asked_for_or_less_and_a_sample_for_each_reader(
    sample: int, per_file: int, size: int, readers: list[int]
) -> None:
    if size < max(readers) * sample:
        with pytest.raises(UsageError, match="too small"):
            sizing.choose(sample, per_file, size, readers, None)
        return
    shape = sizing.choose(sample, per_file, size, readers, None)
    assert shape.sample_bytes == sample
    assert shape.bytes <= size
    assert 1 <= shape.samples_per_file <= per_file
    even = math.lcm(*readers)
    if shape.samples_per_file == 1 and shape.files > even:
        assert shape.files % even == 0
        assert shape.bytes > size - (even + 1) * sample
    else:
        assert shape.bytes > size / 2


def test_without_a_size_a_tenth_of_the_free_space_and_two_gigabytes_are_the_most() -> None:
    sample, per_file = sizing.of_workload("cdb")
    assert per_file == 1
    assert sizing.choose(sample, per_file, None, (1, 2, 4, 8), 10**12).files == 32
    small = sizing.choose(sample, per_file, None, (1, 2), 5 * 10**9)
    assert small.bytes <= 5 * 10**8
    with pytest.raises(EnvironmentFailure, match="10 %"):
        sizing.choose(sample, per_file, None, (8,), 4 * 10**9)
    with pytest.raises(UsageError, match=r"--size 6\.6GB"):
        sizing.choose(10**9, 1, None, (6,), 10**12)
    with pytest.raises(EnvironmentFailure, match="3 GB free"):
        sizing.choose(sample, per_file, 3 * 10**9, (1,), 3 * 10**9)


def test_small_samples_share_files() -> None:
    assert sizing.of_sample(100_000) == (100_000, 640)
    assert sizing.of_sample(10**9) == (10**9, 1)
    with pytest.raises(UsageError, match="--sample-size 0"):
        sizing.of_sample(0)


def test_reading_takes_the_bytes_of_every_read_in_requests(tmp_path: Path) -> None:
    content = os.urandom(100_000)
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        Path(path).write_bytes(content)
    first, second = reading.buffers(2, 70_000)
    reads = np.array([[0, 5, 100], [1, 30_000, 70_000]])
    assert reading.time_reads(Solo(), [(reads, first), (reads[:1], second)], paths, request=70_000) > 0
    assert bytes(first) == content[30_000:]
    assert bytes(second[:100]) == content[5:105]
    # three requests into the start of one buffer: what stays is the last bytes
    assert reading.time_reads(Solo(), [(reads[1:], second)], paths, request=30_000) > 0
    assert bytes(second[:10_000]) == content[90_000:]
    assert bytes(second[10_000:30_000]) == content[70_000:90_000]


def test_direct_reads_bring_the_blocks_of_every_read(tmp_path: Path) -> None:
    content = os.urandom(100_000)
    with direct_folder(tmp_path) as folder:
        paths = [str(folder / name) for name in "ab"]
        for path in paths:
            Path(path).write_bytes(content)
            os.sync()
        alignment = require(Path(paths[0]))
        reads = np.array([[0, 5, 100], [1, 30_000, 70_000]])
        blocks = reading.round_to_blocks(reads, alignment)
        assert (blocks[:, 1:] % alignment.block == 0).all()
        (buffer,) = reading.buffers(1, int(blocks[:, 2].max()))
        assert reading.time_reads(Solo(), [(reads, buffer)], paths, len(buffer), alignment) > 0
        assert bytes(buffer[: 100_000 - int(blocks[1, 1])]) == content[int(blocks[1, 1]) :]
        with pytest.raises(EnvironmentFailure, match=r"b ends at byte 100000"):
            reading.time_reads(Solo(), [(reads + np.array([0, 0, 1]), buffer)], paths, len(buffer), alignment)


def test_a_file_that_is_cut_or_gone_is_named(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"x" * 10)
    (buffer,) = reading.buffers(1, 100)
    with pytest.raises(EnvironmentFailure, match=r"short ends at byte 10"):
        reading.time_reads(Solo(), [(np.array([[0, 0, 11]]), buffer)], [str(path)], 100)
    path.unlink()
    with pytest.raises(EnvironmentFailure, match=r"short cannot be opened"):
        reading.time_reads(Solo(), [(np.array([[0, 0, 1]]), buffer)], [str(path)], 100)
