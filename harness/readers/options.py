"""The options that every reader gets, whole. Commands that open readers have them among their own."""

from typing import Annotated

from msgspec import Struct

from dlio_bench.harness.ground import defaults
from dlio_bench.harness.ground import options as opt


class ReaderOptions(Struct, frozen=True, kw_only=True):
    """What a user asks of readers, as given. None: nothing, so that the command chooses."""

    check_crc: Annotated[
        bool,
        opt.flag("compare the CRC32C of every delivered field, in the threads of the reader (not upstream)"),
        opt.Group("readers and steps"),
    ] = False
    threads: Annotated[
        int | None,
        opt.count(
            "T",
            "reading threads of a rank; fewer if the data is in the page cache (default: readers that read ahead use "
            f"as many as make reading faster, up to {defaults.MOST_THREADS})",
        ),
    ] = None
    staging: Annotated[
        int | None,
        opt.size(
            f"size of the staging buffer of a rank (default {defaults.STAGING_BYTES // 10**6}MB, or two batches)",
            least=1,
        ),
    ] = None
    io: Annotated[
        str,
        opt.choice(
            "MODE",
            "how the files of the dataset are read. buffered: through the page cache (default). direct: past it, with "
            "O_DIRECT, so that cold needs no cache to be dropped (not tfdata, torch and upstream); tiers and staged "
            "copies stay buffered",
            opt.IO_MODES,
        ),
        opt.Group("trials and trust"),
    ] = opt.BUFFERED
