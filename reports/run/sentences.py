"""What is said of results in words; text and page share these sentences."""

from collections.abc import Callable, Mapping, Sequence

from dlio_bench.counters import COUNTERS, SECONDS
from dlio_bench.reports.document.trials import CheckpointLoad
from dlio_bench.reports.document.types import Compute, Draft, Metric, Result
from dlio_bench.reports.numbers import intervals
from dlio_bench.reports.numbers.intervals import MIN_TRIALS
from dlio_bench.reports.numbers.metrics import SHARES
from dlio_bench.reports.view.formatting import format_share, format_time, number, plural
from dlio_bench.units import format_bytes, format_percent

EMULATED_PFS = "EMULATED PFS"  # the mark
OBJECTS = "s3://"  # begins the place of a dataset in an object store
MOST_RANKS = 8  # whose batches are listed one by one


def shared(labels: Sequence[str], sentences_of: Sequence[Sequence[str]]) -> list[str]:
    """Each sentence once, headed by the results that say it, unless all do."""
    speakers: dict[str, list[str]] = {}
    for label, sentences in zip(labels, sentences_of, strict=True):
        for sentence in sentences:
            speakers.setdefault(sentence, []).append(label)
    everyone = len(labels)
    return [
        sentence if len(names) == everyone else f"{'; '.join(names)}: {sentence}"
        for sentence, names in speakers.items()
    ]


def merge_sentences(labels: Sequence[str], said: Sequence[str | None]) -> list[str]:
    """One sentence for what several results say in the same sense, '6 results: ...'; empty where none says anything."""
    speakers = [(label, sentence) for label, sentence in zip(labels, said, strict=True) if sentence]
    if not speakers:
        return []
    label, sentence = speakers[0]
    if len(speakers) == 1:
        return [sentence if len(labels) == 1 else f"{label}: {sentence}"]
    if any(other != sentence for _, other in speakers):
        return [f"{len(speakers)} results, such as {label}: {sentence}"]
    return [sentence if len(speakers) == len(labels) else f"{len(speakers)} results: {sentence}"]


def sentences_of(labels: Sequence[str], results: Sequence[Result], tell: Callable[[Result], str | None]) -> list[str]:
    """What `tell` says of the results, as `shared`; it says None where there is nothing to say."""
    return shared(labels, [[sentence] if (sentence := tell(result)) else [] for result in results])


def reader(result: Result) -> str:
    """What the user called the reader, and the policy's own name where the two differ: 'prefetch (cooperative)'."""
    alias, name = result.policy.alias, result.policy.name
    return name if alias in (None, name) else f"{alias} ({name})"


def scale(result: Result) -> str:
    """'8 nodes × 1 rank'."""
    plan = result.plan
    return f"{plural(plan.nodes, 'node')} × {plural(plan.ranks_per_node, 'rank')}"


def scales(results: Sequence[Result]) -> str:
    """'8 nodes × 1 rank', '1, 4 nodes', or '4 nodes × 1, 2 ranks': what several results have in common."""
    plans = [result.plan for result in results]
    nodes, ranks = sorted({plan.nodes for plan in plans}), sorted({plan.ranks_per_node for plan in plans})
    if len(nodes) > 1:
        return f"{', '.join(map(str, nodes))} nodes"
    return f"{plural(nodes[0], 'node')} × {_range(ranks, 'rank', ', ')}"


def trials(results: Sequence[Result]) -> str:
    """'5 trials', '3 to 5 trials'."""
    return _range(sorted({len(result.measured_trials) for result in results}), "trial")


def _range(counts: Sequence[int], noun: str, joint: str = " to ") -> str:
    ends = counts if joint == ", " else dict.fromkeys((counts[0], counts[-1]))
    return joint.join(map(str, ends)) + f" {noun}" + "s" * (counts[-1] != 1)


def shortness(result: Result) -> str:
    """Of a result whose trials are too short to be compared: what they have, and what they need."""
    plan, least = result.plan, min(trial.elapsed_seconds for trial in result.measured_trials)
    wanted = f"{plan.min_steps} steps"
    if plan.min_seconds:
        wanted = f"{format_time(plan.min_seconds)} and {wanted}"
    return (
        f"trials of {format_time(least)} and {plural(plan.steps, 'step')}, where {wanted} are needed; give more "
        "--epochs or data"
    )


