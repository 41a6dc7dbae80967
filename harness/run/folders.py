"""Where a run's results go, and the folders that live only as long as it does."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from dlio_bench.errors import UsageError

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
def tier_folders(nodes: int) -> Iterator[tuple[str, ...]]:
    """A local-tier folder for each virtual node, in the machine's temporary folder, gone when the run ends."""
    with TemporaryDirectory(prefix="dlio-bench-tiers-") as base:
        folders = [Path(base) / f"node{number:03d}" for number in range(nodes)]
        for folder in folders:
            folder.mkdir()
        yield tuple(map(str, folders))
