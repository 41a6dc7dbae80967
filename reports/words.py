"""Numbers and lists as people read them; every output uses these, so that the same metric reads the same everywhere."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlio_bench.reports.statistics import SHARES
from dlio_bench.units import format_bytes, format_seconds

NOTHING = "-"
EMULATED_PFS = "EMULATED PFS"  # the mark
NETWORKS = ("train", "infer")  # modes of compute in which a real network is at work


def format_share(value: float) -> str:
    """0.4123 -> '41 %', 0.0613 -> '6.1 %'."""
    percent = 100 * value
    return f"{percent:.0f} %" if abs(percent) >= 9.95 else f"{percent:.1f} %"


def format_ratio(value: float) -> str:
    """1.527 -> '1.53x'."""
    return f"{value:.3g}×"


def format_time(seconds: float) -> str:
    """A duration; `format_seconds`, but 0 is '0 s' and 0.9997 is '1 s'."""
    return "0 s" if seconds == 0 else format_seconds(1.0 if 0.9995 <= seconds < 1 else seconds)


FORMATS: dict[str, Callable[[float], str]] = {
    "s": format_time,
    "B": format_bytes,
    "B/s": lambda value: f"{format_bytes(value)}/s",
    "samples/s": lambda value: f"{value:.0f}" if value >= 1000 else f"{value:.3g}",
    "share": format_share,
    "ratio": format_ratio,
}


def number(metric: Mapping[str, Any]) -> str:
    """A metric's value with its unit, or '-' where it has none."""
    return NOTHING if metric["value"] is None else FORMATS[metric["unit"]](metric["value"])


def size(value: float | None) -> str:
    """Bytes, or '-' where nobody counted them."""
    return NOTHING if value is None else format_bytes(value)


def interval(metric: Mapping[str, Any]) -> str:
    """A metric's confidence interval, '440 MB/s … 460 MB/s', or '-' where it has none."""
    if metric["ci"] is None:
        return NOTHING
    low, high = (FORMATS[metric["unit"]](bound) for bound in metric["ci"])
    return f"{low} … {high}"


def plural(count: int, noun: str) -> str:
    """'1 node', '8 nodes'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(words: Sequence[str]) -> str:
    """'order', 'order and delivery', 'order, placement and delivery'."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def shared(labels: Sequence[str], said: Sequence[Sequence[str]]) -> list[str]:
    """Each sentence once, headed by the results that say it, unless all do."""
    speakers: dict[str, list[str]] = {}
    for label, sentences in zip(labels, said, strict=True):
        for sentence in sentences:
            speakers.setdefault(sentence, []).append(label)
    everyone = len(labels)
    return [
        sentence if len(names) == everyone else f"{'; '.join(names)}: {sentence}"
        for sentence, names in speakers.items()
    ]


def reader(result: Mapping[str, Any]) -> str:
    """What the user called the reader, and the policy's own name where the two differ: 'prefetch (cooperative)'."""
    alias, name = result["policy"]["alias"], result["policy"]["name"]
    return str(name) if alias in (None, name) else f"{alias} ({name})"


def scale(result: Mapping[str, Any]) -> str:
    """'8 nodes × 1 rank'."""
    plan = result["plan"]
    return f"{plural(plan['nodes'], 'node')} × {plural(plan['ranks_per_node'], 'rank')}"


