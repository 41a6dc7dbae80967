"""How a job's ranks are started: the requested or the fitting launcher, and its command."""

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
    module: str, work: Path, nodes: int, ranks_per_node: int, requested: str | None, *, virtual: bool = False
) -> Launch:
    """How ranks that run `module` of the harness on the job in `work` are started, by the `requested` launcher.

    None: the launcher that fits. virtual: one machine plays the nodes. UsageError, EnvironmentFailure.
    """
    command = python_command(f"dlio_bench.harness.{module}", str(work))
    ranks = launchers.Job(nodes, ranks_per_node, command, virtual)
    site = launchers.detect_site(os.environ)
    name = launchers.choose(os.environ, ranks, site, requested)
    if name == "srun":
        site = replace(site, plugins=launchers.slurm_plugins(site.programs[name], os.environ))
    env = launchers.launch_env(ranks, site, os.environ)
    argv = launchers.LAUNCHERS[name](replace(ranks, env=env), site)
    return Launch(name, () if name == "local" else argv, env)
