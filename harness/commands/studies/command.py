"""`dlio-bench reproduce`: studies are read, their commands carried out, their claims compared and told."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dlio_bench import __version__
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.studies import files, work
from dlio_bench.harness.commands.studies.options import Options
from dlio_bench.harness.ground import unfinished
from dlio_bench.harness.ground.folders import make_folder
from dlio_bench.harness.ground.parts import PartRunner, print_line, work_in
from dlio_bench.harness.ground.subcommands import going_on
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.judging import judge
from dlio_bench.reports.study import html as reproduce_html
from dlio_bench.reports.study import text as reproduce_text
from dlio_bench.reports.study import verdicts as comparing
from dlio_bench.reports.study.types import Answer, Document, Size, SizeName, Skipped, Study

NAME, PAGE, BEGUN = "reproduce.json", "report.html", "begun.json"


class PlannedStudy(Struct, frozen=True):
    """A study with its commands. lacking: why it is not testable here, so that it has none."""

    study: Study
    size: Size | None
    parts: Sequence[work.StudyPart]
    lacking: str


def tell_list(names: Sequence[str], *, json: bool) -> int:
    """Print the studies: what each shows, its source, its time and space."""
    studies = files.find_studies(names)
    if json:
        _print_json({name: to_json(study) for name, study in studies.items()})
    else:
        print(reproduce_text.listing(studies), end="")
    return 0


def reproduce(options: Options) -> int:
    """The whole command. Returns the exit status. BenchError."""
    studies = files.find_studies(options.studies)
    if options.against is not None:
        if options.dry_run:
            raise UsageError("--against starts nothing, so that --dry-run says nothing of it. Leave one of them out.")
        rows, skipped = work.require_rows(options.against)
        _require_folder(make_folder(options.out), None)
        answers = [
            comparing.evaluate(name, study, work.site_arms(name, study, options.against, rows))
            for name, study in studies.items()
        ]
        return _hand_over(options, answers, None, skipped)
    planned = {name: _plan(name, study, options) for name, study in studies.items()}
    if options.dry_run:
        _tell_plan(options, planned)
        return 0
    total = sum(len(entry.parts) for entry in planned.values())
    with work_in(options.out, total, going_on(options.out)) as folder:
        _require_folder(options.out, options.size)
        return _hand_over(options, _answers(planned, folder), options.size)


def _plan(name: str, study: Study, options: Options) -> PlannedStudy:
    size = study.size.get(options.size)
    why = study.untestable
    if not why and size is None:
        others = ", ".join(f"--size {known}" for known in study.size)
        why = f"({options.size}) It is too large for --size {options.size}: its file was checked alone. Use {others}."
    why = why or work.missing_need(study.needs)
    parts = [] if why or size is None else work.parts(name, study, size, options.out)
    return PlannedStudy(study, size, parts, why)


def _answers(planned: Mapping[str, PlannedStudy], folder: PartRunner) -> list[Answer]:
    answers = []
    for name, entry in planned.items():
        try:
            for part in entry.parts:
                work.exit_status(part)
        except UsageError as error:  # its file was changed since
            folder.number += len(entry.parts)
            failure, status = str(error), judge.NOTHING_MEASURED
            answers.append(comparing.evaluate(name, entry.study, {}, failure=failure, status=status))
        else:
            answers.append(_study_answer(name, entry, folder))
        print_line(f"{name}: {answers[-1].verdict}")
    return answers


def _study_answer(name: str, entry: PlannedStudy, folder: PartRunner) -> Answer:
    """What came of the commands of one study."""
    failures, statuses, done = [], [judge.PASS], []
    for part in folder.iterate(entry.parts):
        status = work.carry_out(part, folder)
        if failure := work.failure(part, status):
            failures.append(failure)
            statuses.append(status if status == judge.CONTENT_FAILED else judge.NOTHING_MEASURED)
        else:
            done.append(part)
            statuses += [judge.INVALID] * (status == judge.INVALID)
    rows, damaged = work.own_rows(done)
    failures += [f"{skipped.file}: {skipped.why}" for skipped in damaged]
    statuses += [judge.CONTENT_FAILED] * bool(damaged)
    work.remove_data(entry.parts)
    arms = comparing.arms_of(entry.study, rows)
    return comparing.evaluate(
        name, entry.study, arms, entry.lacking, failure=" ".join(failures), status=judge.gravest(statuses)
    )


def _hand_over(
    options: Options, answers: Sequence[Answer], size: SizeName | None, skipped: Sequence[Skipped] = ()
) -> int:
    """Write the document and the page, and print the answer."""
    document = Document(
        version=__version__,
        size=size,
        against=None if options.against is None else str(options.against),
        command=["dlio-bench", *sys.argv[1:]],
        host=_host(options),
        kinds=comparing.by_kind(answers),
        studies=list(answers),
        skipped=list(skipped),
    )
    write_whole(options.out / NAME, (json.dumps(to_json(document), indent=1, allow_nan=False) + "\n").encode())
    reproduce_html.write(document, options.out / PAGE)
    if options.json:
        _print_json(to_json(document))
    else:
        print(reproduce_text.render(document))
        print(f"  results  {options.out}\n  page     {options.out / PAGE}")
    return comparing.status_of(document)


def _host(options: Options) -> dict[str, object]:
    """The machine of the runs; of a site's results nobody knows it here."""
    from dlio_bench.harness.cluster.environment import describe_host

    if options.against is not None:
        return {}
    host = describe_host(options.out)
    return {"cpu": host.cpu, "cores": host.cores, "memory_bytes": host.memory_bytes, "kernel": host.kernel}


def _tell_plan(options: Options, planned: Mapping[str, PlannedStudy]) -> None:
    document = {
        "size": options.size,
        "studies": {
            name: {
                "lacking": entry.lacking or None,
                "time": None if entry.size is None else entry.size.time,
                "space": None if entry.size is None else entry.size.space,
                "commands": [part.command for part in entry.parts],
            }
            for name, entry in planned.items()
        },
    }
    if options.json:
        _print_json(document)
    else:
        print(reproduce_text.plan(document), end="")


def _require_folder(out: Path, size: SizeName | None) -> None:
    """Claim the folder of the results. UsageError for one that is somebody else's, of another size, or that another
    version of the code measured.

    size: None: of results that were judged, and not made, which any version may do again.
    """
    now = unfinished.new_record({"size": size})
    now = replace(now, code_digest="") if size is None else now
    before = unfinished.load(out, BEGUN)
    if before is None:
        if any(path.name != BEGUN for path in out.iterdir()):
            raise UsageError(f"--out {out} holds other files. Results are never mixed: choose a new folder.")
    elif before.request == now.request and before.code_digest != now.code_digest:
        raise UsageError(
            f"--out {out} was measured with another version of dlio-bench (code {before.code_digest[:12]}; now "
            f"{now.code_digest[:12]}). Results are never mixed: repeat with another --out, or judge what is there with "
            f"--against {out} and another --out."
        )
    else:
        unfinished.require_same(before, now, out)
    unfinished.save(before or now, out, BEGUN)


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=1, allow_nan=False))
