"""The five properties of readers: what follows from their rows agrees with the published table."""

import pytest
from msgspec.structs import fields, replace

from dlio_bench.harness.plan import properties
from dlio_bench.harness.plan.policies import PLACEMENTS, POLICIES
from dlio_bench.harness.plan.properties import PUBLISHED, RULES, Properties, properties_of


def test_every_property_has_its_rule() -> None:
    assert [field.name for field in fields(Properties)] == list(RULES)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_derived_agrees_with_what_is_published(name: str) -> None:
    published = PUBLISHED[name].properties
    if name == "deepio-ordered":  # the published row is of the opportunistic mode, by its footnote
        published = replace(published, accuracy=True)
    assert properties_of(POLICIES[name]) == published


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("naive", Properties(True, False, False, False)),
        ("shuffled", Properties(True, False, False, True)),
        ("cooperative", Properties(True, True, True, True)),
        ("staged", Properties(False, True, False, False)),
        ("staged-replicated", Properties(None, True, False, True)),
        ("upstream", Properties(None, None, None, None)),
    ],
)
def test_readers_that_are_not_in_the_published_table(name: str, expected: Properties) -> None:
    assert properties_of(POLICIES[name]) == expected


def test_they_follow_from_the_row_and_not_from_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(POLICIES["clairvoyant"], order="buffered-shuffle")
    assert properties_of(row).accuracy is False
    monkeypatch.setitem(PLACEMENTS, "clairvoyant", PLACEMENTS["lbann-preload"])
    assert properties_of(POLICIES["clairvoyant"]) == replace(
        properties_of(POLICIES["lbann-preload"]), ease_of_use=True
    )  # which is quoted
    assert properties.SOURCE
