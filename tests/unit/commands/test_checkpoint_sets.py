"""Sets of checkpoints: whole or never taken for whole, whatever killed their writer, and equal byte for byte."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dlio_bench.errors import DataError
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.cluster.entry import Caller
from dlio_bench.harness.cluster.job import KEPT_FILE
from dlio_bench.harness.commands.checkpoints import sets, transfer
from dlio_bench.harness.commands.checkpoints.job import Job
from dlio_bench.harness.commands.checkpoints.options import LAYOUTS
from dlio_bench.harness.commands.checkpoints.parts import FilePart, sizes
from dlio_bench.harness.commands.checkpoints.rank import measure, since_start
from dlio_bench.harness.commands.checkpoints.sets import Syncs
from dlio_bench.harness.commands.checkpoints.transfer import CHUNK, Content, Hands, chunks, empty, key, parts_of_rank

PARTS = [FilePart("a", 0, 1000, 0), FilePart("b", 0, CHUNK + 13, 0), FilePart("b", CHUNK + 13, 77, 0)]
JOB = Job(
    model="hepcnn", nodes=1, ranks_per_node=1, virtual=False, shards=3, layout="sharded", fraction=0.01, checkpoints=2,
    trials=1, fsync=True, seed=7, place="",
)  # fmt: skip


@pytest.fixture
def hands() -> Iterator[Hands]:
    with closing(Hands(Content(1))) as made:
        yield made


def write_set(hands: Hands, place: Path, step: int) -> Path:
    sets.unfinished_folder(place, step).mkdir()
    hands.write(sets.unfinished_folder(place, step), parts_of_rank(PARTS, 0), step, fsync=True)
    sets.commit(place, step, sizes(PARTS), {}, Syncs(wanted=True))
    return place / sets.name(step)


def test_what_is_written_is_read_and_no_other_content_is(hands: Hands, tmp_path: Path) -> None:
    folder = write_set(hands, tmp_path, 1)
    assert sets.whole(folder)["files"] == {"a": 1000, "b": CHUNK + 90}
    assert hands.compare(folder, parts_of_rank(PARTS, 0), 1) == 1000 + CHUNK + 90
    hands.read(folder, parts_of_rank(PARTS, 0), 1)
    with pytest.raises(DataError, match=r"/a was read back with another content"):
        hands.compare(folder, parts_of_rank(PARTS, 0), 2)  # the content of another checkpoint
    with (folder / "b").open("r+b") as file:
        file.seek(CHUNK + 20)
        byte = file.read(1)
        file.seek(CHUNK + 20)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(DataError, match=f"byte {CHUNK + 20} differs, and 1 of the 77 bytes") as caught:
        hands.compare(folder, parts_of_rank(PARTS, 0), 1)
    [(written, read)] = re.findall(r"0x(\w{32}) was written, and 0x(\w{32}) was read", str(caught.value))
    assert (int(written[:2], 16), int(read[:2], 16)) == (byte[0], byte[0] ^ 1)
    assert written[2:] == read[2:]


def killed_before(operation: int, work: Callable[[], object]) -> bool:
    """Do `work` in a child that kills itself before its call number `operation` of the file system; whether it was."""
    child = os.fork()
    if child == 0:
        left = iter(range(operation))

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any, **options: Any) -> Any:
                if next(left, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return called

        os.fsync, transfer.write_at = counted(os.fsync), counted(transfer.write_at)
        Path.rename = counted(Path.rename)  # type: ignore[method-assign]
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_a_set_whose_writer_was_killed_anywhere_is_never_taken_for_whole(tmp_path: Path) -> None:
    killed = 0
    while True:
        place = tmp_path / str(killed)
        place.mkdir()
        if not killed_before(killed, lambda at=place: write_set(Hands(Content(1)), at, 1)):  # type: ignore[misc]
            break
        killed += 1
        folders = list(place.iterdir())
        assert len(folders) == 1
        if folders[0] == place / sets.name(1):  # all is there but the last fsync, of the folder around it
            with closing(Hands(Content(1))) as hands:
                assert sets.whole(folders[0])
                assert hands.compare(folders[0], parts_of_rank(PARTS, 0), 1) == sum(part.bytes for part in PARTS)
            continue
        with pytest.raises(DataError, match="is not a whole checkpoint"):
            sets.whole(folders[0])
    # 4 writes, an fsync for each of 2 files, and in the commit 3 of these and 2 renames
    assert killed == 4 + 2 + 3 + 2
    assert sets.whole(place / sets.name(1))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: (folder / "a").unlink(), "'a' is missing"),
        (lambda folder: os.truncate(folder / "b", 5), "'b' has 5 bytes, and"),
        (lambda folder: (folder / sets.MANIFEST).unlink(), "written last"),
        (lambda folder: (folder / sets.MANIFEST).write_text('{"schema": '), "cannot be read"),
        (lambda folder: (folder / sets.MANIFEST).write_text('{"schema": "x", "files": {}}'), "another schema"),
        (
            lambda folder: (folder / sets.MANIFEST).write_text(
                f'{{"schema": "{sets.SCHEMA}", "files": {{"../x": 1}}}}'
            ),
            "missing",
        ),
    ],
)
def test_a_set_that_was_spoilt_is_told(spoil: Callable[[Path], None], why: str, hands: Hands, tmp_path: Path) -> None:
    folder = write_set(hands, tmp_path, 1)
    spoil(folder)
    with pytest.raises(DataError, match=why):
        sets.whole(folder)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fsync_is_called_as_often_as_is_told(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append(handle), real(handle)))
    files = {"sharded": 6, "file-per-rank": 1, "single-file": 1}[layout]
    for wanted in (True, False):
        calls.clear()
        job = replace(JOB, layout=layout, place=str(tmp_path), fsync=wanted)
        [trial] = measure(job, Solo(), Caller(tmp_path))["trials"]
        assert [write["fsyncs"] for write in trial["writes"]] == [wanted * (files + sets.OF_COMMIT)] * 2
        assert len(calls) == sum(write["fsyncs"] for write in trial["writes"])
        assert [path.name for path in tmp_path.iterdir()] == [KEPT_FILE]


def test_a_rank_is_timed_from_the_barrier_to_its_own_end_by_the_clock_of_its_host() -> None:
    spans = [(10.0, 11.0), (10.5, 12.0), (500.0, 501.25)]
    assert since_start(spans, ["a", "a", "b"]) == [1.0, 2.0, 1.25]


def test_what_ranks_take_to_tell_each_other_that_they_are_done_is_in_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour, real, meetings = 3600, time.perf_counter, [0]
    monkeypatch.setattr(time, "perf_counter", lambda: real() + hour * len(meetings))

    class Slow(Solo):
        def allgather(self, value: Any) -> list[Any]:
            meetings.append(0)  # every meeting takes an hour
            return super().allgather(value)

    [trial] = measure(replace(JOB, place=str(tmp_path)), Slow(), Caller(tmp_path))["trials"]
    for write in trial["writes"]:
        assert write["seconds"] < hour
        assert write["seconds"] == max(write["rank_seconds"]) + write["commit_seconds"]
        assert 0 < write["commit_synced"] <= write["commit_seconds"]
    assert all(read["seconds"] == max(read["rank_seconds"]) < hour for read in trial["reads"])


@given(places=st.sets(st.tuples(st.integers(1, 999), st.integers(0, 5000), st.integers(0, 9999)), max_size=200))
def test_every_chunk_has_bytes_of_its_own(places: set[tuple[int, int, int]]) -> None:
    assert len({key(*place) for place in places}) == len(places)


def test_chunks_cover_a_part_and_share_no_word() -> None:
    part = FilePart("x", 100, 2 * CHUNK + 5, 0)
    pieces = list(chunks(part, 1, 0))
    assert [(offset, size) for _, offset, size in pieces] == [(100, CHUNK), (100 + CHUNK, CHUNK), (100 + 2 * CHUNK, 5)]
    content = Content(3)
    words = [np.frombuffer(content.fill(empty(), number, CHUNK), np.uint64) for number, _, _ in pieces[:2]]
    assert not (words[0] == words[1]).any()
    assert np.array_equal(
        np.frombuffer(Content(3).fill(empty(), pieces[0][0], CHUNK), np.uint64), words[0]
    )  # the same on every rank


def test_a_disk_that_is_full_is_told_with_what_is_free(hands: Hands) -> None:
    with pytest.raises(OSError, match="No space left"):
        Path("/dev/full").write_bytes(b"x")
    with pytest.raises(
        Exception, match=r"/dev/full, of a checkpoint, cannot be written: No space left.*Free space there"
    ):
        hands.write(Path("/dev"), [(0, FilePart("full", 0, 10, 0))], 1, fsync=False)
