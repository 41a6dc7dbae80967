"""`dlio-bench watch`: follows the status of a run until it ends."""

import json
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlio_bench import signals
from dlio_bench.atomic_files import part_of
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.live.status import ENDED, FAILED, NAME, open_status, read_open
from dlio_bench.reports.run import live_text
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_seconds
from dlio_bench.wrapping import printable

SILENCE = 600.0  # seconds that it bears unless it is told
KEPT = 600  # records that a view may show
GOES_ON = "unfinished.json"  # of a run that was stopped, or has just begun, see ground.unfinished
Record = dict[str, Any]


def watch(folder: Path, *, once: bool, as_json: bool, every: float, most: float | None) -> int:
    """Show the status of the run in `folder` until it ends; the exit status is that of the run.

    once: show it as it is now; every: seconds between two looks; most: seconds of silence that it bears (0: any;
    None: SILENCE, and any before the run has begun to write).
    """
    follower = Follower(folder)
    screen = Screen(folder, as_json=as_json, whole=once)
    try:
        while True:
            fresh = follower.new_records()
            if fresh:
                screen.show(fresh, follower)
            last = follower.records[-1] if follower.records else None
            if last is not None and (last["phase"] in ENDED or once):
                return _end(screen, last, follower, once=once)
            damage = follower.damage()
            if once:
                fix = damage or "Without --once, `watch` waits for it."
                raise UsageError(f"No run has written its status to {folder} yet. {fix}")
            if last is not None and follower.gone:
                raise EnvironmentFailure(f"{folder} is gone, and its run wrote no last word: it was killed, or moved.")
            quiet = follower.silent_seconds()
            bearable = most if most is not None else SILENCE if follower.size else 0
            if bearable and quiet >= bearable:
                raise EnvironmentFailure(
                    f"The run in {folder} has written nothing for {format_seconds(quiet)}: it was killed, or this "
                    f"machine does not see its file any more. {damage}{' ' * bool(damage)}Wait longer with --silence."
                )
            if last is None:
                screen.waits(damage)
            else:
                screen.idle(follower, quiet)
            time.sleep(every)
    except KeyboardInterrupt:
        signals.mark_handled()
        return 0


def _end(screen: "Screen", last: Record, follower: "Follower", *, once: bool) -> int:
    screen.end(last, follower, once=once)
    status = last["exit_status"]
    if last["phase"] not in ENDED:
        return 0
    if status is None or (last["phase"] == FAILED and status == 0):  # no run writes that
        return EnvironmentFailure.status
    return int(status) if status <= max(range(len(live_text.MEANINGS))) else EnvironmentFailure.status


