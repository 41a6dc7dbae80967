"""`dlio-bench storage`: test files made or a dataset's taken, ranks launched, rates told, everything removed."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dlio_bench import __version__
from dlio_bench.benchmarks.layouts import layout_of
from dlio_bench.datagen import objects
from dlio_bench.datagen.dataset import changed_files, open_dataset
from dlio_bench.errors import DataError, UsageError
from dlio_bench.free_space import free_bytes
from dlio_bench.harness.cluster import allocation
from dlio_bench.harness.cluster.allocation import Allocation
from dlio_bench.harness.cluster.environment import timestamp
from dlio_bench.harness.cluster.start import Ranks
from dlio_bench.harness.commands.storage_bench import in_objects, sizing
from dlio_bench.harness.commands.storage_bench.attestation import attestation
from dlio_bench.harness.commands.storage_bench.folder import EMPTY, claim_work_folder, write_files
from dlio_bench.harness.commands.storage_bench.options import COLD, Options
from dlio_bench.harness.commands.storage_bench.plan import Files, samples_in
from dlio_bench.harness.commands.storage_bench.rank import SAMPLES_FILE, Job
from dlio_bench.harness.commands.storage_bench.reading import REQUEST
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground.folders import cache_folder, require_file, require_storage, work_folder
from dlio_bench.harness.ground.launching import run_ranks
from dlio_bench.harness.ground.options import DIRECT
from dlio_bench.harness.ground.progress import Progress
from dlio_bench.harness.machine.memory import memory
from dlio_bench.harness.machine.mounts import mount_document
from dlio_bench.harness.machine.temp_folders import temp_folder
from dlio_bench.harness.storage.direct import alignment_of, require_folder
from dlio_bench.harness.storage.object_store import mirror_tables, require_ranges
from dlio_bench.reports import storage as report
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_bytes

MODULE = "commands.storage_bench.rank"
DEFAULT_WORKLOAD = "cdb"
DEFAULT_RANKS = (1, 2)


def storage(options: Options) -> int:
    """The whole command: 0 when the rates are measured. Raises BenchError."""
    _require(options)
    given = allocation.find(os.environ)
    scales = scales_of(options.ranks, options.nodes, given, options.launcher)
    for scale in scales:  # what cannot be launched is refused before anything is made
        scale.start()
    if max(scale.nodes for scale in scales) > 1:
        told = ", ".join(f"{plural(scale.count, 'rank')} on {plural(scale.nodes, 'node')}" for scale in scales)
        print(f"scale  {told} of {given}", file=sys.stderr)
    progress = Progress()
    seed = int.from_bytes(os.urandom(4), "little")  # new bytes each time: nothing below may know them already
    url = None if options.folder is None else objects.url_of(options.folder)
    with _meeting_place(options, given) as place, ExitStack() as stack:
        files = _dataset_files(options, scales) if options.data else _test_files(options, scales, place, seed, progress)
        if url is not None and options.data is None:
            progress.show(f"uploading test objects to {url}")
            files = stack.enter_context(in_objects.upload_files(url, files))
        _require_memory(options, scales, files)
        measured = [_measure(options, scale, files, place, seed, progress) for scale in scales]
    progress.clear()
    document = report.complete(_draft(options, files, seed, measured))
    content = json.dumps(to_json(document), indent=1, allow_nan=False)
    print(content if options.json else report.view(document).text(), end="\n" if options.json else "")
    if options.out is not None:
        write_whole(options.out, (content + "\n").encode())
    return 0


def _require(options: Options) -> None:
    """UsageError for what is out of range, not there or does not fit together."""
    if options.folder is None and options.data is None:
        raise UsageError("Name a folder on the storage to be measured, or an existing dataset with --data.")
    places = [place for place in (options.folder, options.data) if place is not None]
    if stored := [url for place in places if (url := objects.url_of(place))]:
        _require_ranges(options, stored[0])
    elif options.folder is not None:
        require_storage(options.folder, str(options.folder))
    if len(given := opt.given(options, "workload", "sample_size", "data")) > 1:
        raise UsageError(f"{' and '.join(given)} each say what is read. Give one of them.")
    if options.io == DIRECT and options.folder is not None and not stored:
        require_folder(options.folder)
    if options.out is not None:
        require_file(options.out)


def _require_ranges(options: Options, url: str) -> None:
    """UsageError for what an object store does not have."""
    if options.io == DIRECT or options.cache != COLD:
        flag = f"--io {options.io}" if options.io == DIRECT else f"--cache {options.cache}"
        raise UsageError(f"{flag}: {url} is in an object store, of which this machine has no page cache. Leave it out.")
    objects.open_store(url)


def scales_of(
    ranks: tuple[int, ...] | None, nodes: int | None, given: Allocation | None, launcher: str | None
) -> list[Ranks]:
    """Ranks that measure together, for each of the numbers `ranks`, on so many nodes.

    None: on the most nodes of the allocation that divide the number. UsageError.
    """
    counts = ranks or DEFAULT_RANKS
    if ranks is None and given is not None and given.giver == "launched":
        counts = (given.nodes * (given.ranks_per_node or 1),)
    most = 1 if given is None else given.nodes
    if nodes is None:
        on = [max(n for n in range(1, most + 1) if count % n == 0) for count in counts]
        return [Ranks(MODULE, n, count // n, launcher) for n, count in zip(on, counts, strict=True)]
    allocation.require(given, nodes)
    if given is None and nodes > 1:
        raise UsageError(
            f"--nodes {nodes}: this is one machine, and storage is measured from real nodes. Run inside a "
            "scheduler's allocation, name hosts with --hostfile, or leave --nodes out."
        )
    if uneven := [count for count in counts if count % nodes]:
        raise UsageError(
            f"--ranks {uneven[0]} on --nodes {nodes}: every node gets as many ranks. Ask for multiples of {nodes}: "
            f"--ranks {nodes},{2 * nodes}."
        )
    return [Ranks(MODULE, nodes, count // nodes, launcher) for count in counts]


def _readers(options: Options, scales: Sequence[Ranks]) -> tuple[int, ...]:
    """Every number of threads of all ranks together."""
    return tuple(sorted({scale.count * threads for scale in scales for threads in options.threads}))


@contextmanager
def _meeting_place(options: Options, given: Allocation | None) -> Iterator[Path]:
    """Where files are made and ranks meet: in the folder, or apart where only a dataset was named.

    Nodes that were given meet in the folder in which the command starts, as each has a temporary folder of its own.
    """
    if options.folder is not None and objects.url_of(options.folder) is None:
        with claim_work_folder(options.folder) as place:
            yield place
    else:
        with temp_folder("dlio-bench-storage-", None if given is None else Path.cwd()) as place:
            yield place


def _test_files(options: Options, scales: Sequence[Ranks], place: Path, seed: int, progress: Progress) -> Files:
    """Files of the workload's size, made now."""
    if options.sample_size is not None:
        sample, per_file = sizing.of_sample(options.sample_size)
    else:
        sample, per_file = sizing.of_workload(options.workload or DEFAULT_WORKLOAD)
    shape = sizing.choose(sample, per_file, options.size, _readers(options, scales), free_bytes(place))
    return write_files(place, shape, seed, lambda done, total: progress.amount("making test files", done, total))


