"""One engine of IPyParallel, as a process or as a rank: `python -m dlio_bench.harness.notebooks.engine FOLDER`."""

import os
import sys
from pathlib import Path

from dlio_bench.harness.cluster.life import processes_started_together
from dlio_bench.processes import die_with_parent

CONNECTION = Path("security") / "ipcontroller-engine.json"  # in the controller's folder
PATIENCE = 120  # seconds until a controller that does not answer is given up


def main() -> None:
    """Serve the controller of a folder until it ends, or until what started this process does."""
    die_with_parent()
    folder = Path(sys.argv[1])
    os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"  # engines share a machine

    from ipyparallel.engine.app import IPEngine

    words = [f"--file={folder / CONNECTION}", f"--profile-dir={folder}", f"--timeout={PATIENCE}", "--log-level=ERROR"]
    IPEngine.launch_instance([*words, *(["--mpi"] if processes_started_together(os.environ) > 1 else [])])


if __name__ == "__main__":
    main()
