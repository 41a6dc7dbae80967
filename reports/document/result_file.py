"""Result files of commands that are no runs: written whole, known by their schema, refused where they were altered."""

import json
from pathlib import Path
from typing import Any

from msgspec import Struct

from dlio_bench.errors import DataError
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.result import FIX, RESULT_NAME, digest
from dlio_bench.reports.document.typed import load_json, require_schema, to_json


def save(document: Struct, folder: Path) -> Path:
    """Write it as RESULT_NAME into the folder, whole or not at all; its path. EnvironmentFailure."""
    path = folder / RESULT_NAME
    write_whole(path, (json.dumps(to_json(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return path


def schema(path: Path) -> str:
    """The schema that a file, or the result file of a folder, names; '' where it names none."""
    try:
        head = json.loads(result_path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return ""  # whoever loads it as another result says why
    return str(head.get("schema")) if isinstance(head, dict) else ""


def content(wanted: str, path: Path) -> Any:
    """What stands in a file, or the result file of a folder. UsageError, EnvironmentFailure; DataError if altered."""
    file = result_path(path)
    told: Any = load_json(file, FIX)
    require_schema(told, [wanted], str(file), FIX)
    if told.get("digest") != digest(told):
        raise DataError(f"'{file}' was altered after it was written: its digest does not match. Use the original file.")
    return told


def result_path(path: Path) -> Path:
    """A file, or the result file of a folder."""
    return path / RESULT_NAME if path.is_dir() else path
