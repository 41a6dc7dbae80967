"""When the job that this command runs in ends, and whether what comes next can be over by then."""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from dlio_bench.errors import OutOfTime, UsageError
from dlio_bench.harness.cluster.mpi_library import ProbeOutcome, run_probe
from dlio_bench.units import format_seconds, parse_seconds

ENDS = "DLIO_BENCH_ENDS"  # when this command and those that it starts must have ended, in seconds as time.time counts
MARGIN_SECONDS, MARGIN_SHARE = 60.0, 0.05  # of an estimate: estimates err, and a report is written at the end
LAST_SECONDS = 30.0  # before the end everything stops: ranks have to end, and results to be written
ASK_SECONDS = 10.0  # for a scheduler's command to answer

Ask = Callable[[Sequence[str], Mapping[str, str], float], ProbeOutcome]


def ends(env: Mapping[str, str], now: float, ask: Ask = run_probe) -> float | None:
    """When the job ends, in seconds as time.time counts them; None where nobody says so. `now`: in the same seconds.

    $DLIO_BENCH_ENDS comes first (0: the end does not matter), then the scheduler. Flux is asked before others, as it
    also runs inside their allocations. UsageError for a DLIO_BENCH_ENDS that is no number.
    """
    if (given := env.get(ENDS)) is not None:
        try:
            return float(given) or None
        except ValueError:
            raise UsageError(f"{ENDS}={given} is not a number of seconds since 1970 (date +%s). Unset it.") from None
    if (end := env.get("SLURM_JOB_END_TIME", "")).isdigit() and "FLUX_URI" not in env:
        return float(end)
    for name, words, read in SCHEDULERS:
        if name in env:
            job = (env[name],) if name != "FLUX_URI" else ()
            remaining = read(ask((*words, *job), env, ASK_SECONDS).out, now)
            return None if remaining is None else now + remaining
    return None


def parse_clock(text: str) -> float | None:
    """Seconds of '1-02:03:04', '02:03:04' or '03:04', as squeue(1) and qstat(1) write them; None for other texts."""
    match = re.fullmatch(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _slurm(text: str, now: float) -> float | None:  # noqa: ARG001 - as all of them
    """squeue(1), %L: '1-02:03:04', or UNLIMITED."""
    return parse_clock(text)


def _flux(text: str, now: float) -> float | None:  # noqa: ARG001
    """flux-job(1): seconds, or 'infinity'. Not tried on a machine with Flux."""
    return float(text) if re.fullmatch(r"\s*\d+(\.\d*)?\s*", text) else None


def _lsf(text: str, now: float) -> float | None:  # noqa: ARG001
    """bjobs(1), time_left: '1:59 L', hours and minutes; L: by the job's run limit. Not tried on a machine with LSF."""
    match = re.match(r"\s*(\d+):(\d+) *L", text)
    return None if match is None else float((int(match[1]) * 60 + int(match[2])) * 60)


def _pbs(text: str, now: float) -> float | None:
    """qstat(1) -f: Torque has Walltime.Remaining, PBS Pro a start and a limit. Not tried on a machine with PBS."""
    facts = dict(re.findall(r"^\s*([\w.]+) = (.*?)\s*$", text, re.MULTILINE))
    if (remaining := facts.get("Walltime.Remaining", "")).isdigit():
        return float(remaining)
    limit = parse_clock(facts.get("Resource_List.walltime", ""))
    try:
        began = datetime.strptime(facts.get("stime", ""), "%a %b %d %H:%M:%S %Y").timestamp()
    except ValueError:
        return None
    return None if limit is None else began + limit - now


SCHEDULERS: tuple[tuple[str, tuple[str, ...], Callable[[str, float], float | None]], ...] = (
    # the variable that a job has, the command that knows its end, and what reads the answer: seconds that are left
    ("FLUX_URI", ("flux", "job", "timeleft"), _flux),
    ("SLURM_JOB_ID", ("squeue", "-h", "-o", "%L", "-j"), _slurm),
    ("LSB_JOBID", ("bjobs", "-noheader", "-o", "time_left"), _lsf),
    ("PBS_JOBID", ("qstat", "-f"), _pbs),
)


def settle(given: str | None, kept: float = MARGIN_SECONDS) -> float | None:
    """Find out when this command must have ended, and tell the commands that it starts. given: --walltime.

    kept: seconds that the command keeps back. UsageError for what is no time, or no longer than that.
    """
    now = time.time()
    if given is not None:
        left = parse_seconds(given)
        if 0 < left <= kept:
            raise UsageError(
                f"--walltime {given}: {format_seconds(left)} do not suffice: {format_seconds(kept)} are kept back for "
                f"an end in good order. Give more than {format_seconds(kept)}, or 0 for as long as it takes."
            )
        os.environ[ENDS] = f"{now + left:.0f}" if left else "0"
    end = ends(os.environ, now)
    if end is not None:
        os.environ[ENDS] = f"{end:.0f}"
    return end


def seconds_left() -> float | None:
    """Seconds until this command must have ended; None where that is not known, or does not matter."""
    end = float(os.environ.get(ENDS, "0"))
    return end - time.time() if end else None


def needed(seconds: float) -> float:
    """What must be left to start a part that takes about so many seconds."""
    return seconds + max(MARGIN_SECONDS, MARGIN_SHARE * seconds)


def require(part: str, seconds: float) -> None:
    """OutOfTime if a part that takes about so many seconds cannot be over before the end."""
    remaining = seconds_left()
    if remaining is not None and remaining < needed(seconds):
        raise OutOfTime(
            f"The time of this job does not suffice: {part} takes about {format_seconds(seconds)}, and of "
            f"{format_seconds(max(0.0, remaining))} that are left {format_seconds(needed(seconds) - seconds)} are kept "
            "back. (--walltime 0 starts it all the same.)"
        )


def restarts(env: Mapping[str, str]) -> int:
    """How often the scheduler has begun this job again, as after `scontrol requeue`; 0 where it does not say."""
    count = env.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdigit() else 0
