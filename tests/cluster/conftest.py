"""Clusters that several tests share. They need root and Debian's Slurm and sshd, which .ci/run installs."""

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster, cluster


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes under Slurm, which believes each to have two cores."""
    with cluster(tmp_path_factory.mktemp("slurm") / "c", 4, slurm=True) as made:
        yield made


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two hosts that reach each other by ssh alone."""
    with cluster(tmp_path_factory.mktemp("hosts") / "c", 2) as made:
        yield made
