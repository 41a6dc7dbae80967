"""Carries studies out in a folder: each run as a command of its own, and only those that are not finished."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dlio_bench import documents
from dlio_bench.errors import BenchError, DataError, EnvironmentFailure, UsageError
from dlio_bench.harness.ground.folders import UNFINISHED
from dlio_bench.harness.ground.parts import PartRunner, ending
from dlio_bench.harness.ground.subcommands import as_words
from dlio_bench.reports.coupling import document as couple
from dlio_bench.reports.document import earlier, result
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.types import SCHEMA
from dlio_bench.reports.simulation import control_tree
from dlio_bench.reports.simulation import document as simulation
from dlio_bench.reports.study.rows import EvidenceRow, matching, of_control_tree, of_couple, of_result, of_simulation
from dlio_bench.reports.study.types import Need, Run, Size, Skipped, Study
from dlio_bench.reports.study.verdicts import run_of
from dlio_bench.reports.traces import result_spans
from dlio_bench.units import parse_seconds

DONE = ".ended.json"  # behind the name of the folder of a run that has ended: its words and its exit status
SAID = ".message.txt"  # behind it: the message of a run that failed
MOST_MESSAGE = 2000  # characters of it that are told
GOOD = {
    "run": (0, 1, 3),
    "simulate": (0,),
    "couple": (0,),
    "generate": (0,),
}  # exit statuses that leave results, whatever they are worth
COMPARED = (SCHEMA, *earlier.SCHEMAS, couple.SCHEMA)  # schemas of a result.json


class StudyPart(Struct, frozen=True):
    """One command, about `seconds` long. words: without the program, and without --out, which is the folder; "@NAME"
    is the folder of another run of the study.
    """

    study: str
    run: Run
    words: tuple[str, ...]
    folder: Path
    seconds: float

    @property
    def command(self) -> list[str]:
        """The whole command, with the folders of other runs and its own."""
        place = self.folder.parent
        given = [str(place / word[1:]) if word.startswith("@") else word for word in self.words]
        return ["dlio-bench", *given, "--out", str(self.folder)]

    @property
    def title(self) -> str:
        """'hepcnnb-shuffle, global'."""
        return f"{self.study}, {self.run.name}"


def parts(name: str, study: Study, size: Size, out: Path) -> list[StudyPart]:
    """The commands of a study at a size, in the order of its file. The time is dealt to them equally."""
    chosen = [run for run in study.run if size.runs is None or run.name in size.runs]
    seconds = parse_seconds(size.time) / max(1, len(chosen))
    return [
        StudyPart(name, run, command_words(study, run, size), (out / name / run.name).absolute(), seconds)
        for run in chosen
    ]


def command_words(study: Study, run: Run, size: Size) -> tuple[str, ...]:
    """The words of a run's command. Options of the size for all runs come before those of the run, these before those
    of the study, and options of the size for this run before all.

    A `generate` takes its own options alone.
    """
    options = dict(run.options) if run.command == "generate" else study.options | run.options | size.options
    options |= size.run.get(run.name, {})
    return (run.command, *([run.subject] if run.subject else []), *as_words(options))


def missing_need(needs: Sequence[Need]) -> str:
    """Why a study cannot be carried out on this machine, with the fix; '' where it can."""
    from dlio_bench.harness.storage.pfs.emulation import available
    from dlio_bench.harness.streams import adios
    from dlio_bench.harness.training.libraries import require_libraries

    for need in needs:
        try:
            if need == "fuse" and (reason := available()):
                return reason
            if need == "adios2":
                adios.require()
            if need == "tensorflow":
                require_libraries(None)
        except EnvironmentFailure as error:
            return str(error)
    return ""


def exit_status(part: StudyPart) -> int | None:
    """The exit status of a run that has ended here; None where it has not. UsageError if it was another command's."""
    try:
        record = documents.load_json(documents.read_document(_mark(part)))
        before, status = list(record["words"]), int(record["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if before != list(part.words):
        other = " ".join(sorted(set(before) ^ set(part.words)))
        raise UsageError(
            f"{part.folder} holds the results of another command than that of {part.title}: they differ in {other}. "
            "Results are never mixed: choose a new folder with --out, or give the --size that it was begun with."
        )
    return status


def remove_data(planned: Sequence[StudyPart]) -> None:
    """Remove the datasets of a study, once all its runs have ended."""
    if all(exit_status(part) is not None for part in planned):
        for part in planned:
            if part.run.command == "generate":
                shutil.rmtree(part.folder, ignore_errors=True)


def _mark(part: StudyPart) -> Path:
    return part.folder.with_name(f"{part.folder.name}{DONE}")


def _message(part: StudyPart) -> Path:
    return part.folder.with_name(f"{part.folder.name}{SAID}")


def carry_out(part: StudyPart, work: PartRunner) -> int:
    """The exit status of a run, which is started where it has not ended here yet. OutOfTime, EnvironmentFailure."""
    if (status := exit_status(part)) is not None:
        work.say(f"{part.title}: finished before")
        return status
    work.require_time(part.title, part.seconds)
    work.say(f"{part.title}: dlio-bench {' '.join(part.command[1:])}")
    goes_on = part.run.command == "generate" or (part.folder / UNFINISHED).is_file()
    if part.folder.exists() and not goes_on:
        shutil.rmtree(part.folder)  # of a command that was killed
    part.folder.parent.mkdir(parents=True, exist_ok=True)
    _message(part).unlink(missing_ok=True)
    status = work.run(f"{part.study} {part.run.name}", part.title, part.command[1:], message=_message(part))
    if status in GOOD[part.run.command]:
        done: dict[str, Any] = {"words": part.words, "status": status}
        write_whole(_mark(part), (json.dumps(done) + "\n").encode())
    return status


def failure(part: StudyPart, status: int) -> str:
    """Why a run left no results, with its own message; '' where it left some."""
    if status in GOOD[part.run.command]:
        return ""
    told = _message(part).read_text(errors="replace")[:MOST_MESSAGE] if _message(part).is_file() else ""
    return f"`dlio-bench {' '.join(part.words)}` {ending(status)}{f': {told}' if told else '.'}"


def rows_in(folder: Path) -> tuple[list[EvidenceRow], list[Skipped]]:
    """The rows of all documents in a folder and below it, and the files that hold none."""
    rows: list[EvidenceRow] = []
    skipped: list[Skipped] = []
    for name, of_file in (
        (simulation.NAME, _simulation_rows),
        (control_tree.NAME, _tree),
        (result.RESULT_NAME, _result_rows),
    ):
        for path in sorted({path.resolve() for path in folder.rglob(name)}):
            try:
                rows += of_file(path)
            except _AnotherKindError as error:
                skipped.append(Skipped(file=str(path), why=str(error), damaged=False))
            except BenchError as error:
                skipped.append(Skipped(file=str(path), why=str(error), damaged=True))
    return rows, skipped


def _tree(path: Path) -> Iterator[EvidenceRow]:
    yield from of_control_tree(control_tree.load(path), str(path))


def _simulation_rows(path: Path) -> Iterator[EvidenceRow]:
    return of_simulation(simulation.load(path), str(path))


class _AnotherKindError(Exception):
    """Why a file that is whole is not compared."""


def _result_rows(path: Path) -> Iterator[EvidenceRow]:
    schema = _schema(path)
    if schema is not None and schema not in COMPARED:
        raise _AnotherKindError(f"It is of schema {schema!r}, and no result of a run, a workflow or a simulation.")
    if schema == couple.SCHEMA:
        yield from of_couple(couple.load(path), str(path))
    else:
        loaded, steps = result.load(path, mark_altered=True)
        yield of_result(loaded, steps, str(path), result_spans.load_beside(path.parent, loaded, steps).spans)


def _schema(path: Path) -> object:
    """What a file says that it is; None where it holds no JSON, so that whoever loads it says why."""
    try:
        document = documents.load_json(documents.read_document(path))
    except (OSError, ValueError, UsageError):
        return None
    return document.get("schema", "none") if isinstance(document, dict) else "none"


def own_rows(planned: Sequence[StudyPart]) -> tuple[dict[str, list[EvidenceRow]], list[Skipped]]:
    """The rows of each run of a study that was carried out here, by its name, and its files that are damaged."""
    rows: dict[str, list[EvidenceRow]] = {}
    damaged: list[Skipped] = []
    for part in planned:
        if part.run.command != "generate" and exit_status(part) is not None:
            rows[part.run.name], skipped = rows_in(part.folder)
            damaged += skipped
    return rows, damaged


def site_arms(
    name: str, study: Study, results: Path, rows: Sequence[EvidenceRow]
) -> Mapping[str, Sequence[EvidenceRow]]:
    """The rows of each arm among a site's results: those in STUDY/ARM if that folder is there, or in STUDY/RUN, as
    `dlio-bench reproduce` writes them; else all that fit.
    """
    arms = {}
    for arm, wanted in study.arm.items():
        run = next((run for run in study.run if run.name == run_of(study, wanted)), None)
        asked = {key: value for key, value in wanted.items() if key != "run"}
        if run is not None and run.command == "run" and run.subject:
            asked["workload"] = run.subject
        places = [results / name / part for part in (arm, *([] if run is None else [run.name]))]
        folder = next((place for place in places if place.is_dir()), None)
        inside = rows if folder is None else rows_in(folder)[0]
        arms[arm] = matching(inside, asked)
    return arms


def require_rows(results: Path) -> tuple[list[EvidenceRow], list[Skipped]]:
    """The rows of a site's results, and the files that hold none. UsageError; DataError where all are damaged."""
    if not results.is_dir():
        raise UsageError(f"--against {results} is no folder. Name the folder of results that `dlio-bench run` wrote.")
    rows, skipped = rows_in(results)
    if not rows:
        kind = DataError if any(entry.damaged for entry in skipped) else UsageError
        told = "".join(f" {entry.file}: {entry.why}" for entry in skipped[:3])
        raise kind(
            f"--against {results} holds no results. Name the folder of results that `dlio-bench run` wrote.{told}"
        )
    return rows, skipped
