"""Was a run bound by storage, by CPU, by compute or by its checkpoints, and on what evidence?

The rules ask in this order: did checkpoints take the largest part of the time (checkpoints), did the trainer wait at
all (compute), were the cores used up (CPU), and if neither, did reading fill the wait (storage). Where the evidence
contradicts itself the answer is "not determined".
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field

from dlio_bench.reports.document.trials import Cached, Trial
from dlio_bench.reports.document.types import Bound, BoundBy, Draft, Metric
from dlio_bench.reports.numbers import statistics
from dlio_bench.reports.numbers.meetings import Floats, Steps
from dlio_bench.reports.numbers.metrics import METRICS, SHARES
from dlio_bench.reports.run import sentences
from dlio_bench.reports.view.formatting import format_share, format_time, plural

STORAGE: BoundBy = "storage"
CPU: BoundBy = "CPU"
COMPUTE: BoundBy = "compute"
CHECKPOINTS: BoundBy = "checkpoints"
UNKNOWN: BoundBy = "not determined"

STALL_IS_FREE = 0.10
"""Below this share of waiting, perfect storage could shorten the run by a tenth at most: MLPerf Storage's 90 % AU."""
HIDDEN_WAIT = 0.25
"""With little stall, this much time outside the no-I/O bound means that some cost is booked in the wrong place."""
CORES_SATURATED = 0.85
"""A host this busy has no core left for another reader thread; the rest is scheduling gaps and interrupts."""
CORES_WORKING = 0.50
"""Threads that work must show as busy cores: on half-idle ones they waited, for one another or something else."""
DECODE_DOMINATES = 1.0
"""Decoding counts as dominant when it takes at least as much thread time as reading."""
READING_EXPLAINS = 0.5
"""Storage is named only when reading took at least half as long, summed over threads, as the trainers waited."""
OWN_SHARE = 0.5
"""Cores are the run's limit only when at least half of their busy time was the run's own."""
MOSTLY_CACHED = 0.5
"""Below this share of bytes from the device, caches served the reads, and the storage is not what was measured."""
ALL_CACHED = 0.9
"""A dataset this resident before the trial is read from memory, whatever the storage below."""


class Facts(Struct, frozen=True):
    """What the rules look at: medians over the measured trials, None where a trial could not measure it.

    Shares are parts of one: `stall` of the job, `worst_stall` of the rank that waits longest itself. Seconds of read,
    decode and CPU are summed over threads, `stalled` over ranks; `cores` is all cores of the job; `resident` the least
    resident share of the dataset on any host before a trial.
    """

    computes: bool
    emulated: bool
    ranks: int
    elapsed: float
    stall: float
    worst_stall: float
    exchange: float
    over_bound: float | None
    stalled: float
    busy: float | None
    iowait: float | None
    cores: float | None
    cpu: float | None
    read: float | None
    decode: float | None
    resident: float | None
    device_share: float | None  # bytes that came from the device over bytes requested
    storage: str = "device"  # or what else delivered them
    phases: Mapping[str, float] = field(default_factory=dict)  # name of a share_* metric -> its value

    @property
    def checkpoint(self) -> float:
        """Share of the loop in which ranks wrote checkpoints."""
        return self.phases.get("share_checkpoint", 0.0)

    @property
    def own_share(self) -> float | None:
        """Share of the cores that the run itself used."""
        return None if self.cpu is None or not self.cores else self.cpu / (self.cores * self.elapsed)

    @property
    def decodes(self) -> bool:
        """Whether decoding took the larger part of the reader's thread time."""
        decode = self.decode or 0.0
        return decode > 0 and decode >= DECODE_DOMINATES * (self.read or 0.0)


def determine(draft: Draft, metrics: Mapping[str, Metric], steps: Steps) -> Bound:
    """What bound the run.

    The evidence starts with how long the trainer waited and the rule that decided; the other figures follow. Where
    checkpoints took most of the time, the evidence starts with that.
    """
    facts = gather(draft, metrics, steps)
    by, why = decide(facts)
    # what decided comes second, but checkpoints have nothing to do with the wait for data
    evidence = [why, _waiting(facts)] if by == CHECKPOINTS else [_waiting(facts), why]
    evidence += _usage(facts)
    if facts.emulated:
        evidence.append(
            "compute was emulated by waiting, which leaves the CPU free: a real trainer would leave the reader fewer "
            "cycles"
        )
    return Bound(by, evidence)


