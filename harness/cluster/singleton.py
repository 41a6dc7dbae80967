"""MPI in a process that no launcher has started: all that Open MPI keeps on disk for it is removed here.

Open MPI 5 leaves that to the launcher's daemon, and there is none (its pull request 13261): a segment of 16 MiB in
/dev/shm, and a folder of the session.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_LAUNCHED = ("PMIX_", "PMI_", "OMPI_COMM_")  # variables of a process that a launcher has started begin so
_TRANSPORTS = "OMPI_MCA_btl"


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """MPI is loaded inside, and begins; a rank that a launcher has started loads it as always.

    One process needs no memory shared with others, and its session's folder only while MPI begins.
    """
    if any(name.startswith(_LAUNCHED) for name in os.environ):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="dlio-bench-mpi-") as folder:
        settings = {"TMPDIR": folder, _TRANSPORTS: os.environ.get(_TRANSPORTS, "self")}
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