def describe_certainty(*results: Result) -> str:
    """How the numbers were made: 'median of 3 trials, no confidence interval'."""
    sure = [result for result in results if has_interval(result)]
    if not sure:
        return f"median of {trials(results)}, no confidence interval"
    known = " to ".join(dict.fromkeys(f(map(coverage, sure)) for f in (min, max)))
    where = "" if len(sure) == len(results) else f" where there are {MIN_TRIALS} or more"
    return f"median of {trials(results)}, {known} confidence interval{where}"


def coverage(result: Result, name: str = "elapsed_seconds") -> str:
    """How much the interval of a metric covers: '94 %'."""
    return format_percent(intervals.coverage(len(result.measured_trials), mean=name in SHARES))


def has_interval(result: Result) -> bool:
    """Whether the trials were many enough for confidence intervals."""
    return result.metrics["elapsed_seconds"].ci is not None


def ceiling(result: Result) -> str | None:
    """The rate of the file system as a share of what `dlio-bench storage` measured; None without such a measurement."""
    measured = result.environment.ceiling
    if measured is None:
        return None
    rate, folder = measured.bytes_per_second, measured.folder
    if rate is None:
        return f"not known: nothing was measured cold in {folder} with samples of about this size"
    share = result.value("pfs_bandwidth") / rate
    return f"{format_share(share)} of {format_bytes(rate)}/s, cold random reads in {folder}"


def steady(metrics: Mapping[str, Metric], name: str) -> str:
    """'from epoch 2 12 %', of a share that is known of later epochs; '' where there are none."""
    metric = metrics[f"steady_{name}"]
    return "" if metric.value is None else f"from epoch 2 {number(metric)}"


def no_io_bound(result: Result) -> str:
    """'no-I/O bound 17.3 ms', and what of it is not the trainers' steps."""
    bound = f"no-I/O bound {number(result.metrics['no_io_seconds'])}"
    return f"{bound}, checkpoints included" if result.metrics["share_checkpoint"].value else bound


def shares(results: Sequence[Result]) -> list[str]:
    """The names of the shares of the loop to show; validation, convert and checkpoint only if a result has them."""
    there = {
        "share_validation": any(result.plan.validation for result in results),
        "share_convert": any(result.compute.is_network for result in results),
        "share_checkpoint": any(
            (trial.training and trial.training.checkpoints) or trial.checkpoint_load
            for result in results
            for trial in result.measured_trials
        ),
    }
    return [name for name in SHARES if there.get(name, True)]


def describe_overlap(result: Result) -> str:
    """What overlaps the trainer's phases: totals of a rank."""
    metrics = result.metrics
    counted = [counter for counter in COUNTERS.values() if counter.unit == SECONDS]
    parts = ", ".join(f"{counter.title} {number(metrics[counter.name])}" for counter in counted)
    text = f"{parts} a rank, summed over its threads"
    reduced = metrics["allreduce_seconds"]
    return text if reduced.value is None else f"{text}; all-reduces {number(reduced)}"


def harness(results: Sequence[Result]) -> str | None:
    """What the harness itself adds to the loop, at most, of these results; None where no one tells."""
    known = [share for result in results if (share := result.metrics["harness_share"].value) is not None]
    if not known:
        return None
    return f"harness: {'at most ' if len(known) > 1 else ''}{format_share(max(known))}"


def checkpoint_load(result: Result) -> str | None:
    """The checkpoints of a published size that were written beside the input; None without."""
    loads = [trial.checkpoint_load for trial in result.measured_trials if trial.checkpoint_load is not None]
    if not loads:
        return None
    last, seconds = loads[-1], [each for load in loads for each in load.seconds]
    if not seconds:
        return f"{last.model}: a trial has fewer than {plural(last.every, 'step')}, and none was written"
    cut = "" if last.fraction == 1 else f" ({100 * last.fraction:.4g} % of the bytes)"
    mean = sum(seconds) / len(seconds)
    return (
        f"{last.model}{cut}: {plural(len(seconds), 'checkpoint')} of {format_bytes(last.bytes)}, one after every "
        f"{plural(last.every, 'step')}; {format_time(mean)} each on its slowest rank, {format_bytes(last.bytes / mean)}"
        f"/s; {format_share(last.fsync_share)} of it in fsync, {format_share(last.waited_share)} waiting for bytes to "
        f"be made; {format_bytes(last.compared_bytes)} of the last one compared and equal{_read_from(last)}"
    )


