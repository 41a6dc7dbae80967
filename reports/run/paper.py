"""The figures of a report as files for a paper, and their captions as LaTeX."""

from collections.abc import Sequence
from pathlib import Path

from dlio_bench.reports.comparing.comparable import by_group
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.export.latex import escape, worth
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.run import html, sentences, tables
from dlio_bench.reports.view import static

CAPTIONS = {
    "times": "Elapsed time of a trial. Bars: {certainty}; dots: single trials",
    "credits": "Elapsed time after a change of order, placement or delivery over that before. Whiskers: 95 % interval",
    "phases": "Where a trainer's time goes: exclusive phases, mean over ranks and trials",
    "epochs": "Time of an epoch. Bars: {certainty}",
    "scaling": "Samples per second over nodes: {certainty}. Dotted: in proportion to the smallest run",
    "steps": "Distribution of what a step costs, its slowest rank; a curve for each trial",
    "bytes": "Bytes of an epoch by who delivered them, median over the trials",
    "predicted": "Time of an epoch as measured (bars) and as predicted before the run (diamonds)",
}
MAP = "Stall of each rank and step in the median trial: {label}"  # of a heat map


def write(pairs: Sequence[tuple[Result, Steps]], folder: Path, kind: str) -> list[str]:
    """Write each figure in a format, and figures.tex; the names of the files. EnvironmentFailure.

    The marks of the results stand below each figure, and in each caption.
    """
    steps_of = {id(result): steps for result, steps in pairs}
    results = by_group([result for result, _ in pairs])
    labels, certainty, note = tables.labels(results), sentences.describe_certainty(*results), worth(results)
    files, blocks = [], []
    for name, figure in html.drawings([(result, steps_of[id(result)]) for result in results]).items():
        file = f"{name}.{kind}"
        write_whole(folder / file, static.image(figure, kind, note))
        label = labels[int(name.removeprefix("map"))] if name.startswith("map") else ""
        said = CAPTIONS.get(name, MAP).format(certainty=certainty, label=label)
        files.append(file)
        blocks.append(
            f"\\begin{{figure}}\n\\centering\n\\includegraphics[width=\\columnwidth]{{{name}}}\n"
            f"\\caption{{{escape(f'{said}. {note}'.strip())}}}\n\\label{{fig:{name}}}\n\\end{{figure}}\n"
        )
    write_whole(folder / "figures.tex", "\n".join(["% \\usepackage{graphicx}", *blocks]).encode())
    return [*files, "figures.tex"]
