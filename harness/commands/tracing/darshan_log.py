"""Counters of a Darshan log, read by pydarshan in a process of its own: its C library may die of a damaged log.

`python -P -m dlio_bench.harness.commands.tracing.darshan_log LOG` prints them as JSON.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from dlio_bench.errors import DataError, EnvironmentFailure, UsageError
from dlio_bench.harness.cluster.process import python_command
from dlio_bench.reports.traces.darshan import NAMES, Log


def load(path: Path) -> Log:
    """What is taken from a log. UsageError, EnvironmentFailure where pydarshan is missing, DataError."""
    if importlib.util.find_spec("darshan") is None:
        raise EnvironmentFailure(
            "Darshan's logs are read by the package darshan, which is not installed. Install it: pip install "
            "'dlio-bench[darshan]', or pip install darshan."
        )
    if not path.is_file():
        raise UsageError(f"{path} is {'a folder' if path.is_dir() else 'not there'}. Name a log of Darshan.")
    with path.open("rb"):  # an OSError tells more than pydarshan
        pass
    with tempfile.TemporaryDirectory() as folder:  # the library may remove a damaged log: then it removes a link
        link = Path(folder, "log.darshan")
        link.symlink_to(path.resolve())
        done = subprocess.run(
            python_command(__name__, str(link)),
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
        )
    complaints = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    if done.returncode or complaints:
        reason = complaints[0].removeprefix("Error: ") if complaints else "pydarshan ended without a word"
        raise DataError(
            f"{path} cannot be read as a log of Darshan: {reason.replace(str(link), str(path)).rstrip('.')}. If it is "
            "one, it was cut off or damaged: copy it again."
        )
    try:
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Log)
    except (IndexError, msgspec.MsgspecError) as error:
        raise DataError(f"{path}: pydarshan gave counters that make no sense: {error}.") from error


def _log(path: str) -> dict[str, Any]:
    """What `Log` has, by pydarshan."""
    import darshan

    report = darshan.DarshanReport(path, read_all=False)
    modules = [name for name in NAMES if name in report.modules]
    records = {}
    for module in modules:
        report.mod_read_all_records(module)
        tables = report.records[module].to_df()
        columns = {
            name: tables["fcounters" if name.startswith("F_") else "counters"][f"{module}_{name}"].tolist()
            for name in NAMES[module]
        }
        keys = tables["counters"]
        records[module] = {"rank": keys["rank"].tolist(), "file": keys["id"].tolist(), "counters": columns}
    partial = [name for name in modules if report.modules[name]["partial_flag"]]
    return {"ranks": report.metadata["job"]["nprocs"], "modules": records, "partial": partial}


if __name__ == "__main__":
    print(msgspec.json.encode(_log(sys.argv[1])).decode(), flush=True)
    os._exit(0)  # the library frees a damaged log twice when it is closed
