"""Where the time of several results went, as figures: the study's tables from our runs, and the honest ones beside.

A `ScalingCase` is one trial of one result. Those of one workload and reader are a `Scaling`: their node counts are
compared.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dlio_bench.reports.document.marks import TENSORFLOW_TRACE
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.traces import accounting, bandwidth, components, study, timeline, timelogger, trainers
from dlio_bench.reports.traces.accounting import ADDITIVE, ITERATION, MERGED, WAITING, Account, Overlap
from dlio_bench.reports.traces.bandwidth import Bandwidth, times_ideal_bandwidth, times_ideal_seconds
from dlio_bench.reports.traces.span_pattern import UNPLACED
from dlio_bench.reports.view.formatting import format_share, join_words, plural

TINY = "TINY"
COMPUTE = "compute"


class ScalingCase(Struct, frozen=True):
    """One trial. recorded: whether the run recorded spans; readers: those of them that read the dataset's files;
    in_tensorflow: whether TensorFlow reads these by itself. problems: of the file of spans, a sentence each.
    """

    label: str
    name: str  # in the tables of its scaling
    result: Result
    trial: int
    recorded: bool
    readers: Sequence[str]
    in_tensorflow: bool
    phases: Sequence[trainers.PhaseRow]
    components: Sequence[components.ComponentRow]  # none where nothing was recorded
    accounts: Sequence[Account]
    bandwidth: Bandwidth
    overlap: Overlap | None
    compute: str  # the component that `overlap` takes for compute
    critical: trainers.CriticalPath | None
    no_critical: str | None  # why there is no critical path
    problems: Sequence[str]

    @property
    def nodes(self) -> int:
        """Nodes of the run."""
        return self.result.plan.nodes

    @property
    def loop(self) -> float:
        """Seconds of the loop, mean of ranks."""
        return sum(row.loop for row in self.phases)

    @property
    def samples(self) -> int:
        """Samples of a trial, over all ranks and epochs."""
        return self.result.trials[self.trial].samples

    def account(self, how: str) -> Account | None:
        """The accounting of this name, if the spans allow it."""
        return next((account for account in self.accounts if account.how == how), None)


class Scaling(Struct, frozen=True):
    """Cases of one workload and reader, fewest nodes first."""

    workload: str
    title: str
    reader: str
    cases: Sequence[ScalingCase]

    @property
    def how(self) -> str:
        """The accounting that all cases have: the study's where their readers' spans were recorded, else WAITING."""
        for how in (ADDITIVE, MERGED):
            if all(case.account(how) for case in self.cases):
                return how
        return WAITING

    @property
    def same_work(self) -> bool:
        """Whether all node counts took equally many samples, as the study's did (strong scaling)."""
        return len({case.samples for case in self.cases}) == 1


def case(label: str, result: Result, steps: Steps, trial: int, recorded: timeline.Timeline | None) -> ScalingCase:
    """One trial's figures. trial: position in the arrays; recorded: spans of the result, None: there are none."""
    of_steps = list(trainers.spans(steps, trial, with_passes=False))
    number = result.trials[trial].trial
    known = of_steps if recorded is None else list(timeline.spans(timelogger.with_passes(recorded), number))
    names = {span.component for span in known}
    readers = accounting.reading(result.workload.name, names)
    of_trial, plan = result.trials[trial], result.plan
    compute = COMPUTE if COMPUTE in names else ITERATION
    return ScalingCase(
        label=label,
        name=f"{plural(plan.nodes, 'node')}" + (f" × {plan.ranks_per_node}" if plan.ranks_per_node > 1 else ""),
        result=result,
        trial=trial,
        recorded=recorded is not None,
        readers=readers,
        in_tensorflow=bool(names & set(UNPLACED)),
        phases=trainers.breakdown(steps, trial),
        components=[] if recorded is None else components.component_rows(recorded, number),
        accounts=[*accounting.accounts(known, plan.nodes, readers), accounting.waiting(of_steps)],
        bandwidth=bandwidth.bandwidth(
            known, plan.nodes, readers, of_trial.bytes_requested, of_trial.read_seconds, _sizes(result)
        ),
        overlap=accounting.overlap(known, readers, compute) if readers else None,
        compute=compute,
        critical=None if (why := trainers.why_none(plan)) else trainers.critical_path(steps, trial),
        no_critical=why,
        problems=() if recorded is None else recorded.problems,
    )


def _sizes(result: Result) -> bandwidth.Sizes:
    data = result.dataset
    validation = data.validation
    return bandwidth.Sizes(
        train_files=data.files,
        train_bytes=data.stored_bytes / data.files if data.files else 0.0,
        validation_bytes=validation.stored_bytes / validation.files if validation and validation.files else None,
        sample_bytes=data.view_bytes,
        tiny=TINY in result.marks,
    )


def scalings(cases: Sequence[ScalingCase]) -> list[Scaling]:
    """Cases by workload and reader, in the order in which these come."""
    groups: dict[tuple[str, str], list[ScalingCase]] = {}
    for entry in cases:
        policy = entry.result.policy
        groups.setdefault((entry.result.workload.name, policy.alias or policy.name), []).append(entry)
    return [
        Scaling(workload, group[0].result.workload.title, reader, sorted(group, key=lambda entry: entry.nodes))
        for (workload, reader), group in groups.items()
    ]


