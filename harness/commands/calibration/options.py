"""The options of `dlio-bench calibrate`. Heavy imports wait until the command runs."""

from pathlib import Path
from typing import Annotated

from msgspec import Struct

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground import starting
from dlio_bench.harness.storage.pfs.spec import EXAMPLE, PfsSpec, parse_spec
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


def _sizes(text: str) -> tuple[int, ...]:
    sizes = sorted({parse_bytes(part) for part in text.split(",")})
    if sizes[0] < 1:
        raise UsageError(f"'{text}' has a size of 0. Name sizes such as 115kB,1MiB.")
    return tuple(sizes)


class Options(Struct, frozen=True, kw_only=True):
    """Of both kinds: what is measured of storage, with --pfs, or of a network, with --compute. None: chosen there."""

    pfs: Annotated[Path, opt.folder("folder on the parallel file system (or --compute)")] = Path()
    local: Annotated[Path | None, opt.folder("folder on node-local storage, on every node")] = None
    nodes: Annotated[
        int, opt.count("N", "nodes that read, one rank each (default: all of the scheduler's allocation, else 1)")
    ] = 1
    threads: Annotated[
        tuple[int, ...],
        opt.counts(
            "N",
            "threads on each node (default 1,2,4); with --compute one number: the cores of a rank (default all)",
            ascending=True,
        ),
    ] = THREADS
    sample_bytes: Annotated[
        tuple[int, ...],
        opt.option(
            "sizes of the reads (default 4KiB,64KiB,256KiB,1MiB,2MiB,8MiB)", metavar="SIZE[,SIZE...]", type=_sizes
        ),
    ] = SIZES
    size: Annotated[int | None, opt.size("bytes of the test files (default 512MB)")] = None
    workload: Annotated[
        str | None,
        opt.option("also measure how fast the samples of this workload are decoded", metavar="WORKLOAD"),
    ] = None
    emulate_pfs: Annotated[PfsSpec | None, opt.option(f"as in `run`: {EXAMPLE}", metavar="SPEC", type=parse_spec)] = (
        None
    )
    launcher: opt.JoiningLauncher = None
    compute: Annotated[
        str,
        opt.option("the network, as in `run --compute train:MODEL` (or --pfs)", metavar="WORKLOAD[:MODEL]"),
        opt.Group("step times"),
    ] = ""
    variant: opt.Variant = None
    batch: Annotated[
        tuple[int, ...] | None,
        opt.counts("B", "samples in a step (default 1, 2, 4, ... up to the published batch)", ascending=True),
    ] = None
    steps: Annotated[int | None, opt.count("N", "timed steps of each batch (default 5, more if they are short)")] = None
    tiny: Annotated[bool, opt.flag("shrink the samples, for a smoke test: never a measurement")] = False
    out: Annotated[
        Path | None,
        opt.file("file to write (default system.toml; with --compute compute.toml)"),
        opt.Group(""),
    ] = None
    json: Annotated[bool, opt.flag("print what was measured as JSON")] = False
    streams: bool = True  # of --pfs, where ADIOS2 is installed


def _run(given: opt.Given) -> int:
    """UsageError for options of the one kind with the other."""
    if _kind(given) == "compute":
        from dlio_bench.harness.commands.calibration.compute import command as compute

        return compute.calibrate(Options(**{"threads": (), **given}))
    from dlio_bench.harness.commands.calibration import command

    nodes = starting.allocated_scale(nodes="nodes" in given, ranks_per_node=True).nodes
    return command.calibrate(Options(**{"nodes": nodes, **given}))


def _kind(given: opt.Given) -> str:
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


CALIBRATE = opt.Command(
    "calibrate",
    "measure a machine's rates for `simulate --system` and `run --predict`, or a network's step times for `--compute "
    "emulate:@FILE`",
    "With --pfs, measure how fast this machine reads, and write it as the [measured] part of a system description; a "
    "[declared] part in the file stays as it is. The test files are removed at the end. With --compute, measure how "
    "long a training step of a real network takes for each batch size, and write it as a compute profile. The network "
    "runs on the GPU that TensorFlow sees, or else on the processor.",
    Options,
    _run,
    EXAMPLES,
    process=starting.RANKS,
)
