"""What is told of the samples that a network made: how far they are from held-out ones, and a picture of some."""

import base64
import binascii
from collections.abc import Iterator

from dlio_bench.reports.document.trials import Distance, Generated
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.view.formatting import NOTHING

PNG = b"\x89PNG\r\n\x1a\n"


def sentence(result: Result) -> str | None:
    """The distances before and behind the training; None of a network that makes no samples."""
    return "; ".join(_sentence(made) for made in _generated_of(result)) or None


def generated_sections(result: Result) -> Iterator[tuple[str, list[list[str]], str | None]]:
    """(in words, the rows of a table, the picture as a data URI or None) of each network that made samples.

    A row: quantity, distance before and behind the training, -ln p before and behind.
    """
    for made in _generated_of(result):
        rows = [
            [quantity.name, *map(_statistic, (quantity.before, quantity.after))]
            + [NOTHING if each is None else f"{each.score:.4g}" for each in (quantity.before, quantity.after)]
            for quantity in made.quantities
        ]
        yield _summary(made), rows, _picture(made)


def combined_scores(made: Generated) -> tuple[float, float] | None:
    """The published score before and behind the training: -ln p of some quantities, added up. None where one of these
    has no distance. Source: sparticlesteve/atlas-gan @dde093a, notebooks/GANAnalysis.ipynb.
    """
    chosen = [quantity for quantity in made.quantities if quantity.name in made.combined]
    before, after = ([quantity.before for quantity in chosen], [quantity.after for quantity in chosen])
    sums = [sum(each.score for each in side if each is not None) for side in (before, after)]
    return (sums[0], sums[1]) if chosen and None not in (*before, *after) else None


def _generated_of(result: Result) -> list[Generated]:
    last = result.measured_trials[-1].training
    return [] if last is None else last.generated


def _sentence(made: Generated) -> str:
    each = ", ".join(
        f"{quantity.name} {_statistic(quantity.before)} to {_statistic(quantity.after)}" for quantity in made.quantities
    )
    return "; ".join(part for part in (_summary(made), f"distances {each}" if each else "") if part)


def _summary(made: Generated) -> str:
    parts = [f"{made.samples} made samples beside as many held-out ones"] if made.samples else []
    if (scores := combined_scores(made)) is not None:
        parts.append(f"-ln p of {', '.join(made.combined)} together {scores[0]:.4g} to {scores[1]:.4g}")
    return "; ".join([*parts, *([made.missing] if made.missing else [])])


def _statistic(distance: Distance | None) -> str:
    return "no values" if distance is None else f"{distance.statistic:.3g}"


def _picture(made: Generated) -> str | None:
    """None where the text is no PNG file in base64: a result may come from anywhere."""
    try:
        content = base64.b64decode(made.picture or "", validate=True)
    except (binascii.Error, ValueError):
        return None
    return f"data:image/png;base64,{base64.b64encode(content).decode()}" if content.startswith(PNG) else None
