"""What `dlio-bench trace` says of several results before its tables: the answer, and what cannot be told."""

from collections.abc import Sequence

from dlio_bench.reports.formatting import format_share, listed
from dlio_bench.reports.io_accounts import ADDITIVE, MERGED, WAITING
from dlio_bench.reports.marks import TENSORFLOW_TRACE
from dlio_bench.reports.traced import Case, Scaling

# (what comes before the shares, what each is a share of)
_SENTENCES = {
    WAITING: ("trainers waited for data", " of their steps"),
    ADDITIVE: ("by HEPCNNB's accounting reading took", " of a node's time"),
    MERGED: ("by CDB's accounting reading took", " of merged seconds of reading and of training"),
}


def answers(scaling: Scaling) -> list[str]:
    """The answer, a sentence for each accounting: what waiting for data and reading took, on the fewest nodes first."""
    cases = scaling.cases
    told = []
    for how, (before, of) in _SENTENCES.items():
        accounts = [(case, account) for case in cases if (account := case.account(how))]
        shares = [(case, account.share) for case, account in accounts]
        known = [(format_share(share), name_of(case, cases)) for case, share in shares if share is not None]
        said = [f"{share}{'' if at else of} on {name}" for at, (share, name) in enumerate(known)]
        if said:
            twice = max(account.counted_twice / (sum(account.totals.values()) or 1.0) for _, account in accounts)
            most = "up to " if len(accounts) > 1 else ""
            behind = f"; {most}{format_share(twice)} of these seconds are counted twice, as both overlap"
            told.append(f"{before} {', '.join(said)}{behind if twice > 0 else ''}")
    return told


def name_of(case: Case, cases: Sequence[Case]) -> str:
    """'4 nodes'; the result's own name where several cases have as many."""
    alike = [other for other in cases if other.name == case.name]
    return case.name if len(alike) == 1 else case.label


def missing(scaling: Scaling) -> list[str]:
    """What cannot be told of these results, and why."""
    told = []
    without = [case for case in scaling.cases if not case.recorded]
    useless = [case for case in scaling.cases if case.recorded and not case.components]
    usable = [case for case in scaling.cases if case.components]
    unread = [case for case in usable if not case.readers and not case.in_tensorflow]
    inside = [case for case in usable if case.in_tensorflow]
    traced = [case for case in inside if TENSORFLOW_TRACE in case.result.marks]
    for cases, why in (
        (without, "no spans were recorded (run --trace spans)"),
        (useless, "spans were recorded, but cannot be used (see the problem)"),
        (unread, "no spans of reading were recorded"),
        (
            [case for case in inside if case not in traced],
            "TensorFlow reads by itself, so that the spans have no reading apart from decoding and waiting (run "
            "--trace tf shows its operations)",
        ),
        (
            traced,
            "TensorFlow reads by itself, so that its reading in the traced steps is in the table of its operations "
            "alone",
        ),
    ):
        if cases:
            who = listed([name_of(case, scaling.cases) for case in cases])
            told.append(
                f"{who}: {why}. Left out: the study's accountings, merged seconds, overlap of reading and compute."
            )
    told += list(dict.fromkeys(f"No critical path: {case.no_critical}." for case in scaling.cases if case.no_critical))
    if not scaling.same_work:
        told.append(
            "The node counts took unequal numbers of samples, so that their seconds have no common ideal; shares and "
            "bandwidths compare."
        )
    return told


def problems(scaling: Scaling) -> list[str]:
    """What is wrong with the recorded spans."""
    told = [(name_of(case, scaling.cases), problem) for case in scaling.cases for problem in case.problems]
    return [f"{name}: {problem.rstrip('.')}." for name, problem in told]
