"""A file that another host has written may show late."""

import threading
from pathlib import Path

import pytest

from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.cluster import job
from dlio_bench.harness.cluster.job import read_when_visible


def test_a_file_that_shows_late_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    (tmp_path / "part").write_bytes(b"{}")
    later = threading.Timer(0.3, (tmp_path / "part").rename, [path])
    later.start()
    assert read_when_visible(path) == b"{}"
    later.join()


def test_one_that_never_shows_is_named_with_its_host_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "VISIBLE_SECONDS", 0.1)
    with pytest.raises(EnvironmentFailure, match=r"job\.json did not show on .* within 0\.1 s.*--out"):
        read_when_visible(tmp_path / "job.json")
