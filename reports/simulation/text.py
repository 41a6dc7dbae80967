"""What `dlio-bench simulate` predicted as text: a table of policies, or the tables of a grid."""

from collections.abc import Iterator

from dlio_bench.reports.simulation import access_frequency
from dlio_bench.reports.simulation import document as simulation
from dlio_bench.reports.simulation.document import Map
from dlio_bench.reports.simulation.types import GRID, Row, Simulation
from dlio_bench.reports.view.table import table_lines
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import wrapped


def render(document: Simulation) -> str:
    """The document as text; no line is longer than 80 columns, long policy names excepted."""
    lines = wrapped(f"{document.case.title}: {simulation.subject(document)}", hang=2)
    lines += wrapped(simulation.machine(document), hang=2)
    for sentence in (simulation.step_time(document), simulation.assumed(document), simulation.estimated(document)):
        if sentence:
            lines += wrapped(sentence, hang=2)
    lines += ["", *(_grid(document) if document.kind == GRID else _table(document))]
    if simulation.starred(document):
        subject = "it depends" if document.kind == simulation.SINGLE else "its time depends"
        lines += ["", *wrapped(
            f"* reads the PFS, in steps or to fill tiers, so {subject} on how many nodes are taken to read it at once: "
            f"{simulation.counted(document)}.",
            hang=2,
        )]  # fmt: skip
    if simulation.has_published(document):
        said = "published: over the bound as the published simulator counts (--pfs-clients published)."
        lines += wrapped(said, hang=2)
    if document.accesses is not None:
        lines += ["", *wrapped(access_frequency.heading(document), hang=2)]
        rows = access_frequency.rows(document.accesses)
        cells = [(times, samples, f"{expected:.1f}") for times, samples, expected in rows]
        lines += table_lines(["times", "samples", "binomial"], cells)
        lines += wrapped(access_frequency.conclusion(document.accesses), hang=2)
    return "\n".join(lines)


def _table(document: Simulation) -> Iterator[str]:
    """Fastest first; what does not apply comes last, with its reason."""
    beside = ["published"] * simulation.has_published(document)
    rows: list[list[str]] = []
    for row in sorted((row for row in document.rows if row.seconds is not None), key=lambda row: row.took):
        figures = [f"{row.seconds:.2f}", f"{row.over_bound:.2%}", *[simulation.published_text(row)] * len(beside)]
        pfs = format_bytes(row.bytes.get("pfs", 0))
        rows.append([f"{row.policy} {simulation.mark(row)}", *figures, f"{row.stall_seconds:.2f}", pfs])
    rows += [[f"{row.policy} does not apply: {row.reason}"] for row in document.rows if row.seconds is None]
    yield from table_lines(["policy", "seconds", "over bound", *beside, "stall", "from the PFS"], rows)


def _grid(document: Simulation) -> Iterator[str]:
    """A table for each heat map; cells are seconds, and times the lower bound."""
    yield from wrapped("Cells: seconds, and how many times the lower bound that is (1 means no stall).", hang=2)
    yield from wrapped(simulation.bounds(document), hang=2)
    for map_ in simulation.maps(document):
        yield ""
        yield from _map(map_)
    for sentence in simulation.inapplicable(document):
        yield ""
        yield from wrapped(sentence, hang=2)


def _map(map_: Map) -> Iterator[str]:
    """A heat map's numbers, in blocks of as many columns as a line has room for."""
    yield f"{map_.title}  (across: {map_.across}{f'; down: {map_.down}' if map_.down else ''})"
    rows = [[y, *(_cell(cell, named=map_.named) for cell in row)] for y, row in zip(map_.y, map_.cells, strict=True)]
    yield from table_lines(["", *(f"{value} " for value in map_.x)], rows)


def _cell(row: Row, *, named: bool) -> str:
    """'15,131 s 4.24x*'; the last column is the star's, so that numbers stand below each other."""
    over = simulation.ratio(row)
    if over is None:
        return "n/a "
    text = row.policy if named else simulation.seconds_text(row.took)
    return f"{text} {simulation.ratio_text(over)}{simulation.mark(row) or ' '}"
