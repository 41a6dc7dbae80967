"""What a campaign's folder remembers, so that it goes on as it began: what its plan measures, and where. Its lock."""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dlio_bench import documents
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster.environment import timestamp
from dlio_bench.harness.commands.acceptance.parts import RESULTS, STORAGE
from dlio_bench.harness.commands.acceptance.plan import Plan
from dlio_bench.reports.acceptance import CAMPAIGN, Applied, Campaign, Place
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.typed import convert, to_json

JOURNAL = "journal.jsonl"
UNMEASURED = ("system", "limits")  # tables of the plan that change nothing in what is measured
TOLD = 5  # changes of a plan that a message names at most
WAIT_SECONDS = 40.0  # for another process that ends its ranks

Say = Callable[[str], None]  # tells a user what happens


class Site(Struct, frozen=True):
    """Where a campaign began. memory_per_node: bytes; real_nodes: of a scheduler's allocation; cache: of datasets."""

    memory_per_node: Annotated[int, Meta(ge=1)]
    real_nodes: bool
    cache: str


class Record(Campaign, frozen=True, kw_only=True):
    """What the folder remembers. plan: every key that changes what is measured, `run[0].batch: 4`; digest: of these."""

    schema: Literal["dlio-bench/campaign/1"] = "dlio-bench/campaign/1"
    digest: str
    plan: dict[str, Any]
    site: Site


def load(folder: Path) -> Record | None:
    """The record of a folder; None where nothing was measured yet. UsageError for a folder of others."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    try:
        record = convert(documents.load_json(documents.read(folder / CAMPAIGN)), Record)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--out {folder} exists and is not the folder of a campaign ({CAMPAIGN}: {error}). Choose a new folder."
        ) from None
    return record if any((folder / product).exists() for product in (RESULTS, STORAGE)) else None


def save(plan: Plan, site: Site, places: list[Place], limits: str, before: Record | None, folder: Path) -> Record:
    """Remember what the plan measures, and the sha256 of its limits. EnvironmentFailure.

    before: of the folder, where something is measured already: a change of the limits is noted.
    """
    applied = [] if before is None else before.limits
    if not applied or applied[-1].sha256 != limits:
        if applied:
            note(folder, "limits", "changed", before=applied[-1].sha256, after=limits)
        applied = [*applied, Applied(timestamp(), limits)]
    record = Record(
        system=plan.system, places=places, limits=applied, digest=digest(plan), plan=measured(plan), site=site
    )
    write_whole(folder / CAMPAIGN, (json.dumps(to_json(record), indent=1) + "\n").encode())
    return record


def note(folder: Path, part: str, event: str, **facts: Any) -> None:
    """Add a line to the journal. OSError."""
    entry = {"at": timestamp(), "part": part, "is": event, **facts}
    with (folder / JOURNAL).open("a") as journal:
        journal.write(json.dumps(entry) + "\n")


def require_same(record: Record, plan: Plan, folder: Path) -> None:
    """UsageError, with what was changed, if the plan measures something else than the campaign began with."""
    if differences := changes(record.plan, measured(plan)):
        more = f" and {len(differences) - TOLD} more" if len(differences) > TOLD else ""
        raise UsageError(
            f"The plan was changed since the campaign in {folder} began: {'; '.join(differences[:TOLD])}{more}. Parts "
            "of two plans are never mixed: change it back, or choose a new folder with --out. (Limits and the "
            "description of the system may change: the results are judged again.)"
        )


def measured(plan: Plan) -> dict[str, Any]:
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


def digest(plan: Plan) -> str:
    """sha256 of what the plan measures, as canonical JSON."""
    canonical = json.dumps(measured(plan), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between two measured plans, one text for each key."""
    names = [*before, *(name for name in after if name not in before)]
    return [
        f"{name} was {_shown(before, name)} and is {_shown(after, name)}"
        for name in names
        if before.get(name) != after.get(name) or (name in before) != (name in after)
    ]


def _shown(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name])[:80] if name in values and values[name] is not None else "not given"


@contextmanager
def held(folder: Path, say: Say) -> Iterator[int]:
    """The folder, held against other processes; yields the handle. EnvironmentFailure if another one works there."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline, told = time.monotonic() + WAIT_SECONDS, False
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EnvironmentFailure(
                        f"Another process works on the campaign in {folder}. Wait until it has ended."
                    ) from None
                if not told:
                    say(f"waiting for another process that works in {folder}")
                told = True
                time.sleep(0.1)
            except OSError:  # a file system without locks
                break
        yield handle
    finally:
        os.close(handle)
