"""What the documents' types are made of, and how JSON becomes a document and a document JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from dlio_bench import documents
from dlio_bench.errors import BenchError, DataError, EnvironmentFailure, UsageError, remedy

Count = Annotated[int, Meta(ge=0)]
Some = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]  # of seconds or bytes
Share = Annotated[float, Meta(ge=0, le=1)]
T = TypeVar("T")


def convert(document: Any, kind: type[T]) -> T:
    """JSON's own values as a type. ValueError that names the place, `at $.plan.batch: ...`, where they do not fit."""
    try:
        return msgspec.convert(document, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        problem, _, place = str(error).partition(" - at `")
        raise ValueError(f"at {place.rstrip('`') or '$'}: {problem[:200]}") from None


def to_json(document: msgspec.Struct) -> dict[str, Any]:
    """A document in JSON's own types; NumPy's numbers become Python's, and paths strings."""
    return dict(msgspec.to_builtins(document, enc_hook=_as_json_value))


def load_json(path: Path, fix: str, refuse: type[BenchError] = DataError) -> Any:
    """The JSON in a file. UsageError where there is no file, EnvironmentFailure, `refuse` where it holds no JSON.

    fix: what the user can do instead, without a full stop.
    """
    try:
        return documents.load_json(documents.read_document(path, f"{fix}."))
    except FileNotFoundError as error:
        raise UsageError(f"'{path}' does not exist. {fix}.") from error
    except OSError as error:
        raise EnvironmentFailure(f"'{path}' could not be read: {error.strerror}. {remedy(error)}.") from error
    except ValueError as error:
        raise refuse(f"'{path}' is not JSON ({error}): it was cut short or edited. {fix}.") from error


def require_schema(
    document: Any, schemas: Sequence[str], name: str, fix: str, refuse: type[BenchError] = DataError
) -> None:
    """Raise `refuse` for a document of none of `schemas`, of which the first is the present one; `name`: the file's."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in schemas:
        raise refuse(
            f"'{name}' is of schema {schema!r}; this version reads '{schemas[0]}'. {fix}, or use the version of "
            "dlio-bench that wrote this one."
        )


def _as_json_value(value: object) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} {value!r} has no place in a document")