def trials(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The trials that count: all but the warm-up ones."""
    return [trial for trial in result["trials"] if not trial["warmup"]]


def shortness(result: Mapping[str, Any]) -> str:
    """Of a result whose trials are too short to be compared: what they have, and what they need."""
    plan, least = result["plan"], min(trial["elapsed_seconds"] for trial in trials(result))
    # results of earlier versions have but a number of steps
    steps, seconds = plan.get("min_steps", 16), plan.get("min_seconds", 0)
    wanted = f"{format_time(seconds)} and {steps} steps" if seconds else f"{steps} steps"
    return (
        f"trials of {format_time(least)} and {plural(plan['steps'], 'step')}, where {wanted} are needed; give more "
        "--epochs or data"
    )


def certainty(result: Mapping[str, Any]) -> str:
    """How the numbers were made: 'median of 3 trials, no confidence interval'."""
    count = len(trials(result))
    known = "95 % confidence interval" if has_interval(result) else "no confidence interval"
    return f"median of {plural(count, 'trial')}, {known}"


def has_interval(result: Mapping[str, Any]) -> bool:
    """Whether the trials were many enough for confidence intervals."""
    return result["metrics"]["elapsed_seconds"]["ci"] is not None


def ceiling(result: Mapping[str, Any]) -> str | None:
    """How what the file system gave compares with what its path gave any reader; None where that was not measured."""
    found = result["environment"].get("ceiling")
    if found is None:
        return None
    if not found["bytes_per_second"]:
        return f"not known: nothing was measured cold in {found['folder']} with samples of about this size"
    share = result["metrics"]["pfs_bandwidth"]["value"] / found["bytes_per_second"]
    return (
        f"{format_share(share)} of {format_bytes(found['bytes_per_second'])}/s, cold random reads in {found['folder']}"
    )


def phase(name: str) -> str:
    """What a share of the trainers' time is called: 'compute'. That in get is a rank's own stall, not the job's."""
    return "own stall" if name == "share_stall" else name.removeprefix("share_")


def steady(metrics: Mapping[str, Any], name: str) -> str:
    """'from epoch 2 12 %', of a share that is known of later epochs; '' where there are none."""
    metric = metrics[f"steady_{name}"]
    return "" if metric["value"] is None else f"from epoch 2 {number(metric)}"


def shares(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the shares of the loop that these results have: only what somebody did among those not all do."""
    there = {
        "share_validation": any(result["plan"].get("validation") for result in results),
        "share_convert": any(result["compute"]["mode"] in NETWORKS for result in results),
        "share_checkpoint": any(_saved(trial) for result in results for trial in trials(result)),
    }
    return [name for name in SHARES if there.get(name, True)]


def meanwhile(result: Mapping[str, Any]) -> str:
    """What overlaps the trainer's phases: totals of a rank."""
    metrics = result["metrics"]
    said = (
        f"reading {number(metrics['read_seconds'])}, decoding "
        f"{number(metrics['decode_seconds'])} a rank, summed over its threads"
    )
    reduced = metrics.get("allreduce_seconds")  # results of earlier versions have none
    return said if reduced is None or reduced["value"] is None else f"{said}; all-reduces {number(reduced)}"


def harness(results: Sequence[Mapping[str, Any]]) -> str | None:
    """What the harness itself adds to the loop, at most, of these results; None where no one tells."""
    found = [result["metrics"].get("harness_share") for result in results]  # earlier versions have none
    known = [metric for metric in found if metric is not None and metric["value"] is not None]
    if not known:
        return None
    most = max(known, key=lambda metric: metric["value"])
    return f"harness: {'at most ' if len(known) > 1 else ''}{number(most)}"


def _saved(trial: Mapping[str, Any]) -> bool:
    return bool(trial.get("training", {}).get("checkpoints"))


def training(result: Mapping[str, Any]) -> str | None:
    """What was trained, how gradients travelled and what came of it; None without training."""
    compute = result["compute"]
    if compute["mode"] != "train":
        return None
    last = trials(result)[-1]["training"]
    said = [
        f"{compute['title']}, {compute['parameters']:,} parameters",
        f"loss {last['loss'][0]:.4g} to {last['final_loss']:.4g} in {plural(len(last['loss']), 'step')}",
        f"gradients by {compute['exchange']} ({compute['exchange_why']})",
    ]
    if last["allreduce_bytes"]:
        said.append(f"all-reduce {format_time(last['allreduce_seconds'])} of {format_bytes(last['allreduce_bytes'])}")
    if compute.get("resume"):
        said.insert(1, f"gone on from step {compute['step']}")
    if saved := last["checkpoints"]:
        mean = sum(one["seconds"] for one in saved) / len(saved)
        said.append(
            f"{plural(len(saved), 'checkpoint')} of {format_bytes(saved[-1]['bytes'])}, {format_time(mean)} each"
        )
    if last["scores"]:
        scores = last["scores"][-1]
        shown = ", ".join(f"{name} {scores[name]:.4g}" for name in scores if name != "epoch")
        said.append(f"validation: {shown} (best constant: {compute['metric']} {compute['chance']:.4g})")
    return "; ".join(said)


def inference(result: Mapping[str, Any]) -> str | None:
    """What predicted, how much of the dataset, and how well; None without inference."""
    compute = result["compute"]
    if compute["mode"] != "infer":
        return None
    last, samples, plan = trials(result)[-1]["inference"], result["dataset"]["samples"], result["plan"]
    untrained = compute["resume"] is None
    weights = "initial weights, not trained" if untrained else f"weights of step {compute['step']}"
    dealt = f"{last['samples']} predictions of {plural(samples, 'sample')} on {plural(plan['ranks'], 'rank')}"
    scores = f"{_scores(last['scores'])} (best constant: {compute['metric']} {compute['chance']:.4g})"
    said = [f"{compute['title']}, {compute['parameters']:,} parameters, {weights}", dealt]
    said.append(f"scores of an untrained network: {scores}" if untrained else f"scores: {scores}")
    if last["held_out"]:
        said.append(f"of samples that no training reads: {_scores(last['held_out'])}")
    return "; ".join(said)


def _scores(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in scores.items())


def sharing(result: Mapping[str, Any]) -> str | None:
    """Who reads what, where ranks do not divide the dataset among them; None where they do."""
    copies = result["plan"].get("copies", 1)
    if copies == 1:
        return None
    requested = result["metrics"]["requested_bytes"]["value"]
    delivered = sum(trial["bytes_useful"] for trial in trials(result)) / len(trials(result))
    return (
        f"model-parallel reading: all {copies} ranks read the whole dataset in one order, so that each sample is "
        f"delivered {copies} times ({format_bytes(delivered)} in a trial, {format_bytes(requested)} requested) and "
        "counts once in samples/s"
    )


def validation(result: Mapping[str, Any]) -> str | None:
    """What a validation pass is and takes; None where there is none."""
    plan, metrics = result["plan"].get("validation"), result["metrics"]
    if not plan:
        return None
    requested = [
        part["bytes_requested"] for trial in trials(result) for e in trial["epochs"] if (part := e["validation"])
    ]
    epochs = "each epoch" if plan["every_epochs"] == 1 else f"every {plan['every_epochs']} epochs"
    return (
        f"{number(metrics['validation_seconds'])} a pass behind {epochs}, over {plan['samples']} samples "
        f"({plan['order']}), {format_bytes(sum(requested) / len(requested))} requested; stall "
        f"{number(metrics['validation_stall_share'])} of it; not in epoch, steps, samples/s, stall and AU"
    )


def delivers(result: Mapping[str, Any]) -> str | None:
    """What the trainer is given beyond the fields as they are stored; None where nothing was done to them."""
    policy = result["policy"]
    said = [f"decoded: {policy['decode']}"] if policy.get("decode") else []
    if policy.get("check_crc"):
        said.append("CRC32C of every field compared inside the loop")
    return "; ".join(said) or None


def storage(results: Sequence[Mapping[str, Any]]) -> str:
    """What delivered the bytes that no cache did."""
    return "emulated PFS" if any(EMULATED_PFS in result["marks"] for result in results) else "device"


def step_time(result: Mapping[str, Any]) -> str:
    """What played the trainer: '0.2 s a step, emulated v100 (derived from published figures)'; of a step time that was
    measured, on what and with which network."""
    compute = result["compute"]
    if compute["mode"] == "none":
        return "no compute: the trainer only reads"
    asked = "" if compute["asked_step_seconds"] is None else f"{format_time(compute['asked_step_seconds'])} a step, "
    if compute["mode"] in NETWORKS:
        return f"that of a real network, {compute['model']}, on {compute['device']}"
    mode = "emulated"
    if compute["kind"] == "measured":
        profile = compute.get("profile") or {}
        model = f" of {profile['model']}" if profile.get("model") else ""
        return f"{asked}{mode}: step time{model} measured on {compute['device']}"
    device = f" {compute['device']}" if compute["device"] else ""
    return f"{asked}{mode}{device}" + (f" ({compute['kind']})" if compute["kind"] else "")
