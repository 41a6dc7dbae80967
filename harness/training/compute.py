"""Compute between two batches: none, or a known step time emulated by waiting, which leaves the CPU free."""

import ctypes
import re
import time
from pathlib import Path

from msgspec.structs import replace

from dlio_bench.benchmarks.model import choose
from dlio_bench.benchmarks.profile import DEFAULT_DEVICE, ESTIMATE, Profile, load, profile_of_time
from dlio_bench.benchmarks.workload import Workload
from dlio_bench.errors import UsageError, did_you_mean
from dlio_bench.harness.cluster.life import life
from dlio_bench.units import parse_seconds

PR_SET_TIMERSLACK = 29
FILE = "@"  # what a file name begins with


def step_time(workload: Workload, compute: str, variant: str | None = None, *, tiny: bool = False) -> Profile | None:
    """The step times that `--compute` means: None for 'none', else the workload's on a device, those of a file,
    or a time itself; for data of a `variant` (None: the default one), `tiny` ones or not.

    UsageError; also for the profile of another workload, variant or model, or of tiny samples where these are not.
    """
    mode, _, device = compute.partition(":")
    variant = variant or workload.default_variant
    if mode == "none" and not device:
        return None
    if mode != "emulate":
        hint = did_you_mean(mode, ["none", "emulate", "train", "infer"])
        raise UsageError(
            f"--compute '{compute}' is not known.{hint} Use none, emulate, emulate:DEVICE, emulate:TIME, "
            "emulate:@FILE, train, train:MODEL, infer, or infer:MODEL."
        )
    if re.match(r"[0-9]", device):
        return profile_of_time(parse_seconds(device), "--compute")
    if device.startswith(FILE):
        return _fitting(workload, load(Path(device.removeprefix(FILE))), variant, tiny=tiny)
    known = workload.profiles
    own = next((row.device for row in known.values() if variant in row.variants), DEFAULT_DEVICE)
    profile = known.get((device or own).lower())
    if profile is None:
        of_device = f" for device '{device}'. Known: {', '.join(known)}" if known else ""
        raise UsageError(
            f"No step time of {workload.name} is known{of_device}. Give a time of your own, such as --compute "
            f"emulate:50ms, or measure one with `dlio-bench calibrate --compute {workload.name} --out FILE` and use "
            "emulate:@FILE."
        )
    return of_variant(profile, workload, variant)


def of_variant(profile: Profile, workload: Workload, variant: str) -> Profile:
    """The step times as those of a variant's samples: an estimate where they are of another's."""
    if variant in profile.variants:
        return profile
    source = f"{profile.source}; of {workload.name} {' and '.join(profile.variants)}, and taken for {variant}"
    return replace(profile, kind=ESTIMATE, source=source)


def _fitting(workload: Workload, profile: Profile, variant: str, *, tiny: bool) -> Profile:
    """The profile of a file, if it is of what is run."""
    of = f"{profile.workload} {' and '.join(profile.variants)}"
    if profile.workload != workload.name or variant not in profile.variants:
        raise UsageError(
            f"The compute profile {profile.name} is of {of}, and this is {workload.name} {variant}. Measure one with "
            f"`dlio-bench calibrate --compute {workload.name} --variant {variant} --out FILE`."
        )
    if profile.model is not None:
        try:
            choose(workload.models, variant, profile.model)
        except UsageError as error:
            raise UsageError(f"The compute profile {profile.name} is of a model that does not fit. {error}") from None
    if profile.tiny and not tiny:
        raise UsageError(
            f"The compute profile {profile.name} is of the shrunken samples of --tiny, and this run has those of the "
            "published size. Measure one without --tiny, or run with --tiny."
        )
    return profile


def fine_timers() -> None:
    """Let this thread's sleeps end on time; by default the kernel adds up to 50 us to each (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def wait(seconds: float) -> None:
    """Emulate `seconds` of computing on a device: this thread sleeps, the CPU is free for readers."""
    if seconds > 0:
        life.begin_step(seconds)
        time.sleep(seconds)
