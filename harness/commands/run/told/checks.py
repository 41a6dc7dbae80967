"""The checks that a result must pass: each with what was expected and what was found."""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from dlio_bench.harness.commands.run.asked.job import Job
from dlio_bench.harness.commands.run.measured.documents import Verified
from dlio_bench.harness.ground.options import DIRECT
from dlio_bench.harness.plan.policies import STREAM, Policy
from dlio_bench.harness.plan.shape import KEEP, ONE_ORDER, PIPELINE
from dlio_bench.harness.storage.cache import LEAST_WARM, MOST_RESIDENT
from dlio_bench.harness.storage.direct import COLD_SAYS
from dlio_bench.harness.storage.object_store import COLD_SAYS as OBJECTS_COLD
from dlio_bench.reports.document.marks import COLD_BEFORE
from dlio_bench.reports.document.trials import Trial
from dlio_bench.reports.document.types import Check, Passes
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_percent, format_seconds

MOST_OVERRUN = 0.05  # of a trial: beyond it the CPU was too busy for the emulated device to be credible
JUDGED_STEP = 0.005  # seconds: shorter waits than a scheduler's slice overrun on any busy machine, and prove nothing
MOST_CLOCK_DRIFT = 0.01  # of a trial, between wall and monotonic clock: beyond it somebody set the clock


class Count(Struct, frozen=True):
    """Steps of an epoch as planned for this reader, and the samples they deliver."""

    steps: int
    different: int  # samples of an epoch, each counted once
    job: Job
    dataset_samples: int
    demanded: bool = False  # ranks took as many steps as they asked for; `steps`: the most of a rank

    @property
    def samples(self) -> int:
        """Samples of an epoch of a model; those that come twice, to fill the last step, count twice."""
        if self.demanded or self.job.last == KEEP:
            return self.different
        return self.steps * self.job.batch * self.job.trainers

    @property
    def dropped(self) -> int:
        """Samples that an epoch leaves out because they do not fill a step of every rank."""
        return self.dataset_samples - self.different


def checks(
    job: Job,
    count: Count,
    row: Policy,
    trials: Sequence[Trial],
    passes: Passes | None,
    verified: Verified | None,
    damage: str | None = None,
) -> list[Check]:
    """Every check of one reader's trials. passes: of validation, if the job has some. damage: see ReaderMeasured."""
    timed = [trial for trial in trials if not trial.warmup]
    same = (
        f"{plural(job.ranks, 'rank')}, one code, one dataset"  # a rank that differs has ended the run (measured.rank)
    )
    read = _bytes_check(trials) if row.delivery != STREAM else _published_check(job, trials)
    results = [Check("same everywhere", True, same, same), read, _clock_check(timed)]
    if verified is not None:
        if row.exactly_once:
            results.append(_once_check(count, verified))
        if job.options.shard in ONE_ORDER:
            results.append(_alike_check(verified))
        if passes is not None:
            results.append(_passes_check(passes, verified))
        bad, fields = verified.damaged_fields, verified.fields
        found = "all equal" if not bad else f"{bad} differ: {'; '.join(verified.damaged)}"
        alone = f", each on one of {job.nodes} nodes" if job.nodes > 1 and not job.options.check_crc else ""
        results.append(Check("content", not bad, f"CRC32C of {fields} delivered fields as generated{alone}", found))
        altered, deliveries = verified.altered_deliveries, verified.deliveries
        found = "all equal" if not altered else f"{altered} differ"
        results.append(
            Check("delivered bytes", not altered, f"64 bytes of {deliveries} timed deliveries as verified", found)
        )
    if damage is not None:
        results.append(Check("content", False, "CRC32C of each delivered field as generated", damage))
    if job.infer is not None:
        results.append(_inference_check(count, trials))
    if job.cache in COLD_BEFORE:
        of_kind = _store_check if job.store else _direct_check if job.options.io == DIRECT else _cold_check
        cold = of_kind(timed)
        if job.options.tiny and not cold.ok:  # other smoke tests may read the same small files at the same time
            cold = replace(cold, ok=True, found=f"{cold.found}, not judged: --tiny says nothing of speed")
        results.append(cold)
    if job.cache == "warm":
        results.append(_warm_check(timed))
    if job.step_seconds > 0:
        results.append(_overrun_check(job, timed))
    return results


