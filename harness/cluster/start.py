"""How a job's ranks will be started: the launcher that was asked for or fits, and its whole command."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from dlio_bench.harness.cluster import launchers
from dlio_bench.harness.cluster.process import python_command


@dataclass(frozen=True)
class Launch:
    """How a job's ranks are started; `argv` is empty for the one rank that runs in this process."""

    launcher: str
    argv: tuple[str, ...]
    env: dict[str, str]


def plan(
    module: str, work: Path, nodes: int, ranks_per_node: int, asked: str | None, *, virtual: bool = False
) -> Launch:
    """How ranks that run `module` of the harness on the job in `work` are started, by the launcher `asked` for.

    None: the launcher that fits. virtual: one machine plays the nodes. UsageError or EnvironmentFailure where it cannot
    be.
    """
    command = python_command(f"dlio_bench.harness.{module}", str(work))
    ranks = launchers.Job(nodes, ranks_per_node, command, virtual)
    site = launchers.detect_site(os.environ)
    name = launchers.choose(os.environ, ranks, site, asked)
    env = launchers.launch_env(ranks, site, os.environ)
    argv = launchers.LAUNCHERS[name](replace(ranks, env=env), site)
    return Launch(name, () if name == "local" else argv, env)
