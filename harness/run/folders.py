"""Where a run's results go, and the folders that live only as long as it does."""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.launchers import allocation_nodes
from dlio_bench.harness.run.options import Options

TIERS = "dlio-bench-tiers-"
JUST_MADE = 60.0  # seconds
DEFAULT = Path("dlio-results")
WORK = "work"  # where the ranks of the job at hand meet; gone when it ended well


@contextmanager
def output_folder(asked: Path | None, workload: str) -> Iterator[Path]:
    """A folder for this run alone. What it has made is taken away when nothing was measured. UsageError.

    The ranks' work folder stays after a failure whose message refers to it.
    """
    folder, made = _claim(asked, workload)
    try:
        yield folder
    except BaseException as error:
        if str(folder / WORK) not in str(error):
            shutil.rmtree(folder / WORK, ignore_errors=True)
        for place in made:
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
        raise


def _claim(asked: Path | None, workload: str) -> tuple[Path, list[Path]]:
    """The folder, empty, and the folders made for it, innermost first."""
    if asked is None:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        names = (f"{stamp}-{workload}{f'-{again}' if again else ''}" for again in count())
        made = [DEFAULT] if not DEFAULT.exists() else []
        DEFAULT.mkdir(exist_ok=True)
        for name in names:
            with suppress(FileExistsError):  # another run of the same second
                (DEFAULT / name).mkdir()
                return DEFAULT / name, [DEFAULT / name, *made]
    assert asked is not None
    if asked.exists():
        if not asked.is_dir() or any(asked.iterdir()):
            raise UsageError(f"--out {asked} exists and is not empty. Results are never mixed: choose a new folder.")
        return asked, []
    asked.mkdir(parents=True)
    return asked, [asked]


@contextmanager
def tier_folders(nodes: int, below: Path | None = None) -> Iterator[tuple[str, ...]]:
    """A local-tier folder for each node of this machine, in `below` or the temporary folder, gone when the run ends.

    UsageError when `below` is no folder.
    """
    if below is not None and not below.is_dir():
        raise UsageError(f"--local-tier {below} is not a folder. Give one on node-local storage.")
    _sweep(below or Path(gettempdir()))
    with TemporaryDirectory(prefix=TIERS, dir=below) as base, _locked(Path(base)):
        folders = [Path(base) / f"node{number:03d}" for number in range(nodes)]
        for folder in folders:
            folder.mkdir()
        yield tuple(map(str, folders))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder for as long as this process lives."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sweep(below: Path) -> None:
    """Remove what killed runs left: folders that nobody holds any more."""
    for folder in below.glob(f"{TIERS}*"):
        with suppress(OSError):  # in use, somebody else's, or gone meanwhile
            if time.time() - folder.stat().st_mtime < JUST_MADE:
                continue  # its run may be about to hold it
            handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


@contextmanager
def local_tiers(options: Options) -> Iterator[tuple[str, ...]]:
    """The local-tier folder of every node of a run. Real nodes have one only where --local-tier names it."""
    nodes = max(options.nodes)
    if allocation_nodes(os.environ) is None:
        with tier_folders(nodes, options.local_tier) as folders:
            yield folders
    else:
        yield (str(options.local_tier),) * nodes if options.local_tier else ()
