"""A coupled workflow, as a document: both sides alone, side by side, and coupled in every way. Pure functions."""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from dlio_bench.errors import DataError
from dlio_bench.reports.document import result_file
from dlio_bench.reports.document.environment import EmulatedPfs, Host
from dlio_bench.reports.document.marks import TINY
from dlio_bench.reports.document.result import digest
from dlio_bench.reports.document.typed import Amount, Count, Some, convert, to_json
from dlio_bench.reports.numbers import intervals
from dlio_bench.reports.numbers.meetings import Floats
from dlio_bench.reports.storage import MOST_SPREAD, NOISY
from dlio_bench.reports.view.formatting import plural

SCHEMA = "dlio-bench/couple/1"
SOLVER_ALONE, TWINS_ALONE, BESIDE = REFERENCES = ("solver alone", "twins alone", "side by side")
APART = "one after the other"  # separate runs: the solver writes all files, then the twins read them; if measured
SOLVER, TWINS, WORKFLOW = SIDES = ("solver", "twins", "workflow")
Seconds = Annotated[float, Meta(gt=0)]


class Timed(Struct, frozen=True, kw_only=True):
    """One rank in one case. elapsed: seconds; of them waited for the other side, and moved: giving or getting outputs.

    elapsed: of the solver until its last output is given out, of a twin until it has trained on it.
    loss: of a twin's last training step, 1 for predicting no change; None of the solver.
    """

    elapsed: Seconds
    waited: Amount
    moved: Amount
    outputs: Count
    loss: float | None = None


class Traffic(Struct, frozen=True, kw_only=True):
    """What the emulated file system carried in one case, over all nodes: bytes; seconds of calls, waits included."""

    read_bytes: Count
    written_bytes: Count
    read_seconds: Amount
    write_seconds: Amount


class Trial(Struct, frozen=True, kw_only=True):
    """One case in one trial. sides: of each rank, the solver's first; None of a rank that had no part in it."""

    trial: Count
    warmup: bool
    case: str
    sides: list[Timed | None]
    traffic: Traffic | None = None


class Settings(Struct, frozen=True, kw_only=True):
    """The simulation; see benchmarks.grayscott.published.Settings. seed: of its noise and of the twins."""

    size: Some
    diffusion_u: float
    diffusion_v: float
    feed: float
    kill: float
    dt: float
    noise: float
    steps: Some
    plotgap: Some
    seed: Count
    kernel: str
    source: str


class Published(Struct, frozen=True, kw_only=True):
    """A published slow-down; bound: whether it is an upper bound."""

    coupling: str
    consumers: Some
    ratio: float
    bound: bool
    words: str
    source: str


class Check(Struct, frozen=True):
    """Something that was checked of every output, and how often. A failed one ends the command instead."""

    name: str
    found: str


class Document(Struct, frozen=True, kw_only=True):
    """What `dlio-bench couple` measured. range: least and greatest of u, and of v, over all outputs.

    train_steps: of a twin, an output. queue: outputs that the solver may be ahead; 0: any number.
    """

    schema: Literal["dlio-bench/couple/1"] = "dlio-bench/couple/1"
    kind: Literal["couple"] = "couple"
    simulation: str
    created: str
    version: str
    command: list[str]
    code_digest: str
    settings: Settings
    outputs: Some
    output_bytes: Some
    producers: Some
    consumers: Some
    twin: str
    twin_parameters: Count
    train_steps: Some
    queue: Count
    ways: Annotated[list[str], Meta(min_length=1)]
    trials: Annotated[list[Trial], Meta(min_length=1)]
    range: list[list[float]]
    published_range: list[list[float]] | None
    published: list[Published]
    checks: list[Check]
    marks: list[str]
    folder: str
    emulated_pfs: EmulatedPfs | None
    host: Host
    digest: str = ""


def complete(document: Document) -> Document:
    """The document with its digest, and the mark NOISY where a side alone took other times from trial to trial.

    ValueError where it does not follow its own schema.
    """
    _check(document)
    content = to_json(document)
    if max(time_spread(document, SOLVER_ALONE, SOLVER), time_spread(document, TWINS_ALONE, TWINS)) > MOST_SPREAD:
        content["marks"] = [*document.marks, NOISY]
    return convert(content | {"digest": digest(content)}, Document)


