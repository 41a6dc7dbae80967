"""The limits of a plan: from the file beside it or from the plan itself, and whether the plan can answer them."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dlio_bench import documents
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.acceptance.lacking import lacking
from dlio_bench.harness.commands.acceptance.outlook import Foreseen
from dlio_bench.harness.commands.acceptance.plan import Plan
from dlio_bench.harness.commands.checkpoints import limited
from dlio_bench.reports.checkpoint.metrics import CHECKPOINT_METRICS
from dlio_bench.reports.judging.limits import Limits

NAME = "limits.toml"
MOST_RUNS = 8  # that a message names
LEVELS = 3  # of tables in a file of limits: workload, reader, scale


def limits_of(plan: Plan, path: Path) -> tuple[Limits, bytes]:
    """The limits of the plan that lies in `path`, and the bytes of a file with them. UsageError, EnvironmentFailure.

    They go by the name of their copy in the campaign's folder, which is what the other party judges with.
    """
    if isinstance(plan.limits, str):
        beside = path.parent / plan.limits
        if not beside.is_file():
            raise UsageError(
                f"'{path}': limits: '{beside}' is no file. Name a TOML file of limits beside the plan "
                "(`dlio-bench help limits`), or write a table [limits]."
            )
        return replace(_loaded(beside), name=NAME), documents.read(beside)
    with tempfile.TemporaryDirectory(prefix="dlio-bench-limits-") as folder:
        file = Path(folder) / NAME
        content = as_toml(plan.limits).encode(errors="replace")
        file.write_bytes(content)
        try:
            return _loaded(file), content
        except UsageError as error:
            raise UsageError(str(error).replace(f"'{file}'", f"'{path}': limits")) from None


def _loaded(path: Path) -> Limits:
    return limited.load(path)


def require_answerable(plan: Plan, path: Path, asked: Limits, runs: Sequence[Foreseen]) -> None:
    """UsageError for limits that no result of the plan in `path` can meet; names file, key and plan key, and the fix.

    runs: what is foreseen of each run, and of checkpoints.
    """
    where = f"'{path.parent / plan.limits}'" if isinstance(plan.limits, str) else f"'{path}': limits"
    lacks = [{} if entry.request is None else lacking(plan, entry) for entry in runs]
    for limit in asked.limits:
        key = f'{where}: [{limit.workload}.{limit.reader}."{limit.scale}"] {limit.metric}'
        covered = [
            number for number, entry in enumerate(runs) if entry.has(limit.metric) and limit.covers(*entry.measures)
        ]
        if not covered:
            measured = ", ".join(f"{entry.measures[0]} {entry.measures[2]}" for entry in runs[:MOST_RUNS])
            table = "[[checkpoint]]" if limit.metric in CHECKPOINT_METRICS else "[[run]]"
            raise UsageError(
                f"{key}: '{path}' does not measure it. It runs {measured}{', ...' if len(runs) > MOST_RUNS else ''}. "
                f"Add a {table} to the plan, or take the limit out."
            )
        for number in covered:
            if lack := lacks[number].get(limit.metric):
                raise UsageError(
                    f"{key}: {runs[number].part.name} of '{path}' cannot have it, as {lack.why}. {lack.fix}, or take "
                    "the limit out."
                )
    settings = asked.settings
    for name, needed, given in (
        ("trials", settings.trials, plan.trials),
        ("min_seconds", settings.min_seconds, plan.min_seconds),
    ):
        if given < needed:
            raise UsageError(
                f"{where}: {name} is {needed:g}, but '{path}' has {name} = {given:g}: every result would be INVALID. "
                f"Write {name} = {needed:g} or more into the plan."
            )
    if settings.cache not in (None, plan.cache) and (settings.cache, plan.cache) != ("cold", "cold-epochs"):
        raise UsageError(
            f'{where}: cache is "{settings.cache}", but \'{path}\' has cache = "{plan.cache}": every result would be '
            "INVALID. Write the same into both."
        )
    for entry in runs:
        if entry.request is not None and any(limit.covers(*entry.measures) for limit in asked.limits):
            _require_steps(plan, path, f"{where}: min_steps is {settings.min_steps}", settings.min_steps, entry)


def _require_steps(plan: Plan, path: Path, key: str, needed: int, entry: Foreseen) -> None:
    """UsageError for a run whose trials have fewer steps than `needed`. A first look may still lengthen some."""
    assert entry.request is not None
    assert entry.part.run is not None
    assert entry.part.source is not None
    size = entry.request.trial_size(entry.part.source.samples)
    if entry.request.looks_first or size.trial_steps >= needed:
        return
    table, options = f"run[{plan.run.index(entry.part.run)}]", entry.request.options
    if options.steps is not None and options.steps < needed:
        has, fix = f"{table}.steps = {options.steps}", f"Write steps = {needed} or more"
    else:
        has = f"{size.trial_steps} steps in {size.epochs} x the {entry.part.source.samples} samples of its data"
        fix = f"Write epochs = {-(-needed * size.epochs // size.trial_steps)} or more"
    raise UsageError(
        f"{key}, but {entry.part.name} of '{path}' has {has}: its results would be INVALID. {fix} into {table}, or ask "
        "for fewer in min_steps."
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
