"""How every command starts its ranks, and gets back what they measured."""

import json
import os
from pathlib import Path
from typing import Any

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster.job import MEASURED_FILE, read_when_visible
from dlio_bench.harness.cluster.process import OnEvent, launch
from dlio_bench.harness.cluster.start import Launch, require_reachable


def launched(
    start: Launch,
    work: Path,
    on_event: OnEvent,
    *,
    share: str,
    lost: str = "nothing was measured",
    folder_stays: bool = False,
) -> dict[str, Any]:
    """Run the ranks of the job that is saved in `work`, and return the document that rank 0 left there.

    Hosts that a host file names are asked first whether they can be reached.
    `lost`, `folder_stays` and errors: see `cluster.process.launch`. share: see `brought_back`.
    """
    require_reachable(start.hosts)
    (work / MEASURED_FILE).unlink(missing_ok=True)  # from an earlier job in this folder
    env = {**os.environ, **start.env}
    launch(start.argv, env, work, on_event, lost, folder_stays=folder_stays, one_host=start.one_host)
    document: dict[str, Any] = json.loads(brought_back(work / MEASURED_FILE, share))
    return document


def brought_back(path: Path, share: str) -> bytes:
    """A file that rank 0 wrote. share: what the user does to give the ranks a folder that all nodes see.

    EnvironmentFailure if the file is not there.
    """
    try:
        return read_when_visible(path)
    except EnvironmentFailure:
        raise EnvironmentFailure(
            f"The ranks ended well, but {path.name} did not come back to {path.parent}. The folder must be on a file "
            f"system that all nodes share: {share}."
        ) from None
