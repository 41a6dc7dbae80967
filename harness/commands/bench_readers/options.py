"""The options of `dlio-bench bench-readers`. Heavy imports wait until the command runs."""

from typing import Annotated

from dlio_bench.harness.ground import options as opt
from dlio_bench.harness.ground import starting
from dlio_bench.harness.readers.options import ReaderOptions


class Options(ReaderOptions, frozen=True, kw_only=True):
    """Those of all readers, and what is compared. None: chosen by the command."""

    workloads: Annotated[
        tuple[str, ...],
        opt.argument("WORKLOAD", "as `dlio-bench list` names them (default all)", nargs="*"),
        opt.Group(""),
    ] = ()
    ranks: Annotated[int, opt.count("R", "number of ranks (default 2)")] = 2
    trials: Annotated[int, opt.count("T", "trials of each reader; the median counts (default 5)")] = 5
    size: Annotated[int, opt.size("size of each dataset (default 1GB)")] = 10**9
    variant: Annotated[
        str | None,
        opt.option("layout of the files, such as raw of imagenet (default: one for each workload)", metavar="NAME"),
    ] = None
    cache_dir: opt.CacheDir = None
    tiny: Annotated[bool, opt.flag("shrink the samples, to see what small samples cost")] = False
    json: opt.Json = False
    threads: Annotated[int | None, opt.count("T", "most reading threads of a `prefetch` rank (default: as `run`)")] = (
        None
    )
    io: Annotated[
        str,
        opt.choice(
            "MODE",
            "buffered: from the page cache (default). direct: from the device, past the page cache, with O_DIRECT; "
            "our readers and raw preadv alone, as libraries know only the page cache",
            opt.IO_MODES,
        ),
    ] = opt.BUFFERED


def _run(given: opt.Given) -> int:
    from dlio_bench.harness.commands.bench_readers.command import bench_readers

    return bench_readers(Options(**given))


BENCH_READERS = opt.Command(
    "bench-readers",
    "compare our readers with plain loops and libraries (HDF5, tf.data, DALI ...), on files in the page cache",
    "Make small datasets, read them from the page cache with every reader in turn, and print the ratios, and what was "
    "compared of the samples. tf.data, DataLoader, WebDataset and DALI need their packages.",
    Options,
    _run,
    process=starting.RANKS,
)
