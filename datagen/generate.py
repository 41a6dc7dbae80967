"""Make a dataset: one or more processes write its files, and the manifest comes last and makes it whole."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct

from dlio_bench.atomic_files import part_of, publish
from dlio_bench.datagen.claim import FinishedFiles, Waiting, claim_folder, discard, keep_intact, title_of
from dlio_bench.datagen.dataset import Dataset, changed_files, open_dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.datagen.layout import Counts, FileSpec, Layout, WrittenFile, per_split
from dlio_bench.datagen.manifest import NAME, PROGRESS, FileEntry, complete, manifest_of, spec_digest
from dlio_bench.datagen.random_bytes import SEED_LIMIT
from dlio_bench.datagen.verify import content_damage
from dlio_bench.datagen.workers import ALONE, usual_workers
from dlio_bench.datagen.writers import FilesToWrite, Timing, Writer, by_processes, by_this_process, failure, raw_room
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError
from dlio_bench.units import format_bytes

Report = Callable[[int, int], None]
_MARGIN = 1.02  # of the space asked for: mean sizes are means


class Made(Struct, frozen=True):
    """A dataset that is whole; `written_bytes` and `timing` tell of what had to be written now (None: nothing)."""

    dataset: Dataset
    written_bytes: int
    timing: Timing | None


def generate(
    layout: Layout,
    files: Counts,
    folder: Path,
    seed: int,
    *,
    workers: int | None = None,
    progress: Report | None = None,
    replace_damaged: bool = False,
    waiting: Waiting | None = None,
) -> Dataset:
    """Make the first `files` files of each split in `folder` and open the dataset; an intact one is opened as it is.

    `workers` processes write (default: cores, files or 8, whichever is least; one for small datasets); they are
    spawned, so that a script calling this needs the usual `if __name__ == "__main__"`. `progress(done, total)` gets
    bytes. A generation that was stopped, however roughly, goes on where it was when called again. Where another process
    makes the dataset, `waiting(files finished)` is called until it is there (None: EnvironmentFailure at once).
    replace_damaged: whether a dataset whose tables are damaged is deleted and made anew (else: DataError).

    UsageError: a count or seed out of range, a folder that holds something else. EnvironmentFailure: no space, no
    permission, a worker killed, another process at work in the folder.
    """
    _require_positive("workers", 1 if workers is None else workers)
    writer = partial(local, workers)
    return make(
        layout,
        files,
        folder,
        seed,
        writer=writer,
        progress=progress,
        replace_damaged=replace_damaged,
        waiting=waiting,
    ).dataset


def make(
    layout: Layout,
    files: Counts,
    folder: Path,
    seed: int,
    *,
    writer: Writer,
    progress: Report | None = None,
    raw: bool = False,
    replace_damaged: bool = False,
    waiting: Waiting | None = None,
) -> Made:
    """`generate` with files written by `writer`; `raw` measures the folder's own write rate around it."""
    _require_positive("files", sum(per_split(layout, files).values()))
    if not 0 <= seed < SEED_LIMIT:
        raise UsageError(f"The seed {seed} is out of range. Use one from 0 to {SEED_LIMIT - 1}.")
    specs = layout.files(files)
    spec = spec_digest(layout, files, seed)
    folder = folder.absolute()
    if whole := _find_whole(folder, spec, replace_damaged):
        return Made(whole, 0, None)
    try:
        title = title_of(layout.workload, layout.variant, layout.fill, layout.tiny, len(specs), seed)
        with claim_folder(folder, spec, title, damaged=replace_damaged, waiting=waiting) as record:
            if whole := _find_whole(folder, spec, replace_damaged):  # made by another process in the meantime
                record.forget()
                return Made(whole, 0, None)
            if (folder / NAME).exists():
                if left := _open_existing(folder, replace_damaged):
                    keep_intact(record, left)
                else:
                    discard(folder)
            todo, timing = _write(layout, specs, folder, seed, record, writer, progress, raw)
            kept = _recorded_files(specs, folder, record)
            entries = [
                FileEntry(file.name, file.first, file.samples, size, file.split)
                for file, (size, _) in zip(specs, kept, strict=True)
            ]
            manifest = manifest_of(layout, entries, folder, seed=seed, spec=spec)
            complete(folder, manifest, [written for _, written in kept])
            record.forget()
    except OSError as error:
        raise failure(folder, error) from error
    return Made(open_dataset(folder), sum(kept[number][0] for number in todo), timing)


