"""What ranks and their launcher print that is no event: one file of bounded size, its lines led by the rank."""

import re
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO

MOST_BYTES = 10_000_000  # of the first lines; of those after them, the last TAIL lines are kept
TAIL = 500
LINE = 4000  # characters, of which a longer line keeps the first
# Whose line it is, as launchers lead it: tags of Open MPI, labels of srun and flux. "[3] " is right already.
_TAG = re.compile(r"^\[[^\]\s]*,(\d+)\]<std(?:out|err|diag)>: ?")
_LABEL = re.compile(r"^ *(\d+): ")
_LABELLING = ("srun", "flux")


class RankLog:
    """Appends to the file, which it makes with the first line. A full disk costs the file alone."""

    def __init__(self, path: Path, launcher: str) -> None:
        """launcher: the program's name, which tells how it leads lines."""
        self.path = path
        self._labels = launcher in _LABELLING
        self._file: IO[str] | None = None
        self._room = MOST_BYTES
        self._last: deque[str] = deque(maxlen=TAIL)
        self._cut = 0  # lines after the file was full

    def add(self, text: str) -> None:
        """A line, with or without its end."""
        line = led(text.rstrip("\n"), labels=self._labels)
        if not line.strip() and not self._last:
            return
        line = line if len(line) <= LINE else f"{line[:LINE]} ... ({len(line) - LINE} more characters)"
        self._last.append(line)
        if self._room < len(line):
            self._room = 0
            self._cut += 1
        else:
            self._room -= len(line) + 1
            self._write(line)

    def close(self) -> None:
        """Write the last lines of those for which there was no room."""
        if self._cut:
            kept = list(self._last)[-self._cut :]
            if self._cut > len(kept):
                self._write(f"... {self._cut - len(kept)} lines are left out here: the file is limited in size ...")
            for line in kept:
                self._write(line)
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
        self._file, self._cut = None, 0

    @property
    def tail(self) -> str:
        """The last lines."""
        return "".join(f"{line}\n" for line in self._last)

    @property
    def is_there(self) -> bool:
        """Whether there is a file with something in it."""
        with suppress(OSError):
            return self.path.stat().st_size > 0
        return False

    def _write(self, line: str) -> None:
        try:
            if self._file is None:
                self._file = self.path.open("a", buffering=1, errors="replace")
            self._file.write(f"{line}\n")
        except OSError:
            self._room = 0


def led(line: str, *, labels: bool) -> str:
    """The line, led by its rank as "[3] "; lines that no rank printed stay. labels: as srun leads them."""
    if tag := _TAG.match(line):
        return f"[{tag[1]}] {line[tag.end() :]}"
    if labels and (label := _LABEL.match(line)):
        return f"[{label[1]}] {line[label.end() :]}"
    return line
