"""The files of studies: which there are, and how one becomes a study."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from dlio_bench.errors import UsageError, did_you_mean, one_of, unknown
from dlio_bench.harness.commands.coupling.options import COUPLE
from dlio_bench.harness.commands.generation.options import GENERATE
from dlio_bench.harness.commands.parser import Parser
from dlio_bench.harness.commands.run.options import RUN
from dlio_bench.harness.commands.studies.work import parts
from dlio_bench.harness.ground import user_files
from dlio_bench.harness.ground.options import Commands
from dlio_bench.harness.simulator.options import SIMULATE
from dlio_bench.reports.study.rows import ATTRIBUTES, is_known
from dlio_bench.reports.study.types import Claim, Effect, Published, Run, Size, Study, Value
from dlio_bench.reports.study.verdicts import GROWTHS, band_of, run_of
from dlio_bench.units import parse_bytes, parse_seconds

FIX = "`dlio-bench help reproduce-published-figures` explains the keys"
ENDING = ".toml"
NO_VALUE = re.compile("-[^0-9.]")  # begins an option
UNFIT = ("--help", "--out")  # options that end a command early, or that `reproduce` gives
SHIPPED = "dlio_bench.benchmarks"
FORM = user_files.Form(FIX, {"run": Run, "claim": Claim, "size": Size, "published": Published, "effect": Effect})


def shipped_studies() -> dict[str, Path]:
    """The files of the studies that come with dlio-bench, by name."""
    folder = Path(str(files(SHIPPED) / "studies"))
    return {path.stem: path for path in sorted(folder.glob(f"*{ENDING}"))}


def find_studies(names: Sequence[str]) -> dict[str, Study]:
    """The studies of these names, or files of studies; all that are shipped if none is named. UsageError."""
    known = shipped_studies()
    studies: dict[str, Study] = {}
    for name in names or known:
        path = Path(name) if name.endswith(ENDING) else known.get(name)
        if path is None:
            raise unknown("study", name, [*known])
        if not path.stem[0].isalnum():
            raise UsageError(
                f"'{name}' is no name of a study, as its folder of results has it. Begin it with a letter."
            )
        if path.stem in studies:
            raise UsageError(f"The study '{path.stem}' is named twice. Name each once.")
        studies[path.stem] = load(path)
    return studies


def load(path: Path) -> Study:
    """The study in a file. UsageError that names file, key, value and fix; EnvironmentFailure."""
    return parse(user_files.load(path, FORM)[0], str(path))


def parse(document: Mapping[str, Any], name: str) -> Study:
    """A study from a TOML document; `name`: the file's, for the message. UsageError."""
    study = user_files.convert(document, Study, name, FORM)
    for place, number in _numbers(document, ""):
        if not math.isfinite(number):
            raise UsageError(
                f"'{name}': {place} is {number}, which is no finite number. Write the figure, or leave it out."
            )
    for problem in _problems(study):
        raise UsageError(f"'{name}': {problem}")
    return study


def _numbers(value: object, place: str) -> Iterator[tuple[str, float]]:
    """Every number with a point of a document, with its place as in `claim[0].within`."""
    if isinstance(value, float):
        yield place, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _numbers(inner, f"{place}[{number}]")


def _problems(study: Study) -> Iterator[str]:
    """What does not go together in a study, with its key and a fix."""
    runs = {run.name: run for run in study.run}
    if len(runs) < len(study.run):
        yield "two runs have one name. Give each its own."
    if not study.untestable and not (study.claim and study.run and study.size):
        yield "a study has [[run]], [[claim]] and [size.laptop], or says in `untestable` why it has none."
    for size_name, size in study.size.items():
        for word in (*(size.runs or ()), *size.run):
            if word not in runs:
                yield f"size.{size_name} names the run '{word}', which is not there. Use {one_of([*runs])}."
        for key, read in (("time", parse_seconds), ("space", parse_bytes)):
            try:
                read(getattr(size, key))
            except UsageError as error:
                yield f"size.{size_name}.{key}: {error}"
    for number, run in enumerate(study.run):
        for option, value in (study.options | run.options).items():
            if isinstance(value, str) and value.startswith("@") and value[1:] not in runs:
                yield f"run[{number}].options.{option} is {value!r}, and there is no such run. Use {one_of([*runs])}."
    yield from _unknown_words(study)
    for name, wanted in study.arm.items():
        yield from _arm_problems(f"arm.{name}", wanted, study, runs)
    for number, claim in enumerate(study.claim):
        yield from _claim_problems(study, claim, f"claim[{number}]", runs)


