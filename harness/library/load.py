"""`dlio_bench.load`: a dataset, a reader and the ranks of a program become a loader."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from dlio_bench.batches import Ids
from dlio_bench.benchmarks import tensors
from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.dataset import Dataset, open_dataset
from dlio_bench.datagen.index import open_files
from dlio_bench.datagen.layout import TRAIN
from dlio_bench.datagen.manifest import NAME
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError, require_at_least, unknown
from dlio_bench.harness.cluster import interfaces
from dlio_bench.harness.cluster.comm import Comm, run_on_all_ranks
from dlio_bench.harness.cluster.environment import host_name
from dlio_bench.harness.ground.defaults import MOST_THREADS, STAGING_BYTES
from dlio_bench.harness.ground.options import BUFFERED, DIRECT, IO_MODES
from dlio_bench.harness.library import ranks
from dlio_bench.harness.library.arguments import require_kinds, valid_seed, whole
from dlio_bench.harness.library.arrays import VARYING
from dlio_bench.harness.library.course import SampleSchedule
from dlio_bench.harness.library.decoding import Decoder, decode_and_columns, sample_name
from dlio_bench.harness.library.loader import Loader
from dlio_bench.harness.machine.memory import memory_bytes
from dlio_bench.harness.plan.orders import Shape
from dlio_bench.harness.plan.policies import ALIASES, LOADERS, OWN, POLICIES, REDRAWN, Policy, find, order_of
from dlio_bench.harness.readers.options import ReaderOptions
from dlio_bench.harness.readers.placed.room import Room, require_asked
from dlio_bench.harness.readers.placed.tiers import Tiers
from dlio_bench.harness.readers.registry import open_planned, view_of
from dlio_bench.harness.readers.resources import RankContext, Resources
from dlio_bench.harness.readers.session import Reader, SampleView
from dlio_bench.harness.readers.threads import reading_threads
from dlio_bench.harness.storage.direct import Alignment, alignment_of
from dlio_bench.units import parse_bytes

Size = int | str  # bytes, or with a unit: "2GB"


def in_bytes(name: str, size: Size) -> int:
    """A size in bytes. UsageError."""
    try:
        count = parse_bytes(size) if isinstance(size, str) else int(size)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f'{name} is {size!r}. Give bytes, or a text with a unit, such as "2GB".') from error
    if count < 0:
        raise UsageError(f"{name} is {size}: a size is not below 0.")
    return count


def staging_size(asked: Size | None, batch_bytes: int) -> int:
    """Bytes of a staging buffer, by default room for at least three batches of `batch_bytes`."""
    return max(STAGING_BYTES, 3 * batch_bytes) if asked is None else in_bytes("staging", asked)


def node_tiers(
    asked: Mapping[str, Size] | None, local: Path | None, row: Policy, comm: Comm, per_node: int, staging_bytes: int
) -> Tiers:
    """The tiers of every node, the least of what all nodes have. All ranks call it together. UsageError."""
    sizes = {name: in_bytes(f"tiers[{name!r}]", size) for name, size in (asked or {}).items()}
    require_asked(sizes, row.name, keep=row.rule.keeps_samples, dashes="")
    if not row.rule.keeps_samples:
        return Tiers()
    here = comm.host_size // per_node if comm.host_size % per_node == 0 else comm.host_size  # nodes on this machine
    room = Room(memory_bytes() // here, staging_bytes * per_node, local, here)
    everywhere = run_on_all_ranks(comm, lambda: room.tiers(sizes, host_name(), dashes=""))
    return Tiers(min(tiers.ram for tiers in everywhere), min(tiers.disk for tiers in everywhere))


RAISE, SKIP = "raise", "skip"
PATIENCE = 300.0  # seconds, as a command waits for a rank that makes no progress


def load(
    dataset: str | Path,
    *,
    batch: int,
    reader: str = "prefetch",
    epochs: int = 1,
    seed: int = 1,
    fields: Sequence[str] = (),
    files: str | Sequence[str] = (),
    decode: bool | Decoder = False,
    on_error: str = RAISE,
    split: str = TRAIN,
    last: str = "drop",
    copy: bool = False,
    tiers: Mapping[str, int | str] | None = None,
    local_tier: str | Path | None = None,
    staging: int | str | None = None,
    threads: int | None = None,
    io: str = BUFFERED,
    check_crc: bool = False,
    comm: object | None = None,
    patience: float = PATIENCE,
) -> Loader:
    """Open a dataset for training: a `Loader` of its samples, shared among the ranks of the program.

    dataset: a folder that `dlio-bench generate` or `index` has made a dataset; or a folder of files (or one file) of
    any kind: with `fields` the HDF5 datasets of these paths, their samples along the first axis; else each file is a
    sample, whose field is `content`. files: which files of such a folder, as one or several patterns: "*.jpg" is a
    file's name, "train/*.jpg" its folder, too; by default all but hidden ones and READMEs.

    reader: a row of the table of policies (docs/reference/readers.md) that knows its order. batch: samples of a rank
    and step. epochs: in all; readers plan them together, so that they know which samples to keep. seed: of the order.
    split: train, validation or test. last: what becomes of samples that do not fill the last step, as `--last`. copy:
    batches stay valid (see Loader).

    fields: which to deliver; by default the workload's view, or all. decode: True: as the workload's application
    decodes; or a Decoder. on_error: for a sample that cannot be decoded, or is an empty file: "raise" a DataError that
    names it, or "skip" it: its batch is then smaller, perhaps empty, and Loader.skipped names it. check_crc: compare
    every stored field with its checksum.

    tiers: bytes of a node's tiers that keep samples, as {"ram": "2GB", "disk": "100GB"}; by default as
    `dlio-bench run`, which takes up to 40 % of a node's memory if the dataset is that large. local_tier: a folder on
    node-local storage. staging: bytes of a rank's staging buffer. threads: that read ahead; by default
    as many as make reading faster.
    io: direct reads past the page cache, with O_DIRECT, where the file system takes that.

    comm: a communicator of mpi4py whose ranks share the samples, each of which calls this; None: all that the launcher
    has started, or this process alone. patience: seconds that a rank waits for the others.

    UsageError, DataError, EnvironmentFailure, the same on all ranks.
    """
    tensors.own_process = False
    batch, epochs, seed = whole("batch", batch), whole("epochs", epochs), valid_seed(seed)
    threads = None if threads is None else whole("threads", threads)
    require_at_least(1, batch=batch, epochs=epochs, threads=threads)
    patterns = (files,) if isinstance(files, str) else files
    require_kinds(dataset, fields, patterns, decode, tiers, patience)
    if on_error not in (RAISE, SKIP):
        raise UsageError(f"on_error={on_error!r} is not known. Use {RAISE!r} or {SKIP!r}.")
    row = _row(reader)
    here = ranks.ranks(comm, patience)
    place = Path(dataset)
    data = _open_data(here, place, fields, patterns)
    if check_crc and not data.manifest.checksums_sha256:
        raise UsageError(
            f"check_crc: the files in {place} have no checksums, as no manifest was made of them. Leave check_crc out."
        )
    names = tuple(fields) or _view(data)
    skipped: dict[int, str] | None = {} if on_error == SKIP else None
    how, columns = decode_and_columns(data, names, decode, skipped)
    if "ids" in (column.name for column in columns):
        raise UsageError(f"{place} has a field 'ids', by which batches name their samples. Name other fields=.")
    view = view_of(row, data, names, how)
    per_node = ranks.ranks_per_node(here)
    shape = _shape(data, split, here.size, batch, per_node, last)
    _note_empty(data, _ids(shape), skipped)
    course = SampleSchedule(row.name, order_of(row), shape, epochs, seed)
    settings = {"reader": row.name, "batch": batch, "epochs": epochs, "seed": seed, "split": split, "last": last}
    _require_same(here, {"dataset": data.digest, **settings, "fields": names})
    if not course.steps:
        raise UsageError(
            f"{place} has {shape.samples} samples for {here.size} ranks with batches of {batch}, which fill no step. "
            'Use a smaller batch, or last="keep".'
        )
    local = None if local_tier is None else Path(local_tier)
    if local is not None and not local.is_dir():
        raise UsageError(
            f"local_tier={str(local)!r} is not a folder. Make it on every node, or name one that all have."
        )
    staging_bytes = staging_size(staging, int(batch * view.sizes(_ids(shape)).mean()))
    resources = Resources(
        threads or reading_threads(here.host_size),
        staging_bytes,
        step_seconds=math.inf,  # not known
        options=ReaderOptions(threads=threads, staging=staging_bytes, check_crc=check_crc, io=io),
        tiers=node_tiers(tiers, local, row, here, per_node, staging_bytes),
        most_threads=threads or MOST_THREADS,
        alignment=_alignment(here, io, data),
    )
    context = RankContext(here, per_node, local, interfaces.serving(here)[here.rank].address)
    made: list[Reader] = []
    run_on_all_ranks(
        here, lambda: made.append(open_planned(row, view, _parts(course, view, here.rank), resources, context))
    )
    return Loader(here, made[0], course, columns, data.digest, copy=copy, skipped=skipped)


def _row(reader: str) -> Policy:
    """The row of a reader of ours whose order is a plan. UsageError."""
    if reader.partition("+")[0] not in (*ALIASES, *POLICIES):
        raise unknown("reader", reader, [name for name in (*ALIASES, *POLICIES) if _has_planned_order(find(name))])
    row = find(reader)
    if row.delivery in LOADERS:
        raise UsageError(
            f"Reader '{reader}' is another loader ({row.source}), to be measured beside ours. A program uses that "
            "itself, or one of our readers, such as prefetch, through as_tf or as_torch."
        )
    if not _has_planned_order(row):
        raise UsageError(
            f"Reader '{reader}' does not promise which sample comes next, so that a training could not go on where it "
            "stopped. Use another, such as prefetch."
        )
    return row


def _has_planned_order(row: Policy) -> bool:
    """Whether it is a reader of ours whose order is a plan."""
    return row.delivery not in (*LOADERS, OWN) and row.order_known and row.order != REDRAWN


def _open_data(comm: Comm, place: Path, fields: Sequence[str], patterns: Sequence[str]) -> Dataset:
    """The dataset, or the files as one: the first rank looks at them for all."""
    if run_on_all_ranks(comm, (place / NAME).exists)[0]:
        if patterns:
            raise UsageError(
                f"files={[*patterns]!r}: the manifest in {place} says which files it has. Leave files= out."
            )
        mine: list[Dataset] = []
        run_on_all_ranks(comm, lambda: mine.append(open_dataset(place)))
        return mine[0]
    data = run_on_all_ranks(comm, lambda: open_files(place, fields, patterns) if comm.rank == 0 else None)[0]
    assert data is not None
    return data


def _alignment(comm: Comm, io: str, dataset: Dataset) -> Alignment | None:
    """What direct reads of the dataset need; None: its reads are buffered. As `alignment_of`, and UsageError."""
    if io not in IO_MODES:
        raise UsageError(f"io={io!r} is not known. Use {' or '.join(map(repr, IO_MODES))}.")
    return run_on_all_ranks(comm, lambda: alignment_of(dataset) if io == DIRECT else None)[comm.rank]


def _view(dataset: Dataset) -> tuple[str, ...]:
    """The view that the dataset's workload has of a sample; all fields if it has none that is known."""
    workload = WORKLOADS.get(dataset.manifest.workload)
    return tuple(dataset.field_names) if workload is None else workload.of(dataset.manifest.variant).view


