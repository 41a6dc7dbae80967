"""The public interface of the library, as its golden file and its page of the reference have it."""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import dlio_bench
from dlio_bench import errors

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "library.txt"


ERRORS = ("BenchError", "UsageError", "EnvironmentFailure", "DataError", "Stalled")
ROOMS = re.compile(r"(collections\.abc|typing|pathlib|dlio_bench\.harness\.library\.\w+)\.")


def public() -> str:
    """What people may use: names, signatures, and errors with what they are errors of."""
    lines = [f"__version__: {type(dlio_bench.__version__).__name__}"]
    for name in sorted(set(dlio_bench.__all__) - {"__version__", "errors"}):
        thing = getattr(dlio_bench, name)
        lines += ["", *members(thing)] if inspect.isclass(thing) else ["", *signature(name, thing)]
    lines += ["", *(f"errors.{name}({getattr(errors, name).__base__.__name__})" for name in ERRORS)]
    return ROOMS.sub("", "\n".join(lines)) + "\n"


def signature(name: str, function: Callable[..., Any]) -> list[str]:
    """A line for each parameter."""
    whole = inspect.signature(function)
    result = inspect.formatannotation(whole.return_annotation)
    kinds = [parameter.kind for parameter in whole.parameters.values()]
    lines = [f"    {parameter}," for parameter in whole.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        lines.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "    *,")
    return [f"{name}(", *lines, f") -> {result}"]


def members(thing: type) -> Iterator[str]:
    """A class with the methods and properties that people may use."""
    yield f"class {thing.__name__}"
    if is_dataclass(thing):
        yield from (f"    {line}" for line in signature("__init__", thing))
    for name, member in vars(thing).items():
        if isinstance(member, property) and member.fget:
            kind = inspect.signature(member.fget).return_annotation
            yield f"    {name}: {inspect.formatannotation(kind)}"
        elif inspect.isfunction(member) and (not name.startswith("_") or name in ("__iter__", "__len__")):
            yield f"    {name}{inspect.signature(member)}"


def test_the_public_interface_is_the_promised_one() -> None:
    """A change of tests/golden/library.txt is a change of what people rely on: what is there stays as it is."""
    assert public() == GOLDEN.read_text("utf-8")


def test_the_reference_lists_it() -> None:
    assert f"```\n{GOLDEN.read_text('utf-8')}```\n" in (ROOT / "docs" / "reference" / "library.md").read_text("utf-8")
