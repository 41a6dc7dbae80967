"""Numbers with units, the same everywhere: MB is 1e6 bytes, MiB is 2^20."""

import re

from dlio_bench.errors import UsageError

_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_FACTORS = {unit.lower(): 1000**power for power, unit in enumerate(_DECIMAL)} | {
    unit.lower(): 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1)
}

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


def format_bytes(count: float) -> str:
    """Bytes as a short decimal figure: 60171786 -> '60.2 MB'."""
    value = float(count)
    for unit in _DECIMAL:
        if abs(value) < 999.5 or unit == _DECIMAL[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"


def format_seconds(seconds: float) -> str:
    """A duration for people: 0.0042 -> '4.2 ms', 75 -> '1m15s'."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def format_percent(share: float, digits: int = 0) -> str:
    """A share: 0.0123 -> '1 %', with two digits '1.23 %'."""
    return f"{100 * share:.{digits}f} %"


def parse_bytes(text: str) -> int:
    """'2GB' -> 2_000_000_000, '16 MiB' -> 16_777_216, '512' -> 512. Raises UsageError."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    factor = _FACTORS.get((match[2] or "B").lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"'{text}' is not a size. Write a number and a unit, such as 500MB (1e6 bytes) or 4GiB (2^30 bytes)."
        )
    return int(float(match[1]) * factor)


def parse_rate(text: str) -> int:
    """'400MB/s' -> 400_000_000 bytes a second; '/s' may be left out. Raises UsageError."""
    try:
        return parse_bytes(text.strip().removesuffix("/s"))
    except UsageError:
        raise UsageError(
            f"'{text}' is not a rate. Write bytes a second with a unit, such as 400MB/s (1e6 bytes) or 2GiB/s."
        ) from None


def parse_seconds(text: str) -> float:
    """'0.3ms' -> 0.0003, '2 s' -> 2.0, '0' -> 0.0. A time other than 0 needs its unit. Raises UsageError."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ]*)\s*", text)
    unit = match and (match[2].lower() or ("s" if float(match[1]) == 0 else ""))
    if match is None or unit not in _SECONDS:
        raise UsageError(f"'{text}' is not a time. Write a number and a unit (ns, us, ms, s, min, h), such as 0.3ms.")
    return float(match[1]) * _SECONDS[unit]
