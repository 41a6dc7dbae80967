"""What the launching command makes of a run's events, and that it never harms the run."""

from pathlib import Path
from typing import Any

import pytest

from dlio_bench.errors import DataError
from dlio_bench.harness.live.journal import Journal, open_journal
from dlio_bench.harness.live.status import NAME, read_status

SAMPLE = {
    "event": "at work", "phase": None, "epoch": 1, "step": 4, "steps": 8, "share": 0.5, "samples_per_second": 9.0,
    "stall_share": 0.1, "loss": 0.1, "bytes": {"pfs": 1, "ram": 1, "local": 1, "remote": 1},
}  # fmt: skip


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def journal(folder: Path, clock: Clock) -> Journal:
    """The journal of the second of two node counts, with two readers."""
    made = Journal(folder, clock)
    made.begin(("naive", "prefetch"), 1, 2, 1, nodes=4, ranks=8, trials=2, epochs=1)
    return made


def phases(folder: Path) -> list[str]:
    return [known["phase"] for known in read_status(folder)[0]]


def test_each_turn_says_which_result_of_how_many_is_at_work(tmp_path: Path) -> None:
    clock = Clock()
    made = journal(tmp_path, clock)
    seen: list[tuple[Any, ...]] = []
    for trial, reader in ((0, "naive"), (0, "prefetch"), (1, "prefetch"), (1, "naive")):
        clock.now += 2
        made.event({"event": "trial", "reader": reader, "trial": trial})
        clock.now += 2
        made.event(SAMPLE)
        last = read_status(tmp_path)[0][-1]
        seen.append((last["phase"], last["reader"], last["result"], last["trial"], last["progress"]))
    assert seen == [
        ("warm-up", "naive", 3, 1, (1 + 0.5 / 4) / 2),
        ("warm-up", "prefetch", 4, 1, (1 + 1.5 / 4) / 2),
        ("timed", "prefetch", 4, 2, (1 + 2.5 / 4) / 2),
        ("timed", "naive", 3, 2, (1 + 3.5 / 4) / 2),
    ]
    last = read_status(tmp_path)[0][-1]
    assert (last["results"], last["nodes"], last["ranks"], last["rank"], last["trials"]) == (4, 4, 8, 0, 2)
    assert (last["step"], last["steps"], last["loss"], last["bytes"]["pfs"]) == (4, 8, 0.1, 1)


def test_a_phase_has_a_line_a_second_at_most_and_a_new_phase_one_at_once(tmp_path: Path) -> None:
    clock = Clock()
    made = journal(tmp_path, clock)
    made.event({"event": "trial", "reader": "naive", "trial": 1})
    for _ in range(100):
        made.event(SAMPLE)
        clock.now += 0.1
    assert 10 <= phases(tmp_path).count("timed") <= 11
    made.event(SAMPLE | {"phase": "validation"})
    made.event({"event": "verify", "reader": "naive"})
    made.end("done", 0)
    assert phases(tmp_path)[-3:] == ["validation", "verifying", "done"]
    assert read_status(tmp_path)[0][-1]["exit_status"] == 0


def test_a_sign_of_life_repeats_what_is_known(tmp_path: Path) -> None:
    clock = Clock()
    made = journal(tmp_path, clock)
    made.event({"event": "verify", "reader": "naive"})
    before = read_status(tmp_path)[0][-1]
    clock.now = 60.0
    made.event({"event": "at work"})
    after = read_status(tmp_path)[0][-1]
    assert {**after, "time": 0} == {**before, "time": 0}
    assert phases(tmp_path).count("verifying") == 2


def test_a_new_task_is_told_at_once_and_its_progress_now_and_then(tmp_path: Path) -> None:
    clock = Clock()
    made = journal(tmp_path, clock)
    for done in range(100):
        made.preparing("making the dataset", f"making the dataset  {done} of 100")
    made.preparing("predicting", "predicting")
    messages = [known["message"] for known in read_status(tmp_path)[0]]
    assert messages == [None, "making the dataset  0 of 100", "predicting"]
    made.event({"event": "trial", "reader": "naive", "trial": 1})
    made.preparing("a line", "of the terminal alone")
    assert read_status(tmp_path)[0][-1]["message"] is None


@pytest.mark.parametrize(
    ("error", "status"), [(DataError("bytes \ud800 differ" + "x" * 9999), 5), (OSError(5, "I/O"), 4)]
)
def test_a_failure_is_the_last_line_with_its_status(tmp_path: Path, error: Exception, status: int) -> None:
    with pytest.raises(type(error)), open_journal(tmp_path):
        raise error
    last = read_status(tmp_path)[0][-1]
    assert (last["phase"], last["exit_status"]) == ("failed", status)
    assert last["message"]
    assert len((tmp_path / NAME).read_bytes()) < 10_000
    with pytest.raises(KeyboardInterrupt), open_journal(tmp_path):
        raise KeyboardInterrupt
    assert phases(tmp_path) == ["preparing", "failed", "preparing", "failed"]


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf"), 1e305])
def test_a_loss_that_is_no_number_harms_neither_the_run_nor_its_status(tmp_path: Path, loss: float) -> None:
    made = Journal(tmp_path, Clock())
    made.begin(("naive",), 0, 1, 0, nodes=1, ranks=1, trials=1, epochs=1)
    made.event({"event": "trial", "reader": "naive", "trial": 0})
    made.event(SAMPLE | {"phase": "validation", "loss": loss})
    last = read_status(tmp_path)[0][-1]
    assert (last["phase"], last["loss"], last["message"]) == ("validation", None, "the loss is no number")
    made.end("failed", 4, "it diverged")
    last = read_status(tmp_path)[0][-1]
    assert (last["phase"], last["exit_status"], last["message"]) == ("failed", 4, "it diverged")


def test_a_value_that_no_record_may_have_costs_the_status_alone(tmp_path: Path) -> None:
    made = Journal(tmp_path, Clock())
    made.begin(("naive",), 0, 1, 0, nodes=-1, ranks=1, trials=1, epochs=1)
    made.end("failed", 4)
    assert not (tmp_path / NAME).exists()


def test_a_status_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with open_journal(tmp_path) as made:
        made.preparing("a", "b")
    gone = tmp_path / "gone"
    Journal(gone).end("done", 0)
    assert not gone.exists()