def documents(scalings: Sequence[Scaling]) -> dict[str, dict[str, Any]]:
    """Each case as JSON, by its label."""
    return {
        case.label: {"result": case.label}
        | _document(case, scaling)
        | {
            "answer": answers(scaling),
            "notes": missing(scaling),
            "published": study.document(scaling.workload),
        }
        for scaling in scalings
        for case in scaling.cases
    }


def _document(entry: ScalingCase, scaling: Scaling) -> dict[str, Any]:
    """One case; what compares it with the first node count is of its scaling."""
    at = list(scaling.cases).index(entry)
    nodes = [other.nodes for other in scaling.cases]
    rates = {
        name: times_ideal_bandwidth([getattr(other.bandwidth, name) for other in scaling.cases], nodes)[at]
        for name in ("by_node_seconds", "by_merged_seconds", "rule", "formula")
    }
    path = entry.critical
    return {
        "workload": scaling.workload,
        "reader": scaling.reader,
        "nodes": entry.nodes,
        "ranks": entry.result.plan.ranks,
        "read_components": list(entry.readers),
        "accounts": {account.how: _account(account, scaling, at) for account in entry.accounts},
        "bandwidth": to_json(entry.bandwidth)
        | {name: getattr(entry.bandwidth, name) for name in ("by_node_seconds", "by_merged_seconds")}
        | {"times_ideal": rates},
        "overlap": None if entry.overlap is None else to_json(entry.overlap) | {"compute": entry.compute},
        "critical_path": None if path is None else to_json(path) | {"total": path.total},
        "no_critical_path": entry.no_critical,
    }


def _account(account: Account, scaling: Scaling, at: int) -> dict[str, Any]:
    """One accounting: seconds of its parts by epoch and in all, shares of I/O, I/O seconds over the ideal."""
    others = [case.account(account.how) for case in scaling.cases]
    seconds = [None if other is None else next(iter(other.totals.values()), None) for other in others]
    ideal = times_ideal_seconds(seconds, [case.nodes for case in scaling.cases])[at] if scaling.same_work else None
    epochs = {epoch: dict(parts) for epoch, parts in account.epochs.items()}
    return {
        "epochs": epochs, "totals": account.totals, "shares": account.shares, "share": account.share,
        "counted_twice": account.counted_twice, "times_ideal": ideal,
    }  # fmt: skip


# (what comes before the shares, what each is a share of)
_SENTENCES = {
    WAITING: ("trainers waited for data", " of their steps"),
    ADDITIVE: ("by HEPCNNB's accounting reading took", " of a node's time"),
    MERGED: ("by CDB's accounting reading took", " of merged seconds of reading and of training"),
}


def answers(scaling: Scaling) -> list[str]:
    """The answer, a sentence for each accounting: what waiting for data and reading took, on the fewest nodes first."""
    cases = scaling.cases
    sentences = []
    for how, (before, of) in _SENTENCES.items():
        accounts = [(case, account) for case in cases if (account := case.account(how))]
        shares = [(case, account.share) for case, account in accounts]
        known = [(format_share(share), name_of(case, cases)) for case, share in shares if share is not None]
        said = [f"{share}{'' if at else of} on {name}" for at, (share, name) in enumerate(known)]
        if said:
            twice = max(account.counted_twice / (sum(account.totals.values()) or 1.0) for _, account in accounts)
            most = "up to " if len(accounts) > 1 else ""
            behind = f"; {most}{format_share(twice)} of these seconds are counted twice, as both overlap"
            sentences.append(f"{before} {', '.join(said)}{behind if twice > 0 else ''}")
    return sentences


def name_of(case: ScalingCase, cases: Sequence[ScalingCase]) -> str:
    """'4 nodes'; the result's own name where several cases have as many."""
    alike = [other for other in cases if other.name == case.name]
    return case.name if len(alike) == 1 else case.label


def missing(scaling: Scaling) -> list[str]:
    """What cannot be told of these results, and why."""
    without = [case for case in scaling.cases if not case.recorded]
    useless = [case for case in scaling.cases if case.recorded and not case.components]
    usable = [case for case in scaling.cases if case.components]
    unread = [case for case in usable if not case.readers and not case.in_tensorflow]
    inside = [case for case in usable if case.in_tensorflow]
    traced = [case for case in inside if TENSORFLOW_TRACE in case.result.marks]
    itself = "TensorFlow reads by itself, so that"
    reasons = (
        (without, "no spans were recorded (run --trace spans)"),
        (useless, "spans were recorded, but cannot be used (see the problem)"),
        (unread, "no spans of reading were recorded"),
        (
            [case for case in inside if case not in traced],
            f"{itself} the spans have no reading apart from decoding and waiting (run --trace tf shows its operations)",
        ),
        (traced, f"{itself} its reading in the traced steps is in the table of its operations alone"),
    )
    left_out = "Left out: the study's accountings, merged seconds, overlap of reading and compute."
    notes = [
        f"{join_words([name_of(case, scaling.cases) for case in cases])}: {why}. {left_out}"
        for cases, why in reasons
        if cases
    ]
    notes += dict.fromkeys(f"No critical path: {case.no_critical}." for case in scaling.cases if case.no_critical)
    if not scaling.same_work:
        notes.append(
            "The node counts took unequal numbers of samples, so that their seconds have no common ideal; shares and "
            "bandwidths compare."
        )
    return notes


def problems(scaling: Scaling) -> list[str]:
    """What is wrong with the recorded spans."""
    return [
        f"{name_of(case, scaling.cases)}: {problem.rstrip('.')}." for case in scaling.cases for problem in case.problems
    ]
