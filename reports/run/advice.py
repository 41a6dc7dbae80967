"""What a careful reader of the numbers would say next: doubts about them, and what would settle each."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers.bound import CHECKPOINTS
from dlio_bench.reports.numbers.intervals import MIN_TRIALS
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.numbers.statistics import measured_positions, phase_shares
from dlio_bench.reports.run.sentences import merge_sentences
from dlio_bench.reports.view.formatting import format_ratio, format_share, join_words

WIDE_SPREAD = 0.10
"""Trials further apart than this deserve a word: pyperf warns from a deviation of 10 %."""
SLOW_RANK = 1.5
"""A rank that waits this many times the mean is worth a look at the heat map."""
LATE_COMPUTE = 0.05
"""Emulated compute that overruns its wait by more than this was disturbed, most often by too few cores."""
FASTER_LATER = 0.8
"""Later epochs below this part of the first epoch's time were most likely served by a cache on the way."""
UNBOUND = re.compile(r"bind(-to)?[= ]none\b")
"""In a launcher's command line: it does not bind ranks."""
WORTH_TELLING = 0.05
"""Less stall than this needs no explanation beside AU."""
WORTH_WAITING = 0.01
"""Ranks that wait less than this have no slowest one worth naming."""


def advice(result: Result, steps: Steps | None = None) -> list[str]:
    """Sentences, most important first; `steps` adds the slowest rank by name."""
    given = [doubt(result) for doubt in DOUBTS]
    if steps is not None:
        given.insert(3, _slow_rank(result, steps))
    return [sentence for sentence in given if sentence]


def shared_advice(labels: Sequence[str], results: Sequence[Result]) -> list[str]:
    """The advice on several results, that of one kind once."""
    return [sentence for doubt in DOUBTS for sentence in merge_sentences(labels, [doubt(result) for result in results])]


def slowest_rank(result: Result, steps: Steps) -> tuple[int, str, float, float]:
    """(rank, host, its stall share, mean stall share) of the rank that waits longest, by median over the trials."""
    stalled = np.median(phase_shares(steps)[measured_positions(result), :, 0], axis=0)
    rank = int(stalled.argmax())
    hosts = result.environment.rank_hosts
    return rank, hosts[rank] if rank < len(hosts) else "?", float(stalled[rank]), float(stalled.mean())


def _invalid(result: Result) -> str | None:
    if result.class_ != "INVALID":
        return None
    return "the numbers are kept to find out what happened; do not quote them"


def _late_compute(result: Result) -> str | None:
    overrun = result.metrics["compute_overrun"].value
    if overrun is None or overrun <= LATE_COMPUTE:
        return None
    here = max(Counter(result.environment.rank_hosts).values(), default=1)
    fix = (
        "use fewer ranks per node" if result.plan.ranks_per_node > 1
        else "use fewer virtual nodes on a machine" if here > 1
        else "give it more cores, or fewer --threads" if result.policy.options.get("threads", 0) > 1
        else "give it more cores"
    )  # fmt: skip
    return (
        f"compute ran {format_share(overrun)} longer than asked: too few cores for ranks and reader threads, so "
        f"some of the compute is waiting for a core; {fix}"
    )


def _bound_ranks(result: Result) -> str | None:
    if result.environment.bound_processors != 1 or not result.policy.options.get("threads"):
        return None
    launcher = result.environment.launcher
    if launcher is None or UNBOUND.search(" ".join(launcher.argv)):
        fix = (
            "no launcher does that, so give the job more cores (the scheduler's allocation, the container, or the "
            "taskset around the command)"
        )
    else:
        fix = "bind wider (mpirun: --launcher-args '--bind-to none'; srun: --launcher-args '--cpus-per-task=4')"
    return f"ranks are bound to one core: the trainer and its reader threads share it; {fix}"


def _slow_rank(result: Result, steps: Steps) -> str | None:
    rank, host, worst, mean = slowest_rank(result, steps)
    if worst < WORTH_WAITING or worst < SLOW_RANK * mean:
        return None
    return (
        f"rank {rank} ({host}) waits {format_share(worst)} of its time, {format_ratio(worst / mean)} the "
        "mean: see its row in the heat map"
    )


def _stall_beside_au(result: Result) -> str | None:
    stall, au = result.value("stall_share"), result.metrics["au"].value
    if au is None or stall <= WORTH_TELLING or stall <= 2 * (1 - au):
        return None  # beyond that the steps that AU counts have room for less than half of the stall
    what = "the copying to node-local storage" if result.policy.placement.startswith("stage-") else "most of the stall"
    return (
        f"AU {format_share(au)} beside {format_share(stall)} of stall: AU leaves the first step of each epoch out, and "
        f"{what} lies there"
    )


def _checkpoints(result: Result) -> str | None:
    if result.bound.by != CHECKPOINTS:
        return None
    share = format_share(result.metrics["share_checkpoint"].value or 0.0)
    return (
        f"checkpoints took {share} of the time, and faster reading saves nothing of it: write them less often, or to "
        "faster storage"
    )


def _first_epoch(result: Result) -> str | None:
    times = [[epoch.seconds for epoch in trial.epochs] for trial in result.measured_trials]
    if len(times[0]) < 2:
        return None
    first = float(np.median([epochs[0] for epochs in times]))
    later = float(np.median([second for epochs in times for second in epochs[1:]]))
    if first <= 0 or later >= FASTER_LATER * first:
        return None
    if result.policy.placement.startswith("stage-"):
        return "the first epoch holds the copying to node-local storage, and later epochs read the copies"
    if servers := _servers(result):
        return f"later epochs were faster than the first: {servers} served part of them"
    return "later epochs were faster than the first: a cache served part of them" + (
        "" if result.plan.cache == "cold-epochs" else "; --cache cold-epochs measures the storage alone"
    )


def _servers(result: Result) -> str | None:
    """Who of the reader's own delivered samples in later epochs: its tiers, other ranks; None where nobody did."""
    later = [epoch for trial in result.measured_trials for epoch in trial.epochs[1:]]
    parts = {
        "the reader's own tiers": ("bytes_ram", "bytes_local"),
        "other ranks": ("bytes_remote",),
    }
    servers = [
        name
        for name, counters in parts.items()
        if any(getattr(epoch, counter) for epoch in later for counter in counters)
    ]
    return join_words(servers) if servers else None


def _spread_advice(result: Result) -> str | None:
    elapsed = [trial.elapsed_seconds for trial in result.measured_trials]
    spread = (max(elapsed) - min(elapsed)) / float(np.median(elapsed))
    if len(elapsed) < 2 or spread <= WIDE_SPREAD:
        return None
    return (
        f"the trials lie more than {format_share(WIDE_SPREAD)} apart: repeat them, on a quieter machine if there is one"
    )


def _few_trials(result: Result) -> str | None:
    if len(result.measured_trials) >= MIN_TRIALS:
        return None
    return f"--trials {MIN_TRIALS} or more give confidence intervals"


DOUBTS = (
    _invalid,
    _checkpoints,
    _bound_ranks,
    _late_compute,
    _stall_beside_au,
    _first_epoch,
    _spread_advice,
    _few_trials,
)
