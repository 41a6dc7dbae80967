"""The tar shards that a run's reader needs beside the dataset: made before the ranks start."""

import sys

from dlio_bench.benchmarks.registry import find
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.plan.policies import WEBDATASET
from dlio_bench.harness.readers import web_shards
from dlio_bench.harness.readers.registry import view_of
from dlio_bench.units import format_bytes


def made(job: Job, dataset: Dataset, progress: Progress) -> list[str]:
    """The shards of the job's reader of WebDataset, if it has one, and the notes that results get of them.

    DataError, EnvironmentFailure.
    """
    rows = [row for row in job.readers.values() if row.delivery == WEBDATASET]
    if not rows:
        return []
    decode = find(job.workload).decode if job.decode else None
    view = view_of(rows[0], dataset, job.view, None if decode is None else decode(dataset))
    return [ready(dataset, view.fields, progress)]


def ready(dataset: Dataset, fields: tuple[str, ...], progress: Progress) -> str:
    """Make the shards that are missing, and say on stderr what they take; a note on them."""
    wrote = False

    def show(done: int, total: int) -> None:
        nonlocal wrote
        wrote = True
        progress.amount("making tar shards for webdataset", done, total)

    total = web_shards.make(dataset, fields, show)
    folder = web_shards.folder_of(dataset, fields)
    if wrote:
        progress.done()
        print(f"Made {format_bytes(total)} of tar shards for webdataset in {folder}. They stay there.", file=sys.stderr)
    return f"webdataset reads tar shards of {', '.join(fields)}: {format_bytes(total)} in {folder}"
