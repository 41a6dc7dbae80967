"""A rank whose host was cut off from the others ends by itself, as nobody can end it.

The launcher's daemon on such a host learns of it only when TCP gives up: for Open MPI after some 15 minutes.
"""

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from dlio_bench.errors import EnvironmentFailure

MISSED = 2  # looks in a row that find no file: a file system under repair may lose sight of it once
# Daemons that start ranks on other hosts: of Open MPI 5 and 4, and of Hydra
_DAEMONS = ("prted", "orted", "hydra_pmi_proxy")


class Lookout:
    """Looks for a file in the work folder that is there as long as the job is, in a thread that may hang there."""

    def __init__(self, file: Path, patience: float) -> None:
        """patience: seconds in which the file system must answer."""
        self._file, self._patience = file, patience
        self._missed, self._asked = 0, 0.0
        self._thread: threading.Thread | None = None

    def is_over(self) -> bool:
        """Whether the job has ended, or its folder does not answer. To be called from time to time."""
        if self._thread is None or not self._thread.is_alive():
            self._asked = time.monotonic()
            self._thread = threading.Thread(target=self._look, name="lookout", daemon=True)
            self._thread.start()
            self._thread.join(0.1)
        return self._missed >= MISSED or (self._thread.is_alive() and time.monotonic() - self._asked > self._patience)

    def _look(self) -> None:
        try:
            self._file.stat()
            self._missed = 0
        except FileNotFoundError:
            self._missed += 1
        except OSError:  # it cannot be told
            pass


def leave() -> None:
    """End this process at once, and the launcher's daemon on this host with all that it has started here."""
    parent = os.getppid()
    with suppress(OSError):
        if Path(f"/proc/{parent}/comm").read_text().strip() in _DAEMONS:
            os.kill(parent, signal.SIGTERM)
    os._exit(EnvironmentFailure.status)
