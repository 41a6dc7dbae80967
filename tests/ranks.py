"""Ranks that tests start themselves."""

import os
from collections.abc import Mapping

from msgspec.structs import replace

from dlio_bench.harness.cluster import launch_site, launchers
from dlio_bench.harness.cluster.start import launch_env

WORLD = int(os.environ.get("DLIO_TEST_WORLD", "1"))  # ranks that the suites of tests/contract were launched with


def mpirun(
    nodes: int, command: tuple[str, ...], env: Mapping[str, str] | None = None, *, ranks_per_node: int = 1
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The argv and the environment that start a command on virtual nodes of this machine."""
    site = launch_site.detect_site(os.environ)
    job = launchers.LaunchRequest(nodes, ranks_per_node, command, virtual=True, env=dict(env or {}))
    added = launch_env(job, site, os.environ)
    return launchers.LAUNCHERS["mpirun"](replace(job, env=added), site), os.environ | added
