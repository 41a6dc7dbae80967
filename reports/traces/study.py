"""What the NERSC study of HEPCNNB and CDB published of its I/O: its tables, as literals. Nothing here is of this run.

Source of all: NERSC/DL-Parallel-IO @290ed4a, documents/slides and documents/poster; each table names its slides. One
rank a node on Cori KNL. Seconds and per cent are as printed; `x ideal` and the read share of an accounting are worked
out from them where they are shown.

`corrected` bandwidths are not published. They were worked out again from the published calls and seconds with the bytes
that the calls read, because the study's formula charges the training files of one epoch only.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dlio_bench.reports.document.typed import to_json

REPOSITORY = "NERSC/DL-Parallel-IO @290ed4a"
LOCAL, GLOBAL = "LOCAL shuffle", "GLOBAL shuffle"
JULY_27, JULY_13 = "27 July 2018", "13 July 2018"


class Total(Struct, frozen=True):
    """Seconds of a run on some nodes, in all epochs: a node's mean (HEPCNNB), or merged over ranks (CDB).

    shares: per cent as printed, of the parts that have one. gigabytes: read bandwidth as printed, in GB/s; corrected:
    the same worked out again, which is not published.
    """

    nodes: int
    seconds: Mapping[str, float]
    shares: Mapping[str, float]
    calls: int
    gigabytes: float
    corrected: float | None = None


class PublishedTable(Struct, frozen=True):
    """The totals of one published run by nodes. name: which run; source: its slides."""

    workload: str
    name: str
    source: str
    totals: tuple[Total, ...]


class Epochs(Struct, frozen=True):
    """Seconds of each epoch, and their share of the epoch in per cent, of a part: (seconds, per cent)."""

    nodes: int
    name: str
    parts: Mapping[str, tuple[tuple[float, float], ...]]


class Variant(Struct, frozen=True):
    """A variant of CDB on 64 nodes: merged seconds of reading, and the time of each epoch, some in whole seconds."""

    name: str
    read: float
    epochs: tuple[float, float, float]


PARTS = ("read", "load", "training", "checkpoint")


def _hep(
    nodes: int, seconds: tuple[float, ...], shares: tuple[float, ...], calls: int, gigabytes: float, corrected: float
) -> Total:
    of_parts, in_percent = (dict(zip(PARTS[: len(values)], values, strict=True)) for values in (seconds, shares))
    return Total(nodes, of_parts, in_percent, calls, gigabytes, corrected)


def _cdb(
    nodes: int, read: float, share: float, training: float, training_share: float | None, calls: int, gigabytes: float
) -> Total:
    shares = {"read": share} | ({} if training_share is None else {"training": training_share})
    return Total(nodes, {"read": read, "training": training}, shares, calls, gigabytes)


# fmt: off
TABLES = (
    PublishedTable("hepcnnb", LOCAL, "slides Project_Progress_20180727 s4-s9, poster", (
        # nodes, seconds a node over 5 epochs: read, load, training; per cent of them; calls; GB/s; GB/s corrected
        _hep(64, (91.21, 77.68, 2365.17), (3.60, 3.07, 93.34), 9280, 9.917, 26.5),
        _hep(128, (41.87, 38.95, 1277.79), (3.08, 2.87, 94.05), 9344, 21.686, 57.9),
        _hep(256, (20.71, 19.49, 613.98), (3.17, 2.98, 93.86), 9472, 44.195, 117),
        _hep(512, (10.16, 9.81, 329.56), (2.91, 2.81, 94.29), 9728, 91.534, 241),
        _hep(1024, (2.54, 4.79, 169.22), (1.44, 2.71, 95.85), 2048, 194.994, 195),
    )),
    PublishedTable("hepcnnb", GLOBAL, "slides Project_Progress_20180727 s4-s9, poster", (
        # the same, with checkpoints
        _hep(64, (222.14, 80.27, 2457.53, 14.61), (8.01, 2.89, 88.57, 0.53), 10304, 4.332, 11.2),
        _hep(128, (110.23, 40.20, 1269.71, 7.82), (7.72, 2.81, 88.92, 0.55), 10368, 8.764, 22.5),
        _hep(256, (61.22, 20.11, 812.62, 2.47), (6.83, 2.24, 90.65, 0.28), 10496, 15.898, 40.7),
        _hep(512, (30.13, 9.87, 447.62, 1.27), (6.16, 2.02, 91.56, 0.26), 9728, 30.863, 81.2),
        _hep(1024, (2.63, 4.80, 168.42, 0.59), (1.49, 2.72, 95.45, 0.33), 2048, 187.986, 188),
    )),
    PublishedTable("cdb", JULY_27, "slides Project_Progress_20180727 s12-s13, poster", (
        # nodes, merged seconds over 3 epochs and per cent: read, training; calls; GB/s
        _cdb(64, 1243.21, 8.73, 13002.72, 91.27, 20672, 0.294),
        _cdb(128, 1195.04, 15.05, 6744.80, 84.95, 22528, 0.334),
        _cdb(256, 402.31, 10.63, 3382.81, 89.37, 25856, 1.137),
        _cdb(512, 229.05, 11.04, 1845.30, 88.96, 33280, 2.571),
    )),
    PublishedTable("cdb", JULY_13, "slides Project_Progress_20180713", (
        _cdb(64, 3640.89, 22.01, 12898.48, None, 21056, 0.102),
        _cdb(128, 313.76, 4.63, 6464.17, None, 23296, 1.314),
        _cdb(256, 160.26, 4.59, 3329.12, None, 27392, 3.024),
        _cdb(512, 188.77, 9.37, 1825.23, None, 36352, 3.408),
    )),
)

EPOCHS_SOURCE = "slides Project_Progress_20180727"
EPOCHS = (
    Epochs(64, GLOBAL, {
        "read": ((73.68, 13.17), (40.91, 7.26), (36.62, 6.73), (35.45, 6.34), (35.48, 6.47)),
        "load": ((23.00, 4.11), (14.72, 2.61), (14.21, 2.61), (14.17, 2.53), (14.18, 2.59)),
        "training": ((462.75, 82.72), (507.58, 90.12), (493.46, 90.66), (509.58, 91.13), (498.77, 90.94)),
    }),
    Epochs(64, LOCAL, {
        "read": ((51.88, 9.35), (9.32, 1.84), (9.76, 1.94), (9.58, 1.87), (10.67, 2.34)),
        "load": ((21.19, 3.82), (14.46, 2.85), (14.00, 2.78), (14.01, 2.73), (14.02, 3.07)),
        "training": ((481.80, 86.83), (483.54, 95.31), (479.41, 95.28), (488.67, 95.40), (431.76, 94.59)),
    }),
    Epochs(128, GLOBAL, {
        "read": ((34.14, 11.74), (20.64, 7.06), (18.64, 6.34), (18.18, 6.51), (18.62, 6.86)),
        "load": ((11.29, 3.88), (7.66, 2.62), (7.08, 2.41), (7.08, 2.53), (7.09, 2.61)),
        "training": ((245.45, 84.38), (263.94, 90.32), (268.36, 91.25), (254.19, 90.96), (245.58, 90.52)),
    }),
    Epochs(128, LOCAL, {
        "read": ((23.81, 8.24), (4.81, 1.46), (4.24, 1.66), (4.25, 1.63), (4.76, 2.12)),
        "load": ((10.45, 3.62), (7.47, 2.27), (7.01, 2.74), (7.01, 2.69), (7.01, 3.12)),
        "training": ((254.60, 88.14), (316.98, 96.27), (244.05, 95.59), (249.18, 95.68), (212.98, 94.76)),
    }),
    Epochs(256, GLOBAL, {
        "read": ((18.33, 9.57), (12.53, 7.37), (10.05, 5.56), (10.19, 5.70), (10.11, 5.77)),
        "load": ((5.40, 2.82), (4.11, 2.42), (3.53, 1.95), (3.53, 1.98), (3.53, 2.02)),
        "training": ((167.83, 87.61), (153.54, 90.22), (167.11, 92.48), (164.96, 92.32), (161.65, 92.22)),
    }),
    Epochs(256, LOCAL, {
        "read": ((11.57, 7.45), (2.55, 1.95), (2.34, 1.82), (2.11, 1.64), (2.13, 1.92)),
        "load": ((5.03, 3.24), (3.96, 3.03), (3.50, 2.72), (3.50, 2.71), (3.50, 3.16)),
        "training": ((138.78, 89.31), (124.17, 95.02), (122.51, 95.45), (123.37, 95.65), (105.15, 94.92)),
    }),
    Epochs(512, GLOBAL, {
        "read": ((7.66, 6.85), (7.06, 6.99), (5.20, 5.11), (5.13, 5.13), (5.08, 6.83)),
        "load": ((2.35, 2.10), (2.23, 2.21), (1.77, 1.74), (1.77, 1.76), (1.77, 2.37)),
        "training": ((101.80, 91.05), (91.67, 90.80), (94.75, 93.15), (93.17, 93.11), (67.51, 90.79)),
    }),
    Epochs(512, LOCAL, {
        "read": ((5.49, 5.97), (1.46, 2.14), (1.06, 1.56), (1.06, 1.56), (1.09, 2.02)),
        "load": ((2.35, 2.56), (2.21, 3.25), (1.75, 2.59), (1.75, 2.57), (1.75, 3.25)),
        "training": ((84.19, 91.48), (64.33, 94.60), (64.69, 95.84), (65.37, 95.88), (50.99, 94.73)),
    }),
    Epochs(1024, GLOBAL, {
        "read": ((2.63, 5.10), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
        "load": ((0.99, 1.93), (1.29, 3.57), (0.84, 2.68), (0.84, 2.32), (0.84, 3.96)),
        "training": ((47.98, 92.97), (34.76, 96.43), (30.51, 97.32), (35.32, 97.68), (20.44, 96.04)),
    }),
    Epochs(1024, LOCAL, {
        "read": ((2.54, 4.95), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)),
        "load": ((0.99, 1.93), (1.28, 3.58), (0.84, 2.68), (0.84, 2.29), (0.84, 3.90)),
        "training": ((47.77, 93.12), (34.56, 96.42), (30.44, 97.32), (35.72, 97.71), (20.73, 96.10)),
    }),
)

VARIANTS_SOURCE = "slides Project_Progress_20180727 s15-s19"
VARIANTS = (
    Variant("I/O and training", 1243.21, (4322.73, 4346.23, 4333.76)),
    Variant("I/O alone, training disabled", 199.34, (70.20, 74.87, 86.32)),
    Variant("metadata I/O alone and training: opens, no data", 1673.63, (4317.59, 4350.50, 4335.72)),
    Variant("no I/O, and training", 968.00, (4475, 4472, 4480)),
)
# fmt: on


def tables(workload: str) -> list[PublishedTable]:
    """The published totals of a workload; none of most."""
    return [table for table in TABLES if table.workload == workload]


def epochs(workload: str) -> list[Epochs]:
    """The published epochs of a workload: HEPCNNB's alone."""
    return list(EPOCHS) if workload == "hepcnnb" else []


def variants(workload: str) -> list[Variant]:
    """The published variants of a workload: CDB's alone."""
    return list(VARIANTS) if workload == "cdb" else []


def document(workload: str) -> dict[str, Any] | None:
    """What was published of a workload, as JSON; None of most."""
    if not tables(workload):
        return None
    return {
        "repository": REPOSITORY,
        "tables": [to_json(table) for table in tables(workload)],
        "epochs": {"source": EPOCHS_SOURCE, "rows": [to_json(row) for row in epochs(workload)]},
        "variants": {"source": VARIANTS_SOURCE, "rows": [to_json(row) for row in variants(workload)]},
    }