def _once_check(count: Count, verified: Verified) -> Check:
    everywhere = f" on each of {count.job.ranks} ranks" if count.job.options.shard in ONE_ORDER else _models(count.job)
    if count.job.options.shard == PIPELINE:
        everywhere = " in each field"
    each = f"each of {count.different} planned samples once{everywhere} in {plural(verified.epochs, 'epoch')}"
    if count.samples > count.different:
        each += f", {count.samples - count.different} of them again to fill the last step"
    return _epochs_check("exactly once", each, verified.epochs_once, verified.epochs)


def _models(job: Job) -> str:
    return f" in each of {len(job.models)} models" if len(job.models) > 1 else ""


def _alike_check(verified: Verified) -> Check:
    each = f"the same samples in the same order on every rank in {plural(verified.epochs, 'epoch')}"
    return _epochs_check("one order", each, verified.epochs_alike, verified.epochs)


def _epochs_check(name: str, expected: str, passed: int, epochs: int) -> Check:
    found = expected if passed == epochs else f"so in {plural(passed, 'epoch')} only"
    return Check(name, passed == epochs, expected, found)


def _inference_check(count: Count, trials: Sequence[Trial]) -> Check:
    """The networks of all ranks together have predicted the dataset."""
    predicted = sorted({trial.inference.samples for trial in trials if trial.inference})
    expected = count.dataset_samples * count.job.epochs
    each = " or ".join(f"{samples} samples predicted in a trial" for samples in predicted)
    return Check("whole dataset", predicted == [expected], f"{expected} samples predicted in a trial", each)


def _passes_check(plan: Passes, verified: Verified) -> Check:
    once, passes = verified.passes_once, verified.passes
    each = f"each of {plan.samples} planned samples once in {passes} pass{'' if passes == 1 else 'es'}"
    return Check("validation", once == passes, each, each if once == passes else f"so in {once} passes only")


def _bytes_check(trials: Sequence[Trial]) -> Check:
    """A reader requested each planned byte from a file, or got it from a tier or another rank."""
    planned, requested = _sum_of(trials, "bytes_planned"), _sum_of(trials, "bytes_requested")
    spared, kept = _sum_of(trials, "bytes_spared"), _sum_of(trials, "bytes_kept")
    found = f"{requested} bytes"
    if spared:
        found += f", and {spared} that tiers and other ranks delivered instead"
    if kept:
        found += f"; {kept} of those read went to a tier first"
    if twice := sum(max(0, _sum_of([trial], "bytes_kept") - _sum_of([trial], "bytes_spared")) for trial in trials):
        found += (
            f"; at least {twice} bytes were read twice: first into a tier, and then again from the file system, which "
            "had turned out to be the faster source"
        )
    return Check("bytes as planned", planned + kept == requested + spared, f"{planned} bytes read from files", found)


def _published_check(job: Job, trials: Sequence[Trial]) -> Check:
    """Producers read each planned byte once, and published it to all who train with it."""
    planned, requested = _sum_of(trials, "bytes_planned"), _sum_of(trials, "bytes_requested")
    takers = job.copies * len(job.models)  # of each batch
    expected = f"{planned // takers} bytes read from files, once"
    inline = job.streaming is not None and job.streaming.inline
    published = inline or planned + requested == requested + _sum_of(trials, "bytes_spared")
    return Check("bytes as planned", published and requested * takers == planned, expected, f"{requested} bytes")


def _sum_of(trials: Sequence[Trial], name: str) -> int:
    return sum(getattr(epoch, name) for trial in trials for epoch in trial.epochs)


def _clock_check(timed: Sequence[Trial]) -> Check:
    worst = max(abs(trial.clock_drift_seconds) / trial.elapsed_seconds for trial in timed)
    expected = f"wall and monotonic clock within {format_percent(MOST_CLOCK_DRIFT)} in a trial"
    return Check("steady clock", worst <= MOST_CLOCK_DRIFT, expected, f"within {format_percent(worst, 2)}")