def gather(draft: Draft, metrics: Mapping[str, Metric], steps: Steps) -> Facts:
    """The facts of one result."""
    trials, mode = draft.measured_trials, draft.compute.mode

    def value(name: str) -> float:
        known = metrics[name].value
        assert known is not None
        return known

    return Facts(
        computes=mode != "none",
        emulated=mode == "emulate",
        ranks=draft.plan.ranks,
        elapsed=value("elapsed_seconds"),
        stall=_waiting_share(draft, steps),
        worst_stall=value("own_stall_share_worst_rank"),
        exchange=value("share_exchange"),
        over_bound=metrics["over_bound"].value,
        stalled=float(np.median(_stall_seconds(draft, steps).sum(axis=1))),
        busy=_median(trials, "host_cpu_busy_share"),
        iowait=_median(trials, "host_iowait_share"),
        cores=_median(trials, "cores"),
        cpu=_median(trials, "cpu_seconds"),
        read=_median(trials, "read_seconds"),
        decode=_median(trials, "decode_seconds"),
        resident=_least_resident(trials),
        device_share=_ratio(metrics["bytes_device"].value, value("bytes_requested")),
        storage=sentences.storage([draft]),
        phases={name: metrics[name].value or 0.0 for name in SHARES},
    )


def _stall_seconds(draft: Draft, steps: Steps) -> Floats:
    """Seconds in get, in training and in validation passes, [measured trials, ranks]."""
    rows = statistics.measured_positions(draft)
    validation = statistics.validation(steps, "validation_stall")[rows].sum(axis=2)
    return np.asarray(steps["stall"][rows].sum(axis=2) + validation, dtype=np.float64)


def _waiting_share(draft: Draft, steps: Steps) -> float:
    """Share of the elapsed time that the job lost because data were missing; without validation it is `stall_share`."""
    elapsed = np.array([trial.elapsed_seconds for trial in draft.measured_trials])
    return float(np.median(statistics.job_waits(draft, steps) / elapsed))


def decide(facts: Facts) -> tuple[BoundBy, str]:
    """The bound, and the sentence that gives the rule which decided it."""
    if facts.checkpoint and facts.checkpoint == max(facts.phases.values()):
        return CHECKPOINTS, _of_checkpoints(facts)
    if facts.computes and facts.stall < STALL_IS_FREE:
        return _little_waiting(facts)
    if facts.busy is not None and facts.decodes and facts.busy < CORES_WORKING:
        return UNKNOWN, (
            "decoding took more thread time than reading, yet the cores were half idle: the threads waited for one "
            "another, or for something that was not measured"
        )
    if facts.busy is not None and facts.busy >= CORES_SATURATED:
        return _busy_cores(facts, facts.busy)
    if facts.busy is not None and facts.decodes:
        return CPU, "decoding, not reading, filled the reader's threads while the cores worked"
    return _free_cores(facts)


def _of_checkpoints(facts: Facts) -> str:
    rest = {name: share for name, share in facts.phases.items() if name != "share_checkpoint"}
    after = max(rest, key=lambda name: rest[name])
    return (
        f"writing checkpoints took {format_share(facts.checkpoint)} of the time, more than anything else "
        f"({METRICS[after].title} {format_share(rest[after])})"
    )


def _little_waiting(facts: Facts) -> tuple[BoundBy, str]:
    hidden = 0.0 if facts.over_bound is None else 1.0 - 1.0 / facts.over_bound
    if hidden >= HIDDEN_WAIT:
        return UNKNOWN, (
            f"missing data held the job up for {format_share(facts.stall)} of the time, yet {format_share(hidden)} of "
            f"it lies outside the no-I/O bound ({format_share(facts.exchange)} in the exchange): something else took it"
        )
    return COMPUTE, f"below {format_share(STALL_IS_FREE)} of waiting, faster reading could save next to nothing"


