"""Where a run's results go, and the folders that live only as long as it does."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from dlio_bench.errors import UsageError

DEFAULT = Path("dlio-results")
WORK = "work"  # where the ranks of the job at hand meet; gone when it ended well


@contextmanager
def output_folder(asked: Path | None, workload: str) -> Iterator[Path]:
    """A new folder; taken away again when nothing was measured, unless it holds a log to look at. UsageError."""
    folder = asked or DEFAULT / f"{datetime.now().strftime('%Y%m%d-%H%M%S')}-{workload}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--out {folder} exists and is not empty. Results are never mixed: choose a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except BaseException:
        log, defect = folder / WORK / "launcher.log", folder / WORK / "defect.txt"
        if not defect.exists() and not (log.exists() and log.stat().st_size):
            shutil.rmtree(folder / WORK, ignore_errors=True)
            for empty in (folder, folder.parent if asked is None else folder):
                if empty.is_dir() and not any(empty.iterdir()):
                    empty.rmdir()
        raise


@contextmanager
def tier_folders(nodes: int) -> Iterator[tuple[str, ...]]:
    """A local-tier folder for each virtual node, in the machine's temporary folder, gone when the run ends."""
    with TemporaryDirectory(prefix="dlio-bench-tiers-") as base:
        folders = [Path(base) / f"node{number:03d}" for number in range(nodes)]
        for folder in folders:
            folder.mkdir()
        yield tuple(map(str, folders))
