"""What the HTML pages share: templates, figures as data, plotly.js packed, and a policy for scripts."""

import base64
import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from isal import igzip
from jinja2.bccache import Bucket
from markupsafe import Markup

from dlio_bench.reports.view.drawing import Figure
from dlio_bench.reports.view.sections import Head
from dlio_bench.wrapping import printable

TEMPLATES = Path(__file__).parents[1] / "templates"


class Compiled(jinja2.FileSystemBytecodeCache):
    """Compiled templates, kept beside their sources as Python keeps modules: where it may, and where it can."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep a template that was compiled."""
        if sys.dont_write_bytecode:
            return
        with suppress(OSError):  # an installation that this user cannot write
            Path(self.directory).mkdir(exist_ok=True)
            super().dump_bytecode(bucket)


def render(name: str, head: Head, drawn: Mapping[str, Figure], **values: Any) -> str:
    """The HTML of a template with its figures, which are JSON in a script element; `values` are escaped.

    Without figures the page has no script.
    """
    scripts: dict[str, str] = {}
    if drawn:
        script = (TEMPLATES / "report.js").read_text("utf-8")
        packed, plotly_hash = _plotly()
        allowed = f"'{_script_hash(script)}' '{plotly_hash}'"
        scripts = {"plotly": packed, "own": script, "allowed": allowed, "drawn": _embed_figures(drawn)}
    return _template(name).render(
        head=head,
        scripts=scripts,
        heights={figure: drawn[figure]["layout"]["height"] for figure in drawn},
        words={figure: drawn[figure].get("words", "") for figure in drawn},
        **values,
    )


@cache
def _plotly() -> tuple[str, str]:
    """(plotly.js as base64 of gzip, its hash for the policy). The page unpacks it, and is a third as large so."""
    from plotly.offline import get_plotlyjs

    library = get_plotlyjs()
    return base64.b64encode(igzip.compress(library.encode(), mtime=0)).decode(), _script_hash(library)


def _script_hash(script: str) -> str:
    """What names an inline script in a content security policy: no other one runs, whatever gets into the page."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _embed_figures(drawn: Mapping[str, Figure]) -> str:
    """Figures as JSON that cannot end its script element: <, > and & only occur in strings, where \\u003c means <."""
    shown = {name: {"data": figure["data"], "layout": figure["layout"]} for name, figure in drawn.items()}
    text = json.dumps(shown, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _capitalize_first(sentence: str) -> str:
    """'the first letter alone' -> 'The first letter alone'; str.capitalize would lower the rest."""
    return sentence[:1].upper() + sentence[1:]


def _without_controls(value: Any) -> Any:
    """A text from a result without control characters; line ends stay, and so does what a caller declares safe."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(map(printable, value.split("\n")))


@cache
def _template(name: str) -> jinja2.Template:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_without_controls,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=Compiled(str(TEMPLATES / "__pycache__"), f"%s.jinja-{jinja2.__version__}"),
    )
    templates.filters["capitalize_first"] = _capitalize_first
    return templates.get_template(name)
