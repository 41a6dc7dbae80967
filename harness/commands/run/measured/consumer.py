"""Checks each batch that the trainer gets: its ids are those of the plan, and 64 bytes of every sample were there.

A sample's mark is a weighted sum of 64 of its bytes (of each of its blocks) at positions drawn from its id. The timed
loop takes these bytes. Afterwards their marks are compared with those of content that has passed its CRC32C.
"""

from collections.abc import Sequence
from typing import TypeAlias

import crc32c
import numpy as np
import numpy.typing as npt

from dlio_bench.batches import Batch, Block, Bytes, Ids
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import Dataset
from dlio_bench.errors import DataError
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.readers.session import SampleView, plan_batches
from dlio_bench.harness.storage.extents import ExtentReader
from dlio_bench.harness.timeline import StepLog

PROBES = 64
PREPARED = 1 << 17  # samples whose positions are computed before the loop: 576 bytes each, 75 MB in all

Words: TypeAlias = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd: multiplication by it permutes 64-bit words
_PROBE = np.arange(1, PROBES + 1, dtype=np.uint64) * _ODD
_WEIGHT = _PROBE | np.uint64(1)
_ALL_WEIGHTS = _WEIGHT.sum(dtype=np.uint64)  # so that bytes of 0 leave their mark
_UPPER, _ONE = np.uint64(32), np.uint64(1)


class Consumer:
    """Checks the batches of one loop and logs them: their ids, and a mark of each sample.

    The check must not slow the loop or fill the processor's caches. So the loop only takes the bytes: positions are
    computed before it, and marks after it. This works for batches that come as planned, in one block. Others, and
    those beyond the first PREPARED samples, are marked inside the loop.
    """

    def __init__(self, steps: Sequence[Ids], starts: Sequence[Ids], log: StepLog, *, ordered: bool) -> None:
        """`steps`: ids of each batch. `starts`: where the samples of each will lie; empty if that is not known.

        A batch with these very arrays counts as planned, without a comparison of numbers. Without `steps` any batch
        may come.
        """
        self._steps, self._log, self._ordered = steps, log, ordered
        self._prepared: dict[int, tuple[Ids, Ids, Ids, Bytes]] = {}
        samples = 0
        for step, (ids, places) in enumerate(zip(steps, starts, strict=False)):
            samples += len(ids)
            if samples > PREPARED or not places[-1]:  # or of a stage that reads nothing
                break
            taken = np.full((len(ids), PROBES), 0, dtype=np.uint8)  # its pages touched
            self._prepared[step] = (ids, places, _positions(_draws(_seeds(ids)), places), taken)

    def take(self, step: int, batch: Batch) -> None:
        """Check the batch of a step. DataError if it is not the planned one."""
        prepared = self._prepared.get(step)
        if prepared is not None:
            ids, starts, positions, taken = prepared
            if batch.ids is ids and len(batch.blocks) == 1 and batch.blocks[0].starts is starts:
                batch.blocks[0].data.take(positions, out=taken, mode="clip")
                return
            del self._prepared[step]
        if self._steps:
            require_planned(batch, self._steps[step], ordered=self._ordered)
        self._enter(step, batch.ids, marks(batch))

    def finish(self) -> None:
        """Log the bytes taken. Call this once, after the clock has stopped."""
        for step, (ids, _, _, taken) in self._prepared.items():
            self._enter(step, ids, _marks(_seeds(ids), _weighted_sums(taken)))

    def _enter(self, step: int, ids: Ids, marks_of_step: Words) -> None:
        size = len(ids)  # the rest of a smaller last batch stays -1
        self._log.ids[step, :size], self._log.samples[step, :size] = ids, marks_of_step


def marks(batch: Batch) -> Words:
    """One mark a sample, uint64 [batch], never 0: it depends on the id and on 64 bytes of the sample."""
    seeds = _seeds(batch.ids)
    draws = _draws(seeds)
    total = np.zeros(len(batch.ids), dtype=np.uint64)
    for block in batch.blocks:
        # "clip" saves a pass: all positions are inside
        if block.data.size:
            total += _weighted_sums(block.data.take(_positions(draws, block.starts), mode="clip"))
    return _marks(seeds, total)


def _seeds(ids: Ids) -> Words:
    """uint64 [batch]."""
    seeds = (ids.view(np.uint64) + _ONE) * _ODD
    seeds ^= seeds >> _UPPER
    return seeds


def _draws(seeds: Words) -> Words:
    """Numbers below 2^32, uint64 [batch, 64]."""
    draws = seeds[:, None] * _WEIGHT
    draws >>= _UPPER
    return draws


def _positions(draws: Words, starts: Ids) -> Ids:
    """Where the bytes lie in the block, int64 [batch, 64]: 32 bits scaled to the sample's length (below 4 GiB)."""
    from_start = starts.view(np.uint64)
    positions = draws * (from_start[1:] - from_start[:-1])[:, None]
    positions >>= _UPPER
    positions += from_start[:-1, None]
    result: Ids = positions.view(np.int64)
    return result


