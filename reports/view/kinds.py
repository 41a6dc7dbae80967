"""The kinds of results that are shown by sections: how each is read from a file, and the view that it gives.

Results of runs are beside each other, and have text, page and Markdown of their own: `reports.run`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dlio_bench.reports import capacity, storage
from dlio_bench.reports.checkpoint import document as checkpoint
from dlio_bench.reports.checkpoint.types import SCHEMA as CHECKPOINTS
from dlio_bench.reports.checkpoint.view import view as of_checkpoints
from dlio_bench.reports.coupling import document as couple
from dlio_bench.reports.coupling.view import view as of_couple
from dlio_bench.reports.document import result_file
from dlio_bench.reports.document.result import RESULT_NAME
from dlio_bench.reports.simulation import document as simulation
from dlio_bench.reports.simulation.view import view as of_simulation
from dlio_bench.reports.view.sections import View

NAMES = (RESULT_NAME, simulation.NAME, capacity.NAME)  # of files in the folder that a command writes
KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Any], View]]] = {
    CHECKPOINTS: (checkpoint.load, of_checkpoints),
    couple.SCHEMA: (couple.load, of_couple),
    simulation.SCHEMA: (simulation.load, of_simulation),
    storage.SCHEMA: (storage.load, storage.view),
    capacity.SCHEMA: (capacity.load, capacity.view),
}


def split_kinds(paths: Sequence[Path]) -> tuple[dict[Path, tuple[Struct, View]], list[Path]]:
    """The documents of these kinds that are named, or lie in a folder that is, with their views; and all other paths.

    Errors as those of each kind's `load`.
    """
    shown: dict[Path, tuple[Struct, View]] = {}
    others = []
    for path in paths:
        files = [path / name for name in NAMES if (path / name).is_file()][:1] if path.is_dir() else [path]
        known = {file: result_file.schema(file) for file in files}
        shown |= {file: _load_view(file, schema) for file, schema in known.items() if schema in KINDS}
        others += [] if any(file in shown for file in files) else [path]
    return shown, others


def _load_view(file: Path, schema: str) -> tuple[Struct, View]:
    load, view = KINDS[schema]
    document = load(file)
    return document, view(document)
