"""What a program may give to `dlio_bench.load`: its kinds, before anything is opened."""

import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

from dlio_bench.errors import UsageError
from dlio_bench.harness.library.decoding import Decoder

SEEDS = 1 << 64  # the generator takes 64 bits


def whole(name: str, value: Any) -> int:
    """A whole number as Python's own, which a state can keep: NumPy's too, but no float and no text. UsageError."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise UsageError(f"{name}={value!r} is no whole number. Give one, such as {name}=1.")


def valid_seed(seed: Any) -> int:
    """A seed of an order. UsageError."""
    number = whole("seed", seed)
    if not 0 <= number < SEEDS:
        raise UsageError(f"seed={number} is not from 0 to 2**64 - 1. Give one that is.")
    return number


def require_kinds(dataset: Any, fields: Any, patterns: Any, decode: Any, tiers: Any, patience: Any) -> None:
    """UsageError that names the first argument of a kind that cannot be meant."""
    if not isinstance(dataset, str | os.PathLike):
        raise UsageError(f"The dataset is {dataset!r}. Give the path of a folder or of a file.")
    if isinstance(fields, str):
        raise UsageError(f"fields={fields!r} is one text. Give a list of names: fields=[{fields!r}].")
    if not isinstance(fields, Sequence) or len(set(fields)) < len(fields):
        raise UsageError(f"fields={fields!r} is no list of different names. Name each field once.")
    if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise UsageError(f'files={patterns!r} is no pattern, nor a list of them. Give one, such as files="*.jpg".')
    if not isinstance(decode, bool | Decoder):
        raise UsageError(
            f"decode={decode!r} is neither True, False nor a dlio_bench.Decoder. Put a function of yours into a "
            "Decoder, which says what it reads and gives."
        )
    if decode is True and fields:
        raise UsageError(
            "decode=True delivers what the workload's application makes of a sample, so that fields= has no effect. "
            "Leave one of them out."
        )
    if tiers is not None and not isinstance(tiers, Mapping):
        raise UsageError(f'tiers={tiers!r} is no dict of sizes. Give one, such as tiers={{"ram": "2GB"}}.')
    if isinstance(patience, bool) or not isinstance(patience, int | float) or not patience > 0:
        raise UsageError(f"patience={patience!r} is no number of seconds above 0. Give one, such as patience=300.")
