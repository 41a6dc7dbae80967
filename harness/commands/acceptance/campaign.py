"""The folder of a campaign: what it remembers, so that it goes on as it began, and its parts, each done once."""

import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from dlio_bench import documents
from dlio_bench.errors import ERRORS, DataError, EnvironmentFailure, UsageError, one_of
from dlio_bench.harness.cluster.environment import timestamp
from dlio_bench.harness.commands.acceptance.datasets import Site
from dlio_bench.harness.commands.acceptance.parts import RESULTS, STORAGE, CampaignPart
from dlio_bench.harness.commands.acceptance.plan import CampaignPlan
from dlio_bench.harness.commands.run.told.foresight import revised_seconds
from dlio_bench.harness.ground.folders import FINISHED, STATUS
from dlio_bench.harness.ground.parts import PartRunner, ending, note
from dlio_bench.harness.ground.unfinished import differences
from dlio_bench.reports import storage
from dlio_bench.reports.acceptance import CAMPAIGN, Applied, Campaign, Place
from dlio_bench.reports.checkpoint import document as checkpoint
from dlio_bench.reports.checkpoint.types import Document
from dlio_bench.reports.document import result
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.typed import convert, to_json
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_seconds

WORK = "work"  # folder of the part that is not done yet
MEASURED = (0, 1, 3, 5)  # exit statuses of a run that has results, whatever they are worth
UNMEASURED = ("system", "limits")  # tables of the plan that change nothing in what is measured


class CampaignRecord(Campaign, frozen=True, kw_only=True):
    """What the folder remembers. plan: every key that changes what is measured, `run[0].batch: 4`; digest: of these."""

    schema: Literal["dlio-bench/campaign/1"] = "dlio-bench/campaign/1"
    digest: str
    plan: dict[str, Any]
    site: Site


