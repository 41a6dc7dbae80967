"""Where the time of several results went, as figures: the study's tables from our runs, and the honest ones beside.

A `Case` is one trial of one result. Those of one workload and reader are a `Scaling`: their node counts are compared.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dlio_bench.reports import accounting
from dlio_bench.reports.accounting import ITERATION, Overlap
from dlio_bench.reports.component_table import Row as ComponentRow
from dlio_bench.reports.component_table import component_rows
from dlio_bench.reports.critical_path import CriticalPath, critical_path, why_none
from dlio_bench.reports.formatting import plural
from dlio_bench.reports.io_accounts import (
    ADDITIVE,
    MERGED,
    WAITING,
    Account,
    Bandwidth,
    Sizes,
    accounts,
    bandwidth,
    reading,
    times_ideal_bandwidth,
    times_ideal_seconds,
    waiting,
)
from dlio_bench.reports.meetings import Steps
from dlio_bench.reports.published_spans import with_passes
from dlio_bench.reports.span_pattern import UNPLACED
from dlio_bench.reports.timeline import Timeline
from dlio_bench.reports.timeline import spans as timeline_spans
from dlio_bench.reports.trainer_spans import Row, breakdown
from dlio_bench.reports.trainer_spans import spans as trainer_spans
from dlio_bench.reports.typed import to_json
from dlio_bench.reports.types import Result

TINY = "TINY"
COMPUTE = "compute"


class Case(Struct, frozen=True):
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
    phases: Sequence[Row]
    components: Sequence[ComponentRow]  # none where nothing was recorded
    accounts: Sequence[Account]
    bandwidth: Bandwidth
    overlap: Overlap | None
    compute: str  # the component that `overlap` takes for compute
    critical: CriticalPath | None
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
    cases: Sequence[Case]

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


def case(label: str, result: Result, steps: Steps, trial: int, timeline: Timeline | None) -> Case:
    """One trial's figures. trial: position in the arrays; timeline: of the result, None where none was recorded."""
    of_steps = list(trainer_spans(steps, trial, with_passes=False))
    number = result.trials[trial].trial
    known = of_steps if timeline is None else list(timeline_spans(with_passes(timeline), number))
    names = {span.component for span in known}
    readers = reading(result.workload.name, names)
    of_trial, plan = result.trials[trial], result.plan
    compute = COMPUTE if COMPUTE in names else ITERATION
    return Case(
        label=label,
        name=f"{plural(plan.nodes, 'node')}" + (f" × {plan.ranks_per_node}" if plan.ranks_per_node > 1 else ""),
        result=result,
        trial=trial,
        recorded=timeline is not None,
        readers=readers,
        in_tensorflow=bool(names & set(UNPLACED)),
        phases=breakdown(steps, trial),
        components=[] if timeline is None else component_rows(timeline, number),
        accounts=[*accounts(known, plan.nodes, readers), waiting(of_steps)],
        bandwidth=bandwidth(
            known, plan.nodes, readers, of_trial.bytes_requested, of_trial.read_seconds, _sizes(result)
        ),
        overlap=accounting.overlap(known, readers, compute) if readers else None,
        compute=compute,
        critical=None if (why := why_none(plan)) else critical_path(steps, trial),
        no_critical=why,
        problems=() if timeline is None else timeline.problems,
    )


def _sizes(result: Result) -> Sizes:
    data = result.dataset
    validation = data.validation
    return Sizes(
        train_files=data.files,
        train_bytes=data.stored_bytes / data.files if data.files else 0.0,
        validation_bytes=validation.stored_bytes / validation.files if validation and validation.files else None,
        sample_bytes=data.view_bytes,
        tiny=TINY in result.marks,
    )


def scalings(cases: Sequence[Case]) -> list[Scaling]:
    """Cases by workload and reader, in the order in which these come."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for entry in cases:
        policy = entry.result.policy
        groups.setdefault((entry.result.workload.name, policy.alias or policy.name), []).append(entry)
    return [
        Scaling(workload, group[0].result.workload.title, reader, sorted(group, key=lambda entry: entry.nodes))
        for (workload, reader), group in groups.items()
    ]


def document(entry: Case, scaling: Scaling) -> dict[str, Any]:
    """One case as JSON; what compares it with the first node count is of its scaling."""
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
