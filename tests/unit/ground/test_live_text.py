"""How a run at work is shown."""

from typing import Any

import pytest

from dlio_bench.harness.live.status import FIELDS, record
from dlio_bench.reports.run import live_text
from dlio_bench.reports.run.live_text import line, of_last_run, seconds_left, silence, sparkline, view
from tests.goldens import require_golden

BYTES = {"pfs": 2_210_000, "ram": 0, "local": 5_000_000, "remote": None}


def at_work(step: int, **known: Any) -> dict[str, Any]:
    """A record of a training, ten seconds a step."""
    about = {
        "time": 1000.0 + 10 * step, "reader": "prefetch", "nodes": 2, "ranks": 4, "rank": 0, "result": 2, "results": 4,
        "trial": 2, "trials": 3, "epoch": 1, "epochs": 2, "step": step, "steps": 64, "samples_per_second": 100.0 * step,
        "stall_share": 0.123, "loss": 0.4321, "bytes": BYTES, "progress": step / 128,
    }  # fmt: skip
    return record("timed", **(about | known))


def test_views_and_lines_are_the_golden_ones() -> None:
    records = [at_work(step) for step in (0, 5, 9, 14, 18, 23, 27, 32)]
    path = "/scratch/" + "a" * 90  # it stays whole
    lost = record("failed", exit_status=4, message=f"The launcher could not write the results of this run to {path}.")
    preparing = record("preparing", message="making the dataset  1 B of 2 B")
    invalid = record("done", exit_status=3)
    views = {
        "at work": view(records, "out/run", 80),
        "at work, in ASCII": view(records, "out/run", 80, ascii_only=True),
        "a limit was missed": view([at_work(64), record("done", exit_status=1)], "out/run", 80),
        "data were damaged": view([at_work(3), record("failed", exit_status=5, message="it broke")], "out/run", 80),
        "no news": view([at_work(3)], "out", 80, 75.0),
        "a path in a message": view([lost], "out/run", 80),
        "lines behind the time of day": [line(told)[8:] for told in (at_work(32), preparing, invalid)],
    }  # fmt: skip
    require_golden("live", {name: "\n".join(lines) for name, lines in views.items()}, width=160)
    assert "\n".join(views["at work, in ASCII"]).isascii()


LONG = at_work(
    63, reader="r" * 300, message="word " * 300, nodes=10**9, ranks=10**12, trials=10**9, steps=10**9, epochs=10**15,
    samples_per_second=1.23456789e200, loss=-1e200, bytes=dict.fromkeys(BYTES, 10**18),
)  # fmt: skip


@pytest.mark.parametrize("width", [40, 57, 80, 200])
def test_whatever_a_record_says_the_view_keeps_to_the_terminal(width: int) -> None:
    unknown = record("preparing")
    ended = record("failed", message="because " * 300, exit_status=4)
    for records in ([LONG] * 500, [unknown], [LONG, ended], [at_work(3)], [record("done", exit_status=99)]):
        for ascii_only in (False, True):
            lines = view(records, "/folder" * 40, width, 50.0, ascii_only=ascii_only)
            assert max(map(len, lines)) <= width
            assert len(lines) <= 23


def test_texts_of_a_file_reach_the_terminal_without_what_it_would_obey() -> None:
    hostile = "\x1b]0;title\x07\x1b[2J\r\nx\u202e"
    for phase in ("preparing", "timed", "failed"):
        shown = record(phase, reader=hostile, message=hostile, exit_status=4)
        for text in (*view([shown], hostile, 80), line(shown)):
            assert text.isprintable(), repr(text)


def test_the_time_left_follows_the_pace_of_trials_alone() -> None:
    records = [record("preparing", time=0.0, progress=0.0), *(at_work(step) for step in (16, 32))]
    assert seconds_left(records) == pytest.approx(960)
    assert seconds_left(records[:2]) is None  # no pace yet
    assert seconds_left([*records, record("verifying", progress=1.0)]) is None
    assert seconds_left([at_work(16), at_work(17, progress=16 / 128)]) is None  # it stands still


def test_a_run_that_goes_on_is_shown_without_the_one_that_was_stopped() -> None:
    first = [record("preparing"), at_work(5), record("failed", exit_status=4)]
    second = [record("preparing"), record("preparing", progress=0.5), at_work(9)]
    assert of_last_run([*first, *second]) == second
    assert of_last_run([*first[:2], *second]) == second  # it was killed
    assert of_last_run(first) == first


def test_a_sparkline_has_the_last_values_from_zero_to_the_greatest() -> None:
    assert sparkline([9.0, 0.0, 3.5, 7.0], 3) == "▁▅█"
    assert sparkline([0.0, 0.0], 5) == "▁▁"
    assert sparkline([1.0], 0) == ""


def test_silence_is_worth_a_word_when_it_is_long() -> None:
    assert silence(live_text.SILENCE - 1) == ""
    assert "No news for 1m15s" in silence(75.0)


def test_reports_know_every_field_that_a_status_may_leave_open() -> None:
    assert set(record("timed")) == set(FIELDS)
    assert line(record("timed"))