def load(folder: Path) -> CampaignRecord | None:
    """The record of a folder; None where nothing was measured yet. UsageError for a folder of others."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    try:
        record = convert(documents.load_json(documents.read_document(folder / CAMPAIGN)), CampaignRecord)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--out {folder} exists and is not the folder of a campaign ({CAMPAIGN}: {error}). Choose a new folder."
        ) from None
    return record if any((folder / product).exists() for product in (RESULTS, STORAGE)) else None


def save(
    plan: CampaignPlan, site: Site, places: list[Place], limits: str, before: CampaignRecord | None, folder: Path
) -> CampaignRecord:
    """Remember what the plan measures, and the sha256 of its limits. EnvironmentFailure.

    before: of the folder, where something is measured already: a change of the limits is noted.
    """
    applied = [] if before is None else before.limits
    if not applied or applied[-1].sha256 != limits:
        if applied:
            note(folder, "limits", "changed", before=applied[-1].sha256, after=limits)
        applied = [*applied, Applied(timestamp(), limits)]
    record = CampaignRecord(
        system=plan.system, places=places, limits=applied, digest=digest(plan), plan=measured_keys(plan), site=site
    )
    write_whole(folder / CAMPAIGN, (json.dumps(to_json(record), indent=1) + "\n").encode())
    return record


def require_same(record: CampaignRecord, plan: CampaignPlan, folder: Path) -> None:
    """UsageError, with what was changed, if the plan measures something else than the campaign began with."""
    if different := differences(record.plan, measured_keys(plan)):
        raise UsageError(
            f"The plan was changed since the campaign in {folder} began: {different}. Parts of two plans are never "
            "mixed: change it back, or choose a new folder with --out. (Limits and the description of the system may "
            "change: the results are judged again.)"
        )


def measured_keys(plan: CampaignPlan) -> dict[str, Any]:
    """What the plan measures: each key with its value, `run[0].batch: 4`."""
    asked = {key: value for key, value in to_json(plan).items() if key not in UNMEASURED}
    # a plan without checkpoints is that of a version which knew none
    document = {key: value for key, value in asked.items() if key != "checkpoint" or value}
    return dict(_flat("", document))


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else key, inner)
    elif isinstance(value, list | tuple) and any(isinstance(inner, dict) for inner in value):
        for number, inner in enumerate(value):
            yield from _flat(f"{name}[{number}]", inner)
    else:
        yield name, list(value) if isinstance(value, tuple) else value


def digest(plan: CampaignPlan) -> str:
    """sha256 of what the plan measures, as canonical JSON."""
    canonical = json.dumps(measured_keys(plan), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def why_unfinished(part: CampaignPart, plan: CampaignPlan, folder: Path) -> str | None:
    """Why a part is not finished; None if it is: its files are whole, and made by this very command.

    UsageError for whole results of another command: nothing that was measured is removed unasked.
    """
    try:
        if part.kind == "data":
            assert part.source is not None
            return None if part.source.is_ready() else "not made yet"
        if not (folder / part.product).exists():
            return "not measured yet"
        if part.kind == "storage":
            assert part.source is not None
            document = storage.load(folder / part.product)
            same = document.folder == str(part.source.folder) and plan.storage is not None
            return None if same else "measured on other files"
        results: list[Result | Document]
        if part.kind == "checkpoint":
            results = [checkpoint.load(folder / part.product)]
        else:
            results = [result.load(path)[0] for path in sorted((folder / part.product).rglob(result.RESULT_NAME))]
    except (DataError, UsageError) as error:  # cut short, altered, or of another kind
        return str(error)
    expected = [*part.words, "--out", str(Path(WORK) / part.name)]
    for known in results:
        if known.command[1:] != expected:
            given = set(known.command[1:]) - set(expected)
            raise UsageError(
                f"{folder / part.product} was measured by another command than that of this plan: it has "
                f"{' '.join(sorted(given)) or 'other words'}. Do not move the plan or its data; or choose a new folder "
                "with --out."
            )
    readers = set() if part.run is None else {*part.run.readers}
    missing = readers - {str(known.policy.alias) for known in results if isinstance(known, Result)}
    return f"no result of {one_of(sorted(missing))}" if missing else None


def carry_out(plan: CampaignPlan, parts: Sequence[CampaignPart], work: PartRunner, foreseen: Sequence[float]) -> None:
    """Do every part that is not finished. BenchError, with what goes on, where one fails.

    foreseen: about how many seconds each part takes. OutOfTime before one that cannot end in time.
    """
    shutil.rmtree(work.folder / WORK, ignore_errors=True)  # of a campaign that was killed
    took = list[tuple[str, float, float]]()
    for part, planned in zip(work.iterate(parts), foreseen, strict=True):
        before = work.number - 1
        work.kept = (
            f"The {plural(before, 'part')} before it stay{'s' * (before == 1)} finished."
            if before
            else "It is the first part."
        )
        reason = why_unfinished(part, plan, work.folder)
        if reason is None:
            work.say(f"{part.title}: finished before")
            continue
        work.say(part.title if reason.endswith("yet") else f"{part.title} ({reason})")
        if part.kind != "data":  # data are finished file by file, so that a part of them always gets on
            of_kind = [(least, each) for kind, least, each in took if kind == part.kind]
            work.require_time(part.title, revised_seconds(planned, of_kind))
        began = time.monotonic()
        _run_part(part, work)
        seconds = time.monotonic() - began
        if planned:
            took.append((part.kind, planned, seconds))
        work.say(f"done in {format_seconds(seconds)}")
    shutil.rmtree(work.folder / WORK, ignore_errors=True)


def _run_part(part: CampaignPart, work: PartRunner) -> None:
    """Run a part's command, and put its product where it stays."""
    made, is_data = work.folder / WORK / part.name, part.kind == "data"
    made.parent.mkdir(exist_ok=True)
    words = part.words if is_data else (*part.words, "--out", str(Path(WORK) / part.name))
    status = work.run(f"{part.kind} {part.name}", part.title, words, folder=work.folder)
    good = status in MEASURED and made.exists() if part.kind in ("run", "checkpoint") else status == 0
    if not good:
        raise ERRORS.get(status, EnvironmentFailure)(
            f"{part.title}: `dlio-bench {part.words[0]}` {ending(status)}; its message stands above. {work.kept} Once "
            f"the cause is removed, go on with: {work.resume}"
        )
    if is_data:
        return
    if part.kind == "run":
        # the campaign has a page of all results, and a journal; it has come to its end
        for name in ("report.html", FINISHED, STATUS):
            (made / name).unlink(missing_ok=True)
    target = work.folder / part.product
    target.parent.mkdir(exist_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    made.replace(target)
