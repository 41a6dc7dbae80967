"""The limits of a plan: from the file beside it or from the plan itself, and whether the plan can answer them."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlio_bench import documents
from dlio_bench.benchmarks import registry
from dlio_bench.errors import UsageError
from dlio_bench.harness.acceptance.plan import Plan
from dlio_bench.harness.plan.policies import ALIASES, POLICIES
from dlio_bench.reports import limits
from dlio_bench.reports.limits import CEILING_SHARE, Limits

NAME = "limits.toml"
LEVELS = 3  # of tables in a file of limits: workload, reader, scale


def limits_of(plan: Plan, path: Path) -> tuple[Limits, bytes]:
    """The limits of the plan that lies in `path`, and the bytes of a file with them. UsageError, EnvironmentFailure."""
    if isinstance(plan.limits, str):
        beside = path.parent / plan.limits
        return _loaded(beside), documents.read(beside)
    with tempfile.TemporaryDirectory(prefix="dlio-bench-limits-") as folder:
        file = Path(folder) / NAME
        content = as_toml(plan.limits).encode(errors="replace")
        file.write_bytes(content)
        try:
            return _loaded(file), content
        except UsageError as error:
            raise UsageError(str(error).replace(f"'{file}'", f"'{path}': limits")) from None


def _loaded(path: Path) -> Limits:
    return limits.load(path, list(registry.WORKLOADS), [*POLICIES, *ALIASES])


def require_answerable(plan: Plan, asked: Limits, measured: Sequence[tuple[str, Sequence[str], str]]) -> None:
    """UsageError for limits that no result of the plan can meet.

    measured: (workload, names of the readers, "NODESxRANKS") of each run.
    """
    for limit in asked.limits:
        if not any(limit.covers(workload, readers, scale) for workload, readers, scale in measured):
            runs = ", ".join(f"{workload} {scale}" for workload, _, scale in measured[:8])
            raise UsageError(
                f"The limits ask for [{limit.table}] {limit.metric}, which the plan does not measure: it runs {runs}. "
                "Add a [[run]] to the plan, or take the limit out."
            )
        if limit.metric == CEILING_SHARE and plan.storage is None:
            raise UsageError(
                f"The limits ask for [{limit.table}] {limit.metric}, but the plan does not measure the storage. Add a "
                "table [storage] to it, or take the limit out."
            )
    for key, needed, given in (
        ("trials", asked.settings.trials, plan.trials),
        ("min_seconds", asked.settings.min_seconds, plan.min_seconds),
    ):
        if given < needed:
            raise UsageError(
                f"The limits ask for {key} = {needed:g}, but the plan has {key} = {given:g}: every result would be "
                f"INVALID. Write {key} = {needed:g} or more into the plan."
            )
    if asked.settings.cache not in (None, plan.cache) and (asked.settings.cache, plan.cache) != ("cold", "cold-epochs"):
        raise UsageError(
            f'The limits ask for cache = "{asked.settings.cache}", but the plan has "{plan.cache}": every result would '
            "be INVALID. Write the same into both."
        )


def as_toml(document: Mapping[str, Any]) -> str:
    """Limits as a TOML file: settings, then a table for each workload, reader and scale."""
    lines = []
    for names, table in _sections(document, ()):
        if names:
            lines.append(f"\n[{'.'.join(map(_quoted, names))}]")
        lines += [f"{_quoted(key)} = {_value(value)}" for key, value in table.items()]
    return "\n".join(lines).lstrip() + "\n"


def _sections(table: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    inner = {key: value for key, value in table.items() if isinstance(value, dict)} if len(names) < LEVELS else {}
    rest = {key: value for key, value in table.items() if key not in inner}
    if rest or not inner:
        yield names, rest
    for key, value in inner.items():
        yield from _sections(value, (*names, key))


def _quoted(text: str) -> str:
    """A key or a text; TOML's basic strings are JSON's, but for the control character DEL."""
    plain = text.isascii() and text.replace("_", "").replace("-", "").isalnum()
    return text if plain else json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_quoted(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
