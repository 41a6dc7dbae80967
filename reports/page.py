"""What the HTML pages share: templates, and data inside a script element."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from dlio_bench.reports.drawing import Figure


def _embedded(drawn: Mapping[str, Figure]) -> str:
    """Figures as JSON that cannot end its script element: <, > and & only occur in strings, where \\u003c means <."""
    text = json.dumps(drawn, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _capitalize_first(sentence: str) -> str:
    """'the first letter alone' -> 'The first letter alone'; str.capitalize would lower the rest."""
    return sentence[:1].upper() + sentence[1:]


def render(name: str, drawn: Mapping[str, Figure], **values: Any) -> str:
    """The HTML of a template with its figures, which are JSON in a script element; `values` are escaped."""
    heights = {figure: drawn[figure]["layout"]["height"] for figure in drawn}
    return _template(name).render(plotly=get_plotlyjs(), drawn=_embedded(drawn), heights=heights, **values)


@cache
def _template(name: str) -> jinja2.Template:
    folder = Path(__file__).with_name("templates")
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["capitalize_first"] = _capitalize_first
    return templates.get_template(name)
