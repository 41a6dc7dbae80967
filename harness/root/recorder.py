"""Records what threads do, span by span, into memory that is there before the clock starts.

Each thread writes rows into a file that is mapped into memory (tmpfs where there is one), so that the rows outlive a
process that is killed. Nothing is recorded until `begin`. Processes that a recording process starts record as well,
into the same folder, which they find in their environment.

A thread has a track, and when it ends another thread of its name goes on with that track: pools of threads come and go,
and to Python a thread of a library, such as TensorFlow's, is a new one with each call.

A row is 48 bytes: start and end (float64, seconds of time.perf_counter(), which all processes of a host share), bytes
and offset (int64), number of the file, epoch, step and component (int32). The component is written last: a row whose
component is 0 is none.
"""

import json
import mmap
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

ROW = np.dtype(
    [
        ("start", "<f8"), ("end", "<f8"), ("bytes", "<i8"), ("offset", "<i8"), ("file", "<i4"), ("epoch", "<i4"),
        ("step", "<i4"), ("component", "<i4"),
    ]
)  # fmt: skip
NOWHERE = -1  # no file, no offset, no step
NO_EPOCH = -(1 << 31)  # negative numbers near 0 are those of validation passes
VARIABLE = "DLIO_BENCH_SPANS"  # FOLDER, for processes that a recording process starts
HEAD = 4096  # bytes in front of the rows: who writes them, as JSON
ROWS = 20_000  # of a file
SUFFIX = ".rows"
LIBRARY = "library"  # the name of threads that Python did not start
_DUMMY = "Dummy-"  # how Python begins their names
_NO_ROOM = bytearray()
_pack = Struct("<ddqqiiii").pack_into


@dataclass(frozen=True)
class Rows:
    """What a thread has recorded. table: [spans] of ROW; thread: its name; id: as the kernel numbers it."""

    process: int
    id: int
    thread: str
    table: npt.NDArray[np.void]


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
        self._at = at + ROW.itemsize

    def place(self, memory: mmap.mmap) -> None:
        """Go on in an empty file."""
        self._memory, self._at, self._end = memory, HEAD, len(memory)

    def leave(self) -> None:
        """Begin with another file when the next span comes, of which nothing is known yet."""
        self._memory, self._at, self._end = _NO_ROOM, 0, 0
        self.epoch, self.step = NO_EPOCH, NOWHERE


class _Recording:
    """The files of this process: those in use, and empty ones."""

    def __init__(self, folder: Path, most_rows: int) -> None:
        self.folder = folder
        self._left = max(1, most_rows // ROWS)
        self._lock = threading.Lock()
        self._spare: list[mmap.mmap] = []
        self._used: list[mmap.mmap] = []
        self._tracks: WeakSet[Track] = WeakSet()
        self._named: dict[str, int] = defaultdict(int)  # tracks of this name
        self.idle: dict[str, list[Track]] = defaultdict(list)  # tracks of threads that have ended, by their names
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
            while len(self._spare) < files and self._made_new():
                pass

    def give_room(self, track: Track) -> bool:
        """An empty file for a track; False, and counted, where there may be no more."""
        with self._lock:
            if not self._spare and not self._made_new():
                self.lost += 1
                return False
            memory = self._spare.pop()
            self._used.append(memory)
        head = {"process": os.getpid(), "parent": os.getppid(), "id": track.thread, "thread": track.name}
        text = json.dumps(head).encode()[: HEAD - 1]
        memory[:HEAD] = text + bytes(HEAD - len(text))
        track.place(memory)
        return True

    def drain(self) -> list[Rows]:
        """What was recorded since the last call, and empty files again. No thread may be adding."""
        with self._lock:
            drained = [_rows(memory) for memory in self._used]
            for memory, rows in zip(self._used, drained, strict=True):
                memory[HEAD : HEAD + rows.table.nbytes] = bytes(rows.table.nbytes)
            self._spare += self._used
            self._used = []
            for track in self._tracks:
                track.leave()
        return drained

    def _made_new(self) -> bool:
        """Whether there is one more empty file; not where there may be no more, or no room for it."""
        if not self._left:
            return False
        path, size = self.folder / f"{os.getpid()}-{self._made}{SUFFIX}", HEAD + ROWS * ROW.itemsize
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(handle, 0, size)  # a full disk says so here, and does not kill the process later
                memory = mmap.mmap(handle, size)
            finally:
                os.close(handle)
        except OSError:
            self._left = 0
            return False
        np.frombuffer(memory, dtype=np.uint8)[:: mmap.PAGESIZE] = 0
        self._spare.append(memory)
        self._made += 1
        self._left -= 1
        return True


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


MOST_ROWS: Final = 2_000_000  # of a process: 96 MB
_recording: _Recording | None = None


def begin(folder: Path, most_rows: int = MOST_ROWS) -> None:
    """Record what this process does from now on, and what processes do that it starts. OSError."""
    global _recording  # noqa: PLW0603 - threads of libraries come here, whom nobody hands anything
    folder.mkdir(exist_ok=True)
    os.environ[VARIABLE] = str(folder)
    _recording = _Recording(folder, most_rows)


def join() -> None:
    """Record in the folder of the process that started this one, if it records."""
    if (folder := os.environ.get(VARIABLE)) and _recording is None:
        begin(Path(folder))


def end() -> None:
    """Record nothing more."""
    global _recording  # noqa: PLW0603 - see begin
    _recording = None
    os.environ.pop(VARIABLE, None)


def prepare(files: int) -> None:
    """Have room for so many threads before a clock starts."""
    if _recording is not None:
        _recording.prepare(files)


def lost() -> int:
    """Spans of this process that found no room."""
    return 0 if _recording is None else _recording.lost


def drain() -> list[Rows]:
    """What threads of this process have recorded since the last call; no thread may be adding."""
    return [] if _recording is None else _recording.drain()


def folder() -> Path | None:
    """Where this process records; None while it does not."""
    return None if _recording is None else _recording.folder


def of_others(place: Path, process: int) -> Iterator[Rows]:
    """What processes other than this one have recorded in a folder, all of it. Files that are none are passed over."""
    # the files of a process in the order in which it made them
    for path in sorted(place.glob(f"*{SUFFIX}"), key=lambda path: (len(path.name), path.name)):
        if path.name.partition("-")[0] != str(process):
            with suppress(OSError, ValueError, KeyError), path.open("rb") as file:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                yield _rows(memory)


def _rows(memory: mmap.mmap) -> Rows:
    """The rows of a file; ValueError or KeyError where its head is none."""
    head = json.loads(memory[:HEAD].rstrip(b"\0"))
    table = np.frombuffer(memory, dtype=ROW, offset=HEAD, count=(len(memory) - HEAD) // ROW.itemsize)
    count = int(np.argmin(table["component"] != 0)) if (table["component"] == 0).any() else len(table)
    return Rows(int(head["process"]), int(head["id"]), str(head["thread"]), table[:count].copy())


def here() -> Track | None:
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
