"""Numbers with units, the same everywhere: MB is 1e6 bytes, MiB is 2^20."""

import re

from dlio_bench.errors import UsageError

_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_FACTORS = {unit.lower(): 1000**power for power, unit in enumerate(_DECIMAL)} | {
    unit.lower(): 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1)
}


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
        return f"{seconds * 1e6:.3g} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def parse_bytes(text: str) -> int:
    """'2GB' -> 2_000_000_000, '16 MiB' -> 16_777_216, '512' -> 512. Raises UsageError."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    factor = _FACTORS.get((match[2] or "B").lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"'{text}' is not a size. Write a number and a unit, such as 500MB (1e6 bytes) or 4GiB (2^30 bytes)."
        )
    return int(float(match[1]) * factor)
