"""The folder that is handed over: judgement, page, digests, and a text that says what is what."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dlio_bench import __version__
from dlio_bench.datagen.manifest import file_sha256
from dlio_bench.errors import EnvironmentFailure
from dlio_bench.harness.commands.acceptance.campaign import CampaignRecord
from dlio_bench.harness.commands.acceptance.contract import NAME as LIMITS
from dlio_bench.harness.commands.acceptance.parts import RESULTS, STORAGE
from dlio_bench.harness.commands.acceptance.plan import CampaignPlan
from dlio_bench.harness.ground.folders import JOURNAL
from dlio_bench.reports import kinds
from dlio_bench.reports.acceptance import CAMPAIGN, Campaign, describe_mount, is_on
from dlio_bench.reports.document.collection import load_each
from dlio_bench.reports.document.environment import Host
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.export import junit
from dlio_bench.reports.judging import text as judgement_text
from dlio_bench.reports.judging.judge import judge
from dlio_bench.reports.judging.judgement import NAME as JUDGEMENT
from dlio_bench.reports.judging.judgement import Judgement, as_json
from dlio_bench.reports.judging.limits import Limits
from dlio_bench.reports.run import html
from dlio_bench.reports.run.machines import abbreviate
from dlio_bench.wrapping import wrap

PLAN, PAGE, JUNIT, SUMS, README = "plan.toml", "report.html", "junit.xml", "SHA256SUMS", "README.txt"


def hand_over(plan: CampaignPlan, campaign: CampaignRecord, folder: Path, limits: Limits) -> Judgement:
    """Judge what the campaign measured, and write everything that is made of its results. BenchError."""
    pairs, documents, suspects = load_each([folder / RESULTS])
    hosts = [(result.workload.title, result.environment.hosts) for result, _ in pairs]
    hosts += [(document.model.title, document.hosts) for document in documents]
    require_measured_there(plan, hosts)
    judgement = judge(kinds.all_measured(pairs, documents), limits, suspects)
    write_whole(folder / JUDGEMENT, as_json(judgement).encode())
    write_whole(folder / JUNIT, junit.of_judgement(judgement).encode())
    html.write(pairs, folder / PAGE, judgement, campaign)
    write_whole(folder / README, readme(campaign, judgement, _beginnings(folder)).encode())
    write_whole(folder / SUMS, sums(folder).encode())
    return judgement


def require_measured_there(plan: CampaignPlan, measured: Iterable[tuple[str, Mapping[str, Host]]]) -> None:
    """EnvironmentFailure where a host measured on another file system than the plan says. measured: names, hosts."""
    for name, hosts in measured:
        for host, state in hosts.items():
            if not is_on(state.mount, plan.system.file_system):
                raise EnvironmentFailure(
                    f"[system] file_system is '{plan.system.file_system}', but {host} measured {name} on "
                    f"{describe_mount(state.mount)}. Mount it there, remove the part's folder in results, and go on."
                )


def sums(folder: Path) -> str:
    """A line for each file but the sums themselves, as sha256sum writes it. EnvironmentFailure."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    try:
        return "".join(f"{file_sha256(path).removeprefix('sha256:')}  {path.relative_to(folder)}\n" for path in files)
    except OSError as error:
        raise EnvironmentFailure(f"'{error.filename}' could not be read: {error.strerror}. Run again.") from error


def readme(campaign: Campaign, judgement: Judgement, beginnings: Sequence[str]) -> str:
    """The text. beginnings: the part of each run that was begun, once for every time."""
    again = sorted({part for part in beginnings if beginnings.count(part) > 1})
    times = [f"{part.removeprefix('run ')} {beginnings.count(part)} times" for part in again]
    begun = f"Begun more than once, after an interruption or a failure: {', '.join(times)}." if times else (
        "Every run was begun once."
    )  # fmt: skip
    rows = {
        RESULTS + "/": "what was measured: a folder for each workload and scale, one in it for each reader, with "
        "result.json (all numbers) and steps.npz (the time of every step)",
        STORAGE + "/": "what the storage gives to any reader, if the plan asked for it",
        PAGE: "all results as a page for a browser; it needs no network",
        JUDGEMENT: "every limit with what was found, its interval, and the verdict",
        JUNIT: "the same for a CI system",
        LIMITS: "the limits",
        PLAN: "the plan",
        CAMPAIGN: "what the plan measures, with its digest",
        JOURNAL: "when each part began and ended",
        SUMS: f"sha256 of every file: `sha256sum -c {SUMS}` in this folder compares them",
    }
    system = campaign.system
    lines = [f"Acceptance of {system.name}", *([f"Contact: {system.contact}"] if system.contact else [])]
    lines += [*([system.description.strip()] if system.description.strip() else []), ""]
    lines += [judgement_text.headline(judgement), *(f"  {reason}" for reason in judgement.reasons), ""]
    for place in campaign.places:
        lines += wrap(f"{place}", "Measured in ", whole_words=True)
    lines += wrap(abbreviate(sorted({host for judged in judgement.results for host in judged.hosts})), "Hosts       ")
    for change in campaign.changes:
        lines += ["", *wrap(change, whole_words=True)]
    lines.append("")
    for name, text in rows.items():
        lines += wrap(text, f"{name:<16}")
    lines += ["", *wrap(begun), ""]
    lines += ["Judge again, on any machine with dlio-bench (the answer is the same, byte for byte):"]
    lines += [f"  dlio-bench judge {RESULTS} --limits {LIMITS}", "", f"Measured with dlio-bench {__version__}."]
    return "\n".join(lines) + "\n"


def _beginnings(folder: Path) -> list[str]:
    """The parts of kind run that the journal says were begun."""
    parts = []
    for line in (folder / JOURNAL).read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
            part = entry["part"] if entry["is"] == "begun" else ""
        except (ValueError, KeyError, TypeError):  # cut short when the machine failed
            continue
        if isinstance(part, str) and part.startswith("run "):
            parts.append(part)
    return parts