def _cold_check(timed: Sequence[Trial]) -> Check:
    hosts = [host for trial in timed for host in trial.cache.hosts.values()]
    expected = f"at most {format_percent(MOST_RESIDENT)} of the dataset in the page cache before a trial"
    if any(host.memory_backed for host in hosts):
        return Check(
            "cold cache",
            False,
            expected,
            "the dataset lies in memory (tmpfs): it cannot be cold; use --cache warm or a disk",
        )
    if not all(host.attestable for host in hosts):
        note = next(host.note for host in hosts if not host.attestable)
        return Check("cold cache", True, expected, f"not attestable ({note}): dropped, but not proven cold")
    worst = max(host.resident_share or 0.0 for host in hosts)
    return Check("cold cache", worst <= MOST_RESIDENT, expected, f"at most {format_percent(worst, 2)}")


def _direct_check(timed: Sequence[Trial]) -> Check:
    """Direct reads leave the page cache out, so that the device delivers, and counts, what they bring."""
    hosts = [host for trial in timed for host in trial.cache.hosts.values()]
    expected = "reads that pass the page cache (O_DIRECT): the device delivers what is requested"
    if hidden := [host for host in hosts if not host.attestable]:
        return Check("cold cache", True, expected, f"{COLD_SAYS}, but not attestable ({hidden[0].note})")
    if not sum(trial.bytes_requested for trial in timed) or None in [trial.bytes_device for trial in timed]:
        return Check("cold cache", True, expected, f"{COLD_SAYS}; what the device delivered is not known")
    return _delivered_check(timed, expected, f"{COLD_SAYS}: the device delivered", "")


def _store_check(timed: Sequence[Trial]) -> Check:
    """An object store is not in this machine's page cache, so that its network delivers, and counts, what is read."""
    expected = "reads from an object store, which no page cache of this machine has: it delivers what is requested"
    if not any(trial.bytes_requested for trial in timed):
        return Check("cold cache", True, expected, f"{OBJECTS_COLD}; no byte was requested")
    more = "; caches of its own cannot be seen"
    return _delivered_check(timed, expected, f"{OBJECTS_COLD}: the store delivered", more)


def _delivered_check(timed: Sequence[Trial], expected: str, who: str, more: str) -> Check:
    share = sum(trial.bytes_device or 0 for trial in timed) / sum(trial.bytes_requested for trial in timed)
    found = f"{who} {format_percent(share, 1)} of the bytes requested{more}"
    return Check("cold cache", share >= 1 - MOST_RESIDENT, expected, found)


def _warm_check(timed: Sequence[Trial]) -> Check:
    expected = f"at least {format_percent(LEAST_WARM)} of the dataset in memory before a trial"
    # data on a memory file system are in memory, whatever mincore says of their pages
    hosts = [host for trial in timed for host in trial.cache.hosts.values() if not host.memory_backed]
    hidden = [host for host in hosts if not host.attestable]
    if hidden:
        return Check("warm cache", True, expected, f"not attestable ({hidden[0].note}): read, but not proven warm")
    least = min((host.resident_share or 0.0 for host in hosts), default=1.0)
    return Check("warm cache", least >= LEAST_WARM, expected, f"at least {format_percent(least, 2)}")


def _overrun_check(job: Job, timed: Sequence[Trial]) -> Check:
    """Judged by the time that late wake-ups add to the median trial, as a result reports the median."""
    late = median(trial.compute_late_seconds / trial.elapsed_seconds for trial in timed)
    longer = median(trial.compute_actual_seconds / trial.compute_asked_seconds - 1 for trial in timed)
    expected = f"late ends of emulated compute at most {format_percent(MOST_OVERRUN)} of the job's time"
    steps = f"steps {longer * 100:+.1f} % against what was asked"
    found = f"{format_percent(late, 1)} on the latest rank of the median trial ({steps})"
    if job.step_seconds < JUDGED_STEP:
        found += f", not judged: steps of {format_seconds(job.step_seconds)} are too short for it"
        return Check("emulated compute", True, expected, found)
    if job.options.tiny:
        found += ", not judged: --tiny trials are too short for it"
        return Check("emulated compute", True, expected, found)
    return Check("emulated compute", late <= MOST_OVERRUN, expected, found)
