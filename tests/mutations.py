"""Mutations of documents and bytes, the same on every machine, and what must come of them."""

import functools
import inspect
import json
import math
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

from dlio_bench.errors import BenchError

MANY = 800  # mutations of each kind


def mutations(times: int = MANY) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The test is called so many times, each with the next `chance`: every machine tries the same mutations, once."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def tried(**fixtures: Any) -> None:
            for seed in range(times):
                try:
                    test(**fixtures, chance=random.Random(seed))
                except BaseException as error:
                    error.add_note(f"chance is random.Random({seed})")
                    raise

        fixtures = [one for name, one in inspect.signature(test).parameters.items() if name != "chance"]
        tried.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined] # pytest gives what is named here
        return tried

    return decorate


ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1 << 62, 1 << 63, -(1 << 63), 10**30, 1e308, -0.5, math.nan, math.inf, "", ".", "..",
    "../up", "/etc", "a/../b", "a\nb", "\0", "\ud800", "é" * 300, "9" * 30, "data[", "x[123456789]", "<f4", "|O",
    "<U99999", "float9", [], {}, [[]], [None], [-1], [1 << 40] * 4, {"name": "x"}, ["train"] * 40,
)  # fmt: skip
PIECES = (
    b"[", b"{", b'"', b"-", b"0", b"9" * 40, b"9" * 5000, b"1e999", b"NaN", b"\0", b"\xff", b"=", b"\n[", b"#",
    b"\\ud800",
)  # fmt: skip


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything inside; of long lists the first few."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:5]) if isinstance(value, list) else ()
    for key, one in list(inner):
        yield value, key
        yield from places(one)


def copied(document: Any) -> Any:
    """As copy.deepcopy, in a tenth of the time."""
    return pickle.loads(pickle.dumps(document))


def edited(document: Any, chance: random.Random) -> Any:
    """The document with one to three other values."""
    document = copied(document)
    for _ in range(chance.choice((1, 1, 2, 3))):
        known = list(places(document))
        if not known:
            break
        inside, key = chance.choice(known)
        act = chance.randrange(8)
        if act == 0:
            del inside[key]
        elif act == 1 and isinstance(inside[key], int | float):
            inside[key] = inside[key] * chance.choice((-1, 0, 1000, 0.5, 1 << 40))
        elif act == 2:
            outer, name = chance.choice(known)
            inside[key] = copied(outer[name])
        elif act == 3 and isinstance(inside, dict):
            inside["another"] = chance.choice(ODD)
        else:
            inside[key] = copied(chance.choice(ODD))
    return document


def cut(content: bytes, chance: random.Random) -> bytes:
    """The content with one to four other bytes, or fewer, or more."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(changed) + 1)
        act = chance.randrange(8)
        if act < 3:
            changed[at : at + 1] = bytes([chance.randrange(256)])
        elif act < 5:
            changed[at:at] = chance.choice(PIECES)
        elif act < 7:
            del changed[at : at + chance.randrange(40)]
        else:
            del changed[at:]
    return bytes(changed)


def changed(document: Any, chance: random.Random, write: Callable[[Any], str]) -> bytes:
    """The document with other values, or its text with other bytes."""
    if chance.random() < 0.6:
        return write(edited(document, chance)).encode(errors="surrogatepass")
    return cut(write(document).encode(), chance)


def in_toml(value: Any) -> str:
    """A document as TOML, its tables in one line each; text in quotes where TOML has no such value."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {in_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf"
    return json.dumps(value) if isinstance(value, bool | int | float) else json.dumps(str(value))


def as_toml(document: Any) -> str:
    lines = document.items() if isinstance(document, dict) else ()
    return "".join(f"{json.dumps(str(key))} = {in_toml(value)}\n" for key, value in lines)


def ends_well(use: Callable[[], object]) -> bool:
    """Whether there was an answer; any failure that is not one of ours goes on."""
    try:
        use()
    except BenchError:
        return False
    return True
