"""Progress lines: when a line comes, and when it foretells the end."""

import io
import re

from dlio_bench.harness.ground.progress import QUIET_SECONDS, Progress


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_is_told_as_soon_as_it_can_be_and_not_before() -> None:
    stream, clock = io.StringIO(), Time()
    progress = Progress(stream, clock)
    for second, done in enumerate((0, 0, 0, 100, 200, 300, 400, 500)):  # three seconds until the first piece
        clock.now = second
        progress.bytes_written(done * 1_000_000, 1_000_000_000)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "making the dataset  0 B of 1 GB"
    assert lines[1] == "making the dataset  400 MB of 1 GB  100 MB/s  eta 6 s"
    assert len(lines) == 2
    clock.now += QUIET_SECONDS
    progress.bytes_written(600_000_000, 1_000_000_000)
    assert len(stream.getvalue().splitlines()) == 3
    progress.amount("verifying", 0, 1_000_000_000)  # another thing, of which nothing is known yet
    assert "eta" not in stream.getvalue().splitlines()[-1].partition("verifying")[2]


def test_trials_have_an_eta() -> None:
    def told(epoch_seconds: float) -> list[str | None]:
        stream, clock = io.StringIO(), Time()
        stream.isatty = lambda: True  # type: ignore[method-assign]
        progress = Progress(stream, clock)
        progress.begin("cdb  1 rank", trials=2, epochs=8, epoch_seconds=epoch_seconds)
        found = []
        for trial in range(2):
            for reader in ("naive", "prefetch"):
                progress.event({"event": "trial", "reader": reader, "trial": trial})
                for epoch in range(2):
                    progress.event({"event": "epoch", "epoch": epoch})
                    last = re.search("eta (.*)$", stream.getvalue().rpartition("\x1b[K")[2])
                    found.append(last and last[1])
                    clock.now += 3.0
        return found

    later = ["21 s", "18 s", "15 s", "12 s", "9 s", "6 s", "3 s"]
    assert told(0.0) == [None, *later]
    assert told(2.5) == ["20 s", *later]  # what is computed is known beforehand
