"""`dlio-bench list`: the workloads with their data and step times, the readers, the axes, the systems."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import to_builtins

from dlio_bench.benchmarks.registry import WORKLOADS, find
from dlio_bench.datagen.layout import RANDOM
from dlio_bench.harness.cluster.system import SHIPPED, describe, shipped_system
from dlio_bench.harness.plan import properties
from dlio_bench.harness.plan.orders import ORDERS
from dlio_bench.harness.plan.policies import ALIASES, DELIVERIES, OWN, PLACEMENTS, POLICIES
from dlio_bench.units import format_bytes, format_seconds
from dlio_bench.wrapping import wrap

MODEL = ("name", "title", "variants", "parameters", "counted", "batch", "epochs", "metric", "source", "notes")
UPSTREAM = ("order", "orders", "tensorflow", "source", "defects", "departures")


def listing() -> dict[str, Any]:
    """Everything that `run` can name, as JSON."""
    workloads = []
    for workload in map(find, WORKLOADS):
        layouts = {name: make(False, RANDOM) for name, make in workload.variants.items()}
        workloads.append(
            {
                "name": workload.name,
                "title": workload.title,
                "default_variant": workload.default_variant,
                "variants": {
                    name: {
                        **_facts(layout, ("container", "samples_per_file", "file_bytes", "full_files")),
                        "splits": [
                            {
                                "name": split.name,
                                "files": split.full_files,
                                "samples": split.full_samples,
                                "samples_per_file": split.samples_per_file,
                                "file_bytes": split.file_bytes,
                            }
                            for split in layout.splits
                        ],
                        "source": layout.source,
                        **_facts(workload.of(name), ("view", "batch", "batch_source")),
                    }
                    for name, layout in layouts.items()
                },
                "view": list(workload.view),
                "batch": workload.batch,
                "batch_source": workload.batch_source,
                "step_times": [
                    {
                        "device": profile.device,
                        "seconds": row.seconds,
                        "batch": row.batch,
                        "kind": profile.kind,
                        "source": profile.source,
                        "model": profile.model,
                        "variants": list(profile.variants),
                    }
                    for profile in workload.profiles.values()
                    for row in profile.rows
                ],
                "models": [_facts(model, MODEL) for model in workload.models],
                "upstream": None if workload.upstream is None else _facts(workload.upstream, UPSTREAM),
                "upstreams": {
                    name: _facts(other["upstream"], UPSTREAM)
                    for name, other in workload.variations.items()
                    if "upstream" in other
                },
            }
        )
    readers = [
        _facts(policy, ("name", "order", "placement", "delivery", "source"))
        | {
            "aliases": [alias for alias, name in ALIASES.items() if name == policy.name],
            "properties": to_builtins(properties.properties_of(policy)),
            "published_properties": to_builtins(row) if (row := properties.PUBLISHED.get(policy.name)) else None,
        }
        for policy in POLICIES.values()
    ]
    axes = {"order": list(ORDERS), "placement": list(PLACEMENTS), "delivery": [d for d in DELIVERIES if d != OWN]}
    systems = [{"name": name, "tiers": describe(shipped_system(name))} for name in SHIPPED]
    rules = {"rules": dict(properties.RULES), "source": properties.SOURCE}
    return {"workloads": workloads, "readers": readers, "properties": rules, "axes": axes, "systems": systems}


def _facts(thing: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


def render(document: dict[str, Any]) -> str:
    """The listing as text, at most 80 columns."""
    lines = ["Workloads"]
    for workload in document["workloads"]:
        lines += _entry(2, f"{workload['name']}  {workload['title']}; batch {workload['batch']} a rank")
        for name, variant in workload["variants"].items():
            default = " (default)" if name == workload["default_variant"] else ""
            batch = "" if variant["batch"] == workload["batch"] else f"; batch {variant['batch']} a rank"
            lines += _entry(4, f"{name}{default}: {variant['container']}{batch}")
            for split in variant["splits"]:
                samples = f"{split['samples_per_file']} sample{'s' if split['samples_per_file'] > 1 else ''}"
                size = format_bytes(split["file_bytes"])
                lines += _entry(6, f"{split['name']}: {split['files']} files of {size}, {samples} each")
        for step in workload["step_times"]:
            seconds = format_seconds(step["seconds"])
            head = f"--compute emulate:{step['device']}  {seconds} a step of {step['batch']}"
            lines += _entry(4, f"{head} ({step['kind']}; {step['source']})")
        for model in workload["models"]:
            size = f"{model['parameters']} parameters ({', '.join(model['variants'])}; {model['source']})"
            lines += _entry(4, f"model {model['name']}: {model['title']}, {size}")
            for note in model["notes"]:
                lines += _entry(6, note)
        for variant, pipeline in {"": workload["upstream"], **workload["upstreams"]}.items():
            if pipeline:
                lines += _pipeline(f"upstream of {variant}" if variant else "upstream", pipeline)
    lines += ["", "Readers (order x placement x delivery)"]
    for reader in document["readers"]:
        names = ", ".join([*reader["aliases"], reader["name"]])
        lines.append(f"  {names}")
        lines.append(f"    {reader['order']} x {reader['placement']} x {reader['delivery']}")
        lines += _entry(4, reader["source"])
    lines += ["", *_properties(document)]
    lines += ["", "Axes that you can set"]
    for axis, names in document["axes"].items():
        lines += _entry(2, f"--{axis}  {', '.join(names)}")
    lines += ["", "Systems (simulate --system NAME)"]
    for system in document["systems"]:
        lines += _entry(2, f"{system['name']}  {system['tiers']}")
    return "\n".join(lines)


def _properties(document: dict[str, Any]) -> list[str]:
    """The table of properties: what follows from a reader's row, then the published row where there is one."""
    rules = document["properties"]["rules"]
    lines = ["Properties of readers (+ has it, - lacks it, ? open)"]
    for number, (name, rule) in enumerate(rules.items(), 1):
        lines += _entry(2, f"{number} {name.replace('_', ' ')}: {rule}")
    lines += _entry(2, f"published: {document['properties']['source']}")
    lines.append(f"  {'':<22}{' '.join(str(number) for number in range(1, len(rules) + 1))}   published")
    for reader in document["readers"]:
        published = reader["published_properties"]
        quoted = "" if published is None else f"{_signs(published['properties'], rules)}  {published['approach']}"
        lines.append(f"  {reader['name']:<22}{_signs(reader['properties'], rules)}   {quoted}".rstrip())
    notes = {
        (reader["published_properties"]["approach"], note): None
        for reader in document["readers"]
        for note in (reader["published_properties"] or {"notes": ()})["notes"]
    }
    for approach, note in notes:
        lines += _entry(2, f"published of {approach}, {note}")
    return lines


def _signs(found: dict[str, bool | None], names: Iterable[str]) -> str:
    """'+ - ? + +', in the order of `names`."""
    return " ".join({True: "+", False: "-", None: "?"}[found[name]] for name in names)


def _pipeline(head: str, pipeline: dict[str, Any]) -> list[str]:
    others = [order for order in pipeline["orders"] if order != pipeline["order"]]
    lines = _entry(4, f"{head}: {pipeline['order']} (or {', '.join(others)}; {pipeline['source']})")
    for defect in pipeline["defects"]:
        lines += _entry(6, f"as published: {defect}")
    for departure in pipeline["departures"]:
        lines += _entry(6, f"not as published: {departure}")
    return lines


def _entry(indent: int, text: str) -> list[str]:
    return wrap(text, " " * indent, indent + 2)
