"""JUnit XML, as Jenkins and GitLab read it: of a judgement, or of the checks of results."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Literal
from xml.etree import ElementTree as ET

from msgspec import Struct

from dlio_bench.reports.document.types import Metric
from dlio_bench.reports.export.measures import OVER_FIRST, Exported
from dlio_bench.reports.judging.judgement import Finding, Judgement
from dlio_bench.reports.judging.text import headline
from dlio_bench.reports.view.formatting import interval, number
from dlio_bench.units import format_percent
from dlio_bench.wrapping import printable

PACKAGE = "dlio-bench"
TAGS = {"held": "system-out", "failed": "failure", "error": "error", "skipped": "skipped"}


class JunitCase(Struct, frozen=True, kw_only=True):
    """A test. kind: of a failure or an error; message: why; text: more of it."""

    group: str
    name: str
    seconds: float = 0.0
    outcome: Literal["held", "failed", "error", "skipped"] = "held"
    kind: str = ""
    message: str = ""
    text: str = ""


class Suite(Struct, frozen=True, kw_only=True):
    """Cases, and the host, time and duration of the results, so that the same files give the same document anywhere."""

    name: str
    host: str
    created: str
    seconds: float
    facts: Mapping[str, str]
    cases: Sequence[JunitCase]
    says: str = ""


def of_results(results: Sequence[Exported]) -> str:
    """A suite for each result, a case for each check; metrics are properties. A suite's time is that of all trials."""
    return _document([*map(_checks_suite, results)])


def of_judgement(judgement: Judgement, *, acceptance: bool = False) -> str:
    """A limit missed is a failure; INVALID, undecided or no result an error; what no limit is for is skipped.

    acceptance: whether a result of another class than ACCEPTANCE is a failure too.
    """
    facts = {"verdict": judgement.verdict, "class": judgement.class_, "limits": judgement.limits.name}
    facts |= {"limits.version": judgement.limits.version, "limits.sha256": judgement.limits.sha256}
    suite = Suite(
        name=PACKAGE,
        host=min((host for judged in judgement.results for host in judged.hosts), default="unknown"),
        created=max((judged.created for judged in judgement.results), default="1970-01-01T00:00:00")[:19],
        seconds=sum(judged.seconds for judged in judgement.results),
        facts=facts,
        cases=[*_judgement_cases(judgement, acceptance=acceptance), *_missing_cases(judgement)],
        says="\n".join(judgement.reasons),
    )
    return _document([suite])


def _checks_suite(exported: Exported) -> Suite:
    """The suite of a result without limits."""
    result, metrics = exported.result, exported.metrics
    facts = {"class": result.class_, "marks": "; ".join(result.marks), "digest": result.digest}
    facts |= {f"{name} [{each.unit}]": f"{each.value:.15g}" for name, each in metrics.items() if each.value is not None}
    facts |= {"verdict": result.verdict}
    if OVER_FIRST.name in metrics and (ends := metrics[OVER_FIRST.name].ci) is not None:
        facts |= {f"{OVER_FIRST.name} ci": f"{ends[0]:.15g} {ends[1]:.15g}"}
    name, cases = f"{result.workload}: {exported.label}", []
    for check in exported.checks:
        told = f"expected {check.expected}; found {check.found}"
        if check.ok:
            cases.append(JunitCase(group=name, name=check.name, text=told))
        else:
            cases.append(
                JunitCase(group=name, name=check.name, outcome="failed", kind="check", message=told, text=told)
            )
    seconds = sum(result.seconds) + result.warmup_seconds
    host = next(iter(result.hosts))
    return Suite(name=name, host=host, created=result.created, seconds=seconds, facts=facts, cases=cases)


