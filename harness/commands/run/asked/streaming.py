"""`--stream` and its kin: resolves and checks the options of streams."""

from collections.abc import Sequence

from msgspec.structs import replace

from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster import watch
from dlio_bench.harness.commands.run.asked.options import Options
from dlio_bench.harness.commands.run.asked.training import TRAIN
from dlio_bench.harness.plan.policies import STREAM, Policy
from dlio_bench.harness.plan.shape import ONE_ORDER
from dlio_bench.harness.streams import adios
from dlio_bench.harness.streams.settings import ALL, FULL, ON_DEMAND, PLANNED, QUEUE, Streaming, find

NO_PASSES = f"no validation passes, as nobody knows before which samples a rank gets with --stream {ON_DEMAND}"
FOR_EVER = 1e9  # seconds: with --timeout 0


def resolve(options: Options, rows: Sequence[Policy]) -> Streaming | None:
    """The streams that the options mean; None where no reader has any.

    UsageError for options that do not fit together; EnvironmentFailure without ADIOS2.
    """
    given = {
        "--stream": options.stream,
        "--producers": options.producers,
        "--inline": options.inline or None,
        "--stream-engine": options.stream_engine,
        "--stream-transport": options.stream_transport,
        "--stream-queue": options.stream_queue,
        "--stream-full": options.stream_full,
    }
    if not any(row.delivery == STREAM for row in rows):
        for flag, value in given.items():
            if value is not None:
                raise UsageError(f"{flag} is for readers that stream. Add --reader stream, or leave it out.")
        return None
    if options.inline:
        for flag in given.keys() - {"--inline", "--stream-queue"}:
            if given[flag] is not None and (flag, given[flag]) != ("--stream", PLANNED):
                raise UsageError(
                    f"--inline: a thread of each trainer's process is its producer, by the plan of that trainer. Leave "
                    f"out {flag}, or --inline."
                )
    mode = find(options.stream or PLANNED)
    if not mode.known:
        _require_demanded(options)
    engine, full = options.stream_engine or adios.SST, options.stream_full or FULL[0]
    if engine == adios.BP and (mode.distribution != "AllToAll" or not mode.known):
        raise UsageError(
            f"--stream {mode.name} --stream-engine {engine}: only a network stream deals batches while trainers take "
            f"them. Use --stream-engine {adios.SST}, or --stream {ALL} or {PLANNED}."
        )
    transport = options.stream_transport or adios.WAN
    if engine == adios.BP and options.stream_transport is not None:
        raise UsageError(
            f"--stream-transport {transport}: --stream-engine {engine} writes files. Leave one of the two out."
        )
    if not options.inline:
        adios.require()
    producers = 0 if options.inline else options.producers or 1
    queue, timeout = options.stream_queue or QUEUE, watch.allowed() or FOR_EVER
    return Streaming(mode.name, producers, engine, queue, full, timeout, transport)


def _require_demanded(options: Options) -> None:
    """UsageError for what needs ranks that take equally many steps, or a plan that says which samples a rank gets."""
    ranks = max(options.nodes) * options.ranks_per_node
    refused = {
        "--sync step": options.sync == "step",
        f"--shard {options.shard}": options.shard in ONE_ORDER,
        f"--validation {options.validation}": options.validation not in (None, "none"),
        "--predict": options.predict,
        f"--compute {options.compute}": options.mode == TRAIN and ranks > 1 and options.exchange != "none",
    }
    for flag, given in refused.items():
        if given:
            raise UsageError(
                f"{flag}: with --stream {ON_DEMAND} ranks take unequal numbers of steps, so that they cannot "
                "meet after each, and nobody knows before which samples a rank gets. Leave one out; --stream "
                f"{PLANNED} goes with all."
            )


def as_dealt(row: Policy, streaming: Streaming | None) -> Policy:
    """The row with what its streams promise."""
    if row.delivery != STREAM or streaming is None:
        return row
    return replace(row, order_known=streaming.how.known)
