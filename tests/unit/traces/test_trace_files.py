"""`trace`: which files it reads and writes, and how it refuses others."""

import shutil
from pathlib import Path

import pytest

from dlio_bench.harness.cli import main

GOLDEN = Path(__file__).parents[2] / "golden" / "result-3"
RECORD = (
    "('TIME LOGGER OUTPUT', 'For Excel:0, 3, train, Training Iteration, 1532112345.6, 1532112346.1, 0.5, 4711, main')"
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a run (run/naive) and logs (logs/rank-3)."""
    shutil.copytree(GOLDEN, tmp_path / "run" / "naive")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-3").write_text(RECORD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("run --chrome run/naive/result.json", "--chrome run/naive/result.json would replace a file that is read"),
        ("run/naive/result.json --html run/naive/steps.npz", "would replace"),
        ("run --timelogger run/naive/spans.npz", "would replace"),
        ("run --chrome link.json", "would replace"),
        ("logs --csv logs/rank-3", "would replace"),
        ("logs/rank-3 --csv logs/rank-3", "would replace"),
        ("run --html both --chrome ./both", "--chrome and --html name the same file"),
        ("run --html run", "--html run is a folder"),
        ("run --ranks 0", "--ranks chooses what --chrome writes"),
        ("run --steps 0-1", "--steps chooses what --chrome writes"),
    ],
)
def test_no_file_that_is_read_is_replaced_and_no_option_is_without_effect(
    place: Path, capsys: pytest.CaptureFixture[str], words: str, told: str
) -> None:
    (place / "link.json").symlink_to("run/naive/result.json")
    before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    assert main(["trace", *words.split()]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == before


def test_other_files_beside_those_that_are_read_are_written(place: Path) -> None:
    words = ["trace", "run", "--chrome", "run/naive/trace.json", "--html", "run/trace.html"]
    for _ in range(2):
        assert main(words) == 0
    assert (place / "run" / "naive" / "trace.json").is_file()


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], "holds no finished result and no log of TimeLogger. Name the folder of a run that came to its end"),
        (["unfinished.json"], "holds no finished result"),
        (
            ["unfinished.json", "naive/spans-unfinished.npz"],
            "some/naive/spans-unfinished.npz has the spans of a reader",
        ),
        (["output.txt"], "no finished result, and no record of TimeLogger in 1 file"),
    ],
)
def test_a_folder_without_result_and_log_is_no_folder_of_logs(
    place: Path, capsys: pytest.CaptureFixture[str], names: list[str], told: str
) -> None:
    (place / "some" / "naive").mkdir(parents=True)
    for name in names:
        (place / "some" / name).write_text("nothing")
    assert main(["trace", "some"]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_what_lies_beside_results_and_is_not_shown_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "run" / "slurm.out").write_text(f"step 1 {RECORD}")
    (place / "run" / "notes.txt").write_text("nothing")
    (place / "run" / "prefetch").mkdir()
    (place / "run" / "prefetch" / "spans-unfinished.npz").touch()
    assert main(["trace", "run"]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "run/slurm.out is a log of TimeLogger, which is not shown here" in told
    assert "prefetch/spans-unfinished.npz has the spans of a reader that was stopped" in told
    assert "notes.txt" not in told
