"""A result on disk: `result.json` and the `steps.npz` beside it, complete, checked and digested."""

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dlio_bench import documents
from dlio_bench.errors import DataError, EnvironmentFailure, UsageError, remedy
from dlio_bench.reports.document import earlier
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.marks import ALTERED
from dlio_bench.reports.document.typed import convert, load_json, require_schema, to_json
from dlio_bench.reports.document.types import SCHEMA, Draft, Result, StepsFile
from dlio_bench.reports.judging import judge
from dlio_bench.reports.numbers import bound, models, statistics
from dlio_bench.reports.numbers.meetings import Steps
from dlio_bench.reports.numbers.metrics import PHASES, TRAINING

RESULT_NAME = "result.json"
STEPS_NAME = "steps.npz"
UNREADABLE = (ValueError, KeyError, TypeError, EOFError, RuntimeError, MemoryError, zlib.error, zipfile.BadZipFile)
"""What NumPy raises for content that is no file of arrays."""
FIX = "Name the folder of a result that dlio-bench run wrote, or the result.json in it"


def complete(draft: Draft, steps: Steps) -> Result:
    """The result of a run, from the harness's draft and its steps: class, verdict, metrics, bound and digests added.

    steps: `stall`, `check`, `compute`, `exchange`, `start` float64 [trials, ranks, steps] seconds, `loop` float64
    [trials, ranks] seconds, `epoch` int64 [steps]; trials in the order of draft.trials, warm-up ones included.
    Where there are validation passes: `validation`, `validation_stall`, `validation_busy` float64 [trials, ranks,
    passes] seconds of each, in get, and in check and compute; `validation_epoch` int64 [passes], the epoch before it.
    Where a network was trained: `convert` and `checkpoint`, seconds as `stall`, and `loss`, of the rank's own batch.
    Raises ValueError when draft or steps break this contract: a defect of the caller, not of the user.
    """
    known = convert({name: value for name, value in to_json(draft).items() if name in Draft.__struct_fields__}, Draft)
    _check_shapes(known, steps)
    metrics = statistics.metrics(known, steps)
    unsigned = Result(
        **msgspec.structs.asdict(known),
        class_=judge.classify(known.checks),
        verdict=judge.NO_LIMITS,
        metrics=metrics,
        models=models.figures(known, steps),
        bound=bound.determine(known, metrics, steps),
        steps_file=StepsFile(STEPS_NAME, hashlib.sha256(_pack(steps)).hexdigest()),
        digest=f"sha256:{'0' * 64}",
    )
    document = to_json(unsigned)
    return convert(document | {"digest": digest(document)}, Result)


