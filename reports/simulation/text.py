"""What `dlio-bench simulate` predicted as text: a table of policies, or the tables of a grid."""

from collections.abc import Iterator

from dlio_bench.reports.simulation import access_frequency
from dlio_bench.reports.simulation import document as simulation
from dlio_bench.reports.simulation.document import Map
from dlio_bench.reports.simulation.types import GRID, Row, Simulation
from dlio_bench.units import format_bytes
from dlio_bench.wrapping import WIDTH, wrapped


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
        lines.append(f"{'times':<21}{'samples':>12}{'binomial':>14}")
        lines += [
            f"{times:<21}{samples:>12}{expected:>14.1f}"
            for times, samples, expected in access_frequency.rows(document.accesses)
        ]
        lines += wrapped(access_frequency.conclusion(document.accesses), hang=2)
    return "\n".join(lines)


def _table(document: Simulation) -> Iterator[str]:
    """Fastest first; what does not apply comes last, with its reason."""
    beside = simulation.has_published(document)
    heading = f"{'policy':<21}{'seconds':>11}{'over bound':>12}"
    yield f"{heading}{'published' if beside else '':>{11 * beside}}{'stall':>11}{'from the PFS':>14}"
    done = [row for row in document.rows if row.seconds is not None]
    for row in sorted(done, key=lambda row: row.took):
        name, pfs = f"{row.policy} {simulation.mark(row)}", format_bytes(row.bytes.get("pfs", 0))
        published = f"{simulation.published_text(row):>{11 * beside}}"
        figures = f"{row.seconds:>11.2f}{row.over_bound:>12.2%}{published}{row.stall_seconds:>11.2f}"
        yield f"{name:<21}{figures}{pfs:>14}"
    for row in document.rows:
        if row.seconds is None:
            yield from wrapped(f"{row.policy:<21}does not apply: {row.reason}", hang=21)


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
    rows = [[_cell(cell, named=map_.named) for cell in row] for row in map_.cells]
    margin = max(map(len, map_.y)) + 1
    width = 2 + max(map(len, [*map_.x, *(cell for row in rows for cell in row)]))
    columns = max(1, (WIDTH - margin) // width)
    yield f"{map_.title}  (across: {map_.across}{f'; down: {map_.down}' if map_.down else ''})"
    for start in range(0, len(map_.x), columns):
        chosen = slice(start, start + columns)
        yield " " * margin + "".join(f"{value:>{width - 1}} " for value in map_.x[chosen]).rstrip()
        for value, row in zip(map_.y, rows, strict=True):
            yield f"{value:<{margin}}" + "".join(f"{cell:>{width}}" for cell in row[chosen]).rstrip()


def _cell(row: Row, *, named: bool) -> str:
    """'15,131 s 4.24x*'; the last column is the star's, so that numbers stand below each other."""
    over = simulation.ratio(row)
    if over is None:
        return "n/a "
    text = row.policy if named else simulation.seconds_text(row.took)
    return f"{text} {simulation.ratio_text(over)}{simulation.mark(row) or ' '}"