def _note_empty(dataset: Dataset, ids: Ids, skipped: dict[int, str] | None) -> None:
    """Note the samples that have no bytes in `skipped`, or raise DataError for the first if that is None."""
    varying = [field.name for field in dataset.manifest.fields if field.shape == VARYING]
    if len(varying) < len(dataset.manifest.fields):
        return
    empty = ids[dataset.locate(ids, varying)[3].sum(axis=1) == 0].tolist()
    told = {sample: f"{sample_name(dataset, sample)}: it is empty (0 bytes)" for sample in empty}
    if skipped is not None:
        skipped.update(told)
    elif told:
        raise DataError(
            f"{told[empty[0]]}, as {len(empty)} of {len(ids)} samples are. Restore or remove what is empty, or leave "
            'it out with on_error="skip".'
        )


def _shape(dataset: Dataset, split: str, ranks: int, batch: int, per_node: int, last: str) -> Shape:
    """How an epoch of a split is cut. UsageError where the dataset has none of it."""
    part = dataset.part(split)
    if part is None:
        known = dict.fromkeys(entry.split for entry in dataset.manifest.files)
        raise UsageError(f"The dataset in {dataset.folder} has no split '{split}'. It has {', '.join(known)}.")
    counts = [dataset.manifest.files[number].samples for number in part.files]
    bounds = np.cumsum([0, *counts])
    return Shape(len(part.samples), ranks, batch, bounds, per_node, last=last, first=part.samples.start)


def _ids(shape: Shape) -> Ids:
    return np.arange(shape.first, shape.first + shape.samples, dtype=np.int64)


def _parts(course: SampleSchedule, view: SampleView, rank: int) -> Iterator[tuple[int, Sequence[Ids]]]:
    """The plan, for its largest batch: any full one where all samples have one size."""
    sizes = view.sizes(_ids(course.shape))
    if (sizes == sizes[0]).all():
        yield 0, [np.resize(_ids(course.shape), course.shape.batch)]
        return
    yield from ((epoch, course.part(rank, epoch)) for epoch in range(course.epochs))


def _require_same(comm: Comm, settings: Mapping[str, object]) -> None:
    """The error on all ranks where one has opened another dataset, or in another way."""
    told = {name: str(value) for name, value in settings.items()}
    everybody = comm.allgather((host_name(), told))
    for rank, (host, theirs) in enumerate(everybody):
        for name, value in theirs.items():
            if value != everybody[0][1][name]:
                raise (EnvironmentFailure if name == "dataset" else UsageError)(
                    f"Rank {rank} on {host} opens its loader with another {name} ({value}) than rank 0 "
                    f"({everybody[0][1][name]}). Give all ranks the same."
                )
