"""The files that `dlio-bench trace` writes: none of those that it reads, and each once."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dlio_bench.errors import UsageError
from dlio_bench.harness.ground.folders import require_file

EXAMPLES = {"csv": "records.csv", "chrome": "trace.json", "timelogger": "records.log", "html": "trace.html"}


def require(options: argparse.Namespace) -> None:
    """UsageError for a file that cannot be written, that is read, or that two options name."""
    options_of: dict[Path, str] = {}
    for flag, example in EXAMPLES.items():
        file: Path | None = getattr(options, flag)
        if file is None:
            continue
        require_file(file, example, f"--{flag}")
        if (other := options_of.setdefault(file.resolve(), flag)) != flag:
            raise UsageError(f"--{other} and --{flag} name the same file, {file}. Give each a file of its own.")
        if _is_read(file.resolve(), options.paths):
            raise UsageError(f"--{flag} {file} would replace a file that is read. Choose another name.")


def _is_read(file: Path, paths: Sequence[Path]) -> bool:
    """Whether a file is one of the paths, a log below them, or of a result among them, there or not."""
    from dlio_bench.reports.result import RESULT_NAME, STEPS_NAME

    of_result = file.name in (RESULT_NAME, STEPS_NAME) or (file.name.startswith("spans") and file.suffix == ".npz")
    for path in map(Path.resolve, paths):
        is_folder = path.is_dir()
        below = (path if is_folder else path.parent) in file.parents
        has_results = path.suffix == ".json" or (is_folder and next(path.rglob(RESULT_NAME), None) is not None)
        if file == path or (below and (of_result if has_results else is_folder and file.exists())):
            return True
    return False