def _read_from(load: CheckpointLoad) -> str:
    """Whether the storage, or the memory of the readers' hosts, gave the checkpoint that was compared."""
    if load.compared_cached is None:
        return ", from storage or memory: what is in memory there cannot be seen"
    return (
        f", {format_bytes(load.compared_cached)} of it from memory" if load.compared_cached else ", read from storage"
    )


def training(result: Result) -> str | None:
    """What was trained, how gradients travelled and what came of it; None without training."""
    compute, last = result.compute, result.measured_trials[-1].training
    if last is None:
        return None
    several = result.plan.models
    networks = dict.fromkeys(f"{model.network}, {model.parameters:,} parameters" for model in several)
    parts = [
        f"{len(several)} models ({'; '.join(networks)})"
        if several
        else f"{compute.title}, {compute.parameters:,} parameters",
        f"loss {last.loss[0]:.4g} to {last.final_loss:.4g} in {plural(len(last.loss), 'step')}"
        + (", mean of the models" if several else ""),
        f"gradients by {compute.exchange} ({compute.exchange_why})",
    ]
    if last.allreduce_bytes:
        parts.append(f"all-reduce {format_time(last.allreduce_seconds)} of {format_bytes(last.allreduce_bytes)}")
    if compute.resume:
        parts.insert(1, f"further epochs after step {compute.step}")
    if saved := last.checkpoints:
        mean = sum(checkpoint.seconds for checkpoint in saved) / len(saved)
        parts.append(f"{plural(len(saved), 'checkpoint')} of {format_bytes(saved[-1].bytes)}, {format_time(mean)} each")
    if last.scores:
        final = [scores for scores in last.scores if scores["epoch"] == last.scores[-1]["epoch"]]
        shown = "; ".join(_of_pass(scores) for scores in final)
        parts.append(f"validation: {shown}{_best_constant(compute)}")
    return "; ".join(parts)


def _of_pass(scores: Mapping[str, float]) -> str:
    """'accuracy 0.5', of one of several models 'model 1 accuracy 0.5'."""
    model = f"model {scores['model']:.0f} " if "model" in scores else ""
    return model + _scores({name: value for name, value in scores.items() if name not in ("epoch", "model")})


def inference(result: Result) -> str | None:
    """What predicted, how much of the dataset, and how well; None without inference."""
    compute, last = result.compute, result.measured_trials[-1].inference
    if last is None:
        return None
    samples, plan = result.dataset.samples, result.plan
    untrained = compute.resume is None
    weights = "initial weights, not trained" if untrained else f"weights of step {compute.step}"
    dealt = f"{last.samples} predictions of {plural(samples, 'sample')} on {plural(plan.ranks, 'rank')}"
    scores = _scores(last.scores) + _best_constant(compute)
    parts = [f"{compute.title}, {compute.parameters:,} parameters, {weights}", dealt]
    parts.append(f"scores of an untrained network: {scores}" if untrained else f"scores: {scores}")
    if last.held_out:
        parts.append(f"of samples that no training reads: {_scores(last.held_out)}")
    return "; ".join(parts)


def _best_constant(compute: Compute) -> str:
    return "" if compute.chance is None else f" (best constant: {compute.metric} {compute.chance:.4g})"


def _scores(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in scores.items())


def sharing(result: Result) -> str | None:
    """Who reads what, where ranks do not divide the dataset among them; None where they do."""
    copies = result.plan.copies
    if copies == 1:
        return None
    if result.plan.shard == "pipeline":
        return (
            f"pipeline-parallel reading: of {copies} ranks, the stages of a pipeline, the first reads every sample "
            "without its labels, and the last the labels, in one order; those between read nothing, and each sample "
            "counts once in samples/s"
        )
    requested = result.value("bytes_requested")
    delivered = sum(trial.bytes_useful for trial in result.measured_trials) / len(result.measured_trials)
    return (
        f"model-parallel reading: all {copies} ranks read the whole dataset in one order, so that each sample is "
        f"delivered {copies} times ({format_bytes(delivered)} in a trial, {format_bytes(requested)} requested) and "
        "counts once in samples/s"
    )


def validation(result: Result) -> str | None:
    """What a validation pass is and takes; None where there is none."""
    plan, metrics = result.plan.validation, result.metrics
    passes = [epoch.validation for trial in result.measured_trials for epoch in trial.epochs if epoch.validation]
    if plan is None or not passes:
        return None
    requested = sum(validation_pass.bytes_requested for validation_pass in passes) / len(passes)
    epochs = "each epoch" if plan.every_epochs == 1 else f"every {plan.every_epochs} epochs"
    return (
        f"{number(metrics['validation_seconds'])} a pass behind {epochs}, over {plan.samples} samples "
        f"({plan.order}), {format_bytes(requested)} requested; stall "
        f"{number(metrics['validation_stall_share'])} of it; not in epoch, steps, samples/s, stall and AU"
    )


