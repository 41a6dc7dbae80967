"""What the two ways of the emulated file system cost: CPU seconds a GB, and how long the same run takes.

    python scripts/measure/emulation_cost.py [--pairs 5]

CPU: one reader takes 2 GB of files that are in the page cache, in requests of 1 MiB and without limits; counted are the
CPU seconds of the reader and of the daemon, less those of an emulation that serves nothing. `plain` is the same reads
without an emulation: what a way costs is what it takes beyond that. Elapsed: `run cdb` on four virtual nodes that share
400 MB/s, the ways in turn.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from msgspec import json
from msgspec.structs import replace

from dlio_bench.benchmarks.registry import WORKLOADS
from dlio_bench.datagen.dataset import KERNEL, Access, Dataset, open_dataset
from dlio_bench.datagen.generate import generate
from dlio_bench.datagen.layout import RANDOM
from dlio_bench.harness.storage.pfs.process import EmulatedAccess, emulation_of
from dlio_bench.harness.storage.pfs.spec import FUSE, PROCESS, PfsSpec

WAYS, PLAIN = (PROCESS, FUSE), "plain"
GB, REQUEST, PASS = 1e9, 1 << 20, 2_000_000_000
RUN = (
    *("run", "cdb", "--nodes", "4", "--reader", "naive,prefetch", "--max-data", "300MB", "--epochs", "6"),
    *("--trials", "1", "--warmup-trials", "0", "--min-seconds", "0", "--compute", "emulate:30ms", "--json"),
)


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def spent(way: str, folder: Path, count: int) -> float:
    """CPU seconds of an emulation from its start to its end, and of a reader that takes `count` bytes through it."""
    dataset, before = open_dataset(folder), cpu_seconds()
    if way == PLAIN:
        take(KERNEL, dataset, count)
        return cpu_seconds() - before
    spec = PfsSpec(None, via=way)
    with emulation_of(spec, dataset, 1) as emulation:
        mount = emulation.mounts[0]
        if way == PROCESS:
            access, seen = EmulatedAccess(spec, dataset, mount, 0), dataset
        else:
            access, seen = KERNEL, replace(dataset, folder=mount)
        take(access, seen, count)
    return cpu_seconds() - before


def take(access: Access, dataset: Dataset, count: int) -> None:
    """Read files from their beginning to their end, one after the other, until `count` bytes have come."""
    out, file = memoryview(bytearray(REQUEST)), 0
    while count > 0:
        handle, offset = access.open(dataset.path(file % len(dataset.manifest.files)), os.O_RDONLY), 0
        while count > 0 and (got := access.read(handle, [out], offset)):
            offset, count = offset + got, count - got
        access.close(handle)
        file += 1


def in_a_new_process(call: Callable[..., float], *arguments: object) -> float:
    """What the call gives in a process whose CPU time is its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(call, arguments)


def elapsed(way: str, work: Path) -> list[float]:
    """Median seconds of a trial, of each reader."""
    words = [*RUN, "--emulate-pfs", f"bandwidth=400MB/s,open=1ms,via={way}", "--out", str(work / os.urandom(4).hex())]
    done = subprocess.run([sys.executable, "-m", "dlio_bench", *words], capture_output=True, check=True)
    return [result["metrics"]["elapsed_seconds"]["value"] for result in json.decode(done.stdout)]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        layout = WORKLOADS["cdb"].variants[WORKLOADS["cdb"].default_variant](False, RANDOM)
        generate(layout, 8, work / "cdb", seed=1, workers=2)
        costs: dict[str, list[float]] = {way: [] for way in (*WAYS, PLAIN)}
        for _ in range(pairs):
            for way, found in costs.items():
                used = [in_a_new_process(spent, way, work / "cdb", count) for count in (PASS, 0)]
                found.append((used[0] - used[1]) / (PASS / GB))
        for way, found in costs.items():
            print(f"{way:8} {statistics.median(found):.3f} CPU s/GB ({min(found):.3f}-{max(found):.3f})")
        process, fuse, plain = costs.values()
        shares = [(one - least) / (other - least) for one, other, least in zip(process, fuse, plain, strict=True)]
        print(f"beyond plain reads, process takes {statistics.median(shares):.2f} of what fuse does, median of {pairs}")
        times = [[elapsed(way, work) for way in WAYS] for _ in range(pairs)]
        for number, reader in enumerate(("naive", "prefetch")):
            ratios = [pair[0][number] / pair[1][number] for pair in times]
            shown = [f"{statistics.median(pair[way][number] for pair in times):.3f} s" for way in (0, 1)]
            print(f"{reader:8} {shown[0]} process, {shown[1]} fuse, ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
