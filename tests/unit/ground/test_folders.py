"""Folders that live as long as a run, and what a killed one left."""

from pathlib import Path

import pytest

from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.commands.run.measurement import tier_folders
from dlio_bench.harness.ground.folders import UNFINISHED, output_folder, work_folder
from dlio_bench.harness.live.status import NAME
from dlio_bench.harness.storage.tier import NODES


def test_each_node_has_a_folder_that_goes_with_the_run(tmp_path: Path) -> None:
    with tier_folders(3, tmp_path) as folders:
        assert len({Path(folder) for folder in folders if Path(folder).is_dir()}) == 3
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_removed_and_what_is_held_stays(tmp_path: Path) -> None:
    left = tmp_path / f"{NODES}left"
    (left / "node000").mkdir(parents=True)
    (left / "node000" / "0").write_bytes(b"copy")
    with tier_folders(1, tmp_path) as running:
        assert not left.exists()
        with tier_folders(1, tmp_path):
            assert Path(running[0]).exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / f"{NODES}link").symlink_to(tmp_path / "mine")
    with tier_folders(1, tmp_path):
        pass
    assert (tmp_path / "mine").is_dir()


def test_a_tier_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--local-tier"), tier_folders(1, tmp_path / "nowhere"):
        pass


def test_no_two_jobs_meet_in_folders_of_one_name(tmp_path: Path) -> None:
    assert len({work_folder(tmp_path) for _ in range(9)}) == 9


def test_two_runs_never_work_in_one_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with output_folder(out, "cdb", goes_on=True):
        (out / UNFINISHED).write_text("{}")
        with (
            pytest.raises(EnvironmentFailure, match="Another process works in"),
            output_folder(out, "cdb", goes_on=True),
        ):
            pass
        assert (out / UNFINISHED).exists()


def test_an_unfinished_folder_takes_only_what_goes_on_and_vanishes_where_nothing_was_finished(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "work-1").mkdir(parents=True)  # of a run that was killed
    (out / UNFINISHED).write_text("{}")
    with pytest.raises(UsageError, match="not empty"), output_folder(out, "cdb"):
        pass
    with output_folder(out, "cdb", goes_on=True):
        assert not (out / "work-1").exists()
        (out / "result").mkdir()
    with pytest.raises(KeyboardInterrupt), output_folder(out, "cdb", goes_on=True):
        raise KeyboardInterrupt
    assert (out / UNFINISHED).exists()
    (out / "result").rmdir()
    with pytest.raises(KeyboardInterrupt), output_folder(out, "cdb", goes_on=True):
        raise KeyboardInterrupt
    assert not out.exists()


def test_what_a_killed_command_left_is_no_reason_to_refuse_its_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    left = work_folder(out)
    left.mkdir(parents=True)
    with output_folder(out, "checkpoint"):
        assert not left.exists()
        work_folder(out).mkdir()
        with pytest.raises(EnvironmentFailure, match="Another process works in"), output_folder(out, "checkpoint"):
            pass
    (out / "work-of-mine").mkdir()
    with pytest.raises(UsageError, match="not empty"), output_folder(out, "checkpoint"):
        pass
    assert (out / "work-of-mine").exists()


def test_the_status_alone_is_nothing_worth_keeping_and_no_reason_to_refuse(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / NAME).write_text("of a run that was killed before it had decided anything")
    (out / f"{UNFINISHED}.part").write_text("{")
    with output_folder(out, "cdb", goes_on=True):
        (out / UNFINISHED).write_text("{}")
    with pytest.raises(KeyboardInterrupt), output_folder(out, "cdb", goes_on=True):
        raise KeyboardInterrupt
    assert not out.exists()
