"""An emulated slow object store holds requests up as long as its links and latencies say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlio_bench.harness.storage.pfs.bucket import SharedLink
from dlio_bench.harness.storage.pfs.process import Pace, links, open_pace
from dlio_bench.harness.storage.pfs.spec import PfsSpec

SPEC = PfsSpec(bandwidth=10e6, per_node=5e6, open_seconds=0.25, request_seconds=0.125)


class Clock:
    """Time that only sleepers move."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedLink]:
    SharedLink.create(tmp_path / "shared")
    bucket = SharedLink(tmp_path / "shared", SPEC.bandwidth)
    yield bucket
    bucket.close()


def test_a_request_takes_its_link_and_its_latencies(tmp_path: Path, shared: SharedLink) -> None:
    clock = Clock()
    SharedLink.create(tmp_path / "node")
    node = SharedLink(tmp_path / "node", SPEC.per_node)
    pace = Pace(SPEC, node, shared, clock, clock.sleep)
    with pace.request(2_000_000):  # 0.4 s on its own link, an open, two started MiB
        clock.now += 0.1  # the real request
    assert clock.now == pytest.approx(100 + 0.4 + 0.25 + 2 * 0.125)
    began = clock.now
    with pace.request(1):
        clock.now += 3.0  # slower than what is played: it takes its own time
    assert clock.now == began + 3.0
    node.close()


def test_nodes_share_the_link_to_the_store(tmp_path: Path, shared: SharedLink) -> None:
    """Three nodes at once: each could have its own 5 MB/s, the store has 10 MB/s for all."""
    ends = []
    for number in range(3):
        clock = Clock()
        SharedLink.create(tmp_path / f"node-{number}")
        node = SharedLink(tmp_path / f"node-{number}", SPEC.per_node)
        with Pace(SPEC, node, shared, clock, clock.sleep).request(1_000_000):
            pass
        ends.append(clock.now - 100 - 0.25 - 0.125)
        node.close()
    assert ends == pytest.approx([0.2, 0.2, 0.3])


def test_links_are_files_that_go_with_the_job() -> None:
    with links(2) as (nodes, store):
        files = [Path(path) for path in (*nodes, store)]
        assert all(path.is_file() for path in files)
        with open_pace(PfsSpec(bandwidth=None), nodes, 1, store) as pace, pace.request(1 << 30):
            pass
    assert not any(path.exists() for path in files)
