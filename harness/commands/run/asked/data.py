"""The dataset of a run: the user's own, or a small one with the true layout, made once and kept; its tar shards."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.benchmarks.layouts import require_layout
from dlio_bench.datagen import objects
from dlio_bench.datagen.claim import await_maker
from dlio_bench.datagen.dataset import Dataset, changed_files, open_dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import TRAIN, VALIDATION, Layout
from dlio_bench.datagen.manifest import spec_digest
from dlio_bench.errors import DataError, UsageError
from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.request import Request
from dlio_bench.harness.ground.folders import cache_folder
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.plan.policies import WEBDATASET
from dlio_bench.harness.readers import web_shards
from dlio_bench.harness.readers.registry import view_of
from dlio_bench.harness.storage.direct import alignment_of, require_folder
from dlio_bench.harness.storage.object_store import mirror_tables, require_ranges
from dlio_bench.harness.storage.pfs.cache import PAGE
from dlio_bench.units import format_bytes

SEED = 1  # of the bytes; the order has a seed of its own
NAMED = 3  # bad files that a message names at most


class Source(Struct, frozen=True):
    """Where a run's data are or will be. samples, stored_bytes: of the training split; of all splits for an inference.

    files: how many files of each split to generate if they are missing; None: the user gave the data.
    validation_samples: of the validation split; 0 if there is none.
    """

    folder: Path
    samples: int
    stored_bytes: int
    files: Mapping[str, int] | None
    validation_samples: int = 0

    @property
    def exists(self) -> bool:
        """Whether there is a dataset already."""
        return (self.folder / "manifest.json").exists()


def with_local_tables(options: Options) -> Options:
    """The options with a folder for --data: of a dataset in an object store, that of its tables' copies."""
    if options.data is None or not (url := objects.url_of(options.data)):
        return options
    return replace(options, data=mirror_tables(url, cache_folder(options.cache_dir)))


def source(request: Request, held: Sequence[int] = ()) -> Source:
    """Which data a run will read; writes nothing. `held`: see Request.files. DataError, UsageError."""
    options, layout = request.options, request.layout
    if options.data is not None:
        dataset = _open_given(options.data, layout)
        whole = request.inference is not None  # goes over all splits
        read = dataset.manifest.files if whole else dataset.training_files
        stored = sum(file.bytes for file in read)
        part = dataset.part(VALIDATION)
        held_out = 0 if part is None else len(part.samples)
        _require_room(options, stored, len(read))
        return Source(dataset.folder.resolve(), sum(file.samples for file in read), stored, None, held_out)
    files = request.files(held)
    _require_room(options, files[TRAIN] * layout.file_bytes, files[TRAIN])
    digest = spec_digest(layout, files, SEED).removeprefix("sha256:")[:12]
    tiny = "-tiny" if layout.tiny else ""
    folder = (
        cache_folder(options.cache_dir).resolve() / "datasets" / f"{layout.workload}-{layout.variant}{tiny}-{digest}"
    )
    samples = {
        name: sum(spec.samples for spec in layout.split(name).spec_files(count)) for name, count in files.items()
    }
    return Source(folder, samples[TRAIN], files[TRAIN] * layout.file_bytes, files, samples.get(VALIDATION, 0))


def require_direct(source: Source) -> None:
    """UsageError, EnvironmentFailure where the dataset, or one made in its place, could not be read directly."""
    if source.exists:
        alignment_of(open_dataset(source.folder))
    else:
        require_folder(source.folder)


def await_generation(options: Options, progress: Progress) -> None:
    """Wait while another process still generates the dataset that --data names."""
    if options.data is not None and not options.dry_run and not (options.data / "manifest.json").exists():
        await_maker(options.data, _waiting(options.data, progress))


def ready(source: Source, layout: Layout, progress: Progress) -> Dataset:
    """The dataset: generated if it is missing, repaired if files are missing, awaited if another process makes it."""
    if source.files is None:
        return open_dataset(source.folder)
    return generate(
        layout,
        source.files,
        source.folder,
        SEED,
        progress=progress.bytes_written,
        replace_damaged=True,  # this tool made the files, so it can make them again
        waiting=_waiting(source.folder, progress),
    )


def _waiting(folder: Path, progress: Progress) -> Callable[[int], None]:
    def say(finished: int) -> None:
        progress.show(f"waiting for the dataset that another process is making in {folder}  {finished} files finished")

    return say


def _require_room(options: Options, stored: int, files: int) -> None:
    """UsageError if --cache warm needs a larger emulated client cache, which holds whole pages."""
    pfs, needed = options.emulate_pfs, stored + PAGE * files
    if pfs is not None and options.cache == "warm" and pfs.cache_bytes < needed:
        raise UsageError(
            f"--cache warm fills the emulated client cache, but its {format_bytes(pfs.cache_bytes)} do not hold the "
            f"{format_bytes(stored)} of the dataset. Give --emulate-pfs cache={math.ceil(needed / 1e6)}MB or more, "
            f"{'' if options.data else 'make less data (--max-data), '}or use --cache cold."
        )


def _open_given(folder: Path, layout: Layout) -> Dataset:
    """Open --data DIR. UsageError if it belongs to another workload; DataError if it is incomplete."""
    dataset = open_dataset(folder)
    require_ranges(dataset)
    manifest = dataset.manifest
    if (manifest.workload, manifest.variant, manifest.tiny) != (layout.workload, layout.variant, layout.tiny):
        actual = f"{manifest.workload} ({manifest.variant}{', tiny' if manifest.tiny else ''})"
        expected = f"{layout.workload} ({layout.variant}{', tiny' if layout.tiny else ''})"
        raise UsageError(
            f"--data {dataset.home} holds {actual}, but the run is of {expected}. Give the folder of a dataset that "
            "fits."
        )
    require_layout(dataset, replace(layout, fill=manifest.fill))
    if bad := changed_files(dataset):
        more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        raise DataError(
            f"The dataset in {dataset.home} is incomplete: {'; '.join(bad[:NAMED])}{more}. Restore the files, or "
            "generate the dataset again."
        )
    return dataset


def make_shards(job: Job, dataset: Dataset, progress: Progress) -> list[str]:
    """The shards of the job's reader of WebDataset, if it has one, and the notes that results get of them.

    DataError, EnvironmentFailure.
    """
    rows = [row for row in job.readers.values() if row.delivery == WEBDATASET]
    if not rows:
        return []
    view = view_of(rows[0], dataset, job.view, job.decoder(dataset))
    return [shards_of(dataset, view.fields, progress)]


def shards_of(dataset: Dataset, fields: tuple[str, ...], progress: Progress) -> str:
    """Make the shards that are missing, and say on stderr what they take; a note on them."""
    wrote = False

    def show(done: int, total: int) -> None:
        nonlocal wrote
        wrote = True
        progress.amount("making tar shards for webdataset", done, total)

    total = web_shards.make(dataset, fields, show)
    folder = web_shards.folder_of(dataset, fields)
    if wrote:
        progress.clear()
        print(f"Made {format_bytes(total)} of tar shards for webdataset in {folder}. They stay there.", file=sys.stderr)
    return f"webdataset reads tar shards of {', '.join(fields)}: {format_bytes(total)} in {folder}"