def _weighted_sums(taken: Bytes) -> Words:
    """The weighted sum of each sample's bytes, uint64 [batch]."""
    total: Words = taken.astype(np.uint64) @ _WEIGHT
    return total


def _marks(seeds: Words, total: Words) -> Words:
    result: Words = (total + _ALL_WEIGHTS) * (seeds | _ONE) | _ONE
    return result


def find_damage(batch: Batch, sample_view: SampleView) -> list[str]:
    """Compare every field of every sample with its CRC32C from generation; a line for each that differs.

    A decoded sample is compared byte for byte with a decoding of fields that are read here and pass their CRC32C.
    """
    if sample_view.decode is None:
        return _field_damage(batch, sample_view.dataset, sample_view.fields)
    return _decoded_damage(batch, sample_view)


def _decoded_damage(batch: Batch, sample_view: SampleView) -> list[str]:
    dataset, fields, decode = sample_view.dataset, sample_view.fields, sample_view.decode
    assert decode is not None
    raw = plan_batches(SampleView(dataset, fields), [(0, [batch.ids])])[0]
    buffer = np.empty(raw.bytes, dtype=np.uint8)
    extents = ExtentReader(dataset, fields)
    try:
        extents.read(batch.ids, memoryview(buffer), Cost())
    finally:
        extents.close()
    lines = _field_damage(Batch(batch.ids, (Block(buffer, raw.starts),)), dataset, fields)
    files, _, _, sizes = dataset.locate(batch.ids, fields)
    ends = raw.starts[:-1, None] + np.cumsum(sizes, axis=1)
    parts = [
        [memoryview(buffer[end - size : end]) for end, size in zip(*row, strict=True)]
        for row in zip(ends.tolist(), sizes.tolist(), strict=True)
    ]
    ids = batch.ids.tolist()
    for i, expected in enumerate(decode.each(ids, parts)):
        if not np.array_equal(batch.sample(i), expected):
            lines.append(f"{dataset.name(int(files[i]))}: sample {ids[i]}: what was delivered is not its decoding")
    return lines


def _field_damage(batch: Batch, dataset: Dataset, view: Sequence[str]) -> list[str]:
    files, _, _, delivered = dataset.locate(batch.ids, view)
    expected = dataset.checksums(batch.ids, view)
    lines = []
    for i, sample in enumerate(batch.ids.tolist()):
        content, at = batch.sample(i), 0
        if content.nbytes != delivered[i].sum():
            lines.append(f"{dataset.name(int(files[i]))}: sample {sample}: {content.nbytes} bytes were delivered")
            continue
        for j, name in enumerate(view):
            end = at + int(delivered[i, j])
            crc = crc32c.crc32c(content[at:end])
            if crc != expected[i, j]:
                file = dataset.name(int(files[i]))
                lines.append(f"{file}: sample {sample}, field {name}: CRC32C {crc:08x}, generated {expected[i, j]:08x}")
            at = end
    return lines


def require_planned(batch: Batch, ids: npt.NDArray[np.int64], *, ordered: bool) -> None:
    """DataError if a reader delivers another batch than planned, or (not `ordered`) one of another size."""
    if not np.array_equal(batch.ids, ids) if ordered else len(batch.ids) != len(ids):
        raise DataError(
            f"The reader delivered samples {batch.ids[:4]}..., but the plan has {ids[:4]}...: a defect of the reader."
        )


def require_everything(comm: Comm, delivered: npt.NDArray[np.int64], plan: npt.NDArray[np.int64]) -> None:
    """DataError, on every rank, where the deliveries of all ranks are not the samples of the plan, as a multiset.

    Ids, -1 where there is none. All ranks call this together, with the same plan.
    """
    most = int(plan.max(initial=0)) + 1
    if delivered.max(initial=-1) >= most:
        raise DataError(f"Sample {delivered.max()} was delivered, which the plan does not have.")
    came = comm.total(np.bincount(delivered[delivered >= 0], minlength=most).astype(np.uint64))
    wrong = np.flatnonzero(came != np.bincount(plan[plan >= 0], minlength=most).astype(np.uint64))
    if len(wrong):
        raise DataError(
            f"All ranks together got other samples in an epoch than planned: {len(wrong)} came not at all or too often "
            f"(the first: sample {wrong[0]}, {came[wrong[0]]} times)."
        )


def require_same_set(delivered: npt.NDArray[np.int64], plan: npt.NDArray[np.int64]) -> None:
    """DataError if an epoch's deliveries are not those of the plan, as a multiset."""
    if not np.array_equal(np.sort(delivered, axis=None), np.sort(plan, axis=None)):
        missing = np.setdiff1d(plan, delivered)[:4]
        raise DataError(
            f"The reader delivered other samples in an epoch than planned (missing: {missing}...): a defect of the "
            "reader."
        )
