"""Records what threads do, span by span, into memory that is there before the clock starts.

Each thread writes rows into a file that is mapped into memory (tmpfs where there is one), so that the rows outlive a
process that is killed. Nothing is recorded until `begin`. Processes that a recording process starts record as well,
into the same folder, which they find in their environment.

A thread has a track, and when it ends another thread of its name goes on with that track: pools of threads come and go,
and to Python a thread of a library, such as TensorFlow's, is a new one with each call.

What was drained may be stored in the same folder, in files of its own (`store`), and a process that is at work on an
array may have it there (`array`): all of it outlives the process alike, and counts against one limit.

A row is 48 bytes: start and end (float64, seconds of time.perf_counter(), which all processes of a host share), bytes
and offset (int64), number of the file, epoch, step and component (int32). The component is written last: a row whose
component is 0 is none.
"""

import json
import math
import mmap
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, Final
from weakref import WeakSet

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

ROW = np.dtype(
    [
        ("start", "<f8"), ("end", "<f8"), ("bytes", "<i8"), ("offset", "<i8"), ("file", "<i4"), ("epoch", "<i4"),
        ("step", "<i4"), ("component", "<i4"),
    ]
)  # fmt: skip
NOWHERE = -1  # no file, no offset, no step
NO_EPOCH = -(1 << 31)  # negative numbers near 0 are those of validation passes
VARIABLE = "DLIO_BENCH_SPANS"  # FOLDER, for processes that a recording process starts
MOST_VARIABLE = "DLIO_BENCH_SPANS_ROWS"  # the most rows of each of them
HEAD = 4096  # bytes in front of the rows: who writes them, as JSON, and in the last 8 how many spans found no room
ROWS = 20_000  # of a file, at most
SUFFIX, STORED, ARRAY = ".rows", ".stored", ".array"  # rows of a thread at work; rows that were drained; numbers
Memory = mmap.mmap | bytes
_FEW_ROWS, _MANY_FILES = 1000, 64
LIBRARY = "library"  # the name of threads that Python did not start
_DUMMY = "Dummy-"  # how Python begins their names
_NO_ROOM = bytearray()
_pack = Struct("<ddqqiiii").pack_into
_LOST = Struct("<q")
_SIZE: Final = ROW.itemsize  # NumPy makes a number of it each time


class Rows(msgspec.Struct, frozen=True):
    """What a thread has recorded. table: [spans] of ROW; thread: its name; id: as the kernel numbers it.

    lost: spans of its process that had found no room when this file was last written to.
    """

    process: int
    id: int
    thread: str
    table: npt.NDArray[np.void]
    lost: int = 0


class Track:
    """The rows of one thread. epoch, step: what later rows belong to; whoever knows them sets them.

    A step is counted within its epoch. thread: its number, as the kernel has it; name: no other track of this process
    has it.
    """

    __slots__ = ("__weakref__", "_at", "_end", "_memory", "_recording", "epoch", "name", "step", "thread")

    def __init__(self, recording: "_Recording", name: str) -> None:
        self._recording = recording
        self.name, self.thread = name, threading.get_native_id()
        self._memory: mmap.mmap | bytearray = _NO_ROOM
        self._at = self._end = 0
        self.epoch, self.step = NO_EPOCH, NOWHERE

    def add(
        self, component: int, start: float, end: float, nbytes: int = 0, offset: int = NOWHERE, file: int = NOWHERE
    ) -> None:
        """One span. component: its code in `components.CODE`."""
        at = self._at
        if at == self._end:
            if not self._recording.give_room(self):
                return
            at = self._at
        _pack(self._memory, at, start, end, nbytes, offset, file, self.epoch, self.step, component)
        self._at = at + _SIZE

    def continue_in(self, memory: mmap.mmap) -> None:
        """Go on in an empty file."""
        self._memory, self._at, self._end = memory, HEAD, len(memory)

    def drop_file(self) -> None:
        """Begin with another file when the next span comes, of which nothing is known yet."""
        self._memory, self._at, self._end = _NO_ROOM, 0, 0
        self.epoch, self.step = NO_EPOCH, NOWHERE


