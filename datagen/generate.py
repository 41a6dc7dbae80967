"""Make a dataset: its files by local processes, its manifest last, and nothing that is half done taken for whole."""

import errno
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from functools import partial
from io import BytesIO
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from crc32c import crc32c

from dlio_bench.datagen import extents
from dlio_bench.datagen.claim import Progress, claimed, keep_intact, title_of
from dlio_bench.datagen.dataset import Dataset, missing_or_resized, open_dataset
from dlio_bench.datagen.layout import Counts, FileSpec, Layout, Written
from dlio_bench.datagen.manifest import (
    CHECKSUMS,
    EXTENTS,
    GENERATOR,
    NAME,
    SCHEMA,
    AuxiliaryEntry,
    FileEntry,
    Manifest,
    fingerprint,
    sha256,
    spec_digest,
    to_json,
)
from dlio_bench.datagen.random_bytes import SEED_LIMIT
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.units import format_bytes
from dlio_bench.whole_files import part_of, publish, sync, write_whole

Report = Callable[[int, int], None]
MOST_WORKERS = 8
ALONE = 64_000_000  # bytes that one process writes sooner than others start
_MARGIN = 1.02  # of the space asked for: mean sizes are means
_FIXES = {
    errno.ENOSPC: "Free space there or choose another folder",
    errno.EDQUOT: "Free space within your quota or choose another folder",
    errno.EACCES: "Make the folder writable for this user or choose another",
    errno.EPERM: "Make the folder writable for this user or choose another",
    errno.EROFS: "Choose a folder on a file system that can be written",
    errno.ENOTDIR: "Choose a path that leads through folders only",
}


def generate(
    layout: Layout,
    files: Counts,
    folder: Path,
    seed: int,
    *,
    workers: int | None = None,
    progress: Report | None = None,
) -> Dataset:
    """Make the first `files` files of each split in `folder` and open the dataset; an intact one is opened as it is.

    `workers` processes write (default: cores, files or 8, whichever is least; one for small datasets); they are
    spawned, so that a script calling this needs the usual `if __name__ == "__main__"`. `progress(done, total)` gets
    bytes. A generation that was stopped, however roughly, goes on where it was when called again.

    UsageError: a count or seed out of range, a folder that holds something else. EnvironmentFailure: no space, no
    permission, a worker killed, another process at work in the folder.
    """
    total = files if isinstance(files, int) else sum(files.values())
    _require(files=total, workers=1 if workers is None else workers, seed=seed)
    specs = layout.files(files)
    spec = spec_digest(layout, files, seed)
    folder = folder.absolute()
    if whole := _whole(folder, spec):
        return whole
    try:
        title = title_of(layout.workload, layout.variant, layout.fill, layout.tiny, len(specs), seed)
        with claimed(folder, spec, title) as record:
            if whole := _whole(folder, spec):  # made by another process in the meantime
                record.forget()
                return whole
            if (folder / NAME).exists():
                keep_intact(record, open_dataset(folder))
            _make(layout, specs, folder, seed, record, workers, progress or (lambda _done, _total: None))
            _write_manifest(layout, specs, folder, seed, spec, record)
            record.forget()
    except OSError as error:
        raise _failure(folder, error) from error
    return open_dataset(folder)


def _whole(folder: Path, spec: str) -> Dataset | None:
    """The dataset that was asked for, if it is there already with all its files."""
    if not (folder / NAME).exists():
        return None
    dataset = open_dataset(folder)
    return dataset if dataset.manifest.spec == spec and not missing_or_resized(dataset) else None


def _make(
    layout: Layout,
    specs: tuple[FileSpec, ...],
    folder: Path,
    seed: int,
    record: Progress,
    workers: int | None,
    report: Report,
) -> None:
    """Write all files that are not whole yet."""
    sizes = [round(spec.samples * layout.split(spec.split).sample_bytes) for spec in specs]
    todo = [n for n, spec in enumerate(specs) if record.finished(n, folder / spec.name) is None]
    total, left = sum(sizes), sum(sizes[number] for number in todo)
    _require_space(folder, left)
    done = total - left
    report(done, total)
    for name, write in layout.auxiliary.items():
        with _parts_removed(folder, [name]):
            write(part_of(folder / name), seed)
            publish(part_of(folder / name), folder / name)
    count = min(workers or min(len(os.sched_getaffinity(0)), MOST_WORKERS), len(todo))
    alone = count <= 1 or (workers is None and left <= ALONE)
    with _parts_removed(folder, [specs[number].name for number in todo]):
        start = _one_by_one if alone else partial(_by_workers, count=count)
        with closing(start(layout, specs, todo, folder, seed)) as whole:  # workers end before their parts are removed
            for number in whole:
                done += sizes[number]
                report(done, total)


def _one_by_one(
    layout: Layout, specs: tuple[FileSpec, ...], todo: list[int], folder: Path, seed: int
) -> Generator[int, None, None]:
    for number in todo:
        yield _make_file(layout, specs[number], number, folder, seed)


