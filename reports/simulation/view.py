"""What a simulation says: time by policy or maps of a grid, what does not apply, how often a node reads a sample."""

import shlex

from dlio_bench.reports.simulation import access_frequency
from dlio_bench.reports.simulation import document as simulation
from dlio_bench.reports.simulation import figures as simulation_figures
from dlio_bench.reports.simulation.document import Map
from dlio_bench.reports.simulation.types import GRID, Row, Simulation
from dlio_bench.reports.view import sections
from dlio_bench.reports.view.formatting import NOTHING
from dlio_bench.reports.view.sections import PAGE, TEXTS, Drawing, Head, Note, Panels, Part, Scale, Section, Table, View
from dlio_bench.units import format_bytes

MOST_MAPS = 60  # more would make the page slow; the table has every cell
CELLS = "seconds, and how many times the lower bound that is (1 means no stall)"


def view(document: Simulation) -> View:
    """The sections of its text and page."""
    is_grid = document.kind == GRID
    kept = "; the batch of a node stays the same, so that more nodes take fewer steps" if is_grid else ""
    reasons = [
        Note(text=sentence, on=sections.ALL if is_grid else [PAGE]) for sentence in simulation.inapplicable(document)
    ]
    hint = Note(text="A cell's own reason shows when the pointer is on it.", aside=True, on=[PAGE])
    predicted = Section("predicted", "Time over the lower bound", [*_maps(document), *_remarks(document)])
    if not is_grid:
        title = "Time by policy, and where the bytes come from"
        predicted = Section("predicted", title, [*_policies(document), *_remarks(document)])
    return View(
        head=Head(
            title=f"PREDICTION · {document.case.title}",
            overline=f"simulate · version {document.version}",
            heading=document.case.title,
            subjects=[simulation.subject(document), simulation.machine(document)],
            badge="PREDICTION",
        ),
        lead=document.case.title,
        sections=[
            predicted,
            *([Section("reasons", "What does not apply, and why", [*reasons, *[hint] * is_grid])] if reasons else []),
            Section("numbers", "The numbers", [_cells(document) if is_grid else _rows(document)]),
            *(
                []
                if document.accesses is None
                else [Section("accesses", "How often a node reads a sample", _access_parts(document))]
            ),
        ],
        command=shlex.join(document.command),
        made="A prediction of the performance model, not a measurement: rates and capacities are those of the system "
        f"description{kept}. Everything here is in simulation.json.",
    )


def _remarks(document: Simulation) -> list[Part]:
    """What the numbers depend on."""
    parts: list[Part] = []
    if starred := simulation.starred_policies(document):
        cells = "in the cells with a star they" if document.kind == GRID else "they"
        depends = f"depends on how many nodes are taken to read it at once: {simulation.describe_sharing(document)}."
        said = f"read the parallel file system, in steps or to fill tiers, so that the time {depends}"
        parts = [
            Note(text=f"reads the PFS, in steps or to fill tiers, so that its time {depends}", label="*", on=TEXTS),
            Note(text=f"{', '.join(starred)}: {cells} {said} The other times do not.", label="*", on=[PAGE]),
        ]
    if simulation.has_published(document):
        said = "over the bound as the published simulator counts (--pfs-clients published)."
        parts.append(Note(text=said, label="published", on=TEXTS))
    remarks = (
        simulation.step_time(document),
        simulation.assumption_sentence(document),
        simulation.estimate_sentence(document),
    )
    return [*parts, *(Note(text=said, refusal=True) for said in remarks if said)]


