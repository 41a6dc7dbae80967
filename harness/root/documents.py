"""Reads JSON and TOML that people may have edited, within bounds, so that bad content can only cause an error."""

import json
import math
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from dlio_bench.errors import UsageError

MOST_BYTES = 1 << 30  # of a document; the manifest of ImageNet's 1.3 million bare images has a fifth of it
MOST_TOML_BYTES = 1 << 20  # its parser is slow; the package's own files stay below 4 kB
DEEPEST = 32  # nested tables and lists; ours have less than ten
_LARGEST = 1 << 63  # NumPy holds no larger whole numbers
_LONG = re.compile(r"[0-9]{19}")  # a whole number that may be too large


def read_document(path: Path, fix: str = "Name a file that dlio-bench wrote.", most: int = MOST_BYTES) -> bytes:
    """The content of a file that a user named. OSError; UsageError with `fix` if it is no file, or larger than `most`.

    A pipe is refused: reading it would wait for a writer, for ever if there is none.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            mode = status.st_mode
            kind = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device"
            raise UsageError(f"'{path}' is {kind} and not a file. {fix}")
        if status.st_size > most:
            raise UsageError(f"'{path}' has {status.st_size} bytes, and at most {most} are read. {fix}")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(handle)


def load_json(content: bytes) -> Any:
    """The document. ValueError, with an explanation, if it is no JSON, too deep, or has a number out of range."""
    try:
        text = content.decode()
        whole = _parse_int if _LONG.search(text) else None  # slow, as it is a call for each number
        document = json.loads(text, parse_float=_finite, parse_constant=_refuse, parse_int=whole)
    except RecursionError:
        raise _too_deep() from None
    except MemoryError:
        raise ValueError("it does not fit into memory") from None
    _require_shallow(document)
    return document


def load_toml(content: bytes) -> dict[str, Any]:
    """The document, with or without a byte order mark. ValueError as in `load_json`, but numbers may be infinite."""
    if len(content) > MOST_TOML_BYTES:
        raise ValueError(f"it has {len(content)} bytes, and at most {MOST_TOML_BYTES} are read")
    try:
        document = tomllib.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise _too_deep() from None
    _require_shallow(document)
    _require_64_bits(document)
    return document


def _require_shallow(document: Any) -> None:
    level = [document] if isinstance(document, dict | list) else []
    for _ in range(DEEPEST):
        inner = (value for outer in level for value in (outer.values() if isinstance(outer, dict) else outer))
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return
    raise _too_deep()


def _require_64_bits(value: Any) -> None:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _require_64_bits(inner)
    elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise _too_large()


def _too_deep() -> ValueError:
    return ValueError(f"its tables and lists lie more than {DEEPEST} deep in each other")


def _too_large() -> ValueError:
    return ValueError("a whole number has more than 64 bits")


def _parse_int(digits: str) -> int:
    if len(digits) > 20 or not -_LARGEST <= (number := int(digits)) < 2 * _LARGEST:
        raise _too_large()
    return number


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:20]} is not finite")
    return number


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")
