"""What ranks found comes back to the command that launched them, or it is said why not."""

import json
import sys
from pathlib import Path

import pytest

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster import job
from dlio_bench.harness.cluster.comm import Solo
from dlio_bench.harness.cluster.job import MEASURED_FILE, SavedJob, write_measured
from dlio_bench.harness.cluster.start import Launch
from dlio_bench.harness.ground.launching import read_result, run_ranks


def test_what_rank_0_leaves_comes_back(tmp_path: Path) -> None:
    write_measured(tmp_path, Solo(), {"seconds": 2.5})
    assert json.loads(read_result(tmp_path / MEASURED_FILE, "name another")) == {"seconds": 2.5}


def test_a_document_of_an_earlier_job_is_not_taken_for_this_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "VISIBLE_SECONDS", 0.1)
    (tmp_path / MEASURED_FILE).write_text(json.dumps({"seconds": 1}))
    nothing = Launch("mpirun", (sys.executable, "-c", ""), {})
    with pytest.raises(EnvironmentFailure, match="all nodes share: name one with --pfs"):
        run_ranks(lambda _: nothing, SavedJob(), tmp_path, print, share="name one with --pfs")