def _by_workers(
    layout: Layout, specs: tuple[FileSpec, ...], todo: list[int], folder: Path, seed: int, *, count: int
) -> Generator[int, None, None]:
    """Numbers of files as they become whole. Whatever ends this early ends the workers too, at once."""
    context = get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    with theirs, ours, ProcessPoolExecutor(count, context, _start_worker, (theirs,)) as pool:
        try:
            waiting = iter(todo)
            running: set[Future[int]] = set()
            while True:
                for number in waiting:
                    running.add(pool.submit(_make_file, layout, specs[number], number, folder, seed))
                    if len(running) >= 2 * count:
                        break
                if not running:
                    break
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        except BrokenProcessPool as error:
            raise EnvironmentFailure(
                f"A process that was writing to {folder} was killed, perhaps for want of memory. The finished files "
                "are kept: repeat the same command to go on."
            ) from error
        except BaseException:
            ours.close()  # workers watch the other end
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _start_worker(life: Connection) -> None:
    """Leave Ctrl-C to the parent, and end as soon as the parent closes its end of the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        life.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _make_file(layout: Layout, spec: FileSpec, number: int, folder: Path, seed: int) -> int:
    """Write one file whole, then record it; returns its number."""
    path = folder / spec.name
    part = part_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = layout.write(part, spec, seed)
        size = part.stat().st_size
        publish(part, path)
        Progress(folder).keep(number, size, written)
    except OSError as error:
        raise _failure(folder, error) from error
    return number


def _write_manifest(
    layout: Layout, specs: tuple[FileSpec, ...], folder: Path, seed: int, spec: str, record: Progress
) -> None:
    kept: list[tuple[int, Written]] = []
    for number, file in enumerate(specs):
        found = record.finished(number, folder / file.name)
        if found is None:
            raise EnvironmentFailure(f"{folder / file.name} was changed during its generation. Repeat the command.")
        kept.append(found)
    encoding, table = extents.encode([written for _, written in kept])
    arrays = {EXTENTS: table, CHECKSUMS: np.concatenate([written.checksums for _, written in kept])}
    digests = {}
    for name, array in arrays.items():
        content = BytesIO()
        np.save(content, array)
        digests[name] = sha256(content.getvalue())
        write_whole(folder / name, content.getvalue())
    for parent in {(folder / file.name).parent for file in specs}:
        sync(parent)
    manifest = Manifest(
        schema=SCHEMA,
        spec=spec,
        workload=layout.workload,
        variant=layout.variant,
        container=layout.container,
        tiny=layout.tiny,
        fill=layout.fill,
        seed=seed,
        generator=GENERATOR,
        source=layout.source,
        fields=layout.fields,
        files=tuple(
            FileEntry(s.name, s.first, s.samples, size, s.split) for s, (size, _) in zip(specs, kept, strict=True)
        ),
        auxiliary=tuple(_auxiliary(folder, name) for name in layout.auxiliary),
        encoding=encoding,
        extents_sha256=digests[EXTENTS],
        checksums_sha256=digests[CHECKSUMS],
        fingerprint=fingerprint(),
    )
    write_whole(folder / NAME, to_json(manifest))


def _auxiliary(folder: Path, name: str) -> AuxiliaryEntry:
    content = (folder / name).read_bytes()
    return AuxiliaryEntry(name, len(content), crc32c(content))


@contextmanager
def _parts_removed(folder: Path, names: list[str]) -> Iterator[None]:
    """Leave no half-written file behind, except by being killed."""
    try:
        yield
    finally:
        for name in names:
            part_of(folder / name).unlink(missing_ok=True)


def _require(*, files: int, workers: int, seed: int) -> None:
    for what, value in (("files", files), ("workers", workers)):
        if value < 1:
            raise UsageError(f"{value} {what} were asked for. Ask for at least 1.")
    if not 0 <= seed < SEED_LIMIT:
        raise UsageError(f"The seed {seed} is out of range. Use one from 0 to {SEED_LIMIT - 1}.")


def _require_space(folder: Path, needed: int) -> None:
    system = os.statvfs(folder)
    free = system.f_bavail * system.f_frsize
    if system.f_blocks and free < needed * _MARGIN:  # a file system of no blocks does not tell
        raise EnvironmentFailure(
            f"The dataset needs {format_bytes(needed)} more, and the folder {folder} has {format_bytes(free)} free. "
            "Free space there, choose another folder, or ask for fewer files."
        )


def _failure(folder: Path, error: OSError) -> EnvironmentFailure:
    fix = _FIXES.get(error.errno or 0, "Look at the file system and its logs")
    reason = os.strerror(error.errno) if error.errno else error  # the error number alone: HDF5's own text is a page
    where = f" ({error.filename})" if error.filename else ""
    return EnvironmentFailure(
        f"The dataset folder {folder} cannot be written: {reason}{where}. {fix}; the files already "
        "finished are kept, and the same command goes on with them."
    )