def _unknown_words(study: Study) -> Iterator[str]:
    """Words that a command does not take, of each run at each size."""
    commands = _commands()
    for size_name, size in study.size.items():
        for part in parts("", study, size, Path()):
            place = f"run '{part.run.name}' at size.{size_name}"
            command = commands.choices[part.run.command]
            known = command._option_string_actions
            for word in part.words[1:]:
                if NO_VALUE.match(word) and (word not in known or word in UNFIT):
                    hint = did_you_mean(word, known)
                    yield f"{place}: a study may not give '{word}' to `{part.run.command}`.{hint} {FIX}."
            try:
                command.parse_args([*part.words[1:], "--out", "out"])
            except UsageError as error:
                yield f"{place}: {error}"


@cache
def _commands() -> Commands:
    """The commands that a study may start, with their options."""
    commands = cast("Commands", Parser(prog="dlio-bench").add_subparsers())
    for command in (RUN, GENERATE, COUPLE, SIMULATE):
        command.add(commands)
    return commands


def _arm_problems(place: str, wanted: Mapping[str, Value], study: Study, runs: Mapping[str, Run]) -> Iterator[str]:
    run = runs.get(run_of(study, wanted))
    if run is None:
        yield f"{place}.run is {wanted.get('run')!r}, and there is no such run. Use {one_of([*runs])}."
        return
    known = ("run", *ATTRIBUTES[run.command])
    for key in wanted:
        if key not in known:
            fix = f"{did_you_mean(key, known)} Use {one_of(known)}."
            yield f"{place}.{key} is nothing that results of `{run.command}` say.{fix}"


def _claim_problems(study: Study, claim: Claim, place: str, runs: Mapping[str, Run]) -> Iterator[str]:
    for key in ("arm", "over"):
        arm = getattr(claim, key)
        if arm is not None and arm not in (known := [*study.arm, *study.table]) and study.run:
            yield f"{place}.{key} is '{arm}', and there is no arm of this name. Use {one_of(known)}."
            return
        if (columns := study.table.get(arm or "")) is not None and claim.metric not in columns:
            yield f"{place}.metric is '{claim.metric}', and table.{arm} has no such column. Use {one_of([*columns])}."
            return
    if study.run and claim.arm in study.arm:
        command = runs[run_of(study, study.arm[claim.arm])].command
        for key in ("metric", "per"):
            name = getattr(claim, key)
            if name is not None and not is_known(command, name):
                yield (
                    f"{place}.{key} is '{name}', which no document of `{command}` has. `dlio-bench help metrics` lists "
                    "those of runs, `dlio-bench help reproduce-published-figures` the others."
                )
    effect = claim.effect
    if effect.above is None and effect.below is None:
        yield f"{place}.effect says nothing. Write above = 1.0, or below = 1.0, or both."
    low = -math.inf if effect.above is None else effect.above
    high = math.inf if effect.below is None else effect.below
    for number, entry in enumerate(claim.published):
        if claim.take in GROWTHS and len(claim.published) > 1 and entry.value <= 0:
            yield (
                f"{place}.published[{number}].value is {entry.value:g}, and a growth from or to it has no size. Leave "
                'it out, or write take = "last".'
            )
            return
    band = band_of(claim)
    if low >= high or band[1] <= low or band[0] >= high:
        yield (
            f"{place}.effect is {low:g} to {high:g}, and the published figures are outside of it: no result could show "
            "the effect. Correct one of them."
        )