def _busy_cores(facts: Facts, busy: float) -> tuple[BoundBy, str]:
    """Busy cores mean CPU, unless somebody else, or MPI's busy waiting in the exchange, may be what kept them busy."""
    if facts.own_share is not None and facts.own_share < OWN_SHARE * busy:
        return UNKNOWN, (
            f"the cores were {format_share(busy)} busy, but this run used only {format_share(facts.own_share)} of "
            "them: something else on the machine did, and may have slowed reading and waking alike"
        )
    spinning = min(busy, facts.exchange * facts.ranks / facts.cores) if facts.cores else 0.0
    if busy - spinning < CORES_WORKING and not facts.decodes:
        return UNKNOWN, (
            f"the cores were busy, but ranks spent {format_share(facts.exchange)} of the time in the exchange, where "
            f"MPI may spin: up to {format_share(spinning)} of the cores were only waiting"
        )
    return CPU, f"from {format_share(CORES_SATURATED)} on, no core is left for the reader"


def _free_cores(facts: Facts) -> tuple[BoundBy, str]:
    if facts.resident is not None and facts.resident >= ALL_CACHED:
        return UNKNOWN, (
            f"{format_share(facts.resident)} of the dataset was in memory before the trials, so the storage was "
            "hardly asked, and the cores were not used up either"
        )
    if facts.device_share is not None and facts.device_share < MOSTLY_CACHED:
        return UNKNOWN, (
            f"only {format_share(facts.device_share)} of the bytes came from the {facts.storage}: caches served "
            "the rest, so the storage was hardly asked, and the cores were not used up either"
        )
    if facts.read is not None and facts.read < READING_EXPLAINS * facts.stalled:
        return UNKNOWN, (
            f"reading took {format_time(facts.read)} of thread time, too little to explain "
            f"{format_time(facts.stalled)} of waiting, and the cores were not used up"
        )
    cores = "how busy the cores were is not known" if facts.busy is None else "cores were free meanwhile"
    return STORAGE, f"reading accounts for the waiting, and {cores}"


def _waiting(facts: Facts) -> str:
    share, worst = format_share(facts.stall), format_share(facts.worst_stall)
    if not facts.computes:
        return f"without compute the job only waits ({share} of the time): this weighs storage against CPU alone"
    return f"the job waited for data {share} of the time, its slowest rank itself {worst}"


def _usage(facts: Facts) -> list[str]:
    """The figures that are there, as sentences."""
    sentences = []
    if facts.checkpoint:
        sentences.append(
            f"the no-I/O bound has the checkpoints in it ({format_share(facts.checkpoint)} of the time), as it is the "
            "same run with its data in memory"
        )
    if facts.busy is not None:
        iowait = "" if facts.iowait is None else f", {format_share(facts.iowait)} idle in wait for I/O"
        sentences.append(f"the hosts' cores were {format_share(facts.busy)} busy{iowait}")
    if facts.own_share is not None and facts.cores is not None:
        sentences.append(
            f"this run itself used {format_share(facts.own_share)} of {plural(round(facts.cores), 'core')}"
        )
    if facts.read is not None and facts.decode is not None:
        sentences.append(
            f"summed over threads, reading took {format_time(facts.read)} and decoding "
            f"{format_time(facts.decode)}; summed over ranks, waiting took {format_time(facts.stalled)}"
        )
    return sentences


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _median(trials: list[Trial], name: str) -> float | None:
    values = [value for trial in trials if (value := getattr(trial, name)) is not None]
    return float(np.median(values)) if values else None


def _least_resident(trials: list[Trial]) -> float | None:
    """The smallest share of the dataset found in any host's page cache before a trial; None where not attestable."""
    hosts = [host for trial in trials for host in trial.cache.hosts.values()]
    shares = [_resident(host) for host in hosts]
    known = [share for share in shares if share is not None]
    return min(known) if known and len(known) == len(hosts) else None


def _resident(host: Cached) -> float | None:
    """Data on a memory file system are resident whatever mincore may say of them."""
    if host.memory_backed:
        return 1.0
    return host.resident_share if host.attestable else None
