"""Results in JSON's own types, for tests that change them or look at them as a script would."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlio_bench.reports.document import result
from dlio_bench.reports.document.typed import convert, to_json
from dlio_bench.reports.document.types import Draft, Result


def drafted(draft: dict[str, Any]) -> Draft:
    """A draft of JSON's own types, as the harness hands it over."""
    return convert(draft, Draft)


def complete(draft: dict[str, Any], steps: dict[str, Any]) -> Result:
    """The result of a draft of JSON's own types."""
    return result.complete(drafted(draft), steps)


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A result that is loaded and checked, as JSON, and its steps."""
    found, steps = result.load(path)
    return to_json(found), steps


Made = tuple[Result, dict[str, Any]]
Complete = Callable[..., Made]  # (reader, nodes, trials, change): the fixture `made`
