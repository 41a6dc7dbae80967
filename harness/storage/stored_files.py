"""The files that hold a dataset, or copies of them: where they lie, their names for people, and how they are read."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from dlio_bench import recorder
from dlio_bench.batches import Bytes
from dlio_bench.components import CODE
from dlio_bench.datagen.dataset import DAMAGED, Dataset
from dlio_bench.errors import DataError, EnvironmentFailure, remedy

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

    def place(self, file: int) -> str:
        """The same as the kernel takes it; making a Path of it costs as much as opening the file."""
        return str(self.staged[file]) if file in self.staged else f"{self._home}/{self._entries[file].name}"

    def name(self, file: int) -> str:
        """A file for people: of a copy, where it came from too."""
        name, copy = self._dataset.name(file), self.staged.get(file)
        return name if copy is None else f"{name} (its copy {copy})"

    def flags(self, file: int) -> int:
        """Of open(2), besides those of a file that is only read."""
        return 0 if file in self.staged else self._direct_flags

    def read(self, handle: int, into: Sequence[memoryview | Bytes], file: int, offset: int) -> int:
        """One call of the kernel's: bytes that it read, which may be fewer. EnvironmentFailure."""
        track, started = recorder.here(), time.perf_counter()
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
                    raise self.ended(file, offset, end)
                left, offset = left[count:], offset + count

    def ended(self, file: int, offset: int, end: int) -> DataError:
        """A file that is shorter than its samples."""
        return DataError(f"{self.name(file)} ends at byte {offset}, before the end of a sample at {end}. {DAMAGED}")

    def unread(self, file: int, offset: int, error: OSError) -> EnvironmentFailure:
        """A file that the kernel cannot read."""
        return EnvironmentFailure(
            f"{self.name(file)} cannot be read at byte {offset}: {error.strerror}. {remedy(error)}."
        )