class _Recording:
    """The files of this process: those in use, and empty ones."""

    def __init__(self, folder: Path, most_rows: int) -> None:
        self.folder = folder
        self._left = max(_FEW_ROWS, most_rows)
        self._rows = max(_FEW_ROWS, min(ROWS, self._left // _MANY_FILES))  # of a file: each thread needs some
        self._lock = threading.Lock()
        self._spare: list[mmap.mmap] = []
        self._used: list[mmap.mmap] = []
        self._tracks: WeakSet[Track] = WeakSet()
        self._named: dict[str, int] = defaultdict(int)  # tracks of this name
        self.idle: dict[str, list[Track]] = defaultdict(list)  # tracks of threads that have ended, by their names
        self._stored: list[tuple[str, Path, int]] = []  # label, file, rows
        self._arrays: list[Path] = []
        self._made = 0
        self.lost = 0  # spans that found no room
        self.threads = threading.local()

    def track(self, name: str) -> Track:
        """A new track for a thread of this name."""
        with self._lock:
            number = self._named[name]
            self._named[name] += 1
            track = Track(self, f"{name}-{number}" if number else name)
            self._tracks.add(track)
        return track

    def prepare(self, files: int) -> None:
        """Have so many empty files, their pages touched."""
        with self._lock:
            while len(self._spare) < files and self._grow():
                pass

    def give_room(self, track: Track) -> bool:
        """An empty file for a track; False, and counted, where there may be no more."""
        with self._lock:
            if not self._spare and not self._grow():
                self._count_lost(1)
                return False
            memory = self._spare.pop()
            self._used.append(memory)
        head = {"process": os.getpid(), "parent": os.getppid(), "id": track.thread, "thread": track.name}
        memory[:HEAD] = _head(head)
        track.continue_in(memory)
        return True

    def _count_lost(self, spans: int) -> None:
        """Count spans that found no room, where other processes see it too."""
        self.lost += spans
        if self._used:
            _LOST.pack_into(self._used[-1], HEAD - _LOST.size, self.lost)

    def drain(self) -> list[Rows]:
        """What was recorded since the last call, and empty files again. No thread may be adding."""
        with self._lock:
            drained = [replace(rows, table=rows.table.copy()) for rows in map(_rows, self._used)]
            for memory, rows in zip(self._used, drained, strict=True):
                memory[HEAD : HEAD + rows.table.nbytes] = bytes(rows.table.nbytes)
            self._spare += self._used
            self._used = []
            for track in self._tracks:
                track.drop_file()
        return drained

    def store(self, table: npt.NDArray[np.void], label: str, about: Mapping[str, object]) -> npt.NDArray[np.void]:
        """See `store`."""
        with self._lock:
            memory = None
            if len(table) <= self._left:
                path = self.folder / f"{os.getpid()}-{self._made}{STORED}"
                memory = self._map_file(path, HEAD + table.nbytes)
            if memory is None:
                self._count_lost(len(table))
                return table[:0]
            self._left -= len(table)
            self._stored.append((label, path, len(table)))
        stored = np.frombuffer(memory, ROW, offset=HEAD, count=len(table))
        stored[:] = table
        memory[:HEAD] = _head({**about, "label": label})
        return stored

    def forget(self, label: str) -> None:
        """See `forget`."""
        with self._lock:
            for _, path, rows in (entry for entry in self._stored if entry[0] == label):
                path.unlink(missing_ok=True)
                self._left += rows
            self._stored = [entry for entry in self._stored if entry[0] != label]

    def array(self, shape: tuple[int, ...], about: Mapping[str, object]) -> npt.NDArray[np.float64]:
        """See `array`."""
        count = math.prod(shape)
        with self._lock:
            path = self.folder / f"{os.getpid()}-{self._made}{ARRAY}"
            memory = self._map_file(path, HEAD + 8 * count) if count else None
            if memory is None:
                return np.zeros(shape)
            self._arrays.append(path)
        memory[:HEAD] = _head({**about, "shape": shape})
        return np.frombuffer(memory, np.float64, offset=HEAD, count=count).reshape(shape)

    def forget_arrays(self) -> None:
        """See `forget_arrays`."""
        while self._arrays:
            self._arrays.pop().unlink(missing_ok=True)

    def _grow(self) -> bool:
        """Whether there is one more empty file; not where there may be no more, or no room for it."""
        if self._left < self._rows:
            return False
        memory = self._map_file(self.folder / f"{os.getpid()}-{self._made}{SUFFIX}", HEAD + self._rows * ROW.itemsize)
        if memory is None:
            self._left = 0
            return False
        self._spare.append(memory)
        self._left -= self._rows
        return True

    def _map_file(self, path: Path, size: int) -> mmap.mmap | None:
        """A new file in memory, its pages touched; None where there is no room, or no file can be made."""
        self._made += 1
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(handle, 0, size)  # a full disk says so here, and does not kill the process later
                memory = mmap.mmap(handle, size)
            finally:
                os.close(handle)
        except OSError:
            with suppress(OSError):
                path.unlink()
            return None
        np.frombuffer(memory, dtype=np.uint8)[:: mmap.PAGESIZE] = 0
        return memory


class _Turn:
    """A thread's use of a track, until the thread ends."""

    __slots__ = ("_idle", "track")

    def __init__(self, recording: _Recording) -> None:
        name = threading.current_thread().name
        name = LIBRARY if name.startswith(_DUMMY) else name
        self._idle = recording.idle[name]
        try:
            self.track = self._idle.pop()
        except IndexError:
            self.track = recording.track(name)
        self.track.epoch, self.track.step = NO_EPOCH, NOWHERE

    def __del__(self) -> None:
        self._idle.append(self.track)


MOST_ROWS: Final = 5_000_000  # of a process: 240 MB
_recording: _Recording | None = None


def begin(folder: Path, most_rows: int = MOST_ROWS) -> None:
    """Record what this process does from now on, and what processes do that it starts. OSError."""
    global _recording  # noqa: PLW0603 - threads of libraries come here, whom nobody hands anything
    folder.mkdir(exist_ok=True)
    os.environ[VARIABLE], os.environ[MOST_VARIABLE] = str(folder), str(most_rows)
    _recording = _Recording(folder, most_rows)


def join() -> None:
    """Record in the folder of the process that started this one, if it records."""
    if (folder := os.environ.get(VARIABLE)) and _recording is None:
        begin(Path(folder), int(os.environ.get(MOST_VARIABLE, MOST_ROWS)))


def end() -> None:
    """Record nothing more."""
    global _recording  # noqa: PLW0603 - see begin
    _recording = None
    os.environ.pop(VARIABLE, None)
    os.environ.pop(MOST_VARIABLE, None)


def prepare(files: int) -> None:
    """Have room for so many threads before a clock starts."""
    if _recording is not None:
        _recording.prepare(files)


def lost_spans() -> int:
    """Spans of this process that found no room."""
    return 0 if _recording is None else _recording.lost


def drain() -> list[Rows]:
    """What threads of this process have recorded since the last call; no thread may be adding."""
    return [] if _recording is None else _recording.drain()


def store(table: npt.NDArray[np.void], label: str, **about: object) -> npt.NDArray[np.void]:
    """A copy of rows, in a file of its own, until `forget(label)`. An empty one where there is no room: they are lost.

    about: what the file says of them, as JSON takes it. A process that records nothing gets the table back.
    """
    return table if _recording is None or not len(table) else _recording.store(table, label, about)


def forget(label: str) -> None:
    """Give back the room of what was stored under a label."""
    if _recording is not None:
        _recording.forget(label)


def array(shape: tuple[int, ...], **about: object) -> npt.NDArray[np.float64]:
    """An array of zeros, in memory that is mapped already; in a file that outlives the process, if it records."""
    return np.zeros(shape) if _recording is None else _recording.array(shape, about)


def forget_arrays() -> None:
    """The arrays that were made so far need not outlive the process any more."""
    if _recording is not None:
        _recording.forget_arrays()


def folder() -> Path | None:
    """Where this process records; None while it does not."""
    return None if _recording is None else _recording.folder


def of_others(place: Path, process: int) -> Iterator[Rows]:
    """What processes other than this one have recorded in a folder, all of it. Files that are none are passed over.

    The tables are the files themselves: copy what has to last.
    """
    # the files of a process in the order in which it made them
    for path in sorted(place.glob(f"*{SUFFIX}"), key=lambda path: (len(path.name), path.name)):
        if path.name.partition("-")[0] != str(process):
            with suppress(OSError, ValueError, KeyError), path.open("rb") as file:
                yield _rows(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _rows(memory: Memory) -> Rows:
    """The rows of a thread's file, in place; ValueError or KeyError where its head is none."""
    head, table = read_memory(memory)
    (lost,) = _LOST.unpack_from(memory, HEAD - _LOST.size)
    return Rows(int(head["process"]), int(head["id"]), str(head["thread"]), table, lost)


def read_memory(memory: Memory) -> tuple[dict[str, Any], npt.NDArray[np.void]]:
    """The head and the rows of a file, in place. ValueError where it is none."""
    head = json.loads(bytes(memory[: HEAD - _LOST.size]).rstrip(b"\0"))
    table = np.frombuffer(memory, dtype=ROW, offset=HEAD, count=(len(memory) - HEAD) // ROW.itemsize)
    count = int(np.argmin(table["component"] != 0)) if (table["component"] == 0).any() else len(table)
    return head, table[:count]


def _head(about: Mapping[str, object]) -> bytes:
    text = json.dumps(about).encode()[: HEAD - _LOST.size - 1]
    return text + bytes(HEAD - len(text))


def current_track() -> Track | None:
    """The track of this thread; None while nothing is recorded.

    Ask for it before what is timed: in a thread of a library it is this call's alone from then on.
    """
    if _recording is None:
        return None
    threads = _recording.threads
    track: Track | None = getattr(threads, "track", None)
    if track is None:
        threads.turn = _Turn(_recording)
        track = threads.track = threads.turn.track
    return track
