"""A job script for Slurm, as text. Pure functions."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

KEPT_BACK = 120  # seconds: commands plan to end a minute before the job does, and ranks need time to start
MARGIN = 1.5  # of the time that a command takes, for what the estimate does not know
LEAST_MINUTES = 10
OWN_OUT = ("run", "capacity")  # commands that choose a folder for their results if none is given
COMMANDS = ("run", "accept", "generate", "verify", "storage", "calibrate", "capacity", "checkpoint")


class Script(Struct, frozen=True):
    """What a script asks Slurm for, and what it starts. minutes: the time limit. folder: where the command runs."""

    command: tuple[str, ...]  # words after dlio-bench
    program: str  # dlio-bench, with its path
    folder: str
    nodes: int
    ranks_per_node: int | None
    minutes: int
    name: str
    options: Mapping[str, str] = field(default_factory=dict)  # of sbatch, such as account
    setup: Sequence[str] = ()  # shell lines
    container: str | None = None  # an Apptainer image, in which every rank runs
    variables: Mapping[str, str] = field(default_factory=dict)


def render(script: Script) -> str:
    """The script. A job that Slurm requeues goes on where it was; so does a new one, if --out names the same folder."""
    directives = {
        "job-name": script.name,
        "nodes": str(script.nodes),
        **({} if script.ranks_per_node is None else {"ntasks-per-node": str(script.ranks_per_node)}),
        "time": format_minutes(script.minutes),
        **script.options,
        "output": f"{script.name}-%j.log",
        "open-mode": "append",
    }
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{key}={value}" for key, value in directives.items()),
        "#SBATCH --exclusive",
        "#SBATCH --requeue",
        "# The command knows when the job ends, and saves what is finished. The same command with the same --out goes",
        "# on there, in this job if Slurm requeues it, or in another.",
        "set -eo pipefail",
        f"cd {shlex.quote(script.folder)}",
        *script.setup,
        *(f"export {name}={shlex.quote(value)}" for name, value in script.variables.items()),
        _start(script),
    ]
    return "\n".join(lines) + "\n"


def _start(script: Script) -> str:
    """`exec`, so that a signal of Slurm reaches the command and not a shell that waits for it."""
    command = shlex.join((script.program, *script.command))
    if script.command[0] in OWN_OUT and value_of(script.command, "--out") is None:
        command += ' --out "dlio-results/$SLURM_JOB_ID"'  # a requeued job has the same number
    if script.container is None:
        return f"exec {command}"
    ranks = f" --ntasks-per-node={script.ranks_per_node or 1}"
    # one container a rank: inside it there is no srun to start ranks with, and nobody to ask when the job ends
    return (
        'export DLIO_BENCH_ENDS=$(date --date "$(squeue --noheader --job $SLURM_JOB_ID --format %e)" +%s)\n'
        f"exec srun --mpi=pmix --kill-on-bad-exit=1 --cpu-bind=none --nodes={script.nodes}{ranks} \\\n"
        f"  apptainer exec {shlex.quote(script.container)} {command} --launcher none"
    )


def format_minutes(minutes: int) -> str:
    """Minutes as sbatch takes them: 90 -> 1:30:00."""
    return f"{minutes // 60}:{minutes % 60:02}:00"


def minutes_for(seconds: float) -> int:
    """The time limit to ask for, of a command that takes about so long."""
    return max(LEAST_MINUTES, math.ceil((seconds * MARGIN + KEPT_BACK) / 60))


def value_of(words: Sequence[str], flag: str) -> str | None:
    """The value that a command's words give to an option, as `--nodes 1,2,4` or `--nodes=4`; None: none."""
    value = None
    for at, word in enumerate(words):
        name, equals, after = word.partition("=")
        if name == flag:
            value = after if equals else "".join(words[at + 1 : at + 2])
    return value


def largest_count(words: Sequence[str], flag: str) -> int | None:
    """The largest count among those that the words give to an option; None: none."""
    counts = value_of(words, flag) or ""
    return max(map(int, counts.split(","))) if re.fullmatch(r"\d+(,\d+)*", counts) else None
