"""Samples read straight from their extents: `preadv` into the caller's buffer, the GIL released, no copy."""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import crc32c
import numpy as np

from dlio_bench import recorder
from dlio_bench.batches import Ids
from dlio_bench.benchmarks.pipeline import Decode
from dlio_bench.components import CODE
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import DAMAGED, Dataset
from dlio_bench.datagen.formats import CONTAINERS
from dlio_bench.errors import DataError
from dlio_bench.harness.storage.chunks import (
    CHUNK_OPENS,
    ChunkedReads,
    PlannedSamples,
    Reads,
    chunk_of,
    join_ids,
    reads,
    rejoin_calls,
    split_staged,
)
from dlio_bench.harness.storage.direct import Alignment, Piece
from dlio_bench.harness.storage.files import (
    COPY_READ,
    PREAD,
    DirectReads,
    Held,
    Libraries,
    OpenFile,
    OpenFiles,
    StoredFiles,
)
from dlio_bench.harness.storage.object_store import ObjectReads

# Files of many samples stay open while they are read from. A file of one sample is opened each time its sample is
# read, as its application does, so that the cost of opening stays in the measurement: its handle is kept only until
# the threads that read parts of the sample are done with it.
OPEN_FILES, OPEN_VISITS = 64, 16

# What is read at a time: large enough that taking it costs little beside reading it, small enough that several
# threads work on the batch that is needed first.
CHUNK_BYTES = 2 << 20
# What is checked as it comes in is read in pieces that are still in the processor's cache when their CRC is taken.
CHECKED_BYTES = 1 << 19
# Below this share of bytes that follow each other the kernel is told not to read ahead. Measured on a cold disk with
# 8 MiB of read-ahead: CDB's 5 of 18 fields took 1.8 times their bytes from the device, shuffled records of 0.1 to 8 MB
# 1.3 to 1.5 times; told, 1.0 times, and threads together were faster by a third. In order, read-ahead doubles the rate.
FOLLOWING = 0.9
_ALL = 1 << 62
LIBRARY_READ, DECODE = CODE["library read"], CODE["decode"]


