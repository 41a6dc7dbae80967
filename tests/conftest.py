"""Where tests keep their files: on a disk. Data in memory can never be cold, and many tests ask for cold data."""

import os
import tempfile
from pathlib import Path

from dlio_bench.harness.storage.mounts import memory_backed

if memory_backed(Path(tempfile.gettempdir())):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/var/tmp")  # pytest's own variable for the root of tmp_path
