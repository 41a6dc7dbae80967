"""What the reader `stream` gets of the rate of ADIOS2 itself, and what streaming costs where compute hides reading:

    .venv-stream/bin/python scripts/measure/stream_rate.py link WORKLOAD --data DATASET [--batch N]
    .venv-stream/bin/python scripts/measure/stream_rate.py hidden WORKLOAD --data DATASET --step SECONDS [--batch N]

link: `run --reader stream --compute none` with a trainer and a producer. Then one process puts as many steps of as many
bytes into an SST stream of the same parameters, and one other gets them. Both sides take turns with as many buffers as
the reader has, as caches of processors hold one. The files are in the page cache.
hidden: `run` with two trainers and a producer, and with two trainers and `prefetch`, at an emulated step time.
It prints JSON: the bytes a second (link) or the seconds (hidden) of each trial, their medians, and the ratio.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dlio_bench.harness.streams.adios import StreamReader, StreamWriter
from dlio_bench.harness.streams.settings import QUEUE

SECONDS = 60.0  # of a wait
BUFFERS = 16
PARAMETERS = {"QueueLimit": QUEUE, "QueueFullPolicy": "Block"}


def put(path: Path, size: int, steps: int) -> None:
    """The writer's process."""
    content = [np.ones(size, np.uint8) for _ in range(BUFFERS)]
    writer = StreamWriter(path, parameters=PARAMETERS)
    for step in range(steps):
        writer.put({"position": np.array(step), "content": content[step % BUFFERS]})
    writer.close()


def bare(size: int, steps: int) -> float:
    """Bytes a second of a stream, from its first step to its last."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "stream"
        writer = subprocess.Popen([sys.executable, __file__, "put", str(path), str(size), str(steps)])
        reader, outs = StreamReader(path), [np.ones(size, np.uint8) for _ in range(BUFFERS)]
        began = time.perf_counter()
        while reader.begin(SECONDS):
            reader.get("position")
            outs.append(outs.pop(0))
            reader.get("content", outs[-1])
            reader.end()
        took = time.perf_counter() - began
        reader.close()
        writer.wait()
    return size * steps / took


def run(workload: str, options: argparse.Namespace, *words: str) -> list[dict[str, float]]:
    """The trials of a run, the warm-up left out."""
    with TemporaryDirectory() as folder:
        asked = ["run", workload, "--data", str(options.data), "--nodes", "1", "--cache", "warm", "--no-verify"]
        asked += ["--validation", "none", "--out", f"{folder}/out", "--json", *words]
        asked += ["--batch", str(options.batch)] if options.batch else []
        done = subprocess.run([sys.executable, "-m", "dlio_bench", *asked], stdout=subprocess.PIPE, check=False)
    [result] = json.loads(done.stdout)
    return [trial for trial in result["trials"] if not trial["warmup"]]


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["put"]:
        put(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("link", "hidden"))
    parser.add_argument("workload")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--step", default="0.1s", help="emulated (hidden)")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--trials", type=int, default=5)
    options = parser.parse_args()
    often = ("--trials", str(options.trials), "--epochs", str(options.epochs))
    measured: dict[str, list[float]]
    if options.what == "link":
        words = ("--reader", "stream", "--ranks-per-node", "1", "--producers", "1", "--compute", "none", *often)
        trials = run(options.workload, options, *words)
        steps = int(trials[0]["steps"])
        size = round(trials[0]["bytes_remote"] / steps)
        measured = {
            "bare": [bare(size, steps) for _ in range(options.trials)],
            "stream": [trial["bytes_remote"] / trial["elapsed_seconds"] for trial in trials],
        }
        more = {"step_bytes": size, "steps": steps}
    else:
        words = ("--ranks-per-node", "2", "--compute", f"emulate:{options.step}", *often)
        measured = {
            reader: [trial["elapsed_seconds"] for trial in run(options.workload, options, "--reader", reader, *words)]
            for reader in ("prefetch", "stream")
        }
        more = {}
    medians = {name: statistics.median(each) for name, each in measured.items()}
    first, second = medians.values()
    print(json.dumps(more | {"trials": measured, "medians": medians, "ratio": second / first}, indent=1))


if __name__ == "__main__":
    main()