class ExtentReader:
    """Reads samples into buffers; several threads may share one. `close` it to give its file handles back.

    With `decode`, what it makes of the fields is delivered. `check` compares every field with its CRC32C of generation.
    `staged`: where copies of some files lie on node-local storage. `alignment`: of direct reads; without it, and of
    copies, reads are buffered. Files of a dataset in an object store are read by requests for their ranges.
    """

    def __init__(
        self,
        dataset: Dataset,
        fields: Sequence[str],
        decode: Decode | None = None,
        *,
        check: bool = False,
        staged: Mapping[int, Path] | None = None,
        alignment: Alignment | None = None,
    ) -> None:
        self._dataset = dataset
        self._fields = tuple(fields)
        self._application = decode
        self._check = check
        self._staged = staged or {}
        self._stored = StoredFiles(dataset, self._staged, 0 if alignment is None else os.O_DIRECT)
        self._uncode = CONTAINERS[dataset.manifest.container].decode
        self._library = Libraries(CONTAINERS[dataset.manifest.container].library)
        self._of_one = dataset.file_per_sample
        self._visits = 0  # samples that were read from files of one
        self._expected = False  # somebody has said what will be read
        self._preparing = threading.Lock()
        keep = OPEN_VISITS if self._of_one else OPEN_FILES
        self._files = OpenFiles(self._stored.kernel_path, keep, self._stored.flags, dataset.access)
        self._uncached: DirectReads | ObjectReads | None = None  # what brings bytes that no page cache has
        if dataset.store is not None:
            self._uncached = ObjectReads(dataset)
        elif alignment is not None:
            self._uncached = DirectReads(self._stored, self._files, alignment)
        self._scratch = threading.local()

    def read(self, ids: Ids, out: memoryview, cost: Cost) -> None:
        """Fill `out` with the samples `ids`, one behind the other, each as its fields in order or as decoded.

        `out` holds exactly what is delivered of them. Raises DataError when a file ends early, does not decode or (on
        request) has another CRC32C than was generated, EnvironmentFailure when it cannot be opened or read.
        """
        work = self._plan_reads([ids], _ALL)
        if not self._expected:
            self._files.jumps = self._jumps(ids, work.samples.stored)
        self.fetch(work, range(len(work.batches)), out, cost)

    def expect(self, ids: Ids) -> None:
        """Say which samples will be read, in this order, by calls of `read` for a few of them each."""
        self._files.jumps = self._jumps(ids, self._dataset.locate(ids, self._fields)[2])
        self._expected = True

    def prepare(self, plan: Sequence[Ids], chunk_bytes: int | None = None) -> ChunkedReads:
        """Work out all reads of the batches `plan`, before any clock runs. Reads no byte of a sample."""
        work = self._plan_reads(plan, chunk_bytes or CHUNK_BYTES)
        self._files.jumps = self._jumps(work.samples.ids, work.samples.stored)
        self._expected = True
        return work

    def _plan_reads(self, plan: Sequence[Ids], chunk_bytes: int) -> ChunkedReads:
        ids, batches = join_ids(plan)
        files, offsets, stored, delivered = self._dataset.locate(ids, self._fields)
        sizes = delivered.sum(axis=1)
        if self._application is not None:
            sizes = np.full(len(ids), self._application.sample_bytes, dtype=np.int64)
        starts = np.cumsum(sizes) - sizes
        counts = np.array([len(one) for one in plan], dtype=np.int64)
        starts -= starts[(counts.cumsum() - counts)[batches]]  # each batch has its own memory
        keys = files
        if self._of_one:
            with self._preparing:
                keys = np.arange(self._visits, self._visits + len(ids))
                self._visits += len(ids)
        samples = PlannedSamples(ids, keys, files, offsets, stored, delivered, batches, starts)
        checksums = self._dataset.checksums(ids, self._fields) if self._check else None
        if self._check or self._uncode is not None or self._application is not None or self._library.are_needed:
            rows, of_chunk = chunk_of(batches, starts, chunk_bytes, keys if self._of_one else None)
            return ChunkedReads(of_chunk, samples, rows, None, checksums)
        calls, of_chunk = reads(samples, chunk_bytes, of_one=self._of_one)
        return ChunkedReads(of_chunk, samples, np.zeros(0, dtype=np.int64), calls, None)

    def fetch(self, work: ChunkedReads, chunks: range, out: memoryview, cost: Cost) -> None:
        """Fill the part that some chunks have of their batch, whose memory is `out`. Errors as those of `read`."""
        if work.reads is not None:
            self._run_calls(work.reads, chunks, out, cost)
        else:
            for row in range(work.rows[chunks.start], work.rows[chunks.stop]):
                self._sample(work, row, out, cost)

    def verify(self, sample: int, raw: memoryview) -> None:
        """With `check`, compare the fields of a sample that came another way with their CRC32C. DataError."""
        if self._check:
            file, sizes = self._fields_of(sample)
            parts = [raw[end - size : end] for end, size in zip(accumulate(sizes), sizes, strict=True)]
            expected = self._dataset.checksums(np.array([sample]), self._fields)[0].tolist()
            self._compare(file, sample, [crc32c.crc32c(part) for part in parts], expected)

    def decode(self, sample: int, raw: memoryview, out: memoryview, cost: Cost) -> None:
        """Decode a sample whose fields came another way into `out`. DataError."""
        file, sizes = self._fields_of(sample)
        self._apply(file, sample, raw, sizes, out, cost)

    def _fields_of(self, sample: int) -> tuple[int, list[int]]:
        """The file of a sample, and the delivered bytes of its fields."""
        files, _, _, delivered = self._dataset.locate(np.array([sample]), self._fields)
        return int(files[0]), delivered[0].tolist()

    def _jumps(self, ids: Ids, stored: Ids) -> bool:
        """Whether most reads do not begin where the last one of their file ended."""
        if self._of_one:
            whole = sum(entry.bytes for entry in self._dataset.manifest.files) / self._dataset.samples
            return bool(stored.sum() < FOLLOWING * whole * len(ids))
        return len(ids) > 1 and bool((np.diff(ids) == 1).mean() < FOLLOWING)

    def close(self) -> None:
        """Give all file handles back."""
        self._files.close()
        self._library.close()

    def _run_calls(self, calls: Reads, chunks: range, out: memoryview, cost: Cost) -> None:
        """All calls of neighbouring chunks. Small samples make many of them, so that what is done for each is kept to
        the least: what a read leaves in the processor's cache is its bytes, not this code.
        """
        started = time.perf_counter()
        (first, piece), (last, end) = calls.chunks[chunks.start].tolist(), calls.chunks[chunks.stop].tolist()
        rows, bounds = calls.calls[first:last].tolist(), calls.pieces[piece:end].tolist()
        if len(chunks) > 1 and len(rows) < CHUNK_OPENS * len(chunks):  # parts of what is longer than a chunk
            rows, bounds = rejoin_calls(rows, bounds)
        if self._uncached is not None:
            wanted, rows, bounds = split_staged(rows, bounds, self._staged)
            self._uncached.read(wanted, out, cost)
        pieces = [out[start:stop] for start, stop in bounds]
        held, handle, at, local = Held(self._files), -1, 0, 0
        of_handle: int | None = None  # the key of its file
        staged, preadv, clock, track = (
            self._staged,
            self._stored.access.read,
            time.perf_counter,
            recorder.current_track(),
        )
        add, begun = None if track is None else track.add, 0.0
        try:
            for key, file, offset, size, count in rows:
                if key != of_handle:
                    handle, of_handle = held.handle(key, file), key
                into = pieces[at : at + count]
                at += count
                if add is not None:
                    begun = clock()  # not the end of the read before: recording that one lies between
                try:
                    found = preadv(handle, into, offset)
                except OSError as error:
                    raise self._stored.unread(file, offset, error) from error
                if add is not None:
                    add(COPY_READ if file in staged else PREAD, begun, clock(), found, offset, file)
                if found != size:
                    self._stored.rest(handle, file, offset, into, found)
                if staged and file in staged:
                    local += size
        finally:
            held.close()
        cost.bytes_local += local
        cost.bytes_requested += sum(row[3] for row in rows) - local
        cost.read_seconds += time.perf_counter() - started

    def _sample(self, work: ChunkedReads, row: int, out: memoryview, cost: Cost) -> None:
        """One sample: its fields decoded from their container, compared with their CRC32C, and decoded further."""
        samples = work.samples
        file, sizes = int(samples.files[row]), samples.delivered[row].tolist()
        opened = self._files.get(int(samples.keys[row]), file)
        start, whole = int(samples.starts[row]), sum(sizes)
        raw = out[start : start + whole] if self._application is None else self._memory("raw", whole)
        at, found = 0, []
        offsets, stored = samples.offsets[row].tolist(), samples.stored[row].tolist()
        codes: Sequence[memoryview] = ()
        if self._uncached is not None and file not in self._staged:
            codes = self._codes(self._uncached, int(samples.keys[row]), file, offsets, stored, raw, cost)
        for field, (name, offset, length, size) in enumerate(zip(self._fields, offsets, stored, sizes, strict=True)):
            out_of_it = raw[at : at + size]
            if self._library.are_needed:
                found.append(self._fetch_field(file, name, offset, length, out_of_it, cost))
            elif codes:
                if self._uncode is not None:
                    self._uncode_into(codes[field], file, out_of_it, cost)
                found.append(crc32c.crc32c(out_of_it) if self._check else 0)
            else:
                found.append(self._field(opened, file, offset, length, out_of_it, cost))
            at += size
        if work.checksums is not None:
            self._compare(file, int(samples.ids[row]), found, work.checksums[row].tolist())
        if self._application is not None:
            out = out[start : start + self._application.sample_bytes]
            self._apply(file, int(samples.ids[row]), raw, sizes, out, cost)

    def _codes(
        self,
        uncached: DirectReads | ObjectReads,
        key: int,
        file: int,
        offsets: list[int],
        stored: list[int],
        raw: memoryview,
        cost: Cost,
    ) -> list[memoryview]:
        """All fields of a sample as they are stored, read together; into `raw` if that is all of it."""
        started, whole = time.perf_counter(), sum(stored)
        into = raw if self._uncode is None else self._memory("code", whole)
        ends = list(accumulate(stored))
        starts = [end - length for end, length in zip(ends, stored, strict=True)]
        wanted = [Piece(key, file, *extent) for extent in zip(offsets, stored, starts, strict=True)]
        uncached.read(sorted(wanted, key=lambda piece: piece.offset), into, cost)
        cost.read_seconds += time.perf_counter() - started
        return [into[start:end] for start, end in zip(starts, ends, strict=True)]

    def _fetch_field(self, file: int, name: str, place: int, length: int, out: memoryview, cost: Cost) -> int:
        """One field through the container's library; its CRC32C where that is asked for, else 0."""
        started = time.perf_counter()
        self._library.fetch(self._stored.path(file), name, place, out)
        self._count(file, length, cost)
        ended = time.perf_counter()
        cost.read_seconds += ended - started
        if track := recorder.current_track():
            track.add(LIBRARY_READ, started, ended, length, file=file)
        return crc32c.crc32c(out) if self._check else 0

    def _field(self, opened: OpenFile, file: int, offset: int, length: int, out: memoryview, cost: Cost) -> int:
        """Read one field; its CRC32C where that is asked for, else 0."""
        if self._uncode is not None:
            code = self._memory("code", length)
            self._pread(opened, file, offset, code, cost)
            self._uncode_into(code, file, out, cost)
            return crc32c.crc32c(out) if self._check else 0
        crc, step = 0, CHECKED_BYTES if self._check else max(length, 1)
        for at in range(0, length, step):
            piece = out[at : at + step]
            self._pread(opened, file, offset + at, piece, cost)
            if self._check:
                crc = crc32c.crc32c(piece, crc)
        return crc

    def _apply(self, file: int, sample: int, raw: memoryview, sizes: list[int], out: memoryview, cost: Cost) -> None:
        assert self._application is not None
        started = time.perf_counter()
        ends = list(accumulate(sizes))
        parts = [raw[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        try:
            self._application.apply(sample, parts, out)
        except DataError as error:
            raise DataError(
                f"{self._stored.name(file)}, sample {sample}: {error} {self._application.remedy}"
            ) from error
        self._record_decode(started, file, len(out), cost)

    def _compare(self, file: int, sample: int, found: list[int], expected: list[int]) -> None:
        for name, one, wanted in zip(self._fields, found, expected, strict=True):
            if one != wanted:
                raise DataError(
                    f"{self._stored.name(file)}: sample {sample}, field {name} has CRC32C {one:08x}, but was generated "
                    f"with {wanted:08x}. {DAMAGED}"
                )

    def _memory(self, name: str, length: int) -> memoryview:
        """`length` bytes of this thread's own, used again and again."""
        memory: bytearray = getattr(self._scratch, name, bytearray())
        if len(memory) < length:
            memory = bytearray(length)
            setattr(self._scratch, name, memory)
        return memoryview(memory)[:length]

    def _uncode_into(self, code: memoryview, file: int, out: memoryview, cost: Cost) -> None:
        assert self._uncode is not None
        started = time.perf_counter()
        try:
            self._uncode(code, out)
        except DataError as error:
            raise DataError(f"{self._stored.name(file)}: {error} {DAMAGED}") from error
        self._record_decode(started, file, len(out), cost)

    def _record_decode(self, started: float, file: int, size: int, cost: Cost) -> None:
        ended = time.perf_counter()
        cost.decode_seconds += ended - started
        if track := recorder.current_track():
            track.add(DECODE, started, ended, size, file=file)

    def _pread(self, opened: OpenFile, file: int, offset: int, into: memoryview, cost: Cost) -> None:
        started = time.perf_counter()
        handle = opened.handle()
        count = self._stored.read(handle, [into], file, offset)
        if count != len(into):
            self._stored.rest(handle, file, offset, [into], count)
        self._count(file, len(into), cost)
        cost.read_seconds += time.perf_counter() - started

    def _count(self, file: int, size: int, cost: Cost) -> None:
        if file in self._staged:
            cost.bytes_local += size
        else:
            cost.bytes_requested += size
