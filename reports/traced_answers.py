"""What `dlio-bench trace` says of several results before its tables: the answer, and what cannot be told."""

from collections.abc import Sequence

from dlio_bench.reports.formatting import format_share, listed
from dlio_bench.reports.io_accounts import ADDITIVE, MERGED, WAITING
from dlio_bench.reports.traced import Case, Scaling


def answers(scaling: Scaling) -> list[str]:
    """The answer: what waiting for data and reading took, on the most nodes first."""
    cases = scaling.cases[::-1]
    told = []
    for how, said in ((WAITING, "trainers waited for data"), (ADDITIVE, "reading took"), (MERGED, "reading took")):
        shares = [(case, account.share) for case in cases if (account := case.account(how))]
        known = [(case, share) for case, share in shares if share is not None]
        if known:
            what = _WHOLE[how]
            (case, share), *others = known
            first = f"{format_share(share)} of {what} on {name_of(case, cases)}"
            rest = [f"{format_share(share)} on {name_of(case, cases)}" for case, share in others]
            told.append(f"{said} {listed([first, *rest]) if len(rest) < 2 else ', '.join([first, *rest])}")
    return told


_WHOLE = {
    WAITING: "their steps",
    ADDITIVE: "a node's time by HEPCNNB's accounting",
    MERGED: "reading and training by CDB's accounting, which overlap,",
}


def name_of(case: Case, cases: Sequence[Case]) -> str:
    """'4 nodes'; the result's own name where several cases have as many."""
    alike = [other for other in cases if other.name == case.name]
    return case.name if len(alike) == 1 else case.label


def missing(scaling: Scaling) -> list[str]:
    """What cannot be told of these results, and why."""
    told = []
    without = [case for case in scaling.cases if not case.recorded]
    unread = [case for case in scaling.cases if case.recorded and not case.readers]
    for cases, why in (
        (without, "no spans were recorded (run --trace spans), which these need"),
        (unread, "no spans of reading were recorded, which these need"),
    ):
        if cases:
            who = listed([name_of(case, scaling.cases) for case in cases])
            told.append(f"{who}: {why}: the study's accountings, merged seconds, overlap of reading and compute.")
    told += [f"{name_of(case, scaling.cases)}: {problem}." for case in scaling.cases for problem in case.problems]
    told += list(dict.fromkeys(f"No critical path: {case.no_critical}." for case in scaling.cases if case.no_critical))
    if not scaling.same_work:
        told.append(
            "The node counts took unequal numbers of samples, so that their seconds have no common ideal; shares and "
            "bandwidths compare."
        )
    return told