def _dataset_files(options: Options, scales: Sequence[Ranks]) -> Files:
    """The first training files of a dataset, as many as are enough or as --size allows (at least one)."""
    assert options.data is not None
    url = objects.url_of(options.data)
    dataset = open_dataset(options.data if url is None else mirror_tables(url, cache_folder()))
    layout_of(dataset)
    if bad := changed_files(dataset):
        raise DataError(
            f"The dataset in {options.data} is not whole: {bad[0]}. Restore the files, or generate it anew."
        )
    entries, most = dataset.training_files, max(_readers(options, scales))
    sample = sum(entry.bytes for entry in entries) // sum(entry.samples for entry in entries)
    limit = sizing.steady_bytes(sample, most) if options.size is None else options.size
    count = sizing.first_files([entry.bytes for entry in entries], limit)
    samples = samples_in(dataset, count)
    sizing.require_samples(len(samples), most, count, options.data)
    if options.io == DIRECT:
        alignment_of(dataset)
    paths = tuple(str(Path(dataset.name(number)).absolute()) for number in range(count))
    if dataset.store is not None:
        require_ranges(dataset)
        paths = tuple(dataset.name(number) for number in range(count))
    return Files(paths, tuple(entry.bytes for entry in entries[:count]), samples)


def _require_memory(options: Options, scales: Sequence[Ranks], files: Files) -> None:
    """UsageError where the buffers of a node's readers would not fit into the memory of this one."""
    readers = max(scale.ranks_per_node for scale in scales) * max(options.threads)
    size = max(REQUEST, int(files.samples[:, 2].max()))  # ranges of objects are no larger than that
    needed, available = readers * size, memory().available
    if needed > available:
        raise UsageError(
            f"{readers} readers of a node with a buffer of {format_bytes(size)} each need {format_bytes(needed)}, "
            f"and {format_bytes(available)} of memory are free. Use fewer --threads or --ranks, or smaller samples."
        )


def _measure(
    options: Options, scale: Ranks, files: Files, place: Path, seed: int, progress: Progress
) -> dict[str, Any]:
    """What `rank.measure` finds with so many ranks."""
    creates_in = None
    if options.data is None and not in_objects.are_objects(files.paths):
        (place / EMPTY).mkdir(exist_ok=True)
        creates_in = str(place / EMPTY)
    job = Job(options, scale.count, seed, creates_in, files.paths, files.sizes)
    work = work_folder(place)
    work.mkdir()
    np.save(work / SAMPLES_FILE, files.samples)
    return run_ranks(scale.start, job, work, progress.lines_under("reading"), share="name one as DIR")


def _draft(options: Options, files: Files, seed: int, measured: list[dict[str, Any]]) -> dict[str, Any]:
    """What was asked for and measured; `reports.storage.complete` makes the document of it."""
    given = options.data or options.folder or Path()
    url = objects.url_of(given)
    folder = url or str(given.absolute())
    reads = [row for document in measured for row in document["reads"]]
    trials = [trial for row in reads for trial in row["trials"]]
    return {
        "schema": report.SCHEMA,
        "created": timestamp(),
        "version": __version__,
        "folder": folder,
        "mount": mount_document(given.absolute()) if url is None else in_objects.describe_store(url),
        "hosts": sorted({host for document in measured for host in document["hosts"]}),
        "workload": None if options.data or options.sample_size else options.workload or DEFAULT_WORKLOAD,
        "made": options.data is None,
        "seed": seed,
        "files": len(files.paths),
        "file_bytes": round(sum(files.sizes) / len(files.sizes)),
        "samples": len(files.samples),
        "sample_bytes": files.sample_bytes,
        "cache": options.cache,
        "io": options.io,
        "attestation": attestation(options.cache, trials, direct=options.io == DIRECT, stored=url is not None),
        "trials": options.trials,
        "reads": reads,
        "metadata": [row for document in measured for row in document["metadata"]],
    }
