"""The options of `dlio-bench calibrate`, and the call they lead to. Heavy imports wait until the command runs."""

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground.arguments import Commands, add_launcher, add_variant, allocated_scale, values_of
from dlio_bench.harness.storage.pfs.spec import EXAMPLE, parse_spec
from dlio_bench.units import parse_bytes

SIZES = (4096, 65_536, 262_144, 1_048_576, 2_097_152, 8_388_608)  # of a label up to a piece of a staged file
THREADS = (1, 2, 4)
OF_PFS = ("local", "nodes", "sample_bytes", "size", "workload", "emulate_pfs", "launcher")
OF_COMPUTE = ("variant", "batch", "tiny", "steps")

EXAMPLES = """\
examples:
  dlio-bench calibrate --pfs /scratch/me --nodes 4 --out here.toml
  dlio-bench calibrate --pfs /scratch/me --local /local --nodes 8 --workload imagenet --out here.toml
  dlio-bench run hepcnnb --nodes 4 --predict --system here.toml
  dlio-bench calibrate --compute cdb:deeplab --batch 1,2 --out deeplab.toml
  dlio-bench run cdb --compute emulate:@deeplab.toml
"""


def add_calibrate(commands: Commands) -> None:
    """`calibrate`."""
    parser = commands.add_parser(
        "calibrate",
        help="measure a machine's rates for `simulate --system` and `run --predict`, or a network's step times for "
        "`--compute emulate:@FILE`",
        description="With --pfs, measure how fast this machine reads, and write it as the [measured] part of a system "
        "description; a [declared] part in the file stays as it is. The test files are removed at the end. "
        "With --compute, measure how long a training step of a real network takes for each batch size, and "
        "write it as a compute profile. The network runs on the GPU that TensorFlow sees, or else on the "
        "processor.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--pfs", type=Path, metavar="DIR", help="folder on the parallel file system (or --compute)")
    parser.add_argument("--local", type=Path, metavar="DIR", help="folder on node-local storage, on every node")
    parser.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="nodes that read, one rank each (default: all of the scheduler's allocation, else 1)",
    )
    parser.add_argument(
        "--threads",
        type=partial(_ascending, "--threads"),
        metavar="N[,N...]",
        help="threads on each node (default 1,2,4); with --compute one number: the cores of a rank (default all)",
    )
    parser.add_argument(
        "--sample-bytes",
        type=_sizes,
        metavar="SIZE[,SIZE...]",
        help="sizes of the reads (default 4KiB,64KiB,256KiB,1MiB,2MiB,8MiB)",
    )
    parser.add_argument("--size", type=parse_bytes, metavar="SIZE", help="bytes of the test files (default 512MB)")
    parser.add_argument(
        "--workload", metavar="WORKLOAD", help="also measure how fast the samples of this workload are decoded"
    )
    parser.add_argument("--emulate-pfs", type=parse_spec, metavar="SPEC", help=f"as in `run`: {EXAMPLE}")
    add_launcher(parser)
    compute = parser.add_argument_group("step times")
    compute.add_argument(
        "--compute", metavar="WORKLOAD[:MODEL]", help="the network, as in `run --compute train:MODEL` (or --pfs)"
    )
    add_variant(compute)
    compute.add_argument(
        "--batch",
        type=partial(_ascending, "--batch"),
        metavar="B[,B...]",
        help="samples in a step (default 1, 2, 4, ... up to the published batch)",
    )
    compute.add_argument(
        "--steps", type=int, metavar="N", help="timed steps of each batch (default 5, more if they are short)"
    )
    compute.add_argument(
        "--tiny", action="store_true", help="shrink the samples, for a smoke test: never a measurement"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write (default system.toml; with --compute compute.toml)"
    )
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")


def run_calibrate(options: argparse.Namespace) -> int:
    """`calibrate`. UsageError for options of the one kind with the other."""
    given = values_of(options, "json", "out")
    values = {name: value for name, value in given.items() if value is not None and value is not False}
    kind = _kind(values)
    if kind == "compute":
        from dlio_bench.harness.calibration.compute import command as compute

        if "threads" in values:
            values["threads"] = _one(values["threads"])
        return compute.calibrate(compute.Options(**values), options.out or Path("compute.toml"), as_json=options.json)
    from dlio_bench.harness.calibration.command import Options, calibrate

    nodes = allocated_scale(nodes="nodes" in values, ranks_per_node=True).nodes
    return calibrate(Options(**{"nodes": nodes} | values), options.out or Path("system.toml"), as_json=options.json)


def _kind(given: Mapping[str, Any]) -> str:
    """What is to be measured: pfs or compute."""
    kinds = [kind for kind in ("pfs", "compute") if kind in given]
    if not kinds:
        raise UsageError(
            "calibrate measures one of two things: how fast storage is, with --pfs DIR, or how long a step of a "
            "network takes, with --compute WORKLOAD. Give one of them."
        )
    if len(kinds) == 2:
        raise UsageError("--pfs and --compute measure different things, into different files. Give one at a time.")
    others = OF_COMPUTE if kinds == ["pfs"] else OF_PFS
    if wrong := [name for name in others if name in given]:
        flag = f"--{wrong[0].replace('_', '-')}"
        raise UsageError(f"calibrate --{kinds[0]} has no option {flag}. Leave it out.")
    return kinds[0]


def _one(threads: tuple[int, ...]) -> int:
    if len(threads) > 1:
        raise UsageError(f"--threads {','.join(map(str, threads))}: with --compute give one number.")
    return threads[0]


def _ascending(flag: str, text: str) -> tuple[int, ...]:
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise UsageError(f"{flag} '{text}' cannot be used. Write whole numbers from 1, as {flag} 1,2,4.")
    return tuple(numbers)


def _sizes(text: str) -> tuple[int, ...]:
    sizes = sorted({parse_bytes(part) for part in text.split(",")})
    if sizes[0] < 1:
        raise UsageError(f"--sample-bytes '{text}' has a size of 0. Name sizes such as 115kB,1MiB.")
    return tuple(sizes)
