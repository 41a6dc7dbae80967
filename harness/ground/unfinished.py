"""What the folder of a stopped command remembers, so that the same command goes on there instead of beginning anew.

The file is there from before the first measurement until the last output is written: a folder with it is unfinished,
however the command ended. Then it is renamed, so that the same command tells the results again.
"""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, to_builtins

from dlio_bench import documents
from dlio_bench.errors import EnvironmentFailure, UsageError
from dlio_bench.harness.cluster.environment import code_digest
from dlio_bench.harness.ground.folders import FINISHED, UNFINISHED
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.typed import convert, to_json

NAMED = 5  # differences that a message names at most


class Record(Struct, frozen=True, kw_only=True):
    """request: what was asked for, each option by its name; state: what the command has decided or finished since."""

    schema: Literal["dlio-bench/unfinished/1"] = "dlio-bench/unfinished/1"
    command: list[str]
    code_digest: str
    request: dict[str, Any]
    state: dict[str, Any] = {}


def new_record(request: Mapping[str, Any]) -> Record:
    """The record of this command. request: by name; what JSON has no type for is kept as its text."""
    facts = json.loads(json.dumps(to_builtins(dict(request), enc_hook=str)))
    return Record(command=["dlio-bench", *sys.argv[1:]], code_digest=code_digest(), request=facts)


def load_stopped(folder: Path | None, now: Record) -> Record | None:
    """The record of this very command that was stopped in a folder; None: of none. UsageError, EnvironmentFailure for
    another one.
    """
    if (before := load(folder)) is not None and folder is not None:
        require_same(before, now, folder)
    return before


def load(folder: Path | None, name: str = UNFINISHED) -> Record | None:
    """The record in a folder; None where there is none. UsageError for a file that is none."""
    if folder is None or not (folder / name).is_file():
        return None
    try:
        return convert(documents.load_json(documents.read_document(folder / name)), Record)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"'{folder / name}' does not say what was begun there ({error}). Choose a new folder with --out."
        ) from None


def require_same(record: Record, now: Record, folder: Path) -> None:
    """UsageError if a folder was begun with another request, or by other code."""
    if different := differences(record.request, now.request):
        raise UsageError(
            f"--out {folder} holds what another command began: {different}. Results are never mixed: choose a new "
            f"folder, or go on with `{shlex.join(record.command)}`."
        )
    if record.code_digest != now.code_digest:
        raise EnvironmentFailure(
            f"--out {folder} was begun by another version of the code ({record.code_digest[:12]}; now "
            f"{now.code_digest[:12]}), and results of two are never mixed. Go on with that one, or choose a new folder."
        )


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What differs between two requests, 'trials was 5 and is 6; seed was not given and is 3'; '' for equal ones."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    shown = (
        f"{name} was {_format_value(before.get(name))} and is {_format_value(after.get(name))}"
        for name in names[:NAMED]
    )
    return "; ".join(shown) + more


def save(record: Record, folder: Path, name: str = UNFINISHED) -> None:
    """Remember. EnvironmentFailure."""
    write_whole(folder / name, (json.dumps(to_json(record), indent=1) + "\n").encode())


def finish(folder: Path) -> None:
    """All is finished. OSError."""
    (folder / UNFINISHED).replace(folder / FINISHED)


def load_finished(folder: Path | None, now: Record) -> dict[str, Any] | None:
    """The last state of a command that is finished; None unless the same request and the same code finished there."""
    if folder is None or (folder / UNFINISHED).exists():
        return None
    try:
        record = load(folder, FINISHED)
    except UsageError:  # damaged
        return None
    if record is None or (record.request, record.code_digest) != (now.request, now.code_digest):
        return None
    return record.state


def _format_value(value: Any) -> str:
    return "not given" if value is None else json.dumps(value)[:80]
