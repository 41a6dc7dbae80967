"""A judgement as JUnit XML: a test case for each workload x reader x scale."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import groupby

from dlio_bench.reports.document.types import Metric
from dlio_bench.reports.judging.judgement import Finding, Judgement
from dlio_bench.reports.judging.text import headline
from dlio_bench.reports.view.formatting import interval, number
from dlio_bench.units import format_percent

SUITE = "dlio-bench"


def render(judgement: Judgement, *, acceptance: bool = False) -> str:
    """The document: a limit missed is a failure; INVALID, undecided or no result an error; what no limit is for is
    skipped.

    acceptance: whether a result of another class than ACCEPTANCE is a failure too.
    Attributes as JUnit's schema has them; host, time and duration are those of the results, so that the same files
    give the same document everywhere.
    """
    cases = [*_cases(judgement, acceptance=acceptance)]
    suite = ET.Element("testsuite", name=SUITE, package=SUITE, id="0")
    counts = {
        kind: sum(case.find(tag) is not None for case in cases)
        for kind, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    }
    hosts = sorted({host for judged in judgement.results for host in judged.hosts})
    created = max((judged.created for judged in judgement.results), default="1970-01-01T00:00:00")
    seconds = sum(judged.seconds for judged in judgement.results)
    suite.attrib |= {"tests": str(len(cases)), **{kind: str(count) for kind, count in counts.items()}}
    suite.attrib |= {"hostname": hosts[0] if hosts else "unknown", "time": f"{seconds:.3f}", "timestamp": created[:19]}
    properties = ET.SubElement(suite, "properties")
    for name, value in (
        ("verdict", judgement.verdict),
        ("class", judgement.class_),
        ("limits", judgement.limits.name),
        ("limits.version", judgement.limits.version),
        ("limits.sha256", judgement.limits.sha256),
    ):
        ET.SubElement(properties, "property", name=name, value=value)
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = "\n".join(judgement.reasons)
    suites = ET.Element("testsuites", {key: suite.attrib[key] for key in ("tests", "failures", "errors", "time")})
    suites.append(suite)
    for element in suites.iter():
        element.attrib = {key: _legal(value) for key, value in element.attrib.items()}
        element.text = None if element.text is None else _legal(element.text)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _cases(judgement: Judgement, *, acceptance: bool) -> Iterator[ET.Element]:
    for judged in judgement.results:
        name = f"{judged.reader} {judged.scale}"
        alike = [
            one
            for one in judgement.results
            if (one.workload, one.reader, one.scale) == (judged.workload, judged.reader, judged.scale)
        ]
        case = _case(judged.workload, name if len(alike) == 1 else f"{name} {judged.digest}", judged.seconds)
        details = "\n".join(_line(finding) for finding in judged.findings)
        if judged.verdict == "invalid":
            why = "\n".join(f"{reason.rule}: {reason.text}" for reason in judged.reasons)
            _add(case, "error", "INVALID", judged.reasons[0].text, why)
        elif judged.verdict == "fail":
            missed = [_line(finding) for finding in judged.findings if finding.ok is False]
            _add(case, "failure", "FAIL", "; ".join(missed), details)
        elif judged.verdict == "undecided":
            unsure = [_line(finding) for finding in judged.findings if finding.undecided]
            _add(case, "error", "UNDECIDED", "; ".join(unsure), details)
        elif judged.verdict == "none":
            ET.SubElement(case, "skipped", message="no limit is for it")
        elif acceptance and judged.class_ != "ACCEPTANCE":
            why = f"the class is {judged.class_}, and ACCEPTANCE is required: {', '.join(judged.capped)}"
            _add(case, "failure", judged.class_, why, details)
        else:
            ET.SubElement(case, "system-out").text = f"{headline(judged)}\n{details}"
        yield case
    for (workload, reader, scale), group in groupby(
        judgement.missing, lambda limit: (limit.workload, limit.reader, limit.scale)
    ):
        findings = [*group]
        case = _case(workload, f"{reader} {scale}", 0.0)
        reason = str(findings[0].reason)
        if findings[0].chosen:
            _add(case, "error", "INVALID", reason, "\n".join(_line(finding) for finding in findings))
        else:
            ET.SubElement(case, "skipped", message=reason)
        yield case
    for entry in judgement.unreadable:
        case = _case("files", entry.file, 0.0)
        _add(case, "error", "INVALID", entry.reason, entry.reason)
        yield case


def _case(workload: str, name: str, seconds: float) -> ET.Element:
    return ET.Element("testcase", classname=f"{SUITE}.{workload}", name=name, time=f"{seconds:.3f}")


def _add(case: ET.Element, tag: str, kind: str, message: str, text: str) -> None:
    ET.SubElement(case, tag, type=kind, message=message).text = text


def _line(finding: Finding) -> str:
    found = number(Metric(finding.found, finding.unit, None))
    covering = "" if finding.coverage is None else f"{format_percent(finding.coverage)} "
    between = interval(Metric(finding.median, finding.unit, finding.interval))
    return f"{finding.metric}: limit {finding.limit}, found {found} ({finding.statistic}), {covering}interval {between}"


def _legal(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    return "".join(
        letter if letter in "\t\n\r" or " " <= letter <= "\ud7ff" or "\ue000" <= letter <= "\ufffd" or letter > "\uffff"
        else "?"
        for letter in text
    )  # fmt: skip
