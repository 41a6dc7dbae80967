"""TOML files for users and of users: how one is written and read, and what is said where it does not fit its type."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from dlio_bench import documents
from dlio_bench.errors import EnvironmentFailure, UsageError, did_you_mean, one_of, remedy

Typed = TypeVar("Typed", bound=Struct)
WORDS = {  # for msgspec's own
    " | null": "", " | ": " or ", "array": "list", "object": "table", "str": "text", "int": "whole number",
    "float": "number",
}  # fmt: skip


class Form(Struct, frozen=True):
    """What messages on one kind of file know. fix: where its keys are explained.

    tables: the type of each table within. needed: what to write for a key that is missing. written: how the value of a
    key is written whose type is easily mistaken. choices: all values of a key.
    """

    fix: str
    tables: Mapping[str, type[Struct]]
    needed: Mapping[str, str] = {}
    written: Mapping[str, str] = {}
    choices: Mapping[str, str] = {}


def load(path: Path, form: Form) -> tuple[dict[str, Any], bytes]:
    """The document in a file, and the file's bytes. UsageError, EnvironmentFailure."""
    try:
        content = documents.read_document(path, f"{form.fix}.")
        return documents.load_toml(content), content
    except FileNotFoundError as error:
        raise UsageError(f"'{path}' does not exist. {form.fix}.") from error
    except OSError as error:
        raise EnvironmentFailure(f"'{path}' could not be read: {error.strerror}. {remedy(error)}.") from error
    except ValueError as error:
        raise UsageError(f"'{path}' is not TOML: {error}. {form.fix}.") from error


def convert(document: Mapping[str, Any], kind: type[Typed], name: str, form: Form) -> Typed:
    """The document as a type. UsageError that names the file, the key, its value and the fix."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"'{name}': {_explanation(str(error), document, kind, form)}") from None


def _explanation(error: str, document: Any, kind: type[Struct], form: Form) -> str:
    """What is wrong, with its key, its value and a fix. msgspec names the place as in `$.run[0].batch`."""
    problem, _, place = error.partition(" - at `")
    key = place.rstrip("`").removeprefix("$").removeprefix(".")
    if lacking := re.search("(missing required|unknown) field `(.*)`", problem, re.DOTALL):
        told = f"{key}.{lacking[2]}" if key else lacking[2]
        if lacking[1] != "unknown":
            return f"{told} is missing. {form.needed.get(lacking[2], form.fix)}."
        names = re.findall(r"[a-z_]+", key)
        known = next((form.tables[name] for name in reversed(names) if name in form.tables), kind).__struct_fields__
        return f"the key {told[:80]!r} is not known.{did_you_mean(lacking[2], known)} Use {one_of(known)}."
    value = document
    for name, index in re.findall(r"([^.\[\]]+)|\[([0-9]+)\]", key):
        if name == "...":  # a key of a table whose keys are names
            break
        value = value[int(index)] if index else value.get(name, value)
    for word, ours in WORDS.items():
        problem = problem.replace(word, ours)
    if key in form.choices:
        problem = f"write {form.choices[key]}"
    problem = problem.replace("`", "")
    written = form.written.get(re.sub(r".*\.|\[[0-9]+\]", "", key)) if "got " in problem else None
    example = f"Write {written}; " if written else ""
    return f"{key} is {str(value)[:80]!r}: {problem[:1].lower()}{problem[1:200]}. {example}{form.fix}."


LEVELS = 3  # of tables that are sections, such as workload, reader, scale of limits; those below stand on a line each


def to_toml(document: Mapping[str, Any]) -> str:
    """Nested tables as TOML: those of the first levels as sections, what is deeper in lines of its own."""
    lines = []
    for names, table in _sections(document, ()):
        if names:
            lines.append(f"\n[{'.'.join(map(_toml_string, names))}]")
        lines += [f"{_toml_string(key)} = {_value(value)}" for key, value in table.items()]
    return "\n".join(lines).lstrip() + "\n"


def _sections(table: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)} if len(names) < LEVELS else {}
    rest = {key: value for key, value in table.items() if key not in inner}
    if rest or not inner:
        yield names, rest
    for key, value in inner.items():
        yield from _sections(value, (*names, key))


def _toml_string(text: str) -> str:
    """A key or a text; TOML's basic strings are JSON's, but for the control character DEL."""
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else _value(text)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_string(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool | int):
        return json.dumps(value)
    return (
        repr(value)
        if isinstance(value, float)
        else json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    )
