"""Checks of results as JUnit XML: a suite for each result, a case for each check."""

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from dlio_bench.reports.document.types import Check, Metric, Result
from dlio_bench.reports.export.checks import checks, failures
from dlio_bench.reports.export.measures import OVER_FIRST, measures
from dlio_bench.reports.run import tables
from dlio_bench.wrapping import printable


def render(results: Sequence[Result]) -> str:
    """The XML. A suite has attributes, properties and cases as Jenkins and GitLab read them. Metrics are properties.

    A suite's time is that of all its trials; a check takes none.
    """
    named = zip(tables.labels(results), results, measures(results), strict=True)
    suites = [_suite(number, *one) for number, one in enumerate(named)]
    root = ElementTree.Element(
        "testsuites",
        tests=str(sum(len(checks(result)) for result in results)),
        failures=str(sum(failures(result) for result in results)),
        errors="0",
    )
    root.extend(suites)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _suite(number: int, label: str, result: Result, known: Mapping[str, Metric]) -> ElementTree.Element:
    name = printable(f"{result.workload.name}: {label}")
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        id=str(number),
        package="dlio-bench",
        hostname=printable(next(iter(result.environment.hosts))),
        timestamp=printable(result.created),
        time=f"{sum(trial.elapsed_seconds for trial in result.trials):.6f}",
        tests=str(len(checks(result))),
        failures=str(failures(result)),
        errors="0",
        skipped="0",
    )
    facts = {
        "class": result.class_,
        "verdict": result.verdict,
        "marks": "; ".join(result.marks),
        "digest": result.digest,
    }
    facts |= {
        f"{metric} [{entry.unit}]": f"{entry.value:.15g}" for metric, entry in known.items() if entry.value is not None
    }
    if (ends := known[OVER_FIRST.name].ci) is not None:
        facts |= {f"{OVER_FIRST.name} ci": f"{ends[0]:.15g} {ends[1]:.15g}"}
    properties = ElementTree.SubElement(suite, "properties")
    for fact, value in facts.items():
        ElementTree.SubElement(properties, "property", name=fact, value=printable(value))
    suite.extend(_case(name, check) for check in checks(result))
    return suite


def _case(suite: str, check: Check) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=suite, name=printable(check.name), time="0.000000")
    told = printable(f"expected {check.expected}; found {check.found}")
    if check.ok:
        ElementTree.SubElement(case, "system-out").text = told
    else:
        ElementTree.SubElement(case, "failure", message=told, type="check").text = told
    return case
