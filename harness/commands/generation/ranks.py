"""Files of a dataset written by ranks, on one machine or many, launched as a run's are."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dlio_bench.datagen.manifest import PROGRESS
from dlio_bench.datagen.raw_rate import Raw
from dlio_bench.datagen.writers import Finished, Timing, Work
from dlio_bench.harness.cluster.start import Ranks
from dlio_bench.harness.commands.generation.rank import Job
from dlio_bench.harness.ground.folders import remove_works
from dlio_bench.harness.ground.launching import launched

_LOOK_SECONDS = 0.5  # between two looks at what the ranks have finished
_KEPT = "the finished files are kept, and the same command goes on with them"


def by_ranks(ranks: Ranks, meeting: Path, job_of: Callable[[Work], Job], work: Work, finished: Finished) -> Timing:
    """Write by ranks. BenchError with a rank's own message when one fails."""
    remove_works(meeting.parent)  # of a generation that was killed
    job, share = job_of(work), "name one with --out"
    with _watched(work, finished):
        timing = launched(ranks.start, job, meeting, _pass_over, share=share, lost=_KEPT, folder_stays=True)
    return Timing(timing["processes"], timing["seconds"], Raw(**timing["raw"]))


@contextmanager
def _watched(work: Work, finished: Finished) -> Iterator[None]:
    """Report files as their records appear, whichever node writes them; at the end, all that remain."""
    remaining, end = set(work.todo), threading.Event()

    def look() -> None:
        names = {path.stem for path in (work.folder / PROGRESS).glob("*.npz")}
        for number in sorted(number for number in remaining if f"{number:07d}" in names):
            remaining.discard(number)
            finished(number)

    def watch() -> None:
        while not end.wait(_LOOK_SECONDS):
            look()

    for number in work.todo:  # records of files that are not whole would count them too early
        (work.folder / PROGRESS / f"{number:07d}.npz").unlink(missing_ok=True)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        end.set()
        watcher.join()
    look()


def _pass_over(what: str) -> None:
    """Ranks of a generation say nothing: their records tell what is finished."""
