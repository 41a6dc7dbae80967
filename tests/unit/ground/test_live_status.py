"""The status that a run writes while it is at work, and what is read of a file that others have touched."""

import json
import os
import threading
from pathlib import Path

import pytest

from dlio_bench.harness.live import status
from dlio_bench.harness.live.status import NAME, append, read_from, read_open, read_status, record

BYTES = {"pfs": 7, "ram": 0, "local": None, "remote": 0}


def test_records_are_read_as_they_were_written_from_any_offset_on(tmp_path: Path) -> None:
    first = record("preparing", message="making the dataset")
    second = record("timed", reader="prefetch", nodes=2, trial=1, trials=3, step=5, steps=8, bytes=BYTES, progress=0.5)
    append(tmp_path, first)
    records, offset = read_status(tmp_path)
    assert records == [first]
    append(tmp_path, second)
    assert read_status(tmp_path, offset) == ([second], (tmp_path / NAME).stat().st_size)
    assert read_status(tmp_path)[0] == [first, second]
    assert read_status(tmp_path, 1 << 40)[0] == [first, second]  # another file, from its beginning


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    append(tmp_path, record("preparing"))
    _, whole = read_status(tmp_path)
    line = json.dumps(record("timed")).encode()
    with (tmp_path / NAME).open("ab") as file:
        file.write(line[:40])
    assert read_status(tmp_path, whole) == ([], whole)
    with (tmp_path / NAME).open("ab") as file:
        file.write(line[40:] + b"\n")
    assert [known["phase"] for known in read_status(tmp_path, whole)[0]] == ["timed"]


def test_a_run_that_goes_on_behind_a_cut_line_loses_no_record(tmp_path: Path) -> None:
    append(tmp_path, record("preparing"))
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"schema": 1, "ti')  # killed here
    append(tmp_path, record("failed", exit_status=4))
    read = read_from(tmp_path)
    assert [known["phase"] for known in read.records] == ["preparing", "failed"]
    assert read.damaged == 1


GOOD = record("timed")
FOREIGN = [
    b"not json", b"[]", b"7", b"\xff\xfe", b'{"schema": 1}', b"[" * 40_000, b'{"a":' * 9000,
    b"x" * (status.MOST_LINE * 2 + 5),
    *(json.dumps(GOOD | wrong).encode() for wrong in (
        {"schema": 2}, {"schema": True}, {"phase": "later"}, {"phase": ["timed"]}, {"progress": 1.5}, {"reader": 3},
        {"step": -1}, {"step": 2.5}, {"nodes": True}, {"time": None}, {"loss": float("nan")}, {"loss": "1"},
        {"samples_per_second": float("inf")}, {"samples_per_second": -1.0}, {"result": 5, "results": 0},
        {"trial": 3, "trials": 2}, {"epoch": 2, "epochs": 1}, {"step": 9, "steps": 8}, {"time": 1 << 5000},
        {"bytes": {"pfs": 1}}, {"bytes": BYTES | {"ram": -1}},
    )),
    json.dumps(GOOD).encode().replace(b'"loss": null', b'"loss": 1e999'),
]  # fmt: skip


def test_what_is_no_record_is_passed_over_and_counted(tmp_path: Path) -> None:
    good = json.dumps(GOOD).encode()
    for line in FOREIGN:
        (tmp_path / NAME).write_bytes(good + b"\n" + line + b"\n" + good + b"\n")
        read = read_from(tmp_path)
        assert read.records == [GOOD, GOOD], line[-80:]
        assert read.damaged == max(1, -(-len(line) // status.MOST_LINE)), line[-80:]
        assert read.offset == (tmp_path / NAME).stat().st_size


def test_a_record_has_the_known_fields_alone(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps(GOOD | {"later": {"a": 1}}) + "\n")
    assert read_status(tmp_path)[0] == [GOOD]
    with pytest.raises(ValueError, match="later"):
        record("timed", later=1)
    with pytest.raises(ValueError, match="loss"):
        record("timed", loss=float("nan"))


def test_an_empty_line_is_no_damage(tmp_path: Path) -> None:
    """The size of a file may show a part of another writer's line, which `append` then ends."""
    (tmp_path / NAME).write_text(f"{json.dumps(GOOD)}\n\n{json.dumps(GOOD)}\n")
    read = read_from(tmp_path)
    assert (len(read.records), read.damaged, read.offset) == (2, 0, (tmp_path / NAME).stat().st_size)


def test_several_writers_leave_whole_lines(tmp_path: Path) -> None:
    def write(rank: int) -> None:
        for step in range(200):
            append(tmp_path, record("timed", rank=rank, step=step, message="x" * 300))

    writers = [threading.Thread(target=write, args=(rank,)) for rank in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    read = read_from(tmp_path)
    assert (len(read.records), read.damaged) == (800, 0)
    for rank in range(4):
        assert [known["step"] for known in read.records if known["rank"] == rank] == list(range(200))


def test_the_last_word_is_read_after_the_folder_is_gone(tmp_path: Path) -> None:
    append(tmp_path, record("preparing"))
    file = os.open(tmp_path / NAME, os.O_RDONLY)
    offset = read_open(file).offset
    append(tmp_path, record("failed", exit_status=4))
    (tmp_path / NAME).unlink()
    assert [known["exit_status"] for known in read_open(file, offset).records] == [4]
    os.close(file)
    with pytest.raises(FileNotFoundError):
        read_status(tmp_path)