def delivers(result: Result) -> str | None:
    """What the trainer is given beyond the fields as they are stored; None where nothing was done to them."""
    policy = result.policy
    parts = [f"decoded: {policy.decode}"] if policy.decode else []
    if policy.check_crc:
        parts.append("CRC32C of every field compared inside the loop")
    return "; ".join(parts) or None


def io(result: Result) -> str | None:
    """That reads were direct, or of objects in a store, and what they cost besides; None of buffered ones."""
    if result.dataset.folder.startswith(OBJECTS):
        requests, retries = (result.metrics[name].value or 0.0 for name in ("requests", "retries"))
        delivered, requested = (result.metrics[name].value or 0.0 for name in ("bytes_device", "bytes_requested"))
        return (
            f"ranges of objects in {result.dataset.folder}: {requests:.0f} requests a trial, {retries:.0f} of them "
            f"made again after a failure; {format_bytes(delivered)} delivered of {format_bytes(requested)} requested"
        )
    if result.plan.io != "direct":
        return None
    rounded = result.metrics["bytes_rounded"].value or 0.0
    return f"direct (O_DIRECT), past the page cache; whole blocks brought {format_bytes(rounded)} more than requested"


def streams(result: Result) -> str | None:
    """How batches were streamed, and how many each rank took where that was not planned; None without streams."""
    planned = result.plan.streams
    if planned is None:
        return None
    producers = "inline producers" if planned.inline else plural(planned.producers, "producer")
    parts = [f"{planned.mode}, {producers}"]
    if planned.engine is not None:
        parts.append(f"over {planned.engine}{f' by {planned.transport}' if planned.transport else ''}")
    if planned.queue is not None:
        most = f"{planned.queue} {'batch' if planned.queue == 1 else 'batches'}"
        parts.append(f"at most {most} in a stream, {planned.full} when it is full")
    if batches := result.measured_trials[-1].rank_batches:
        each = ", ".join(map(str, batches))
        if len(batches) > MOST_RANKS:
            each = f"{min(batches)} to {max(batches)} on {len(batches)} ranks"
        parts.append(f"batches a rank: {each}{' (last trial)' if len(result.measured_trials) > 1 else ''}")
    return "; ".join(parts)


def emulation_sentences(results: Sequence[Result]) -> list[str]:
    """The emulated file systems in words, each once."""
    return list(dict.fromkeys(pfs.says for result in results if (pfs := result.environment.emulated_pfs)))


def title(counter: str, results: Sequence[Result]) -> str:
    """The title of a counter; what delivered the bytes that no cache did is called by its name."""
    return storage(results) if counter == "bytes_device" else COUNTERS[counter].title


def source(result: Draft) -> str:
    """Source of a rate: 'from the file system'. Where the storage's bytes are not counted, caches may have served them:
    'requested of the file system'.
    """
    if result.dataset.folder.startswith(OBJECTS):
        return "from the object store"
    counted = all(trial.bytes_device is not None for trial in result.measured_trials)
    return "from the file system" if counted else "requested of the file system"


def storage(results: Sequence[Draft]) -> str:
    """What delivered the bytes that no cache did."""
    if any(result.dataset.folder.startswith(OBJECTS) for result in results):
        return "object store"
    return "emulated PFS" if any(EMULATED_PFS in result.marks for result in results) else "device"


def step_time(result: Result) -> str:
    """What played the trainer: '0.2 s a step, emulated v100 (derived from published figures)'; of a step time that was
    measured, on what and with which network."""
    compute = result.compute
    if compute.mode == "none":
        return "no compute: the trainer only reads"
    step = "" if compute.asked_step_seconds is None else f"{format_time(compute.asked_step_seconds)} a step, "
    if compute.is_network:
        return f"that of a real network, {compute.model}, on {compute.device}"
    mode = "emulated"
    if compute.kind == "measured":
        model = f" of {compute.profile.model}" if compute.profile and compute.profile.model else ""
        return f"{step}{mode}: step time{model} measured on {compute.device}"
    device = f" {compute.device}" if compute.device else ""
    return f"{step}{mode}{device}" + (f" ({compute.kind})" if compute.kind else "")
