"""Numbers with units, the same everywhere: MB is 1e6 bytes, MiB is 2^20."""

import re

from dlio_bench.errors import UsageError

_DECIMAL = ("B", "kB", "MB", "GB", "TB", "PB")
_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB")
_BYTES = {unit: 1000**power for power, unit in enumerate(_DECIMAL)} | {
    unit: 1024**power for power, unit in enumerate(_BINARY, start=1)
}
_ALSO = {"KB": "kB"}  # also accepted; but Gb is a gigabit to some, and gb could be either
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_NUMBER = re.compile(rf"\s*({NUMBER})\s*([A-Za-zµ]*)\s*")
_MOST = 2**63 - 1  # bytes: the largest size that a file system knows


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
    """'2GB' -> 2_000_000_000, '16 MiB' -> 16_777_216. A size other than 0 needs its unit. Raises UsageError."""
    return _amount(text, text, "", "a size", "500MB (1e6 bytes) or 4GiB (2^30 bytes)")


def parse_rate(text: str) -> int:
    """'400MB/s' -> 400_000_000 bytes a second; '/s' may be left out, the unit not. Raises UsageError."""
    return _amount(text, text.strip().removesuffix("/s"), "/s", "a rate", "400MB/s (1e6 bytes a second) or 2GiB/s")


def parse_seconds(text: str) -> float:
    """'0.3ms' -> 0.0003, '2 s' -> 2.0, '0' -> 0.0. A time other than 0 needs its unit. Raises UsageError."""
    match = _NUMBER.fullmatch(text)
    unit = match and (match[2].lower() or ("s" if float(match[1]) == 0 else ""))
    if match and not unit:
        raise UsageError(f"'{text}' has no unit. Write a number and a unit (ns, us, ms, s, min, h), such as {text}s.")
    if match is None or unit not in _SECONDS or float(match[1]) > _MOST:
        raise UsageError(f"'{text}' is not a time. Write a number and a unit (ns, us, ms, s, min, h), such as 0.3ms.")
    return float(match[1]) * _SECONDS[unit]


def parse_share(text: str) -> float:
    """'10 %' -> 0.1. A share needs its %. Raises UsageError."""
    match = _NUMBER.fullmatch(text.rstrip().removesuffix("%"))
    if match is None or match[2] or not text.rstrip().endswith("%") or float(match[1]) > _MOST:
        raise UsageError(f"'{text}' is not a percentage. Write a number and %, such as 10%.")
    return float(match[1]) / 100


def _amount(text: str, size: str, per: str, noun: str, example: str) -> int:
    """The bytes of `size`, the part of `text` before its `per`."""
    match = _NUMBER.fullmatch(size)
    number, unit = match.groups() if match else ("", "")
    factor = _BYTES.get(_ALSO.get(unit, unit))
    if match and not unit and float(number) == 0:
        return 0
    if factor and float(number) * factor <= _MOST:
        return int(float(number) * factor)
    if match and not unit:
        raise UsageError(f"'{text}' has no unit. Write a number and a unit, such as {example}.")
    meant = next((known for known in _BYTES if known.lower() == unit.lower()), None)
    if meant and not factor:
        raise UsageError(f"'{text}' is not {noun}: write {meant}{per} (bytes), as in {number}{meant}{per}.")
    raise UsageError(f"'{text}' is not {noun}. Write a number and a unit, such as {example}.")
