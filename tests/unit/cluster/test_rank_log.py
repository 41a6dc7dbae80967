"""The file of what ranks print: led by the rank, bounded, made only when there is something."""

from pathlib import Path

import pytest

from dlio_bench.harness.cluster import outcome
from dlio_bench.harness.cluster.outcome import RankLog, label_line


@pytest.mark.parametrize(
    ("line", "labels", "expected"),
    [
        ("[1,3]<stdout>: hello", False, "[3] hello"),
        ("[prterun-n1-77@1,12]<stderr>:hello", False, "[12] hello"),
        (" 3: hello", True, "[3] hello"),
        (" 3: hello", False, " 3: hello"),
        ("srun: error: node1: task 0: Killed", True, "srun: error: node1: task 0: Killed"),
        ("[3] hello", False, "[3] hello"),
    ],
)
def test_lines_are_led_by_the_rank(line: str, labels: bool, expected: str) -> None:
    assert label_line(line, labels=labels) == expected


def test_the_file_is_bounded_and_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "MOST_BYTES", 1000)
    monkeypatch.setattr(outcome, "TAIL", 5)
    log = RankLog(tmp_path / "ranks.log", "mpirun")
    assert not log.is_there
    for number in range(100_000):
        log.add(f"line {number}\n")
    log.close()
    lines = log.path.read_text().splitlines()
    assert lines[0] == "line 0"
    assert lines[-5:] == [f"line {number}" for number in range(99_995, 100_000)]
    assert sum("are left out here" in line for line in lines) == 1
    assert log.path.stat().st_size < 1300
    assert log.tail.startswith("line 99995\n")
    assert f"... {100_000 - len(lines) + 1} lines are left out" in log.path.read_text()


def test_long_lines_are_cut_and_a_full_disk_is_no_failure(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "gone" / "ranks.log", "mpirun")
    log.add("x" * 10_000)
    log.close()
    assert not log.is_there
    assert len(log.tail) < 4100
    assert "6000 more characters" in log.tail