class Follower:
    """Reads the records of a run as they come.

    records: the last of them; damaged: lines that are none; size: bytes of the file; gone: it was removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self._offset = 0
        self._heard = time.monotonic()
        self.records: deque[Record] = deque(maxlen=KEPT)
        self.gone = False
        self.damaged = self.size = 0

    def new_records(self) -> Sequence[Record]:
        """The records that are new. UsageError where no run is, and none is about to be."""
        self._open()
        if self._file is None:
            self._require_coming()
            return ()
        first = not self.records
        read = read_open(self._file, self._offset)
        self._offset = read.offset
        self.damaged += read.damaged
        self.size = os.fstat(self._file).st_size
        if read.records:
            self.records.extend(read.records)
            age = time.time() - read.records[-1]["time"]
            self._heard = time.monotonic() - (max(0.0, age) if first else 0.0)
        return read.records

    def silent_seconds(self) -> float:
        """Seconds since the last record came; of the first look, by its own time. Before it, since the watch began."""
        return time.monotonic() - self._heard

    def damage(self) -> str:
        """A sentence about lines of the file that are no records; empty where it has none."""
        path = self._folder / NAME
        if self.damaged:
            return f"{path} is damaged: {plural(self.damaged, 'line')} of it {_exit_word(self.damaged)} passed over."
        if self.size and not self.records:
            return f"{path} has no whole line."
        return ""

    def _open(self) -> None:
        """Open the file again: clients of network file systems look for news when a file is opened.

        One that was removed stays open, for its last words.
        """
        try:
            file = open_status(self._folder)
        except (FileNotFoundError, NotADirectoryError):
            self.gone = self._file is not None
            return
        self.gone = False
        if self._file is not None:
            if not os.path.sameopenfile(file, self._file):
                self._offset = 0
            os.close(self._file)
        self._file = file

    def _require_coming(self) -> None:
        folder = self._folder
        if not folder.exists():
            return
        if not folder.is_dir():
            raise UsageError(f"{folder} is a file. Name the folder of a run, which is its --out.")
        names = {path.name for path in folder.iterdir()}
        if not names or names & {NAME, GOES_ON, part_of(Path(GOES_ON)).name}:  # NAME: of a run that began just now
            return
        below = sorted(path.parent for path in folder.glob(f"*/{NAME}"))
        if below:
            newest = max(below, key=lambda path: (path / NAME).stat().st_mtime)
            raise UsageError(
                f"{folder} is not the folder of one run, but has {len(below)} below it. The newest: {newest}."
            )
        results = f" It has results: dlio-bench show {folder}." if _has_results(folder) else ""
        raise UsageError(f"{folder} is not the folder of a run: it has no {NAME}. Name the --out of a run.{results}")


def _has_results(folder: Path) -> bool:
    return next(folder.glob("**/result.json"), None) is not None


class Screen:
    """Where the state is shown: a view that changes on a terminal, else lines. whole: the view, once."""

    def __init__(self, folder: Path, *, as_json: bool, whole: bool) -> None:
        self._folder, self._json, self._whole = folder, as_json, whole
        terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._changes = terminal and not as_json and not whole
        self._ascii = "utf" not in (sys.stdout.encoding or "").lower()
        self._drawn: list[str] = []
        self._begun = self._told_silence = self._told_waiting = self._told_damage = False

    def show(self, fresh: Sequence[Record], follower: Follower) -> None:
        """New records. Of those that were there before, the last."""
        shown = fresh if self._begun else fresh[-1:]
        self._begun, self._told_silence = True, False
        if self._whole and not self._json:
            return
        if self._changes:
            self._draw(follower, 0.0)
            return
        for record in shown:
            print(json.dumps(record) if self._json else live_text.line(record), flush=True)

    def idle(self, follower: Follower, quiet: float) -> None:
        """Nothing new has come."""
        if self._changes:
            self._draw(follower, quiet)
        elif (word := live_text.silence(quiet)) and not self._told_silence:
            self._told_silence = True
            _print_aside(word)

    def waits(self, damage: str) -> None:
        """There is no status yet. damage: what is in its file instead."""
        if not self._told_waiting:
            self._told_waiting = True
            _print_aside(f"waiting for a run to write its status to {self._folder} (Ctrl-C ends)")
        if damage and not self._told_damage:
            self._told_damage = True
            _print_aside(damage)

    def end(self, last: Record, follower: Follower, *, once: bool) -> None:
        """The run has ended, or its state is shown once."""
        if self._json:
            return
        if once:
            quiet = 0.0 if last["phase"] in ENDED else follower.silent_seconds()
            print("\n".join(self._lines(follower, quiet)))
        elif not self._changes and last["phase"] == "done":
            print(f"results: dlio-bench show {printable(str(self._folder))}")
        if damage := follower.damage():
            _print_aside(damage)

    def _lines(self, follower: Follower, quiet: float) -> list[str]:
        width, height = shutil.get_terminal_size()
        lines = live_text.view(list(follower.records), str(self._folder), width, quiet, ascii_only=self._ascii)
        return lines if self._whole else lines[: max(1, height - 1)]

    def _draw(self, follower: Follower, quiet: float) -> None:
        lines = self._lines(follower, quiet)
        width = shutil.get_terminal_size().columns
        # rows that the last view takes now: a terminal that was made narrower has broken its lines
        rows = sum(max(1, -(-len(each) // max(1, width))) for each in self._drawn)
        up = f"\x1b[{rows}A" if rows else ""
        sys.stdout.write(f"{up}\r\x1b[J" + "".join(f"{each}\n" for each in lines))
        sys.stdout.flush()
        self._drawn = lines


def _exit_word(number: int) -> str:
    return "was" if number == 1 else "were"


def _print_aside(word: str) -> None:
    print(f"dlio-bench: {printable(word)}", file=sys.stderr, flush=True)
