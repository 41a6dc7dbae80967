"""Where a run's results go, and the folders that live only as long as it does."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster import stacks
from dlio_bench.harness.cluster.launchers import allocation_nodes
from dlio_bench.harness.run.options import Options
from dlio_bench.harness.storage.held import held_folder

TIERS = "dlio-bench-tiers-"  # how temporary folders begin
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
            stacks.keep(folder / WORK, folder)
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
    with held_folder(TIERS, below) as base:
        folders = [base / f"node{number:03d}" for number in range(nodes)]
        for folder in folders:
            folder.mkdir()
        yield tuple(map(str, folders))


@contextmanager
def local_tiers(options: Options) -> Iterator[tuple[str, ...]]:
    """The local-tier folder of every node of a run. Real nodes have one only where --local-tier names it."""
    nodes = max(options.nodes)
    if allocation_nodes(os.environ) is None:
        with tier_folders(nodes, options.local_tier) as folders:
            yield folders
    else:
        yield (str(options.local_tier),) * nodes if options.local_tier else ()