def _policies(document: Simulation) -> list[Part]:
    """One case: bars, and in a text the table, fastest first; what does not apply comes last, with its reason."""
    published = simulation.has_published(document)
    rows = []
    for row in _by_time(document):
        over = [f"{row.over_bound:.2%}", *[simulation.published_text(row)] * published]
        pfs = format_bytes(row.bytes.get("pfs", 0))
        rows.append(
            [
                f"{row.policy} {simulation.mark(row)}",
                f"{row.elapsed_seconds:.2f}",
                *over,
                f"{row.stall_seconds:.2f}",
                pfs,
            ]
        )
    rows += [[f"{row.policy} does not apply: {row.reason}"] for row in document.rows if row.seconds is None]
    return [
        Drawing(
            name="bars",
            figure=simulation_figures.bars(document),
            label="Bars: time of each policy beside the lower bound, and bytes read from each tier; the numbers are in "
            "the table",
            caption="Left: seconds, and how many times the lower bound that is. Right: everything that is read, fills "
            "of the tiers and what is read twice included.",
            on=[PAGE],
        ),
        Table(
            heads=["policy", "seconds", "over bound", *["published"] * published, "stall", "from the PFS"],
            rows=rows,
            on=TEXTS,
        ),
    ]


def _maps(document: Simulation) -> list[Part]:
    """A grid: its heat maps; in a text a table for each."""
    every = simulation.maps(document) if document.kind == GRID else []
    if not every:
        return []
    end = simulation_figures.ceiling(every)
    drawn = [_map(f"map{position}", map_, end) for position, map_ in enumerate(every[:MOST_MAPS])]
    wide = len(drawn) == 1 or any(len(map_.x) > simulation_figures.ROOMY for map_ in every[:MOST_MAPS])
    more = f"{len(every) - len(drawn)} further maps are left out; the table has their cells."
    bounds = simulation.bounds(document)
    coloured = f"Colour and first number: time divided by that of compute alone (1× means no stall). {bounds} One scale"
    parts: list[Part] = [
        Note(text=f"Cells: {CELLS}.", on=TEXTS),
        Note(text=bounds, on=TEXTS),
        Note(text=f"{coloured} for all maps, logarithmic.", on=[PAGE]),
        Scale(
            gradient=simulation_figures.gradient(),
            ticks=[(f"{100 * place:.3g}", label) for place, label in simulation_figures.ticks(end)],
            hatched="the policy does not apply (reasons below)",
            on=[PAGE],
        ),
        Panels(drawings=drawn, two=not wide, on=[PAGE]),
        *([Note(text=more, aside=True, on=[PAGE])] if len(every) > len(drawn) else []),
    ]
    for map_ in every:
        rows = [
            [y, *(_cell(cell, named=map_.named) for cell in row)] for y, row in zip(map_.y, map_.cells, strict=True)
        ]
        title = f"{map_.title}  (across: {map_.across}{f'; down: {map_.down}' if map_.down else ''})"
        parts += [Note(text=title, on=TEXTS), Table(heads=["", *(f"{x} " for x in map_.x)], rows=rows, on=TEXTS)]
    return parts


def _map(name: str, map_: Map, end: float) -> Drawing:
    """A heat map, and what a screen reader says instead."""
    done = sorted(
        (cell for row in map_.cells for cell in row if cell.seconds is not None),
        key=lambda cell: cell.over_bound or 0.0,
    )
    caption = "applies nowhere"
    if done:
        ends = [done[0], done[-1]] if done[0].over_bound != done[-1].over_bound else [done[0]]
        named = map_.named or not map_.down
        caption = " to ".join(_place(cell, named=named) for cell in ends)
        caption = caption if len(ends) > 1 else f"{_ratio(done[0])} everywhere"
    return Drawing(
        name=name,
        figure=simulation_figures.heat_map(map_, end),
        label=f"Heat map of {map_.title}, {map_.across} across, {map_.down or 'policies'} down: {caption}.",
        caption=caption,
        title=map_.title,
        across=map_.named,
        least_width=100 + len(map_.x) * (78 if len(map_.x) <= 2 * simulation_figures.ROOMY else 52),
    )


def _ratio(cell: Row) -> str:
    return simulation.ratio_text(1 + (cell.over_bound or 0.0))


