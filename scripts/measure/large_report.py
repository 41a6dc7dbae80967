"""Cost of the page of a large run (2 readers, 1,024 ranks, 1,000 steps, 5 trials).

Prints seconds and peak memory of a process that loads the results and writes their page, the size of the page, and
bytes of steps.npz per trial, rank and step. Exit status 1 beyond 20 s, 2 GB or 10 MB.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
READERS, RANKS, STEPS, TRIALS = ("naive", "prefetch"), 1024, 1000, 5
MOST_SECONDS, MOST_MEMORY, MOST_BYTES = 20, 2e9, 10e6
PAGE = "report.html"


def make(folder: Path) -> None:
    """Write the results of a run with random waits."""
    from dlio_bench.reports.document.result import save
    from tests.results import complete
    from tests.unit.conftest import draft_of_reader, trial_of

    for number, reader in enumerate(READERS):
        draft = draft_of_reader(reader, RANKS, TRIALS)
        draft["plan"] |= {"steps": STEPS, "steps_per_epoch": STEPS // 2}
        draft["plan"]["warmup_trials"] = 0
        steps = _steps(np.random.default_rng(number), (TRIALS, RANKS, STEPS))
        draft["trials"] = [
            trial_of(trial, float(steps["loop"][trial].max()) + 0.003, RANKS) | {"warmup": False, "steps": STEPS}
            for trial in range(TRIALS)
        ]
        save(complete(draft, steps), steps, folder / reader)


def _steps(random: np.random.Generator, shape: tuple[int, int, int]) -> dict[str, Any]:
    stall, exchange = random.exponential(0.05, shape), random.exponential(0.01, shape)
    check, compute = np.full(shape, 0.004), random.normal(0.2, 0.005, shape)
    whole = stall + check + compute + exchange
    return {
        "stall": stall, "check": check, "compute": compute, "exchange": exchange,
        "start": np.cumsum(whole, axis=2) - whole, "loop": whole.sum(axis=2),
        "epoch": np.repeat(np.arange(2, dtype=np.int64), STEPS // 2),
    }  # fmt: skip


def main() -> int:
    """Make the results in a process of their own, so that its memory does not count."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, __file__, "--make", name], check=True)
        before = time.perf_counter()
        from dlio_bench.harness.cli import main as command

        status = command(["report", name])
        seconds = time.perf_counter() - before
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        size = (folder / PAGE).stat().st_size
        each = (folder / READERS[0] / "steps.npz").stat().st_size / (RANKS * STEPS * TRIALS)
    print(
        f"{seconds:.1f} s, {memory / 1e9:.2f} GB, page {size / 1e6:.2f} MB, steps.npz {each:.1f} bytes a step of a rank"
    )
    return status or int(seconds > MOST_SECONDS or memory > MOST_MEMORY or size > MOST_BYTES)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make(Path(sys.argv[2]))
    else:
        sys.exit(main())
