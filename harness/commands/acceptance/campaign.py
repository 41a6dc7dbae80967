"""Carries a campaign out in its folder: one part after the other, and only those that are not finished."""

import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from dlio_bench import signals
from dlio_bench.errors import ERRORS, DataError, EnvironmentFailure, OutOfTime, UsageError, one_of
from dlio_bench.harness.cluster import walltime
from dlio_bench.harness.commands.acceptance.parts import Part
from dlio_bench.harness.commands.acceptance.plan import Plan
from dlio_bench.harness.commands.acceptance.record import Say, note
from dlio_bench.harness.commands.run.told.foresight import expected
from dlio_bench.harness.ground.folders import FINISHED, STATUS
from dlio_bench.harness.ground.subcommands import run_command
from dlio_bench.reports import storage
from dlio_bench.reports.checkpoint import document as checkpoint
from dlio_bench.reports.checkpoint.types import Document
from dlio_bench.reports.document import result
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_seconds

WORK = "work"  # folder of the part that is not done yet
MEASURED = (0, 1, 3, 5)  # exit statuses of a run that has results, whatever they are worth


def unfinished(part: Part, plan: Plan, folder: Path) -> str | None:
    """Why a part is not finished; None if it is: its files are whole, and made by this very command.

    UsageError for whole results of another command: nothing that was measured is removed unasked.
    """
    try:
        if part.kind == "data":
            assert part.source is not None
            return None if part.source.is_ready() else "not made yet"
        if not (folder / part.product).exists():
            return "not measured yet"
        if part.kind == "storage":
            assert part.source is not None
            document = storage.load(folder / part.product)
            same = document.folder == str(part.source.folder) and plan.storage is not None
            return None if same else "measured on other files"
        results: list[Result | Document]
        if part.kind == "checkpoint":
            results = [checkpoint.load(folder / part.product)]
        else:
            results = [result.load(path)[0] for path in sorted((folder / part.product).rglob(result.RESULT_NAME))]
    except (DataError, UsageError) as error:  # cut short, altered, or of another kind
        return str(error)
    expected = [*part.words, "--out", str(Path(WORK) / part.name)]
    for known in results:
        if known.command[1:] != expected:
            given = set(known.command[1:]) - set(expected)
            raise UsageError(
                f"{folder / part.product} was measured by another command than that of this plan: it has "
                f"{' '.join(sorted(given)) or 'other words'}. Do not move the plan or its data; or choose a new folder "
                "with --out."
            )
    readers = set() if part.run is None else {*part.run.readers}
    missing = readers - {str(known.policy.alias) for known in results if isinstance(known, Result)}
    return f"no result of {one_of(sorted(missing))}" if missing else None


class Campaign:
    """A campaign's folder at work. resume: the command that goes on."""

    def __init__(self, plan: Plan, folder: Path, handle: int, resume: str) -> None:
        self.plan, self.folder, self.handle, self.resume = plan, folder, handle, resume
        self.kept = ""

    def carry_out(self, parts: Sequence[Part], say: Say, foreseen: Sequence[float] = ()) -> int:
        """Do every part that is not finished; the number of these. BenchError, with what goes on, where one fails.

        foreseen: about how many seconds each part takes. OutOfTime before one that cannot end in time.
        """
        shutil.rmtree(self.folder / WORK, ignore_errors=True)  # of a campaign that was killed
        done, took = 0, list[tuple[str, float, float]]()
        for number, part in enumerate(parts, start=1):
            head = f"[{number}/{len(parts)}] {part.title}"
            before = plural(number - 1, "part")
            self.kept = (
                f"The {before} before it stay{'s' * (number == 2)} finished." if number > 1 else "It is the first part."
            )
            reason = unfinished(part, self.plan, self.folder)
            if reason is None:
                say(f"{head}: finished before")
                continue
            say(head if reason.endswith("yet") else f"{head} ({reason})")
            planned = foreseen[number - 1] if foreseen else 0.0
            self._require_time(
                part, expected(planned, [(least, each) for kind, least, each in took if kind == part.kind])
            )
            began = time.monotonic()
            self._do(part)
            if planned:
                took.append((part.kind, planned, time.monotonic() - began))
            say(f"[{number}/{len(parts)}] done in {format_seconds(time.monotonic() - began)}")
            done += 1
        shutil.rmtree(self.folder / WORK, ignore_errors=True)
        return done

    def _require_time(self, part: Part, seconds: float) -> None:
        """Data are finished file by file, so that a part of them always gets on."""
        try:
            walltime.require(part.title, 0.0 if part.kind == "data" else seconds)
        except OutOfTime as error:
            raise OutOfTime(f"{error} {self.kept} Go on with: {self.resume}") from None

    def _do(self, part: Part) -> None:
        made = self.folder / WORK / part.name
        made.parent.mkdir(exist_ok=True)
        entry = f"{part.kind} {part.name}"
        words = part.words if part.kind == "data" else (*part.words, "--out", str(Path(WORK) / part.name))
        note(self.folder, entry, "begun")
        try:
            status, _ = run_command(words, self.resume, folder=self.folder, handles=(self.handle,))
        except KeyboardInterrupt:
            signals.met()
            note(self.folder, entry, "interrupted")
            raise EnvironmentFailure(
                f"{signals.why()} in {part.title}. {self.kept} Go on with: {self.resume}"
            ) from None
        note(self.folder, entry, "ended", status=status)
        good = status in MEASURED and made.exists() if part.kind in ("run", "checkpoint") else status == 0
        if not good:
            why = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            raise ERRORS.get(status, EnvironmentFailure)(
                f"{part.title}: `dlio-bench {part.words[0]}` {why}; its message stands above. {self.kept} Once the "
                f"cause is removed, go on with: {self.resume}"
            )
        if part.kind == "data":
            return
        if part.kind == "run":
            # the campaign has a page of all results, and a journal; it has come to its end
            for name in ("report.html", FINISHED, STATUS):
                (made / name).unlink(missing_ok=True)
        target = self.folder / part.product
        target.parent.mkdir(exist_ok=True)
        if target.is_dir():
            shutil.rmtree(target)
        made.replace(target)