def load(path: Path) -> Document:
    """The document of a folder or file. UsageError, EnvironmentFailure; DataError where it is not whole or altered."""
    content = result_file.content(SCHEMA, path)
    try:
        document = convert(content, Document)
        _check(document)
    except ValueError as error:
        raise DataError(
            f"'{result_file.result_path(path)}' does not follow {SCHEMA}: {error}. Couple again."
        ) from error
    return document


def _check(document: Document) -> None:
    """ValueError where trials, ranks or numbers do not fit together."""
    cases, ranks = {*REFERENCES, *document.ways}, document.producers + document.consumers
    cases |= {APART} if has_apart(document) else set()
    measured = [trial for trial in document.trials if not trial.warmup]
    numbers = {trial.trial for trial in measured}
    if {(trial.trial, trial.case) for trial in measured} != {(number, case) for number in numbers for case in cases}:
        raise ValueError("a trial lacks a case, or has one that is not known")
    if len(measured) != len(numbers) * len(cases) or numbers != set(range(len(numbers))) or not numbers:
        raise ValueError("a case was measured twice in a trial, or a trial is missing")
    for trial in document.trials:
        if len(trial.sides) != ranks:
            raise ValueError(f"{len(trial.sides)} sides are told of {ranks} ranks")
        solver, twins = trial.sides[: document.producers], trial.sides[document.producers :]
        here = [side is not None for side in (*solver, *twins)]
        wanted = [trial.case != TWINS_ALONE] * len(solver) + [trial.case != SOLVER_ALONE] * len(twins)
        if here != wanted:
            raise ValueError(f"'{trial.case}' has a side too many, or lacks one")


def has_apart(document: Document) -> bool:
    """Whether separate runs that write and read files were measured."""
    return any(trial.case == APART for trial in document.trials)


def trials_of(document: Document, case: str) -> list[Trial]:
    """The measured trials of a case, by their number."""
    chosen = [trial for trial in document.trials if trial.case == case and not trial.warmup]
    return sorted(chosen, key=lambda trial: trial.trial)


def ranks_of(document: Document, trial: Trial, side: str) -> list[Timed]:
    """What was timed of the ranks of a side; WORKFLOW: of all."""
    cut = document.producers
    ranks = {SOLVER: trial.sides[:cut], TWINS: trial.sides[cut:], WORKFLOW: trial.sides}[side]
    return [rank for rank in ranks if rank is not None]


def side_seconds(document: Document, case: str, side: str) -> Floats:
    """Seconds of a side in each measured trial: of its slowest rank."""
    rows = [max(rank.elapsed for rank in ranks_of(document, trial, side)) for trial in trials_of(document, case)]
    return np.asarray(rows, dtype=np.float64)


def seconds_alone(document: Document, side: str) -> Floats:
    """Seconds of a side alone in each measured trial; of the workflow: of its slower side, by its median."""
    solver, twins = side_seconds(document, SOLVER_ALONE, SOLVER), side_seconds(document, TWINS_ALONE, TWINS)
    slower = solver if np.median(solver) >= np.median(twins) else twins
    return {SOLVER: solver, TWINS: twins, WORKFLOW: slower}[side]


def incomparable(document: Document) -> str | None:
    """Why its times tell nothing of which way is quicker: 'TINY (...)', '1 trial, ...'; None where they do."""
    if TINY in document.marks:
        return f"{TINY} (a shrunken simulation: the times are not those of the workflow)"
    trials = len(trials_of(document, BESIDE))
    if trials < intervals.MIN_TRIALS:
        return f"{plural(trials, 'trial')}, and an interval needs {intervals.MIN_TRIALS} (--trials)"
    return None


class Ratio(Struct, frozen=True):
    """How many times as long as alone, and the 95 % interval; None with fewer than 5 trials."""

    value: float
    ci: tuple[float, float] | None


def slowdown(document: Document, case: str, side: str) -> Ratio:
    """median(elapsed in the case) / median(elapsed alone), with the bootstrap interval over trials, paired by trial."""
    before, after = seconds_alone(document, side), side_seconds(document, case, side)
    value = float(np.median(after) / np.median(before))
    return Ratio(value, intervals.ratio_interval(before, after, paired=True))


