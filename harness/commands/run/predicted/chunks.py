"""The reads that a reader makes for a rank's plan, for the simulator."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from dlio_bench.datagen.dataset import Dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.harness.cluster.system import MB
from dlio_bench.harness.commands.run.predicted.runtime import Chunk
from dlio_bench.harness.plan.orders import Ids
from dlio_bench.harness.readers.session import SampleView
from dlio_bench.harness.storage.chunks import Work
from dlio_bench.harness.storage.extents import CHECKED_BYTES, OPEN_FILES, OPEN_VISITS, ExtentReader


class Cut(Struct, frozen=True):
    """What decides the reads of a sample: its view, and whether it is checked. preprocess: see Setting."""

    sample_view: SampleView
    check_crc: bool
    preprocess: float


def is_readable(dataset: Dataset) -> bool:
    """Whether readers read samples straight from their extents."""
    return CONTAINERS[dataset.manifest.container].library is None


def is_packed(dataset: Dataset) -> bool:
    """Whether readers unpack what they have read."""
    return CONTAINERS[dataset.manifest.container].decode is not None


def handles_kept(dataset: Dataset) -> int:
    """Files that a rank's reader keeps open."""
    return OPEN_VISITS if dataset.file_per_sample else OPEN_FILES


def chunks(cut: Cut, plan: Sequence[Ids], cached: Sequence[float]) -> list[Chunk]:
    """The chunks of a plan ([step] int64 [batch]) in its order. cached: step -> share of its chunks in a cache."""
    extents = ExtentReader(cut.sample_view.dataset, cut.sample_view.fields, cut.sample_view.decode, check=cut.check_crc)
    try:
        work = extents.prepare(plan)
    finally:
        extents.close()
    batches = work.batches.tolist()
    plan_chunks = []
    for number, (step, (reads, decoded)) in enumerate(zip(batches, _reads(work, cut), strict=True)):
        share = cached[step]
        hit = int((number + 1) * share) > int(number * share)  # spread evenly
        plan_chunks.append(Chunk(step, reads, decoded / (cut.preprocess * MB), hit))
    return plan_chunks


def _reads(work: Work, cut: Cut) -> list[tuple[tuple[tuple[int, int], ...], int]]:
    """For each chunk its reads (key of the file, bytes) and the bytes to decode."""
    if work.reads is not None:
        calls = work.reads.calls[:, [0, 3]].tolist()
        firsts = work.reads.chunks[:, 0].tolist()
        return [(tuple(map(tuple, calls[first:last])), 0) for first, last in pairwise(firsts)]
    chunk_reads = []
    keys, stored = work.samples.keys.tolist(), work.samples.stored.tolist()
    most = CHECKED_BYTES if cut.check_crc else 1 << 62
    rows = work.rows.tolist()
    decodes = cut.sample_view.decode is not None or is_packed(cut.sample_view.dataset)
    for first, last in pairwise(rows):
        pieces = [
            (keys[row], min(most, length - at))
            for row in range(first, last)
            for length in stored[row]
            for at in range(0, length, most)
        ]
        decoded = sum(sum(stored[row]) for row in range(first, last)) if decodes else 0
        chunk_reads.append((tuple(pieces), decoded))
    return chunk_reads
