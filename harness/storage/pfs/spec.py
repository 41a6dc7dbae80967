"""What an emulated parallel file system is like: rates and latencies, as users write them and results keep them."""

import math
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from dlio_bench.errors import UsageError, did_you_mean
from dlio_bench.units import format_bytes, format_seconds, parse_bytes, parse_rate, parse_seconds

EXAMPLE = "bandwidth=400MB/s,per-node=250MB/s,open=1ms,opens=2000/s,request=0.3ms,cache=2GB,cache-bandwidth=800MB/s"
UNLIMITED = "unlimited"
AUTO, PROCESS, FUSE = WAYS = ("auto", "process", "fuse")
NODES, REQUESTS = SHARERS = ("nodes", "requests")


class PfsSpec(Struct, frozen=True):
    """An emulated parallel file system.

    bandwidth: bytes/s that all nodes share; None = unlimited. per_node: bytes/s of one node at most; None = unlimited.
    open_seconds: what each open of a file takes. opens: opens/s that the metadata server does for all nodes; None =
    unlimited. request_seconds: added for each started MiB fetched from the file system. cache_bytes: client cache of
    one node; 0 = none. cache_bandwidth: bytes/s out of that cache, per node; None = unlimited. via: where reads are
    held up: in the processes that read, or behind a FUSE mount, which every program can read through. shared_by: who
    gets equal parts of the shared rates: the nodes, whatever each asks for, or all requests, whose node does not count.
    """

    bandwidth: float | None
    per_node: float | None = None
    open_seconds: float = 0.0
    request_seconds: float = 0.0
    cache_bytes: int = 0
    cache_bandwidth: float | None = None
    opens: float | None = None
    via: str = AUTO
    shared_by: str = NODES


def _rate(text: str) -> float | None:
    if text == UNLIMITED:
        return None
    rate = parse_rate(text)
    if rate == 0:
        raise UsageError(f"A rate of 0 would never deliver anything; write a positive rate, or '{UNLIMITED}'.")
    return float(rate)


def _opens(text: str) -> float | None:
    if text == UNLIMITED:
        return None
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise UsageError(f"Write opens a second as a positive number, such as 2000/s, or '{UNLIMITED}'.")
    return rate


def _one_of(names: tuple[str, ...]) -> Callable[[str], str]:
    def choose(text: str) -> str:
        if text not in names:
            raise UsageError(f"It is none of {', '.join(names)}.{did_you_mean(text, names)}")
        return text

    return choose


# key on the command line -> (field, parser)
_KEYS: dict[str, tuple[str, Callable[[str], float | str | None]]] = {
    "bandwidth": ("bandwidth", _rate),
    "per-node": ("per_node", _rate),
    "open": ("open_seconds", parse_seconds),
    "opens": ("opens", _opens),
    "request": ("request_seconds", parse_seconds),
    "cache": ("cache_bytes", parse_bytes),
    "cache-bandwidth": ("cache_bandwidth", _rate),
    "via": ("via", _one_of(WAYS)),
    "shared-by": ("shared_by", _one_of(SHARERS)),
}


def parse_spec(text: str) -> PfsSpec:
    """'bandwidth=400MB/s,open=1ms' -> PfsSpec. Every key but bandwidth may be left out.

    Raises UsageError for an unknown, repeated, missing or useless key, and for a value that is none.
    """
    values: dict[str, Any] = {}
    for word in text.split(","):
        key, equals, value = (part.strip() for part in word.partition("="))
        if key not in _KEYS:
            raise _refusal(text, f"'{key}' is not one of its keys ({', '.join(_KEYS)}).{did_you_mean(key, _KEYS)}")
        field, parse = _KEYS[key]
        if not equals or not value:
            raise _refusal(text, f"'{key}' has no value.")
        if field in values:
            raise _refusal(text, f"'{key}' is given twice; give it once.")
        try:
            values[field] = parse(value)
        except UsageError as error:
            raise _refusal(text, f"{key}={value}: {error}") from None
    if "bandwidth" not in values:
        raise _refusal(text, f"'bandwidth' is missing: what all nodes share, as 400MB/s or '{UNLIMITED}'.")
    if values.get("cache_bandwidth") is not None and not values.get("cache_bytes"):
        raise _refusal(text, "'cache-bandwidth' means nothing without a cache; add 'cache=2GB' or leave it out.")
    return PfsSpec(**values)


def _refusal(text: str, why: str) -> UsageError:
    return UsageError(f"The emulated parallel file system '{text}' is refused: {why} A whole one is: {EXAMPLE}.")


def queue_of(spec: PfsSpec, node: int) -> int:
    """In which queue of the shared rates a node stands."""
    return node if spec.shared_by == NODES else 0


def describe(spec: PfsSpec) -> str:
    """The file system in words: '400 MB/s shared by all nodes, 250 MB/s a node, 1 ms an open, ...'."""
    by = "" if spec.shared_by == NODES else ", request by request"
    words = [
        "unlimited bandwidth" if spec.bandwidth is None else f"{format_bytes(spec.bandwidth)}/s shared by all nodes{by}"
    ]
    if spec.per_node is not None:
        words.append(f"{format_bytes(spec.per_node)}/s a node")
    if spec.open_seconds:
        words.append(f"{format_seconds(spec.open_seconds)} an open")
    if spec.opens is not None:
        words.append(f"{spec.opens:g} opens/s shared by all nodes")
    if spec.request_seconds:
        words.append(f"{format_seconds(spec.request_seconds)} a request of 1 MiB")
    if spec.cache_bytes:
        rate = "" if spec.cache_bandwidth is None else f" at {format_bytes(spec.cache_bandwidth)}/s"
        words.append(f"a client cache of {format_bytes(spec.cache_bytes)} a node{rate}")
    else:
        words.append("no client cache")
    return ", ".join(words)
