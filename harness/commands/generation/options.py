"""The options of the commands on datasets. Heavy imports wait until a command runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Struct

from dlio_bench.benchmarks.registry import NAMES
from dlio_bench.errors import UsageError, one_of
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground import starting
from dlio_bench.units import parse_rate

if TYPE_CHECKING:
    from dlio_bench.harness.commands.generation.amount import Amount

FILLS = ("physical", "random")
LABEL = "label"
GENERATE_EXAMPLES = """\
examples:
  dlio-bench generate cdb --out /scratch/cdb --files 128
  dlio-bench generate hepcnnb --out /scratch/hep --bytes 2TB --nodes 16 --ranks-per-node 4
  dlio-bench generate cdb --out s3://bucket/cdb --files 128
  dlio-bench generate imagenet --out /scratch/imagenet --fraction 1% --fill random
"""
Workload: TypeAlias = Annotated[str, opt.argument("WORKLOAD", f"{one_of(NAMES)} (see `dlio-bench list`)")]


class GenerateOptions(Struct, frozen=True, kw_only=True):
    """None: chosen by the command. `nodes`, `ranks_per_node` and `launcher` mean ranks."""

    workload: Workload
    variant: opt.Variant = None
    out: Annotated[
        Path,
        opt.option(
            "folder of the dataset, made if absent; or s3://bucket/prefix", metavar="DIR", type=Path, required=True
        ),
    ]
    files: Annotated[
        int | None, opt.count("N", "number of files, all splits together"), opt.Group("how much (give one)")
    ] = None
    bytes: Annotated[int | None, opt.size("store at most this many bytes in all, for example 2TB")] = None
    fraction: Annotated[float | None, opt.share("share of the published dataset, for example 1%% or 0.01")] = None
    full: Annotated[bool, opt.flag("make the published size")] = False
    fill: Annotated[
        str,
        opt.choice(
            "FILL",
            "physical: values like the application's (default); random: bytes that neither compress nor repeat",
            FILLS,
        ),
        opt.Group("what is in them"),
    ] = "physical"
    seed: Annotated[int, opt.count("S", "seed of the bytes (default 1)", least=0)] = 1
    sorted_by: Annotated[
        str | None,
        opt.choice(
            "KEY",
            "label: files hold the samples of a split in the order of their classes (default: classes are mixed)",
            (LABEL,),
        ),
    ] = None
    tiny: Annotated[bool, opt.flag("shrink the samples, for tests: never a measurement")] = False
    workers: Annotated[
        int | None,
        opt.count("N", "write with N processes on this machine (default: one per available core)"),
        opt.Group("who writes"),
    ] = None
    nodes: Annotated[
        int | None,
        opt.count("N", "write with ranks, on N nodes (default: all of the scheduler's allocation, if it has several)"),
    ] = None
    ranks_per_node: Annotated[
        int | None,
        opt.count(
            "R",
            "ranks on each node (default: the allocation's tasks per node, else one per core; outside of an allocation "
            "1)",
        ),
    ] = None
    launcher: opt.JoiningLauncher = None
    json: Annotated[bool, opt.flag("print JSON, with the folder's raw write rate beside ours"), opt.Group("")] = False
    raw: Annotated[bool, opt.flag("leave the raw write rate out of the JSON", "--no-raw")] = True

    @property
    def amount(self) -> "Amount":
        """How much is to be made. UsageError if nothing or several things say it."""
        given = opt.given(self, "files", "bytes", "fraction", "full")
        if len(given) != 1:
            problem = f"{' and '.join(given)} each say how much is made" if given else "Say how much is to be made"
            raise UsageError(f"{problem}. Give one of --files, --bytes, --fraction and --full.")
        from dlio_bench.harness.commands.generation.amount import Amount

        return Amount(self.files, self.bytes, self.fraction)


class VerifyOptions(Struct, frozen=True, kw_only=True):
    """None: chosen by the command."""

    folder: Annotated[Path, opt.argument("DIR", "folder of the dataset, or s3://bucket/prefix", type=Path)]
    sample_fraction: Annotated[
        float, opt.option("also make this share of the files anew and compare (default 0)", metavar="F", type=float)
    ] = 0.0
    workers: Annotated[int | None, opt.count("N", "processes (default: one per available core)")] = None
    json: opt.Json = False


class IndexOptions(Struct, frozen=True):
    """None: chosen by the command."""

    folder: Annotated[Path, opt.argument("DIR", "folder that holds the files, or s3://bucket/prefix", type=Path)]
    workload: Annotated[
        str,
        opt.option("workload whose files they are (see `dlio-bench list`)", metavar="WORKLOAD", required=True),
    ]
    variant: opt.Variant = None
    tiny: Annotated[bool, opt.flag("the samples are shrunken ones, for tests")] = False
    split: Annotated[
        str | None,
        opt.option(
            "split of the files whose folders and names do not say it: train, validation or test", metavar="NAME"
        ),
    ] = None
    skip_bad: Annotated[bool, opt.flag("skip unreadable files and list them")] = False
    json: opt.Json = False


class PlanDataOptions(Struct, frozen=True, kw_only=True):
    """`full` leaves nodes and memory out of the size. None: not given."""

    workload: Workload
    variant: opt.Variant = None
    nodes: Annotated[int, opt.count("N", "nodes that will read (default 1)")] = 1
    memory_per_node: Annotated[int | None, opt.size("memory of a node, for example 192GiB", least=1)] = None
    rate: Annotated[
        int | None,
        opt.option(
            "write rate of the file system, for example 2GB/s, to say how long writing takes",
            metavar="RATE",
            type=parse_rate,
        ),
    ] = None
    full: Annotated[bool, opt.flag("plan for the published size")] = False
    json: opt.Json = False


def _generate(given: opt.Given) -> int:
    from dlio_bench.harness.commands.generation.command import generate

    return generate(GenerateOptions(**given))


def _verify(given: opt.Given) -> int:
    from dlio_bench.harness.commands.generation.verification import verify

    return verify(VerifyOptions(**given))


def _index(given: opt.Given) -> int:
    from dlio_bench.harness.commands.generation.indexing import index_data

    return index_data(IndexOptions(**given))


def _plan_data(given: opt.Given) -> int:
    from dlio_bench.harness.commands.generation.plan import plan_data

    return plan_data(PlanDataOptions(**given))


GENERATE = opt.Command(
    "generate",
    "make a dataset of the published layout, at any scale",
    "Write a dataset with local processes or with ranks. The same command goes on where a stopped one ended.",
    GenerateOptions,
    _generate,
    GENERATE_EXAMPLES,
    process=starting.RANKS,
)
VERIFY = opt.Command(
    "verify",
    "check every byte of a dataset; name each bad file",
    "Compare every stored field with its CRC32C. The exit status is 5 if a file is missing or damaged.",
    VerifyOptions,
    _verify,
)
INDEX = opt.Command(
    "index",
    "make a dataset of files that others wrote, so that `run` can read them",
    "Find every sample in the files of a folder, so that `run --data` can read them.",
    IndexOptions,
    _index,
)
PLAN_DATA = opt.Command(
    "plan-data",
    "how much data a valid cold run needs, and how long it takes to make",
    "Compute how much data the caches of the nodes cannot hold. Makes nothing.",
    PlanDataOptions,
    _plan_data,
)
