"""Open files that the threads of a reader share: each is opened once, and closed when no thread needs it."""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

import numpy as np

from dlio_bench import recorder
from dlio_bench.batches import Bytes
from dlio_bench.components import CODE
from dlio_bench.counters import Cost
from dlio_bench.datagen.dataset import DAMAGED, KERNEL, Access, Dataset
from dlio_bench.datagen.formats.container import OpenContainer
from dlio_bench.errors import DataError, EnvironmentFailure, remedy
from dlio_bench.harness.storage import direct
from dlio_bench.harness.storage.direct import Alignment, BlockSpan, MemoryLayout, Piece
from dlio_bench.recorder import NOWHERE

PREAD, COPY_READ = CODE["pread"], CODE["copy read"]


class StoredFiles:
    """A dataset's files by their numbers. `staged`: where copies of some lie; these are read through the page cache,
    which they were written through, the others with `direct_flags` of open(2).
    """

    def __init__(self, dataset: Dataset, staged: Mapping[int, Path], direct_flags: int) -> None:
        self._dataset, self._direct_flags, self.access = dataset, direct_flags, dataset.access
        self.staged = staged
        self._home, self._entries = dataset.home, dataset.manifest.files

    def path(self, file: int) -> Path:
        """Where a file is read from."""
        return self.staged.get(file) or self._dataset.path(file)

    def kernel_path(self, file: int) -> str:
        """The same as the kernel takes it; making a Path of it costs as much as opening the file."""
        return str(self.staged[file]) if file in self.staged else f"{self._home}/{self._entries[file].name}"

    def name(self, file: int) -> str:
        """A file for people: of a copy, where it came from too."""
        name, copy = self._dataset.name(file), self.staged.get(file)
        return name if copy is None else f"{name} (its copy {copy})"

    def flags(self, file: int) -> int:
        """Of open(2), beyond those of a file that is only read."""
        return 0 if file in self.staged else self._direct_flags

    def read(self, handle: int, into: Sequence[memoryview | Bytes], file: int, offset: int) -> int:
        """One call of the kernel's: bytes that it read, which may be fewer. EnvironmentFailure."""
        track, started = recorder.current_track(), time.perf_counter()
        try:
            count = self.access.read(handle, into, offset)
        except OSError as error:
            raise self.unread(file, offset, error) from error
        if track is not None:
            component = COPY_READ if file in self.staged else PREAD
            track.add(component, started, time.perf_counter(), count, offset, file)
        return count

    def rest(self, handle: int, file: int, offset: int, pieces: list[memoryview], done: int) -> None:
        """The kernel may stop after `done` bytes, anywhere, and is asked for the rest. DataError at a file's end."""
        end = offset + sum(map(len, pieces))
        for piece in pieces:
            left = piece[done:]
            offset, done = offset + len(piece) - len(left), done - len(piece) + len(left)
            while left:
                count = self.read(handle, [left], file, offset)
                if count == 0:
                    raise self.truncated_error(file, offset, end)
                left, offset = left[count:], offset + count

    def truncated_error(self, file: int, offset: int, end: int) -> DataError:
        """A file that is shorter than its samples."""
        return DataError(f"{self.name(file)} ends at byte {offset}, before the end of a sample at {end}. {DAMAGED}")

    def unread(self, file: int, offset: int, error: OSError) -> EnvironmentFailure:
        """A file that the kernel cannot read."""
        return EnvironmentFailure(
            f"{self.name(file)} cannot be read at byte {offset}: {error.strerror}. {remedy(error)}."
        )


OPEN, ADVISE, CLOSE = (CODE[name] for name in ("open", "advise", "close"))
LIBRARY_FILES = 16  # open at a time
HELD_FILES = 16  # that a thread keeps open while it reads some chunks


