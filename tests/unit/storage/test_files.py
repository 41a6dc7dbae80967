"""Files of a reader are opened once for all its threads, and none stays open."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from dlio_bench.counters import Cost
from dlio_bench.errors import DataError
from dlio_bench.harness.storage.extents import ExtentReader
from dlio_bench.harness.storage.files import OpenFiles
from tests.datasets import made
from tests.processes import open_files


def is_open(path: Path) -> bool:
    return str(path) in open_files().values()


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    found = [tmp_path / str(number) for number in range(4)]
    for path in found:
        path.write_bytes(b"x")
    return found


def test_threads_share_one_descriptor(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    opened, real = [], os.open
    monkeypatch.setattr(os, "open", lambda *arguments: opened.append(arguments[0]) or real(*arguments))
    files = OpenFiles(paths.__getitem__, 2)
    threads = [threading.Thread(target=lambda: files.get(7, 1).handle()) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [paths[1]]
    files.close()
    assert not is_open(paths[1])


def test_a_forgotten_file_is_closed_when_its_last_reader_is_done(paths: list[Path]) -> None:
    files = OpenFiles(paths.__getitem__, 1)
    used = files.get(0, 0)
    used.handle()
    files.get(1, 1).handle()
    assert is_open(paths[0])
    del used
    assert not is_open(paths[0])
    assert is_open(paths[1])
    files.close()


def test_closing_closes_the_forgotten_too(paths: list[Path]) -> None:
    files = OpenFiles(paths.__getitem__, 1)
    held = [files.get(number, number) for number in range(3)]
    for one in held:
        one.handle()
    files.close()
    assert not any(map(is_open, paths))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone is missing from its dataset"):
        OpenFiles(lambda _: tmp_path / "gone", 1).get(0, 0).handle()


@pytest.mark.parametrize(
    ("workload", "view", "ids", "told"),
    [
        ("cdb", ("data[0]", "labels"), [0, 1, 2], True),  # a part of each file
        ("cdb", tuple(f"data[{channel}]" for channel in range(16)), [2, 0, 1], False),  # nearly all of it
        ("imagenet", ("record",), [0, 1, 2, 3], False),
        ("imagenet", ("record",), [3, 0, 2, 1], True),
    ],
)
def test_the_kernel_is_told_of_reads_that_jump(
    workload: str, view: tuple[str, ...], ids: list[int], told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = made(tmp_path, workload, 3)
    advice: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: advice.append(arguments[3]))
    reader, plan = ExtentReader(dataset, view), np.array(ids)
    out = memoryview(bytearray(int(dataset.locate(plan, view)[3].sum())))
    reader.read(plan, out, Cost())
    reader.close()
    assert set(advice) == ({os.POSIX_FADV_RANDOM} if told else set())


def test_small_files_are_opened_once_each_and_closed_also_where_one_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = made(tmp_path, "imagenet", 6, "raw")
    before, counted, real = set(open_files()), [], os.open
    monkeypatch.setattr(os, "open", lambda *arguments: counted.append(str(arguments[0])) or real(*arguments))
    ids = np.array([3, 0, 4, 4, 1])
    out = memoryview(bytearray(int(dataset.locate(ids, ["record"])[3].sum())))
    reader = ExtentReader(dataset, ("record",))
    cost = Cost()
    work = reader.prepare([ids])
    reader.fetch(work, range(len(work.batches)), out, cost)
    assert counted == [str(dataset.path(number)) for number in ids]
    assert cost.bytes_requested == len(out)
    assert bytes(out) == b"".join(dataset.path(number).read_bytes() for number in ids)
    os.truncate(dataset.path(4), 5)
    with pytest.raises(DataError, match="ends at byte 5"):
        reader.read(ids, out, cost)
    assert set(open_files()) == before
    reader.close()