def _place(cell: Row, *, named: bool) -> str:
    policy = f" with {cell.policy}" if named else ""
    return f"{_ratio(cell)}{policy} at {simulation.place_text(cell.grid_cell)}"


def _cell(row: Row, *, named: bool) -> str:
    """'15,131 s 4.24x*'; the last column is the star's, so that numbers stand below each other."""
    over = simulation.ratio(row)
    if over is None:
        return "n/a "
    text = row.policy if named else simulation.seconds_text(row.elapsed_seconds)
    return f"{text} {simulation.ratio_text(over)}{simulation.mark(row) or ' '}"


def _by_time(document: Simulation) -> list[Row]:
    return sorted((row for row in document.rows if row.seconds is not None), key=lambda row: row.elapsed_seconds)


def _rows(document: Simulation) -> Table:
    """The page's table of one case: a row for each policy, fastest first, those that do not apply last."""
    sources = list(dict.fromkeys(name for row in document.rows for name in row.bytes))
    published = simulation.has_published(document)
    rows = [
        [
            f"{row.policy} {simulation.mark(row)}",
            f"{row.elapsed_seconds:,.2f}",
            f"{row.over_bound:.2%}",
            *[simulation.published_text(row) or NOTHING] * published,
            f"{row.stall_seconds:,.2f}",
            *(format_bytes(row.bytes[name]) if name in row.bytes else NOTHING for name in sources),
        ]
        for row in _by_time(document)
    ]
    none = ["does not apply", *[NOTHING] * (2 + published + len(sources))]
    rows += [[row.policy, *none] for row in document.rows if row.seconds is None]
    heads = ["policy", "seconds", "over bound", *["over bound, as published"] * published, "stall (s)"]
    heads += [f"from {simulation.source_title(name)}" for name in sources]
    return Table(heads=heads, rows=rows, note=simulation.bounds(document), on=[PAGE])


def _cells(document: Simulation) -> Table:
    """The page's table of a grid: a row for each cell, a column for each policy."""
    names = simulation.policies(document)
    table = {(tuple(row.grid_cell.values()), row.policy): row for row in document.rows}
    rows = []
    for cell in document.cells:
        at = cell.at
        texts = []
        for name in names:
            row = table[tuple(at.values()), name]
            seconds = simulation.seconds_text(row.elapsed_seconds) if row.seconds is not None else ""
            texts.append(f"{seconds}\n{_ratio(row)}{simulation.mark(row)}" if seconds else "n/a")
        rows.append([*(simulation.value_text(axis, value) for axis, value in at.items()), *texts])
    return Table(
        heads=[*(simulation.axis_title(axis.name) for axis in document.axes), *names],
        rows=rows,
        names=len(document.axes),
        dense=True,
        note=f"Seconds, and times the lower bound of the same cell. {simulation.bounds(document)} n/a: does not apply.",
        on=[PAGE],
    )


def _access_parts(document: Simulation) -> list[Part]:
    """How often one node reads each sample."""
    accesses = document.accesses
    assert accesses is not None
    heading, conclusion = access_frequency.heading(document), access_frequency.conclusion(accesses)
    return [
        Note(text=heading, on=TEXTS),
        Drawing(
            name="frequencies",
            figure=simulation_figures.frequencies(accesses),
            label="Bars: samples by how often a node reads them; line: the binomial distribution; the numbers are in "
            "the table",
            caption=f"{heading} {conclusion}",
            on=[PAGE],
        ),
        Table(
            heads=["times", "samples", "binomial"],
            rows=[
                [times, f"{samples:,}", f"{expected:,.1f}"]
                for times, samples, expected in access_frequency.rows(accesses)
            ],
            note="Every epoch deals all samples anew, so that the reads of a sample by one node are trials of which "
            "one in as many as there are nodes succeeds.",
        ),
        Note(text=conclusion, on=TEXTS),
    ]
