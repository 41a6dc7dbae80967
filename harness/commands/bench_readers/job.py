"""The job of every rank of a comparison."""

from msgspec import Struct, field

from dlio_bench.harness.cluster.job import SavedJob
from dlio_bench.harness.readers.options import ReaderOptions

# The contenders, by the names that results carry.
PREFETCH, PREFETCH_CRC, SHUFFLED, NAIVE = "prefetch", "prefetch + crc", "shuffled", "naive"
PLAIN = "plain loop"


class RawReads(Struct, frozen=True):
    """preadv by the first `ranks` ranks of the job, `threads` each."""

    ranks: int
    threads: int


class H5py(Struct, frozen=True):
    """h5py by all ranks, `threads` each. direct: `read_direct` instead of `ds[i]`."""

    threads: int
    direct: bool


def raws(ranks: int) -> dict[str, RawReads]:
    """The contenders of which the fastest is the limit of the storage, by name: 1, 2 or all of `ranks` ranks."""
    kinds = [RawReads(some, threads) for some in sorted({1, min(2, ranks), ranks}) for threads in (1, 2, 4)]
    return {f"raw preadv, {_count(raw.ranks, 'rank')}, {_count(raw.threads, 'thread')}": raw for raw in kinds}


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


# HDF5 has one lock: more threads overlap the work outside it, or only wait for each other.
H5PYS = {
    f"h5py {'read_direct' if direct else 'ds[i]'}, {_count(threads, 'thread')}": H5py(threads, direct)
    for direct in (False, True)
    for threads in (1, 4)
}
# The records of TFRecord files as they come, by the ways of tf.data that were fastest of those tried (see yardsticks).
TFDATA, TFDATA_BATCHED, TFDATA_INTERLEAVED = TFDATAS = ("tf.data", "tf.data batched", "tf.data interleave")
# PyTorch's DataLoader by its worker processes of each rank: more overlap reads and copies, or only wait for a core.
TORCHES = {f"torch, {_count(workers, 'worker')}": workers for workers in (1, 2)}
# WebDataset likewise, on tar shards of the same samples.
WEBDATASETS = {f"webdataset, {_count(workers, 'worker')}": workers for workers in (1, 2)}
# DALI's reader of whole files by its threads, which take the bytes by read(2) or from files mapped into memory.
DALIS = {
    f"dali {'mmap' if mmap else 'read'}, {_count(threads, 'thread')}": (threads, mmap)
    for mmap in (False, True)
    for threads in (1, 2, 4)
}
# What was compared of a contender's samples, apart from the clock.
EVERY_BYTE, NUMBER, NOTHING = "every byte", "number", "nothing"


class Job(SavedJob, frozen=True):
    """One dataset and its contenders: in each trial `ranks` ranks run every contender once, one after the other."""

    workload: str
    dataset: str
    contenders: tuple[str, ...]
    ranks: int
    threads: int  # that read ahead, at most
    staging_bytes: int
    batch: int
    trials: int
    seed: int
    options: ReaderOptions = field(default_factory=ReaderOptions)