def digest(result: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON (sorted keys, no spaces, ASCII) of everything but `digest` itself.

    Evidence of accident, not security: whoever edits a result can also remake its digest.
    """
    return "sha256:" + hashlib.sha256(_canonical({k: v for k, v in result.items() if k != "digest"})).hexdigest()


def save(result: Result, steps: Steps, folder: Path) -> Path:
    """Write steps.npz, then result.json, into `folder`; returns the path of result.json.

    Each is written aside and renamed, result.json last, so that a result that is there is whole.
    Raises EnvironmentFailure (disk full, no permission), ValueError when `steps` are not the result's own.
    """
    packed = _pack(steps)
    if hashlib.sha256(packed).hexdigest() != result.steps_file.sha256:
        raise ValueError("these steps are not the ones that the result was completed with")
    write_whole(folder / STEPS_NAME, packed)
    path = folder / RESULT_NAME
    write_whole(path, (json.dumps(to_json(result), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return path


def load(path: Path, *, mark_altered: bool = False) -> tuple[Result, Steps]:
    """(result, steps) from a result's folder or its JSON file.

    A result of an earlier schema comes in the present form, its metrics worked out again (see `earlier`).
    mark_altered: where a digest does not match, the result comes with the mark ALTERED instead of an error.

    Raises UsageError when there is no such file, EnvironmentFailure when it cannot be read, DataError when it is not
    whole: broken JSON, unknown schema, a digest that does not match, steps missing or altered.
    """
    file = path / RESULT_NAME if path.is_dir() else path
    document = load_json(file, FIX)
    require_schema(document, [SCHEMA, *earlier.SCHEMAS], str(file), FIX)
    actual = digest(document)
    altered = document.get("digest") != actual
    if altered and not mark_altered:
        raise DataError(
            f"'{file}' was altered after it was written: it says digest {document.get('digest')}, its content gives "
            f"{actual}. Use the original file, or run the benchmark again."
        )
    old = document["schema"] != SCHEMA
    try:
        result = convert(earlier.in_form(document) if old else document, Result)
    except ValueError as error:
        raise DataError(f"'{file}' does not follow {SCHEMA}: {error}. Run the benchmark again.") from error
    steps, same_steps = _load_steps(file, result, mark_altered=mark_altered)
    if (altered or not same_steps) and ALTERED not in result.marks:
        result = msgspec.structs.replace(result, marks=[*result.marks, ALTERED])
    return earlier.with_metrics(result, steps) if old else result, steps


def _load_steps(file: Path, result: Result, *, mark_altered: bool) -> tuple[Steps, bool]:
    """The steps beside a result, and whether they are those that it was written with."""
    steps_path = file.with_name(result.steps_file.name)
    try:
        packed = documents.read_document(steps_path)
    except (FileNotFoundError, UsageError, ValueError) as error:  # no file, or a name that no file can have
        raise DataError(f"'{steps_path}', which '{file}' refers to, is missing. Copy them together.") from error
    except OSError as error:
        raise EnvironmentFailure(f"'{steps_path}' could not be read: {error.strerror}. {remedy(error)}.") from error
    same = hashlib.sha256(packed).hexdigest() == result.steps_file.sha256
    if not same and not mark_altered:
        raise DataError(
            f"'{steps_path}' is not the file that '{file}' was written with: its sha256 differs. Copy the two files "
            "together, or run the benchmark again."
        )
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
            steps = {name: arrays[name] for name in arrays.files}
        _check_shapes(result, steps)
    except UNREADABLE as error:
        raise DataError(f"'{steps_path}' does not hold the steps of its result: {error}. Run it again.") from error
    return steps, same


def _pack(steps: Steps) -> bytes:
    """The bytes of steps.npz: the same steps always give the same bytes (NumPy dates every member 1980-01-01)."""
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {name: np.ascontiguousarray(steps[name]) for name in sorted(steps)}
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _check_shapes(result: Draft, steps: Steps) -> None:
    trials, ranks = len(result.trials), result.plan.ranks
    count = len(steps["epoch"])
    present = [name for name in (*PHASES, "loss") if name in steps or name not in (*TRAINING, "loss")]
    wanted = dict.fromkeys((*present, "start"), (trials, ranks, count)) | {"loop": (trials, ranks)}
    if "barrier" in steps:  # earlier versions have none
        wanted["barrier"] = (trials, ranks)
    if "validation" in steps:
        passes = len(steps["validation_epoch"])
        wanted |= dict.fromkeys(("validation", "validation_stall", "validation_busy"), (trials, ranks, passes))
    for name, shape in wanted.items():
        if steps[name].shape != shape:
            raise ValueError(f"steps['{name}'] has shape {steps[name].shape}, wanted {shape}")
        if not np.isfinite(steps[name]).all():
            raise ValueError(f"steps['{name}'] holds a value that is not finite")
    if count == 0 or not (steps["loop"] > 0).all():
        raise ValueError("a result needs at least one step, and a loop time above 0 of every rank")
    if len({len(trial.epochs) for trial in result.trials}) != 1:
        raise ValueError("the trials have different numbers of epochs")
    if len(result.environment.rank_hosts) != ranks:
        raise ValueError(f"{len(result.environment.rank_hosts)} hosts are named for {ranks} ranks")
    if any(trial.elapsed_seconds <= 0 for trial in result.trials):
        raise ValueError("a trial's elapsed_seconds must be above 0")


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")
