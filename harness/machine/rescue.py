"""Keeps the files of a folder whose process has died. Also a program of its own, with the standard library alone.

`python rescue.py FOLDER FILE PROCESS` ends when the process does, or when its own standard input is closed. If FOLDER
is still there, its files go into the zip archive FILE, and it is removed. The fork makes it nobody's child, as
launchers end what ranks have started.
"""

import os
import select
import shutil
import signal
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

PART = ".part"


def pack(folder: Path, file: Path) -> None:
    """Put the files of a folder into an archive, which is whole or absent. OSError."""
    part = file.with_name(file.name + PART)
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(folder.iterdir()):
            with suppress(FileNotFoundError):
                archive.write(path, path.name)
    part.rename(file)


def main() -> None:
    """See above."""
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the process, whose end comes
        signal.signal(number, signal.SIG_IGN)
    folder, file, process = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    ends: list[int] = [sys.stdin.fileno()]
    with suppress(OSError):  # an old kernel, or it has ended: then the other end of the standard input is closed
        ends.append(os.pidfd_open(process))
    select.select(ends, [], [])
    with suppress(OSError):
        if folder.is_dir() and not file.exists():
            pack(folder, file)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
