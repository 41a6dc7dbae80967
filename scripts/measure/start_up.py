"""How long ranks of one machine take from their launch until all are ready, and what they ask of file systems.

`python scripts/measure/start_up.py [RANKS...]` (default: 1 16 64) prints the median of 5 starts, and the calls of one
rank by strace(1), if it is there. Ready means as in a run: modules imported, MPI connected, the code compared.
"""

import collections
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
TIMES = 5
CALLS = "openat,newfstatat,stat,lstat,statx,access,readlink,getdents64"


def rank(folder: Path, ranks: int) -> int:
    """What a rank does until it is ready."""
    from dlio_bench.harness.cluster.comm import Comm
    from dlio_bench.harness.cluster.entry import require_same_code, run_rank, say
    from dlio_bench.harness.commands.run.measured import rank as measured

    assert measured

    def body(comm: Comm) -> None:
        require_same_code(comm, (folder / "code").read_text())
        comm.barrier()
        if comm.rank == 0:
            say({"event": "ready"})

    return run_rank(folder, lambda: (ranks, body))


def seconds(folder: Path, ranks: int) -> float:
    """From the launch until rank 0 says that all are ready."""
    from dlio_bench.harness.cluster.process import launch
    from tests.ranks import mpirun

    argv, env = mpirun(1, command(folder, ranks), ranks_per_node=ranks)
    ready: list[float] = []

    def heard(_: dict[str, Any]) -> None:
        ready.append(time.monotonic())

    begun = time.monotonic()
    launch(argv, env, folder, heard)
    return ready[0] - begun


def calls(folder: Path) -> dict[str, int]:
    """File-system calls of one rank, by name; `failed` among them."""
    trace = folder / "trace"
    subprocess.run(["strace", "-f", "-e", f"trace={CALLS}", "-o", trace, *command(folder, 1)], check=True)
    lines = trace.read_text().splitlines()
    counts = collections.Counter(re.findall(r"^\d+ +(\w+)\(", "\n".join(lines), re.MULTILINE))
    return dict(counts.most_common()) | {"failed": sum(" = -1 " in line for line in lines)}


def command(folder: Path, ranks: int) -> tuple[str, ...]:
    """How a rank is started."""
    return (sys.executable, "-P", __file__, "--rank", str(folder), str(ranks))


def main() -> None:
    """See above."""
    from dlio_bench.harness.cluster.environment import code_digest

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "code").write_text(code_digest())
        if shutil.which("strace"):
            print("one rank:", ", ".join(f"{count} {call}" for call, count in calls(folder).items()))
        for ranks in map(int, sys.argv[1:] or ("1", "16", "64")):
            print(f"{ranks:3} ranks: {statistics.median(seconds(folder, ranks) for _ in range(TIMES)):.2f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        raise SystemExit(rank(Path(sys.argv[2]), int(sys.argv[3])))
    main()
