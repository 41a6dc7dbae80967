"""The options of `dlio-bench storage`. Heavy imports wait until the command runs."""

from pathlib import Path
from typing import Annotated

from msgspec import Struct

from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground import starting

COLD, WARM = CACHE_MODES = ("cold", "warm")
EXAMPLES = """\
examples:
  dlio-bench storage /scratch --workload cdb
  dlio-bench storage /scratch --sample-size 16MB --size 20GB --threads 1,4,16 --ranks 4
  dlio-bench storage --data /scratch/cdb --out ceiling.json
  dlio-bench storage /scratch --io direct
  dlio-bench storage --data s3://bucket/cdb --threads 1,8,32
  dlio-bench storage /scratch --nodes 4 --ranks 4,16
"""


class Options(Struct, frozen=True, kw_only=True):
    """None: chosen by the command."""

    folder: Annotated[
        Path | None,
        opt.argument(
            "DIR", "folder on the storage, or s3://bucket/prefix; test files are made and removed in it", nargs="?",
            type=Path,
        ),
    ] = None  # fmt: skip
    workload: Annotated[
        str | None,
        opt.option("make files like those of this workload (default cdb)", metavar="WORKLOAD"),
        opt.Group("what is read"),
    ] = None
    sample_size: Annotated[int | None, opt.size("read samples of this size instead, for example 16MB")] = None
    data: Annotated[
        Path | None,
        opt.option(
            "read the files of this dataset, a folder or s3://bucket/prefix, instead of making any",
            metavar="DATASET_DIR", type=Path,
        ),
    ] = None  # fmt: skip
    size: Annotated[
        int | None,
        opt.size("bytes in all files together (default: 1 to 2 GB, at most 10%% of the free space)", least=1),
    ] = None
    threads: Annotated[
        tuple[int, ...], opt.counts("N", "threads of each rank (default 1,2,4)", ascending=True), opt.Group("who reads")
    ] = (1, 2, 4)
    ranks: Annotated[
        tuple[int, ...] | None,
        opt.counts("N", "numbers of ranks (default 1,2; with --launcher none those that are there)", ascending=True),
    ] = None
    nodes: Annotated[
        int | None,
        opt.count(
            "N", "nodes that share the ranks evenly (default: as many of the allocation as divide each number of "
            "ranks, outside of one 1)",
        ),
    ] = None  # fmt: skip
    launcher: opt.JoiningLauncher = None
    trials: Annotated[int, opt.count("T", "timed trials of each kind of read (default 5)"), opt.Group("trials")] = 5
    cache: Annotated[str, opt.choice("MODE", "page cache before a trial: cold or warm (default cold)", CACHE_MODES)] = (
        COLD
    )
    io: Annotated[
        str,
        opt.choice(
            "MODE",
            "buffered: reads go through the page cache (default). direct: past it, with O_DIRECT, so that cold needs "
            "no cache to be dropped",
            opt.IO_MODES,
        ),
    ] = opt.BUFFERED
    json: Annotated[opt.Json, opt.Group("")] = False
    out: Annotated[Path | None, opt.file("write the JSON to a file")] = None


def _run(given: opt.Given) -> int:
    from dlio_bench.harness.commands.storage_bench.command import storage

    return storage(Options(**given))


STORAGE = opt.Command(
    "storage",
    "measure what any reader could get from a folder: read and metadata rates, the yardstick of a run",
    "Read files with plain preadv and nothing else, front to back and sample by sample, and print the highest "
    "sustained rate. The test files are removed at the end.",
    Options,
    _run,
    EXAMPLES,
    process=starting.RANKS,
)
