"""What `run --trace spans` adds to a run.

    python scripts/measure/trace_cost.py [--pairs 5] [--reader naive,prefetch] [OPTIONS OF run ...]

Runs ImageNet (records of 115 KB) by turns with and without it, with the options that follow. Prints, for each reader,
the median elapsed time of the runs of either kind, each the median of its trials; their ratio less 1; and the spans of
a trial. The worst case, what people run, and a storage system that is the limit:

    trace_cost.py --cache warm --compute none --max-data 150MB --epochs 4 --trials 5
    trace_cost.py --max-data 150MB --epochs 1 --trials 1 --warmup-trials 0
    trace_cost.py --emulate-pfs bandwidth=1GB/s --compute none --max-data 150MB --epochs 6 --trials 3

On two cores, naive and prefetch: +2.0 and +5.2 %; -1.4 and -0.1 %. The third, naive in seven pairs: +0.5 % (pairs from
-5 to +5 %); 0.36 us of 170 us a read are 0.2 % by arithmetic.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dlio_bench.reports.traces import timeline

TRACE = ("--trace", "spans")


def run(folder: Path, readers: str, options: Sequence[str]) -> dict[str, float]:
    """Elapsed seconds of the median trial of each reader."""
    subprocess.run(
        [
            sys.executable, "-m", "dlio_bench", "run", "imagenet", "--reader", readers, "--min-seconds", "0",
            "--no-verify", "--out", str(folder), *options,
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    elapsed = {}
    for path in folder.glob("*/result.json"):
        trials = json.loads(path.read_text())["trials"]
        elapsed[path.parent.name] = statistics.median(
            trial["elapsed_seconds"] for trial in trials if not trial["warmup"]
        )
    return elapsed


def pairs(
    folder: Path, readers: str, options: Sequence[str], count: int
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Runs without and with spans, by turns, each of which begins another pair."""
    done = []
    for number in range(count):
        plain, traced = folder / f"plain-{number}", folder / f"traced-{number}"
        if number % 2:
            with_spans, without = run(traced, readers, [*options, *TRACE]), run(plain, readers, options)
        else:
            without, with_spans = run(plain, readers, options), run(traced, readers, [*options, *TRACE])
        done.append((without, with_spans))
    return done


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--reader", default="naive,prefetch")
    options, of_run = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as place:
        done = pairs(Path(place), options.reader, of_run, options.pairs)
        for name in done[0][0]:
            spans = timeline.load(Path(place) / "traced-0" / name)
            plain, traced = ([pair[kind][name] for pair in done] for kind in (0, 1))
            ratio = statistics.median(traced) / statistics.median(plain) - 1
            each = " ".join(f"{after / before - 1:+.2%}" for before, after in zip(plain, traced, strict=True))
            print(
                f"{name}: {statistics.median(plain):.4f} s without, {statistics.median(traced):.4f} s with: "
                f"{ratio:+.2%} (pairs {each}); {(spans.trial == spans.trial.max()).sum()} spans in a trial"
            )


if __name__ == "__main__":
    main()
