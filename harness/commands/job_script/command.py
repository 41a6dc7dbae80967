"""`dlio-bench sbatch`: checks the command, asks how long it takes, makes the script, and submits it if asked."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dlio_bench.errors import ERRORS, EnvironmentFailure, UsageError, unknown
from dlio_bench.harness.cluster import walltime
from dlio_bench.harness.cluster.allocation import TO_COME
from dlio_bench.harness.cluster.process import python_command
from dlio_bench.harness.cluster.variables import HOSTFILE
from dlio_bench.harness.commands.job_script.options import Options
from dlio_bench.harness.commands.job_script.script import COMMANDS, Script, largest_count, minutes_for, render, value_of
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.view.formatting import plural
from dlio_bench.units import format_seconds

DRY = ("run", "accept", "capacity")  # commands that have --dry-run
# Written into the script, because a batch job may start without the environment that it was submitted from.
VARIABLES = ("DLIO_BENCH_CACHE", "DLIO_BENCH_INTERFACE", "DLIO_BENCH_LAUNCHER_ARGS")


def sbatch(options: Options) -> int:
    """The whole command. UsageError for a command that cannot be, EnvironmentFailure if Slurm does not take the job."""
    script = script_of(options)
    text = render(script)
    if options.out is not None:
        write_whole(options.out, text.encode())
    job = _submit(text) if options.submit and not options.dry_run else None
    if options.json:
        print(json.dumps({"script": text, "nodes": script.nodes, "minutes": script.minutes, "job": job}))
    elif job is not None:
        log = f"{script.name}-{job}.log"
        print(f"job {job}: {plural(script.nodes, 'node')}, at most {plural(script.minutes, 'minute')}; log {log}")
    elif options.out is not None:
        print(f"wrote {options.out}: submit it with `{shlex.join(['sbatch', str(options.out)])}`")
    else:
        print(text, end="")
    return 0


def script_of(options: Options) -> Script:
    """The script for a command. UsageError, with the command's own error where it has one."""
    command = options.words[0]
    if command not in COMMANDS:
        raise unknown("command of a job", command, COMMANDS)
    if options.container is not None and command != "run":
        raise UsageError(f"--container starts the ranks of a `run`, and not those of `{command}`. Leave one out.")
    if options.container is not None and "," in (value_of(options.words, "--nodes") or ""):
        raise UsageError("--container starts the ranks once, for one node count. Write a job for each of --nodes.")
    if file := value_of(options.words, "--hostfile") or os.environ.get(HOSTFILE):
        raise UsageError(
            f"--hostfile {file} (or {HOSTFILE}) names hosts for mpirun, but the hosts of a job come from Slurm. Leave "
            "it out; a line '#SBATCH --nodelist=HOSTS' in the script asks for hosts by name."
        )
    for option, value in {"job-name": options.job_name or "", **options.slurm}.items():
        if not value.isprintable():  # a line break would begin another line of the script
            raise UsageError(f"--{option} {value!r} has a line break or a control character. Leave it out.")
    nodes = largest_count(options.words, "--nodes") or 1
    per_node = largest_count(options.words, "--ranks-per-node")
    seconds, foreseen = options.time, None
    if command in DRY:
        foreseen = _dry_run(options.words, nodes)
        parts = list(_part_words(foreseen))
        nodes = max([nodes, *(largest_count(words, "--nodes") or 1 for words in parts)])
        per_node = max(
            (count for words in parts if (count := largest_count(words, "--ranks-per-node"))), default=per_node
        )
        seconds = seconds_of(foreseen) if seconds is None else seconds
    if options.time is not None:
        _require_time(options.time, seconds_of(foreseen))
    if seconds is None:
        raise UsageError(f"How long `{command}` takes is not known beforehand. Say it with --time, such as --time 1h.")
    return Script(
        command=options.words,
        program=_program(options.container),
        folder=str(Path.cwd()),
        nodes=nodes,
        ranks_per_node=per_node,
        minutes=minutes_for(seconds) if options.time is None else max(1, round(seconds / 60)),
        name=options.job_name or f"dlio-bench-{command}",
        options=options.slurm,
        setup=options.setup,
        container=options.container,
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def _dry_run(words: Sequence[str], nodes: int) -> Any:
    """What the command's own --dry-run says, as if the allocation were there."""
    env = os.environ | {
        "SLURM_JOB_ID": TO_COME,
        "SLURM_JOB_NUM_NODES": os.environ.get("SLURM_JOB_NUM_NODES", str(nodes)),
    }
    dry = python_command("dlio_bench", *words, *(flag for flag in ("--dry-run", "--json") if flag not in words))
    answer = subprocess.run(dry, env=env, capture_output=True, text=True, check=False)
    if answer.returncode:
        reason = answer.stderr.strip().splitlines()[-1:] or ["it gave no reason"]
        raise ERRORS.get(answer.returncode, EnvironmentFailure)(reason[0].removeprefix("dlio-bench: "))
    return json.loads(answer.stdout)


def _part_words(foreseen: Any) -> Iterator[Sequence[str]]:
    """The commands of a plan's parts."""
    if isinstance(foreseen, dict):
        for part in foreseen.get("parts", []):
            yield part["command"]


def _require_time(given: float, expected: float | None) -> None:
    """UsageError if nothing can be done in the time given; a note if not all can."""
    least = walltime.MARGIN_SECONDS + walltime.LAST_SECONDS
    if given <= least:
        raise UsageError(
            f"--time {format_seconds(given)} does not suffice: {format_seconds(least)} are kept back to end the ranks "
            "and to write what is finished. Give more."
        )
    if expected is not None and given < expected + least:
        print(
            f"dlio-bench: the command takes about {format_seconds(expected)}, more than --time leaves: what is "
            "finished stays, and the same command goes on in another job",
            file=sys.stderr,
        )


def seconds_of(foreseen: Any) -> float | None:
    """What a --dry-run says of the time of all its parts; None where it does not know."""
    if foreseen is None:
        return None
    entries = foreseen if isinstance(foreseen, list) else [foreseen]
    known = [float(entry["seconds"]) for entry in entries if entry.get("seconds") is not None]
    return sum(known) if len(known) == len(entries) else None


def _program(container: str | None) -> str:
    """dlio-bench as the job finds it: by its path beside this Python, in a container by its name."""
    if container is not None:
        return "dlio-bench"
    beside = Path(sys.executable).with_name("dlio-bench")
    return str(beside) if beside.exists() else "dlio-bench"


def _submit(text: str) -> str:
    """Hand the script to sbatch; the job's number. EnvironmentFailure."""
    program = shutil.which("sbatch")
    if program is None:
        raise EnvironmentFailure(
            "sbatch is not on the PATH: submit from a login node of the cluster, or leave out --submit to print the "
            "script."
        )
    answer = subprocess.run([program, "--parsable"], input=text, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise EnvironmentFailure(f"sbatch refused the job: {answer.stderr.strip() or answer.stdout.strip()}")
    return answer.stdout.strip().partition(";")[0]