class OpenFile:
    """One file, opened by the first thread that asks for its descriptor. Dropping the last reference closes it."""

    def __init__(
        self, path: Path | str, file: int = NOWHERE, *, jumps: bool = False, flags: int = 0, access: Access = KERNEL
    ) -> None:
        """file: its number in the dataset. flags: of open(2), beyond those of a file that is only read."""
        self._path, self._file, self._jumps, self._flags, self._access = path, file, jumps, flags, access
        self._lock = threading.Lock()
        self._handle = -1

    def handle(self) -> int:
        """The descriptor. DataError when the file is missing, EnvironmentFailure when it cannot be opened."""
        if self._handle < 0:
            with self._lock:
                if self._handle < 0:
                    self._handle = _open(self._access, self._path, self._file, self._flags, jumps=self._jumps)
        return self._handle

    def close(self) -> None:
        """Give the descriptor back now."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            _close(self._access, handle, self._file)

    def __del__(self) -> None:
        self.close()


class OpenFiles:
    """The `keep` files used last, by a key of the caller's. A forgotten file stays open while a thread still reads it.

    jumps: whether reads of files opened from now on jump, so that the kernel should not read ahead. flags: of open(2)
    for a file's number, beyond those of a file that is only read.
    """

    def __init__(
        self,
        path: Callable[[int], Path | str],
        keep: int,
        flags: Callable[[int], int] | None = None,
        access: Access = KERNEL,
    ) -> None:
        self.jumps = False
        self.path, self.access = path, access
        self._keep, self._flags = keep, flags
        self._lock = threading.Lock()
        self._files: OrderedDict[int, OpenFile] = OrderedDict()
        self._alive: WeakSet[OpenFile] = WeakSet()  # forgotten ones too, which the traceback of an error may hold

    def get(self, key: int, file: int) -> OpenFile:
        """The file of this key: number `file`, opened when its descriptor is asked for."""
        with self._lock:
            opened = self._files.get(key)
            if opened is not None:
                self._files.move_to_end(key)
                return opened
            flags = self._flags(file) if self._flags else 0
            opened = OpenFile(self.path(file), file, jumps=self.jumps, flags=flags, access=self.access)
            self._files[key] = opened
            self._alive.add(opened)
            forgotten = self._files.popitem(last=False)[1] if len(self._files) > self._keep else None
        del forgotten  # closed here, outside the lock, unless a thread reads it
        return opened

    def close(self) -> None:
        """Close all of them; no thread may be reading."""
        self._files.clear()
        for file in list(self._alive):
            file.close()


class Held:
    """The descriptors that a thread has while it reads some chunks (see Reads for the keys). `close` it in the end.

    Small files are opened so often that an object and a lock for each would cost as much as the kernel does: what no
    other thread reads is opened without.
    """

    def __init__(self, files: OpenFiles) -> None:
        self._files = files
        self._handles: dict[int, int] = {}
        self._shared: list[OpenFile] = []  # they stay open while they are here
        self._own, self._file = -1, NOWHERE  # of a file that only this chunk reads

    def handle(self, key: int, file: int) -> int:
        """The descriptor of a file, until that of another one is asked for. Errors: see OpenFile."""
        if self._own >= 0:
            self._release()
        if key < 0:
            files = self._files
            # no flags: direct reads do not come here
            self._own, self._file = _open(files.access, files.path(file), file, 0, jumps=files.jumps), file
            return self._own
        if key not in self._handles:
            if len(self._shared) == HELD_FILES:
                self._handles, self._shared = {}, []
            self._shared.append(self._files.get(key, file))
            self._handles[key] = self._shared[-1].handle()
        return self._handles[key]

    def close(self) -> None:
        """Give all of them back."""
        if self._own >= 0:
            self._release()
        self._shared = []

    def _release(self) -> None:
        own, self._own = self._own, -1
        _close(self._files.access, own, self._file)


def _close(access: Access, handle: int, file: int) -> None:
    track, started = recorder.current_track(), time.perf_counter()
    access.close(handle)
    if track is not None:
        track.add(CLOSE, started, time.perf_counter(), file=file)


def _open(access: Access, path: Path | str, file: int, flags: int, *, jumps: bool) -> int:
    track, started = recorder.current_track(), time.perf_counter()
    try:
        handle = access.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing from its dataset. {DAMAGED}") from error
    except OSError as error:
        raise EnvironmentFailure(f"{path} cannot be opened: {error.strerror}. {remedy(error)}.") from error
    if track is not None:
        track.add(OPEN, started, time.perf_counter(), file=file)
    if jumps and not flags & os.O_DIRECT:
        started = time.perf_counter()
        with suppress(OSError):  # it is advice: a file system without it is read all the same
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        if track is not None:
            track.add(ADVISE, started, time.perf_counter(), file=file)
    return handle


class Libraries:
    """The last few files that the container's library has open. It reads for one thread at a time."""

    def __init__(self, library: Callable[[Path], OpenContainer] | None) -> None:
        self._open = library
        self._files: OrderedDict[Path, OpenContainer] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def are_needed(self) -> bool:
        """Whether samples can only be had through the library."""
        return self._open is not None

    def fetch(self, path: Path, field: str, place: int, out: memoryview) -> None:
        """Fill `out` with one field of a sample. DataError naming the file."""
        assert self._open is not None
        with self._lock:
            if path not in self._files:
                self._files[path] = self._open(path)
                if len(self._files) > LIBRARY_FILES:
                    self._files.popitem(last=False)[1].close()
            self._files.move_to_end(path)
            self._files[path].fetch(field, place, out)

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            while self._files:
                self._files.popitem()[1].close()


class DirectReads:
    """Several threads may share one; each has aligned memory of its own."""

    def __init__(self, stored: StoredFiles, files: OpenFiles, alignment: Alignment) -> None:
        self._stored, self._files, self._alignment = stored, files, alignment
        self._bounce = direct.Bounce()

    def read(self, wanted: Sequence[Piece], out: memoryview, cost: Cost) -> None:
        """Bring pieces of files, those of a file in order of their offsets, into `out`. Errors as those of a reader."""
        alignment, bounce, read = self._alignment, self._bounce, self._stored.read
        memory = np.frombuffer(out, np.uint8)
        address = direct.address_of(memory)
        opened: OpenFile | None = None  # held, so that it stays open
        open_key = useful = rounded = 0
        for span in direct.spans(wanted, alignment):
            key, file = span.pieces[0][:2]
            if opened is None or key != open_key:
                opened, open_key = self._files.get(key, file), key
            handle = opened.handle()
            layout = direct.layout(span, alignment, memory, address, bounce)
            brought = read(handle, layout.parts, file, span.start)
            if brought < span.needed:
                brought += self._read_rest(handle, file, span, layout, brought)
            layout.scatter(span, memory)
            useful += span.useful
            rounded += max(0, brought - span.useful)  # a sample may be wanted twice
        cost.bytes_requested += useful
        cost.bytes_rounded += rounded

    def _read_rest(self, handle: int, file: int, span: BlockSpan, layout: MemoryLayout, count: int) -> int:
        """The kernel stopped after `count` bytes, behind any block, and is asked for the rest: bytes read."""
        alignment, brought, needed, done = self._alignment, 0, span.needed, 0
        while done + count < needed:
            if count < alignment.block:
                raise self._stored.truncated_error(file, span.start + done + count, span.start + needed)
            done = alignment.down(done + count)
            count = self._stored.read(handle, direct.remaining(layout.parts, done), file, span.start + done)
            brought += count
        return brought