def _judgement_cases(judgement: Judgement, *, acceptance: bool) -> Iterator[JunitCase]:
    """Of results, whatever became of them."""
    places = [(judged.workload, judged.reader, judged.scale) for judged in judgement.results]
    for judged, place in zip(judgement.results, places, strict=True):
        name = f"{judged.reader} {judged.scale}{f' {judged.digest}' if places.count(place) > 1 else ''}"
        case = partial(JunitCase, group=f"{PACKAGE}.{judged.workload}", name=name, seconds=judged.seconds)
        details = "\n".join(map(_line, judged.findings))
        if judged.verdict == "invalid":
            why = "\n".join(f"{reason.rule}: {reason.text}" for reason in judged.reasons)
            yield case(outcome="error", kind="INVALID", message=judged.reasons[0].text, text=why)
        elif judged.verdict == "fail":
            missed = "; ".join(_line(finding) for finding in judged.findings if finding.ok is False)
            yield case(outcome="failed", kind="FAIL", message=missed, text=details)
        elif judged.verdict == "undecided":
            unsure = "; ".join(_line(finding) for finding in judged.findings if finding.undecided)
            yield case(outcome="error", kind="UNDECIDED", message=unsure, text=details)
        elif judged.verdict == "none":
            yield case(outcome="skipped", message="no limit is for it")
        elif acceptance and judged.class_ != "ACCEPTANCE":
            why = f"the class is {judged.class_}, and ACCEPTANCE is required: {', '.join(judged.capped)}"
            yield case(outcome="failed", kind=judged.class_, message=why, text=details)
        else:
            yield case(text=f"{headline(judged)}\n{details}")


def _missing_cases(judgement: Judgement) -> Iterator[JunitCase]:
    """Of limits without a result, and of files that hold none."""
    places = groupby(judgement.missing, lambda limit: (limit.workload, limit.reader, limit.scale))
    for (workload, reader, scale), group in places:
        findings = [*group]
        case = partial(
            JunitCase, group=f"{PACKAGE}.{workload}", name=f"{reader} {scale}", message=str(findings[0].reason)
        )
        if findings[0].chosen:
            yield case(outcome="error", kind="INVALID", text="\n".join(map(_line, findings)))
        else:
            yield case(outcome="skipped")
    error = partial(JunitCase, group=f"{PACKAGE}.files", outcome="error", kind="INVALID")
    for entry in judgement.unreadable:
        yield error(name=entry.file, message=entry.reason, text=entry.reason)


def _line(finding: Finding) -> str:
    found = number(Metric(finding.found, finding.unit, None))
    covering = "" if finding.coverage is None else f"{format_percent(finding.coverage)} "
    between = interval(Metric(finding.median, finding.unit, finding.interval))
    return f"{finding.metric}: limit {finding.limit}, found {found} ({finding.statistic}), {covering}interval {between}"


def _document(suites: Sequence[Suite]) -> str:
    """The XML, without characters that it cannot hold."""
    counts = [_counts(suite.cases) for suite in suites]
    root = ET.Element("testsuites")
    root.attrib = {key: str(sum(each[key] for each in counts)) for key in ("tests", "failures", "errors")}
    root.set("time", f"{sum(suite.seconds for suite in suites):.6f}")
    root.extend(map(_suite, range(len(suites)), suites, counts))
    for element in root.iter():
        element.attrib = {key: printable(value) for key, value in element.attrib.items()}
        element.text = None if element.text is None else "\n".join(map(printable, element.text.split("\n")))
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _counts(cases: Sequence[JunitCase]) -> dict[str, int]:
    of = Counter(case.outcome for case in cases)
    return {"tests": len(cases), "failures": of["failed"], "errors": of["error"], "skipped": of["skipped"]}


def _suite(number_: int, suite: Suite, counts: Mapping[str, int]) -> ET.Element:
    element = ET.Element("testsuite", name=suite.name, package=PACKAGE, id=str(number_), hostname=suite.host)
    element.attrib |= {"timestamp": suite.created, "time": f"{suite.seconds:.6f}"}
    element.attrib |= {key: str(count) for key, count in counts.items()}
    properties = ET.SubElement(element, "properties")
    for name, value in suite.facts.items():
        ET.SubElement(properties, "property", name=name, value=value)
    for case in suite.cases:
        told = ET.SubElement(element, "testcase", classname=case.group, name=case.name, time=f"{case.seconds:.6f}")
        why = {"type": case.kind, "message": case.message}
        said = ET.SubElement(told, TAGS[case.outcome], {key: value for key, value in why.items() if value})
        said.text = case.text or None
    if suite.says:
        ET.SubElement(element, "system-out").text = suite.says
    return element
