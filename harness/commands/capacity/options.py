"""The options of `dlio-bench capacity`. Heavy imports wait until the command runs."""

from pathlib import Path
from typing import Annotated

from msgspec import Struct

from dlio_bench.benchmarks.registry import NAMES
from dlio_bench.errors import one_of
from dlio_bench.harness.ground import defaults, starting
from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.storage.pfs.spec import EXAMPLE

EXAMPLES = """\
examples:
  dlio-bench capacity cosmoflow --au 70% --max-data 20GB
  dlio-bench capacity imagenet --data /scratch/imagenet --nodes 8 --ranks-per-node 8 --at-least 48
"""


class Options(Struct, frozen=True, kw_only=True):
    """None: chosen by the command. emulate_pfs: in the words that `run` takes."""

    workload: Annotated[str, opt.argument("WORKLOAD", one_of(NAMES))]
    au: Annotated[float, opt.share("AU that every run must reach (default 90%%)"), opt.Group("what is asked")] = 0.9
    at_least: Annotated[int | None, opt.count("N", "end with status 1 below N accelerators")] = None
    ranks_per_node: Annotated[
        int | None,
        opt.count(
            "R",
            "most ranks on a node (default: 4 for each core of this machine; their compute is emulated by waiting)",
        ),
        opt.Group("scale"),
    ] = None
    nodes: Annotated[
        int,
        opt.count(
            "N",
            "most nodes. More nodes are tried only if a node holds with all its ranks (default: all of the scheduler's "
            "allocation, else 1)",
        ),
    ]
    launcher: opt.Launcher = None
    data: Annotated[Path | None, opt.folder("read this dataset (default: make one and keep it)"), opt.Group("data")] = (
        None
    )
    variant: opt.Variant = None
    max_data: Annotated[
        int | None,
        opt.size(
            "if --data is not given, make at most this much. The largest scale decides how much is made (default "
            f"{defaults.MOST_BYTES // 10**9}GB)"
        ),
    ] = None
    cache_dir: opt.CacheDir = None
    tiny: Annotated[bool, opt.flag("shrink the samples: a smoke test that measures nothing")] = False
    reader: Annotated[
        str,
        opt.option(
            "the reader (default double-buffer, which reads ahead and keeps nothing, so that every byte comes from the "
            "storage)",
            metavar="NAME",
        ),
        opt.Group("each run"),
    ] = "double-buffer"
    compute: Annotated[str, opt.option("what waits: emulate:DEVICE, emulate:TIME or emulate:@FILE", metavar="HOW")] = (
        "emulate"
    )
    batch: Annotated[int | None, opt.count("B", "samples in a step of one rank")] = None
    steps: Annotated[
        int | None,
        opt.count(
            "N",
            "steps of a run (default: 320 or what 20 s have, whichever is less; at least "
            f"{defaults.TIMED_STEPS}, and {defaults.TIMED_SECONDS:g} s)",
        ),
    ] = None
    trials: Annotated[
        int,
        opt.count("T", f"runs that confirm the answer, after one to warm up (default {defaults.TRIALS})"),
    ] = defaults.TRIALS
    threads: Annotated[int | None, opt.count("T", "most reading threads of a rank, as for `run`")] = None
    staging: Annotated[int | None, opt.size("staging buffer of a rank, as for `run`", least=1)] = None
    io: Annotated[
        str | None,
        opt.choice(
            "MODE",
            "buffered (default) or direct, past the page cache with O_DIRECT, as for `run`; null runs stay buffered",
            opt.IO_MODES,
        ),
    ] = None
    emulate_pfs: Annotated[
        str | None,
        opt.option(f"read through an emulated parallel file system, such as '{EXAMPLE}'", metavar="SPEC"),
    ] = None
    out: Annotated[
        Path | None,
        opt.folder(
            "folder of all results (default dlio-results/TIME-WORKLOAD). A search that was stopped goes on there"
        ),
        opt.Group("output"),
    ] = None
    dry_run: Annotated[bool, opt.flag("print what would be tried and about how long, and end")] = False
    json: Annotated[bool, opt.flag("print the answer as JSON")] = False


def _run(given: opt.Given) -> int:
    from dlio_bench.harness.commands.capacity.command import capacity

    nodes = given["nodes"] if "nodes" in given else starting.allocated_scale(nodes=False, ranks_per_node=True).nodes
    return capacity(Options(**{**given, "nodes": nodes}))


CAPACITY = opt.Command(
    "capacity",
    "find how many emulated accelerators a storage feeds at a given AU",
    "Run the workload with more and more ranks, each an emulated accelerator, until AU falls below the target. Then "
    "repeat the largest scale that holds. Beside each run stands a null run with the data in memory: if that misses "
    "the target too, this client is the limit and not the storage.",
    Options,
    _run,
    EXAMPLES,
    process=starting.COMMANDS,
)
