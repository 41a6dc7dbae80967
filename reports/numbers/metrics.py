"""The one table of metrics: what each is called, its unit, what it means, and where its numbers come from.

Formulas are in `statistics`. Every counter is a metric too: that of a trial.
"""

from dlio_bench.counters import COUNTERS, SECONDS, Quantity

PHASES = ("stall", "check", "convert", "compute", "exchange", "checkpoint")  # of a step, in their order
TRAINING = ("convert", "checkpoint")  # phases of real training alone
TRIALS, STEPS, BOTH = "trials", "step times", "trials and step times"
MLPERF = "step times, by the rule of MLPerf Storage"
RATE, SHARE, RATIO = "B/s", "share", "ratio"

_TIMES = (
    Quantity("elapsed_seconds", SECONDS, "elapsed", "elapsed time of a trial", TRIALS),
    Quantity("epoch_seconds", SECONDS, "epoch", "time of an epoch, median of all", TRIALS),
    Quantity("first_epoch_seconds", SECONDS, "first epoch", "time of the first epoch", TRIALS, optional=True),
    Quantity("later_epochs_seconds", SECONDS, "later epochs", "time of a later epoch", TRIALS, optional=True),
    Quantity("samples_per_second", "samples/s", "samples/s", "samples per second", BOTH),
    Quantity(
        "delivered_bandwidth", RATE, "delivered", "delivered bandwidth (bytes to the trainer / elapsed)", TRIALS
    ),
    Quantity(
        "pfs_bandwidth", RATE, "file system",
        "bandwidth of the file system (bytes that it delivered / time of the epochs that read it)", TRIALS,
    ),
    Quantity("stall_share", SHARE, "stall", "stall: time that the job loses because data are missing / elapsed", BOTH),
    Quantity("steady_stall_share", SHARE, "stall", "stall from the second epoch on", STEPS, optional=True),
    Quantity(
        "own_stall_share", SHARE, "own stall", "a rank's own stall: its time in get / elapsed, mean of ranks", BOTH
    ),
    Quantity("own_stall_share_worst_rank", SHARE, "own stall", "own stall of the rank that waits longest", BOTH),
    Quantity(
        "au", SHARE, "AU", "AU = compute / wall time, first step of each epoch left out, mean of ranks", MLPERF,
        optional=True,
    ),
    Quantity(
        "mlperf_au", SHARE, "AU, mean of epochs", "AU as MLPerf Storage reports it: the mean of the epochs' AU", MLPERF,
        optional=True,
    ),
    Quantity("steady_au", SHARE, "AU", "AU from the second epoch on", MLPERF, optional=True),
    Quantity(
        "harness_share", SHARE, "harness",
        "of the loop, the harness's own: checks, barriers beyond the last arrival, what is in no phase", STEPS,
        optional=True,
    ),
    Quantity("step_p50", SECONDS, "step p50", "step cost, 50th percentile", STEPS),
    Quantity("step_p95", SECONDS, "step p95", "step cost, 95th percentile", STEPS),
    Quantity("step_p99", SECONDS, "step p99", "step cost, 99th percentile", STEPS),
    Quantity(
        "no_io_seconds", SECONDS, "no-I/O bound", "no-I/O bound: the same steps and checkpoints, data in memory", STEPS
    ),
    Quantity("over_bound", RATIO, "over the bound", "elapsed / no-I/O bound", BOTH, optional=True),
    Quantity(
        "allreduce_seconds", SECONDS, "all-reduces", "all-reduces, a rank, in part behind its compute", TRIALS,
        optional=True,
    ),
    Quantity("compute_overrun", SHARE, "overrun", "compute beyond what was asked", TRIALS, optional=True),
    Quantity(
        "validation_seconds", SECONDS, "validation", "time of a validation pass", STEPS, optional=True
    ),
    Quantity(
        "validation_stall_share", SHARE, "validation stall", "stall, share of the validation passes", STEPS,
        optional=True,
    ),
)  # fmt: skip

_SHARES = tuple(
    Quantity(
        f"share_{name}",
        SHARE,
        "own stall" if name == "stall" else name,  # that in get is a rank's own, not the job's
        f"of the loop, a rank's time in {name}",
        STEPS,
        optional=name in TRAINING,  # of earlier versions nobody knows
    )
    for name in (*PHASES, "validation", "other")
)

METRICS: dict[str, Quantity] = {quantity.name: quantity for quantity in (*_TIMES, *COUNTERS.values(), *_SHARES)}
SHARES = tuple(quantity.name for quantity in _SHARES)
