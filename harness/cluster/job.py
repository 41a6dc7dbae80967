"""The job of the ranks: one JSON file in the work folder that the command and its ranks share."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct, field

from dlio_bench.atomic_files import naming
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster.comm import Comm
from dlio_bench.harness.cluster.environment import code_digest, host_name
from dlio_bench.reports.document.files import write_whole

JOB_FILE, MEASURED_FILE = "job.json", "measured.json"
KEPT_FILE = "kept.json"  # one line for each part that a job which did not end well had measured
VISIBLE_SECONDS = 30.0  # in which a file that another host has written must show on a shared file system
_FIRST_LOOK, _LONGEST_LOOK = 0.01, 0.5  # seconds between two looks


class SavedJob(Struct, frozen=True, kw_only=True):
    """Base of the jobs, which are frozen structs of numbers, texts, paths, tuples, dicts, and structs of these.

    code_digest: of the command.
    """

    code_digest: str = field(default_factory=code_digest)

    @property
    def ranks(self) -> int:
        """How many ranks work on it. Each job says so itself: msgspec's structs have no abstract methods."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write the job into its work folder. EnvironmentFailure."""
        write_whole(folder / JOB_FILE, msgspec.json.encode(self, enc_hook=str))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the job of a work folder: equal to the one that was saved."""
        return msgspec.json.decode(read_when_visible(folder / JOB_FILE), type=cls, dec_hook=path_of)


def path_of(kind: type, text: object) -> Path:
    """A path from its text, for msgspec, which knows none. ValueError for anything else."""
    if kind is not Path or not isinstance(text, str):
        raise ValueError(f"{text!r} is no path")
    return Path(text)


def read_when_visible(path: Path) -> bytes:
    """The content of a file that another host has written; see `await_path`. OSError."""
    await_path(path)
    return path.read_bytes()


def await_path(path: Path) -> None:
    """Return when a path that another host has made is there. EnvironmentFailure after VISIBLE_SECONDS.

    Shared file systems keep for a while that a file was not there (nfs(5), "Attribute caching"); reading its folder
    makes them look again.
    """
    deadline, pause = time.monotonic() + VISIBLE_SECONDS, _FIRST_LOOK
    while not path.exists():
        if time.monotonic() > deadline:
            raise EnvironmentFailure(
                f"{path} did not show on {host_name()} within {VISIBLE_SECONDS:g} s. Its folder must be on a file "
                "system that all nodes share: choose one with --out."
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_LOOK)
        with suppress(OSError):
            next(path.parent.iterdir(), None)


def write_measured(folder: Path, comm: Comm, measured: Mapping[str, Any]) -> None:
    """Have rank 0 write what was measured into the work folder, for the launching command. OSError.

    All ranks call this; it returns when the document is written.
    """
    if comm.rank == 0:
        with naming(folder / MEASURED_FILE):
            (folder / MEASURED_FILE).write_text(json.dumps(measured))
    comm.barrier()
