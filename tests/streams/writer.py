"""A process that writes a stream: `writer.py PATH ENGINE STEPS [KEY=VALUE ...]`. It prints the number of each step that
is written. With hold=1 it never ends the stream.
"""

import sys
import time
from pathlib import Path

import numpy as np

from dlio_bench.harness.streams.adios import StreamWriter

TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


def arrays(step: int) -> dict[str, np.ndarray]:
    """An array of each type, of a length that changes, and one with two axes."""
    random = np.random.default_rng(step)
    lines = {name: random.integers(0, 100, 1 + (step * 7) % 5).astype(name) for name in TYPES}
    return lines | {"plane": random.random((2 + step % 2, 3))}


def main(path: str, engine: str, steps: str, *given: str) -> None:
    """Write."""
    parameters: dict[str, object] = dict(word.split("=") for word in given)
    hold = parameters.pop("hold", None)
    writer = StreamWriter(Path(path), engine=engine, parameters=parameters)
    for step in range(int(steps)):
        writer.put(arrays(step))
        print(step, flush=True)
    while hold:
        time.sleep(60)
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