def over_uncoupled(document: Document, case: str, reference: str = BESIDE) -> Ratio:
    """The workflow's time over that of both sides at once without a coupling, as `slowdown`.

    What is left of a slow-down when both sides have shared the machine all the same: the coupling's own part.
    reference: another case than that; over APART it is over the slower side of separate runs.
    """
    before, after = side_seconds(document, reference, WORKFLOW), side_seconds(document, case, WORKFLOW)
    value = float(np.median(after) / np.median(before))
    return Ratio(value, intervals.ratio_interval(before, after, paired=True))


def time_spread(document: Document, case: str, side: str = WORKFLOW) -> float:
    """(max - min) / median of a side's time over the trials."""
    seconds = side_seconds(document, case, side)
    return float((seconds.max() - seconds.min()) / np.median(seconds))


class Shares(Struct, frozen=True):
    """Where the time of a side went, shares of its elapsed time."""

    computed: float
    moved: float
    waited: float


def shares(document: Document, case: str, side: str) -> Shares:
    """Means over the measured trials and the side's ranks."""
    ranks = [rank for trial in trials_of(document, case) for rank in ranks_of(document, trial, side)]
    total = sum(rank.elapsed for rank in ranks)
    moved, waited = (sum(getattr(rank, name) for rank in ranks) / total for name in ("moved", "waited"))
    return Shares(max(0.0, 1.0 - moved - waited), moved, waited)


def throughput(document: Document, case: str) -> float:
    """Bytes of states that the twins got in a second, all together: outputs x bytes x twins / elapsed, the median."""
    return document.outputs * document.output_bytes * document.consumers / median_of(document, case)


def median_of(document: Document, case: str, side: str = WORKFLOW) -> float:
    """Seconds."""
    return float(np.median(side_seconds(document, case, side)))


def traffic(document: Document, case: str) -> Traffic | None:
    """What the file system carried in a trial, the mean of the measured ones; None where none was emulated."""
    rows = [trial.traffic for trial in trials_of(document, case)]
    known = [row for row in rows if row is not None]
    if len(known) < len(rows):
        return None
    mean = {name: sum(getattr(row, name) for row in known) / len(known) for name in Traffic.__struct_fields__}
    return Traffic(
        read_bytes=round(mean["read_bytes"]),
        written_bytes=round(mean["written_bytes"]),
        read_seconds=mean["read_seconds"],
        write_seconds=mean["write_seconds"],
    )


def busy(document: Document, case: str) -> float | None:
    """Share of the workflow's time in which the link that all nodes share was in use: bytes / bandwidth / elapsed.

    None where the file system is not emulated, or its bandwidth is unlimited.
    """
    carried, rate = traffic(document, case), bandwidth(document)
    if carried is None or rate is None:
        return None
    return (carried.read_bytes + carried.written_bytes) / rate / median_of(document, case)


def bandwidth(document: Document) -> float | None:
    """Bytes a second that all nodes share; None where nobody knows it."""
    return None if document.emulated_pfs is None else document.emulated_pfs.bandwidth


def demand(document: Document) -> float:
    """Bytes a second that the workflow asks of a shared file system at the pace of its slower side alone.

    (1 + twins) x bytes of an output, over the seconds between two outputs: each is written once, and read by each twin.
    """
    between = float(np.median(seconds_alone(document, WORKFLOW))) / document.outputs
    return (1 + document.consumers) * document.output_bytes / between


def filling(document: Document) -> float:
    """What filling and emptying the pipeline adds to the slower side's time, as a share of it, whatever the coupling.

    A twin begins when the first output is there, and trains on the last one when the solver has ended: the time that
    the quicker side takes for one output.
    """
    sides = [float(np.median(seconds_alone(document, side))) for side in (SOLVER, TWINS)]
    return min(sides) / document.outputs / max(sides)


def losses(document: Document, case: str) -> list[float]:
    """The last loss of each twin in the last trial of a case."""
    last = trials_of(document, case)[-1]
    return [rank.loss for rank in ranks_of(document, last, TWINS) if rank.loss is not None]
