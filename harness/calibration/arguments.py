"""The options of `dlio-bench calibrate`, and the call they lead to. Heavy imports wait until the command runs."""

import argparse
from pathlib import Path
from typing import TypeAlias

from dlio_bench.errors import UsageError
from dlio_bench.harness.storage.pfs.spec import EXAMPLE, parse_spec
from dlio_bench.units import parse_bytes

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

SIZES = (4096, 65_536, 262_144, 1_048_576, 2_097_152, 8_388_608)  # of a label up to a piece of a staged file
THREADS = (1, 2, 4)

EXAMPLES = """\
examples:
  dlio-bench calibrate --pfs /scratch/me --nodes 4 --out here.toml
  dlio-bench calibrate --pfs /scratch/me --local /local --nodes 8 --workload imagenet --out here.toml
  dlio-bench run hepcnnb --nodes 4 --predict --system here.toml
"""


def add_calibrate(commands: Commands) -> None:
    """`calibrate`."""
    own = commands.add_parser(
        "calibrate",
        help="measure a machine's rates for `simulate --system` and `run --predict`",
        description="Measure how fast this machine reads, and write it as the [measured] part of a system description. "
        "A [declared] part that the file has already stays as it is. The test files are removed at the end.",
        epilog=EXAMPLES,
    )
    own.add_argument("--pfs", type=Path, metavar="DIR", required=True, help="folder on the parallel file system")
    own.add_argument("--local", type=Path, metavar="DIR", help="folder on node-local storage, on every node")
    own.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes that read, one rank each (default 1)")
    own.add_argument(
        "--threads", type=_threads, default=THREADS, metavar="N[,N...]", help="threads a node (default 1,2,4)"
    )
    own.add_argument(
        "--sample-bytes",
        type=_sizes,
        default=SIZES,
        metavar="SIZE[,SIZE...]",
        help="sizes of reads (default 4KiB,64KiB,256KiB,1MiB,2MiB,8MiB)",
    )
    own.add_argument("--size", type=parse_bytes, metavar="SIZE", help="bytes of the test files (default 512MB)")
    own.add_argument("--workload", metavar="WORKLOAD", help="measure the decoding of this workload's samples too")
    own.add_argument("--emulate-pfs", type=parse_spec, metavar="SPEC", help=f"as in `run`: {EXAMPLE}")
    own.add_argument(
        "--launcher", metavar="NAME", help="local, mpirun, srun, jsrun, flux or pals (default: from the environment)"
    )
    own.add_argument(
        "--out", type=Path, default=Path("system.toml"), metavar="FILE", help="description (default system.toml)"
    )
    own.add_argument("--json", action="store_true", help="print what was measured as JSON")


def run_calibrate(asked: argparse.Namespace) -> int:
    """`calibrate`."""
    from dlio_bench.harness.calibration.command import Options, calibrate

    values = {name: value for name, value in vars(asked).items() if name not in ("command", "version", "json", "out")}
    return calibrate(Options(**values), asked.out, as_json=asked.json)


def _threads(text: str) -> tuple[int, ...]:
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        counts = [0]
    if counts[0] < 1:
        raise UsageError(f"--threads '{text}' cannot be used. Write whole numbers from 1, as --threads 1,2,4.")
    return tuple(counts)


def _sizes(text: str) -> tuple[int, ...]:
    sizes = sorted({parse_bytes(part) for part in text.split(",")})
    if sizes[0] < 1:
        raise UsageError(f"--sample-bytes '{text}' has a size of 0. Name sizes such as 115kB,1MiB.")
    return tuple(sizes)
