"""`dlio-bench watch`: where it ends, with which status, and what it says of folders that are no runs."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlio_bench.atomic_files import part_of
from dlio_bench.harness import cli
from dlio_bench.harness.live import command
from dlio_bench.harness.live.status import NAME, append, record
from tests.processes import PATIENCE, start, until

QUICK = ("--interval", "10ms")


def watch(*arguments: str) -> int:
    return cli.main(["watch", *arguments, *QUICK])


def test_a_run_that_has_ended_gives_its_status_and_its_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(tmp_path, record("preparing"))
    for phase, status in (("done", 0), ("done", 3), ("failed", 5), ("done", 77)):
        append(tmp_path, record(phase, exit_status=status))
        assert watch(str(tmp_path)) == (4 if status == 77 else status)
        out = capsys.readouterr().out
        assert f"exit status {status}" in out
        assert (f"dlio-bench show {tmp_path}" in out) == (phase == "done")
        assert watch(str(tmp_path), "--once", "--json") == (4 if status == 77 else status)
        assert json.loads(capsys.readouterr().out)["exit_status"] == status


def test_once_shows_a_run_at_work_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(tmp_path, record("timed", reader="naive", progress=0.5))
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"\x1b[2J no record\n")
    append(tmp_path, record("timed", reader="prefetch", progress=0.75))
    assert watch(str(tmp_path), "--once") == 0
    out, err = capsys.readouterr()
    assert "prefetch" in out
    assert " 75 %" in out
    assert "1 line of it was passed over" in err


def test_lines_come_as_records_do_and_the_last_word_outlives_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the folder, follows it, and tells the reason although the run has removed it."""
    out = tmp_path / "later"

    def act(number: int) -> None:
        if number == 1:
            out.mkdir()
        elif number == 2:
            append(out, record("preparing", message="making the dataset"))
        elif number == 3:
            append(out, record("timed", reader="naive"))
            append(out, record("timed", reader="prefetch"))
        elif number == 4:
            append(out, record("failed", exit_status=4, message="a rank died"))
            shutil.rmtree(out)

    looks = iter(range(1, 9))
    monkeypatch.setattr(command.time, "sleep", lambda _: act(next(looks)))
    assert watch(str(out)) == 4
    told = capsys.readouterr()
    assert [line.split("  ")[1] for line in told.out.splitlines()] == ["preparing", "timed", "timed", "failed"]
    assert "a rank died" in told.out
    assert told.err.count("waiting for a run") == 1


def test_a_run_without_a_last_word_ends_the_watch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, record("timed", time=1000.0))
    assert watch(str(tmp_path)) == 4
    assert "has written nothing for" in capsys.readouterr().err
    monkeypatch.setattr(command.time, "sleep", lambda _: (tmp_path / NAME).unlink())
    assert watch(str(tmp_path), "--silence", "0") == 4
    told = capsys.readouterr().err
    assert "No news for" in told
    assert "is gone" in told


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes for a watch while it sleeps, and only then."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time, sleep=sleep))


@pytest.mark.usefixtures("clock")
def test_a_damaged_status_is_called_so_and_silence_counts_from_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[..., str]
) -> None:
    (tmp_path / NAME).write_bytes(b"\xff\x00\n" * 3)
    assert "3 lines of it were passed over" in refused("watch", str(tmp_path), "--once")
    assert watch(str(tmp_path), "--silence", "100ms") == 4
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 3
    assert "waiting for a run" in told[0]
    assert "is damaged: 3 lines" in told[1]
    assert "has written nothing for" in told[2]
    assert "is damaged: 3 lines" in told[2]
    (tmp_path / NAME).write_bytes(b"\xff")
    assert "has no whole line" in refused("watch", str(tmp_path), "--once")
    assert watch(str(tmp_path / "nowhere"), "--silence", "20ms") == 4


def test_a_status_that_is_no_file_is_refused_at_once(tmp_path: Path, refused: Callable[..., str]) -> None:
    os.mkfifo(tmp_path / NAME)
    for words in ((), ("--once",)):
        assert f"{tmp_path / NAME} is not a regular file" in refused("watch", str(tmp_path), *words)
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).mkdir()
    assert f"{tmp_path / NAME} is not a regular file" in refused("watch", str(tmp_path))


def test_a_run_that_failed_does_not_pass_whatever_its_status_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for phase, status in (("failed", 0), ("failed", None), ("done", None)):
        append(tmp_path, record(phase, exit_status=status))
        assert watch(str(tmp_path)) == watch(str(tmp_path), "--once") == 4
        assert "(pass)" not in capsys.readouterr().out


def test_what_is_no_run_is_said_with_what_to_name(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder = tmp_path / "there"
    (folder / "run-1").mkdir(parents=True)
    assert "has no status.jsonl" in refused("watch", str(folder))
    append(folder / "run-1", record("done", exit_status=0))
    assert f"The newest: {folder / 'run-1'}" in refused("watch", str(folder))
    (folder / "other").mkdir()
    (folder / "other" / "result.json").touch()
    (folder / "run-1" / NAME).unlink()
    assert f"dlio-bench show {folder}" in refused("watch", str(folder))


@pytest.mark.parametrize("first", [NAME, command.GOES_ON, part_of(Path(command.GOES_ON)).name])
def test_a_run_that_begins_between_two_looks_is_none_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Its folder is looked at after its status was found missing."""

    def missing(folder: Path) -> int:
        monkeypatch.undo()
        (folder / first).touch()
        raise FileNotFoundError

    monkeypatch.setattr(command, "open_status", missing)
    follower = command.Follower(tmp_path)
    assert follower.new_records() == ()
    append(tmp_path, record("timed", reader="naive"))
    assert len(follower.new_records()) == 1


def test_ctrl_c_ends_the_watch_and_harms_nobody(tmp_path: Path) -> None:
    append(tmp_path, record("timed", reader="naive"))
    process = start(tmp_path, "watch", str(tmp_path), "--interval", "10ms")
    assert process.stdout is not None
    assert "naive" in process.stdout.readline()
    process.send_signal(2)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_terminal_gets_one_view_that_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real pseudo-terminal of 40 columns."""
    append(tmp_path, record("timed", reader="naive", progress=0.25))
    main, side = os.openpty()
    shown: list[bytes] = []

    def read() -> None:
        while True:
            try:
                shown.append(os.read(main, 4096))
            except OSError:
                return

    reader = threading.Thread(target=read)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    with os.fdopen(side, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        reader.start()
        watching = threading.Thread(
            target=command.watch, args=(tmp_path,), kwargs={"once": False, "as_json": False, "every": 0.01, "most": 0}
        )
        watching.start()
        until(lambda: b" 25 %" in b"".join(shown))
        append(tmp_path, record("done", exit_status=0, progress=1.0))
        watching.join(PATIENCE)
        assert not watching.is_alive()
        terminal.flush()
        until(lambda: b"dlio-bench show" in b"".join(shown))  # its end may take along what is not read yet
    reader.join(PATIENCE)
    os.close(main)
    text = b"".join(shown).decode()
    assert "\x1b[J" in text
    views = [part.replace("\r", "").split("\n") for part in text.split("\x1b[J")[1:]]
    assert max(len(line.partition("\x1b")[0]) for view in views for line in view if "show" not in line) <= 40
    assert "exit status 0 (pass)" in text
