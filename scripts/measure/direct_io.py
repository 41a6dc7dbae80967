"""What direct reads cost and give beside buffered ones, on a block device with a known limit.

    python scripts/measure/direct_io.py [--cap 100MB] [--size 400MB] [--trials 3] [--workload imagenet] [FOLDER]

Needs root. Makes an ext4 on a loop device in FOLDER (default /var/tmp), whose backing file is itself read with
O_DIRECT, and a control group whose reads of it are limited by the kernel (blkio.throttle.read_bps_device, or io.max of
version 2). Runs `dlio-bench run` in this group, cold and buffered, cold and direct, warm and direct, and prints the
rate that the device delivered as a share of the limit, and the processor's seconds for each GB that it delivered.
Everything that it made is removed.

The limit lets a burst through after a pause, so that short trials come out above it, warm and direct ones too: give it
trials of 10 s or more (imagenet is read for 147 MB a trial with --size 300MB). With --cap 14MB, trials of 10.5 s of
`prefetch` came to 100.5 (buffered, cold), 100.0 (direct, cold) and 100.1 % (direct, warm) of the limit.

Where others use the processors, readers on demand (naive, shuffled) may stay far below the limit, buffered and direct:
after each read the thread waits for a processor. docs/methodology.md has the figures.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dlio_bench.units import format_bytes, parse_bytes

GROUPS = Path("/sys/fs/cgroup")
NAME = "dlio-bench-direct-io"
KINDS = (("buffered", "cold"), ("direct", "cold"), ("direct", "warm"))


@contextmanager
def loop_device(folder: Path, size: int) -> Iterator[tuple[Path, str]]:
    """An ext4 of `size` bytes, mounted: (its root, MAJOR:MINOR of its device)."""
    image, place = folder / "disk.img", folder / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    losetup = ["losetup", "--find", "--show", "--direct-io=on", str(image)]
    device = subprocess.run(losetup, check=True, capture_output=True, text=True).stdout.strip()
    with ExitStack() as stack:
        stack.callback(subprocess.run, ["losetup", "--detach", device], check=True)
        subprocess.run(["mount", device, str(place)], check=True)
        stack.callback(subprocess.run, ["umount", str(place)], check=True)
        number = Path(device).stat().st_rdev
        yield place, f"{os.major(number)}:{os.minor(number)}"


@contextmanager
def limited(device: str, cap: int) -> Iterator[Path]:
    """A control group that reads at most `cap` bytes a second of the device: the file that takes its processes."""
    first = GROUPS / "blkio"
    group = (first if first.is_dir() else GROUPS) / NAME
    group.mkdir(exist_ok=True)
    try:
        if first.is_dir():
            (group / "blkio.throttle.read_bps_device").write_text(f"{device} {cap}")
        else:
            (GROUPS / "cgroup.subtree_control").write_text("+io")
            (group / "io.max").write_text(f"{device} rbps={cap}")
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def measured(members: Path, *words: str) -> dict[str, dict[str, Any]]:
    """Reader -> result of a run in the control group."""
    join = f'echo $$ > {members}; exec "$@"'
    command = ["sh", "-c", join, "sh", sys.executable, "-m", "dlio_bench", "run", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return {result["policy"]["alias"]: result for result in json.loads(done.stdout)}


def figures(result: dict[str, Any]) -> tuple[float, float, float]:
    """Bytes a second that the device delivered, those that the reader delivered, processor seconds for each GB."""
    trials = [trial for trial in result["trials"] if not trial["warmup"]]
    device = statistics.median(trial["bytes_device"] / trial["elapsed_seconds"] for trial in trials)
    useful = statistics.median(trial["bytes_useful"] / trial["elapsed_seconds"] for trial in trials)
    return device, useful, statistics.median(1e9 * trial["cpu_seconds"] / trial["bytes_useful"] for trial in trials)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("/var/tmp"))
    parser.add_argument("--cap", type=parse_bytes, default=parse_bytes("100MB"))
    parser.add_argument("--size", type=parse_bytes, default=parse_bytes("400MB"))
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--workload", default="imagenet")
    parser.add_argument("--reader", default="naive,prefetch")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix=NAME, dir=options.folder))
    try:
        with (
            loop_device(work, 2 * options.size + (256 << 20)) as (place, device),
            limited(device, options.cap) as members,
        ):
            print(
                f"{options.workload}, {options.trials} trials; the device is limited to {format_bytes(options.cap)}/s"
            )
            print(f"{'':<10}{'':<10}{'':<6}{'device':>12}{'of the limit':>14}{'delivered':>12}{'CPU s/GB':>10}")
            for io, cache in KINDS:
                results = measured(
                    members, options.workload, "--reader", options.reader, "--io", io, "--cache", cache,
                    "--cache-dir", str(place), "--max-data", f"{options.size}B", "--compute", "none", "--epochs", "1",
                    "--min-seconds", "0", "--trials", str(options.trials), "--warmup-trials", "1", "--no-verify",
                    "--sync", "none", "--tiers", "ram=16MB", "--seed", "1", "--out", str(work / f"{io}-{cache}"),
                )  # fmt: skip
                for reader, result in results.items():
                    rate, useful, cpu = figures(result)
                    share = f"{100 * rate / options.cap:.1f} %"
                    print(
                        f"{reader:<10}{io:<10}{cache:<6}{format_bytes(rate) + '/s':>12}{share:>14}"
                        f"{format_bytes(useful) + '/s':>12}{cpu:>10.2f}",
                        flush=True,
                    )
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
