"""Where the results of a command go."""

import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path

from dlio_bench.atomic_files import part_of
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster import stacks
from dlio_bench.harness.live import status as live_status
from dlio_bench.harness.machine.mounts import existing

DEFAULT = Path("dlio-results")
UNFINISHED = "unfinished.json"  # what a stopped command left to go on with, see `unfinished`
FINISHED = "finished.json"  # the same, once everything is finished
JOURNAL = "journal.jsonl"  # when each part of a plan began and ended, see `parts`
STATUS = live_status.NAME  # what a run is doing, and has done
WORK = "work-"  # begins the name of a folder that the ranks of a job share; removed when the job ends well
_BEFORE = {STATUS, JOURNAL, part_of(Path(UNFINISHED)).name}  # what there may be before a run has decided anything
_LEFT = re.compile(rf"{'|'.join(map(re.escape, _BEFORE))}|{WORK}[0-9a-f]{{8}}")  # all that a killed run may leave


def cache_folder(cache_dir: Path | None = None) -> Path:
    """The folder that keeps datasets: --cache-dir, else $DLIO_BENCH_CACHE, else the user's cache folder (XDG)."""
    if cache_dir is not None:
        return cache_dir
    if named := os.environ.get("DLIO_BENCH_CACHE"):
        require_local(Path(named), "DLIO_BENCH_CACHE")
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dlio-bench"


def require_local(place: Path, what: str) -> None:
    """UsageError for a place in an object store where a local path is wanted; `what` names the option or variable."""
    if str(place).lower().startswith("s3:"):
        shown = "s3:..." if "@" in str(place) else place  # there may be a password before it
        raise UsageError(f"{what} {shown} is in an object store, and a local path is wanted there. Name one.")


@contextmanager
def output_folder(out: Path | None, workload: str, *, goes_on: bool = False) -> Iterator[Path]:
    """A folder for this run alone. After a failure it goes, if nothing in it is worth keeping. UsageError.

    The ranks' work folder stays if the failure's message refers to it. goes_on: the run may go on in the folder of one
    that was stopped, see `unfinished`. EnvironmentFailure if another process works there.
    """
    folder, new = _claim(out, workload, goes_on)
    with lock_folder(folder) as (_, is_locked):
        if not is_locked and not (folder / UNFINISHED).is_file() and any(folder.glob(f"{WORK}*")):
            raise _not_empty(folder)  # nobody knows whether another process works there
        try:
            remove_works(folder)  # of a run that was killed
            yield folder
        except BaseException as error:
            if str(folder / WORK) not in str(error):
                for work in folder.glob(f"{WORK}*"):
                    stacks.save_stacks(work, folder)
                remove_works(folder)
            if {path.name for path in folder.iterdir()} <= {UNFINISHED, *_BEFORE}:  # nothing is finished
                for name in (UNFINISHED, *_BEFORE):
                    (folder / name).unlink(missing_ok=True)
            for place in new:
                if place.is_dir() and not any(place.iterdir()):
                    place.rmdir()
            raise


def work_folder(place: Path) -> Path:
    """A folder in `place` for one job alone, to be made. No job had this name before.

    A file system's client may remember for a while what was under a name, and show a rank the job before.
    """
    return place / f"{WORK}{secrets.token_hex(4)}"


def remove_works(folder: Path) -> None:
    """Remove the folders in which ranks of earlier jobs met."""
    for work in folder.glob(f"{WORK}*"):
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def lock_folder(
    folder: Path, wait: float = 0.0, say: Callable[[str], None] = print, busy: str = ""
) -> Iterator[tuple[int, bool]]:
    """The folder, against other processes: a handle that keeps it locked, and whether it is (not all file systems can).

    EnvironmentFailure if another process works there and has not ended after `wait` seconds, of which `say` tells.
    busy: its message, of a folder that is not of --out.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle, _lock(handle, folder, wait, say, busy)
    finally:
        os.close(handle)


def require_storage(folder: Path, named: str) -> None:
    """UsageError if a folder on the storage to be measured is none. named: how the user named it, as '--pfs DIR'."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"{named} {what}. Name a folder on the storage to be measured.")


def _lock(handle: int, folder: Path, wait: float, say: Callable[[str], None], busy: str) -> bool:
    deadline, told = time.monotonic() + wait, False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise EnvironmentFailure(
                    busy or f"Another process works in --out {folder}. Wait until it has ended, or choose a new folder."
                ) from None
            if not told:
                say(f"waiting for another process that works in {folder}")
            told = True
            time.sleep(0.1)
        except OSError:  # a file system without locks
            return False
        else:
            return True


def make_folder(out: Path) -> Path:
    """The folder of --out, made if it is absent. UsageError, EnvironmentFailure."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"--out {out} is, or lies below, a file and not a folder. Name a new folder.") from None
    except OSError as error:
        raise EnvironmentFailure(f"--out {out} cannot be made: {error.strerror}. Name another.") from error
    return out


def require_file(out: Path, example: str = "out", option: str = "--out") -> None:
    """UsageError if the file of an option is not one that can be written. A folder that is missing is made later."""
    if out.is_dir():
        raise UsageError(f"{option} {out} is a folder. Name a file in it, such as {out / example}.")
    place = out if out.exists() else existing(out.parent)
    why = f"{place} is no folder" if place != out and not place.is_dir() else f"you may not write to {place}"
    if not os.access(place, os.W_OK) or (place != out and not place.is_dir()):
        raise UsageError(f"{option} {out} cannot be written: {why}. Name a file in a folder that you may write to.")


def _claim(out: Path | None, workload: str, goes_on: bool) -> tuple[Path, list[Path]]:
    """The folder, empty or unfinished, and the folders made for it, innermost first."""
    if out is None:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        names = (f"{stamp}-{workload}{f'-{again}' if again else ''}" for again in count())
        made = [DEFAULT] if not DEFAULT.exists() else []
        DEFAULT.mkdir(exist_ok=True)
        for name in names:
            with suppress(FileExistsError):  # another run of the same second
                (DEFAULT / name).mkdir()
                return DEFAULT / name, [DEFAULT / name, *made]
    assert out is not None
    if out.exists():
        if goes_on and (out / UNFINISHED).is_file():
            return out, [out]
        if not out.is_dir() or not all(_LEFT.fullmatch(path.name) for path in out.iterdir()):
            raise _not_empty(out)
        return out, []
    out.mkdir(parents=True)
    return out, [out]


def _not_empty(out: Path) -> UsageError:
    return UsageError(f"--out {out} exists and is not empty. Results are never mixed: choose a new folder.")
