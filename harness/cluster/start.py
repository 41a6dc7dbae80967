"""How a job's ranks will be started: the launcher that was asked for or fits, and its whole command."""

import os
from dataclasses import dataclass, replace

from dlio_bench.harness.cluster import launchers


@dataclass(frozen=True)
class Launch:
    """How a job's ranks are started; `argv` is empty for the one rank that runs in this process."""

    launcher: str
    argv: tuple[str, ...]
    env: dict[str, str]


def plan(ranks: launchers.Job, asked: str | None) -> Launch:
    """Choose the launcher and build its command. UsageError or EnvironmentFailure where it cannot be."""
    site = launchers.detect_site(os.environ)
    name = launchers.choose(os.environ, ranks, site, asked)
    env = launchers.launch_env(ranks, site, os.environ)
    argv = launchers.LAUNCHERS[name](replace(ranks, env=env), site)
    return Launch(name, () if name == "local" else argv, env)
