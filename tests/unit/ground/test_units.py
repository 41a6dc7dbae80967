"""Sizes, rates and times as users write them: with their unit, and of bytes."""

import pytest

from dlio_bench.errors import UsageError
from dlio_bench.harness.cli import parser
from dlio_bench.units import parse_bytes, parse_rate, parse_seconds


def test_units() -> None:
    sizes = {"2GB": 2 * 10**9, " 1.5 MB ": 1_500_000, "3B": 3, "1KB": 1000, "1kB": 1000, "16MiB": 2**24, "0": 0}
    assert {text: parse_bytes(text) for text in sizes} == sizes
    assert [parse_rate(text) for text in ("400MB/s", " 2 GiB/s", "5MB")] == [400_000_000, 2 << 30, 5_000_000]
    assert [parse_seconds(text) for text in ("0.3ms", "2 s", "0", "50us", "1min")] == pytest.approx(
        [0.3e-3, 2, 0, 50e-6, 60]
    )


def test_a_number_that_is_beyond_all_others_is_refused() -> None:
    for parse, unit, kind in ((parse_bytes, "GB", "size"), (parse_seconds, "s", "time")):
        with pytest.raises(UsageError, match=f"is not a {kind}"):
            parse("9" * 400 + unit)


@pytest.mark.parametrize(
    "words",
    [
        "run cdb --max-data",
        "run cdb --staging",
        "run cdb --memory-per-node",
        "run cdb --tiers ram=",
        "generate cdb --out . --bytes",
        "plan-data cdb --memory-per-node",
        "plan-data cdb --rate",
        "storage . --sample-size",
        "storage . --size",
        "calibrate --pfs . --size",
        "calibrate --pfs . --sample-bytes",
        "bench-readers --size",
        "simulate cdb --tiers ram=",
        "simulate cdb --vary ram=",
    ],
)
def test_every_option_that_takes_an_amount_wants_its_unit_and_is_named(words: str) -> None:
    *command, last = words.split()
    asked = [*command, f"{last}5"] if last.endswith("=") else [*command, last, "5"]
    with pytest.raises(UsageError, match=r"'5' has no unit") as refused:
        parser().parse_args(asked)
    assert (command[-1] if last.endswith("=") else last) in str(refused.value)
