"""The study's published values as rows of the tables of `dlio-bench trace`; none for what it did not publish."""

from collections.abc import Iterator, Sequence

from dlio_bench.reports.traces import study
from dlio_bench.reports.traces.accounting import ADDITIVE, MERGED, TITLES
from dlio_bench.reports.traces.bandwidth import times_ideal_bandwidth, times_ideal_seconds
from dlio_bench.reports.traces.tables import Row, TextTable
from dlio_bench.reports.view.formatting import NOTHING, format_share

LEAST = 5e-4  # seconds that are shown
PARTS = {ADDITIVE: study.PARTS, MERGED: ("read", "training")}
STUDY = {ADDITIVE: "hepcnnb", MERGED: "cdb"}  # whose published values an accounting made
EPOCHS_NOTE = f"Published: {study.EPOCHS_SOURCE}. Its first epoch has nearly all reads of validation files."


def totals(workload: str, how: str, parts: Sequence[str]) -> list[Row]:
    """Published seconds of these parts, the share of reading and its seconds over the ideal, by nodes and run."""
    rows: list[Row] = []
    for table in study.tables(workload) if STUDY.get(how) == workload else ():
        nodes = [total.nodes for total in table.totals]
        ideal = times_ideal_seconds([total.seconds["read"] for total in table.totals], nodes)
        for total, times in zip(table.totals, ideal, strict=True):
            cells = [f"{total.seconds[part]:.2f}" if part in total.seconds else NOTHING for part in parts]
            rows.append((f"{total.nodes}, {table.name}", [*cells, f"{total.shares['read']:.2f} %", times_text(times)]))
    return rows


def sources(workload: str, how: str) -> list[str]:
    """Where the totals of this accounting were published."""
    if STUDY.get(how) != workload:
        return []
    return [f"Published: {_slides(workload)} ({study.REPOSITORY}); its × ideal is worked out from its seconds."]


def _slides(workload: str) -> str:
    return "; ".join(dict.fromkeys(table.source for table in study.tables(workload)))


def totals_alone(workload: str, how: str) -> Iterator[TextTable]:
    """The published totals in a table of their own, where ours have no such accounting."""
    if STUDY.get(how) == workload:
        heads, title = [*PARTS[how], "I/O share", "× ideal"], f"I/O against nodes, published. {TITLES[how]}"
        rows, notes = totals(workload, how, PARTS[how]), sources(workload, how)
        yield TextTable(f"published-{how}", title, heads, [], rows, notes, f"nodes-{how}")


def epochs_alone(workload: str) -> Iterator[TextTable]:
    """The published epochs in a table of their own, where ours have no such accounting."""
    if rows := epochs(workload, ADDITIVE, most := max(len(row.parts["read"]) for row in study.EPOCHS)):
        heads = [*(f"epoch {number + 1}" for number in range(most)), "all"]
        title = "I/O share against epochs, published, by HEPCNNB's accounting"
        yield TextTable("published-epochs", title, heads, [], rows, [EPOCHS_NOTE], "epochs")


def epochs(workload: str, how: str, count: int) -> list[Row]:
    """Published shares of reading in the first `count` epochs, by nodes and run."""
    if STUDY.get(how) != workload:
        return []
    whole = {
        (table.name, total.nodes): total.shares["read"] for table in study.tables(workload) for total in table.totals
    }
    return [
        (
            f"{row.nodes}, {row.name}",
            [*(f"{share:.2f} %" for _, share in row.parts["read"][:count]), f"{whole[row.name, row.nodes]:.2f} %"],
        )
        for row in study.epochs(workload)
    ]


def bandwidth(workload: str) -> Iterator[TextTable]:
    """Published bandwidths, and corrected ones, which are not."""
    tables = study.tables(workload)
    corrected = any(total.corrected is not None for table in tables for total in table.totals)
    rows: list[Row] = []
    for table in tables:
        nodes = [total.nodes for total in table.totals]
        published = times_ideal_bandwidth([total.gigabytes for total in table.totals], nodes)
        right = times_ideal_bandwidth([total.corrected for total in table.totals], nodes)
        for total, times, correct in zip(table.totals, published, right, strict=True):
            cells = [str(total.calls), f"{total.gigabytes:.3f} GB/s ({times_text(times)})"]
            known = NOTHING if total.corrected is None else f"{total.corrected:g} GB/s ({times_text(correct)})"
            rows.append((f"{total.nodes}, {table.name}", [*cells, *([known] if corrected else [])]))
    if rows:
        notes = [
            f"Published: {_slides(workload)}; by the study's formula. In brackets: × ideal, worked out from the values."
        ]
        if corrected:
            notes.append(
                "Corrected: not published, but worked out from the published calls and seconds with the bytes that the "
                "calls read."
            )
        heads = ["calls", "published", *(["corrected"] if corrected else [])]
        yield TextTable("published-bandwidth", "Read bandwidth against nodes, published", heads, [], rows, notes)


def variants(workload: str) -> Iterator[TextTable]:
    """Published variants of a workload."""
    if known := study.variants(workload):
        # '4322.73', or '4475' where whole seconds were published
        rows = [
            (row.name, [str(took) if isinstance(took, int) else f"{took:.2f}" for took in (row.read, *row.epochs)])
            for row in known
        ]
        heads = ["read (s)", "epoch 1 (s)", "epoch 2 (s)", "epoch 3 (s)"]
        title = "CDB on 64 nodes, published: merged seconds of reading, and of each epoch"
        yield TextTable("published-variants", title, heads, [], rows, [f"Published: {study.VARIANTS_SOURCE}."])


def seconds_text(value: float | None) -> str:
    """'91.21', or '0.0123' below 10 s."""
    if value is None:
        return NOTHING
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.3g}" if abs(value) >= LEAST else "0"


def share_text(value: float | None) -> str:
    """As `format_share`, or '-'."""
    return NOTHING if value is None else format_share(value)


def times_text(value: float | None) -> str:
    """'1.09×', or '-'."""
    return NOTHING if value is None else f"{value:.2f}×"
