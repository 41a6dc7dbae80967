"""Compute between two batches: none, or a published step time emulated by waiting, which leaves the CPU free."""

import ctypes
import re
import time
from difflib import get_close_matches

from dlio_bench.benchmarks.workload import GIVEN, StepTime, Workload
from dlio_bench.errors import UsageError
from dlio_bench.units import parse_seconds

PR_SET_TIMERSLACK = 29
DEFAULT_DEVICE = "v100"


def step_time(workload: Workload, asked: str) -> StepTime | None:
    """The step time that `--compute asked` means: None for 'none', else the workload's on the device, or a time itself.

    UsageError.
    """
    mode, _, device = asked.partition(":")
    known = {entry.device: entry for entry in workload.step_times}
    if mode == "none" and not device:
        return None
    if mode != "emulate":
        close = get_close_matches(mode, ["none", "emulate", "train", "infer"], n=1)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        raise UsageError(
            f"--compute '{asked}' is not known.{hint} Use none, emulate, emulate:DEVICE, emulate:TIME, train, "
            "train:MODEL, infer, or infer:MODEL."
        )
    if re.match(r"[0-9]", device):
        return StepTime("", parse_seconds(device), 0, GIVEN, "--compute")
    entry = known.get((device or DEFAULT_DEVICE).lower())
    if entry is None:
        raise UsageError(
            f"No step time of {workload.name} is known for device '{device}'. Known: {', '.join(sorted(known))}. "
            "A time of your own, such as emulate:50ms, is that of a step."
        )
    return entry


def fine_timers() -> None:
    """Let this thread's sleeps end on time; by default the kernel adds up to 50 us to each (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def wait(seconds: float) -> None:
    """Emulate `seconds` of computing on a device: this thread sleeps, the CPU is free for readers."""
    if seconds > 0:
        time.sleep(seconds)
