"""What the documents' types are made of, and how a document of JSON becomes one."""

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

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