def local(workers: int | None, work: FilesToWrite, finished: Callable[[int], None]) -> Timing:
    """Write by processes of this machine: as many as were asked for, or as its cores and the work allow."""
    count = min(workers or usual_workers(), len(work.todo))
    if count <= 1 or (workers is None and work.bytes <= ALONE):
        return by_this_process(work, finished)
    return by_processes(count, work, finished)


def _find_whole(folder: Path, spec: str, replace_damaged: bool) -> Dataset | None:
    """The dataset that was asked for, if it is there already with all its files."""
    if not (folder / NAME).exists():
        return None
    dataset = _open_existing(folder, replace_damaged)
    return dataset if dataset and dataset.manifest.spec == spec and not changed_files(dataset) else None


def _open_existing(folder: Path, replace_damaged: bool) -> Dataset | None:
    """The dataset in `folder`; None where its tables are damaged and may be replaced. DataError where they may not."""
    try:
        return open_dataset(folder)
    except DataError:
        if not replace_damaged:
            raise
        return None


def _write(
    layout: Layout,
    specs: tuple[FileSpec, ...],
    folder: Path,
    seed: int,
    record: FinishedFiles,
    writer: Writer,
    progress: Report | None,
    raw: bool,
) -> tuple[list[int], Timing | None]:
    """Write all files that are not whole yet: their numbers, and how long it took."""
    report = progress or (lambda _done, _total: None)
    sizes = [round(spec.samples * layout.split(spec.split).sample_bytes) for spec in specs]
    todo = [number for number, spec in enumerate(specs) if not _is_whole(layout, spec, number, folder, record)]
    total, left = sum(sizes), sum(sizes[number] for number in todo)
    # the second half of the raw writes comes when the dataset is there
    _require_space(folder, left + (raw_room(left) if raw and todo else 0))
    done = total - left
    report(done, total)
    for name, write in layout.auxiliary.items():
        with _removing_parts(folder, [name]):
            write(part_of(folder / name), seed)
            publish(part_of(folder / name), folder / name)
    if not todo:
        return [], None

    def count_file(number: int) -> None:
        nonlocal done
        done += sizes[number]
        report(done, total)

    with _removing_parts(folder, [specs[number].name for number in todo]):  # once its writers have ended
        work = FilesToWrite(layout, specs, tuple(todo), folder, seed, left, left // len(todo), raw)
        return todo, writer(work, count_file)


def _is_whole(layout: Layout, spec: FileSpec, number: int, folder: Path, record: FinishedFiles) -> bool:
    """Whether an earlier generation finished this file, and its bytes still are what was written then. OSError."""
    kept = record.whole_file(number, folder / spec.name)
    if kept is None:
        return False
    names = [field.name for field in layout.fields]
    container = CONTAINERS[layout.container]
    return content_damage(folder / spec.name, spec.first, names, kept[1], container) is None


def _recorded_files(specs: tuple[FileSpec, ...], folder: Path, record: FinishedFiles) -> list[tuple[int, WrittenFile]]:
    """Size and extents of every file. EnvironmentFailure if a file changed meanwhile."""
    kept = []
    for number, file in enumerate(specs):
        file_written = record.whole_file(number, folder / file.name)
        if file_written is None:
            raise EnvironmentFailure(f"{folder / file.name} was changed during its generation. Repeat the command.")
        kept.append(file_written)
    return kept


@contextmanager
def _removing_parts(folder: Path, names: list[str]) -> Iterator[None]:
    """Leave no half-written file behind, except by being killed."""
    try:
        yield
    finally:
        parts = [part_of(folder / name) for name in names]
        for part in [*parts, *(folder / PROGRESS).glob(part_of(Path("*")).name)]:
            part.unlink(missing_ok=True)


def _require_positive(noun: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{value} {noun} were asked for. Ask for at least 1.")


def _require_space(folder: Path, needed: int) -> None:
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize
    if system.f_blocks and free < needed * _MARGIN:  # a file system of no blocks does not tell
        raise EnvironmentFailure(
            f"The dataset needs {format_bytes(needed)} more, and the folder {folder} has {format_bytes(free)} free. "
            "Free space there, choose another folder, or ask for fewer files."
        )
