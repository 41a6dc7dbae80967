"""The [measured] part of a system description, from the ranks' measurements, and its place beside [declared]."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlio_bench import documents
from dlio_bench.errors import UsageError
from dlio_bench.harness.cluster.system import MB, STAGING, System, parse
from dlio_bench.harness.ground.user_files import to_toml
from dlio_bench.units import format_bytes

MEMORY, DISK = "ram", "disk"  # the tiers behind the staging buffer
_SECTION = re.compile(r"^\s*\[\s*([A-Za-z_][\w-]*)")
_HEAD = "# Written by `dlio-bench calibrate`, which writes it anew each time; what you know better goes to [declared]."


def measured_table(rates: Mapping[str, Any], by: Mapping[str, str]) -> dict[str, Any]:
    """The [measured] table of the `rates` that `rank.measure` returns; `by`: who measured, on what."""
    table: dict[str, Any] = {
        "pfs_link": _rate(rates["pfs"][min(rates["pfs"])]),
        "pfs_open": _time(rates["open"]),
        "barrier": _time(rates["barrier"]),
    }
    for name in ("network", "preprocess"):
        if rates[name] is not None:
            table[name] = _rate(rates[name])
    table["pfs"] = _rates(rates["pfs"])
    table["pfs_stream"] = _rates(rates["stream"])
    if rates["stream_all"]:
        table["pfs_stream_all"] = _rates(rates["stream_all"])
    if rates["streams"]:
        table["adios_stream"] = _rates(rates["streams"])
    tiers = {STAGING: rates["ram"], MEMORY: rates["ram"], DISK: rates["disk"]}
    table["tiers"] = {
        name: {way: _rates(tier[way]) for way in ("read", "write")} for name, tier in tiers.items() if tier is not None
    }
    return table | {"by": dict(by)}


def declared_table(name: str, threads: int, capacities: Mapping[str, int]) -> dict[str, Any]:
    """A [declared] table to begin with: tiers of these sizes, each with as many threads."""
    tiers = {
        tier: {"capacity": format_bytes(size).replace(" ", ""), "threads": threads} for tier, size in capacities.items()
    }
    return {"name": name, "device": "v100", "tiers": tiers}


def text(declares: str, measures: Mapping[str, Any]) -> str:
    """The whole file: what is declared, as it stands, and the [measured] table."""
    return f"{declares.rstrip()}\n\n{_HEAD}\n{to_toml({'measured': measures})}"


def read_declared(path: Path) -> str:
    """An existing description without its [measured] part, to the letter. UsageError where it is not one."""
    try:
        stored = documents.read_document(path)
        whole, content = documents.load_toml(stored), stored.decode()
    except ValueError as error:
        raise UsageError(
            f"--out {path} exists and is no system description: {error}. Name another file, or repair this one."
        ) from None
    lines, keep = [], True
    for line in content.splitlines(keepends=True):
        if section := _SECTION.match(line):
            keep = section[1] != "measured"
        if keep and line.strip() != _HEAD:
            lines.append(line)
    kept = "".join(lines)
    if tomllib.loads(kept) != {key: value for key, value in whole.items() if key != "measured"}:
        raise UsageError(
            f"--out {path}: what is declared there cannot be told from what was measured. Put [measured] behind all "
            "other sections, or name another file."
        )
    return kept


def require_measured(declares: str, out: Path, *, local: bool) -> None:
    """UsageError for a declared tier that has no rates of its own and will get none. `local`: a disk is measured."""
    tiers = tomllib.loads(declares).get("declared", {}).get("tiers", {})
    for name, tier in tiers.items() if isinstance(tiers, Mapping) else ():
        known = isinstance(tier, Mapping) and "read" in tier
        if not known and name not in {STAGING, MEMORY, *([DISK] if local else [])}:
            fix = (
                "Give its folder with --local" if name == DISK else f"Add read = {{ 1 = 1000 }} (MB/s) to tiers.{name}"
            )
            raise UsageError(f"--out {out} declares the tier '{name}', which this would not measure. {fix}.")


def system_of(declares: str, measures: Mapping[str, Any], where: str) -> System:
    """The description as `simulate` and `run` will read it. UsageError where the declared part cannot be used."""
    return parse(tomllib.loads(text(declares, measures)), where)


def _rates(points: Mapping[Any, float]) -> dict[str, float]:
    """Points in ascending order; JSON has made words of their numbers."""
    return {str(point): _rate(rate) for point, rate in sorted((int(point), rate) for point, rate in points.items())}


def _rate(bytes_per_second: float) -> float:
    return float(f"{bytes_per_second / MB:.4g}")


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.4g}us" if seconds < 1e-2 else f"{seconds:.4g}s"
