"""`dlio-bench plan-data`: how much data a valid cold run needs, what it weighs, and how long it takes to make."""

import json
from typing import Any

from msgspec.structs import asdict

from dlio_bench.benchmarks import registry
from dlio_bench.benchmarks.layouts import find_layout
from dlio_bench.datagen.layout import RANDOM, Layout
from dlio_bench.errors import UsageError
from dlio_bench.harness.commands.generation.amount import sizes, smallest_with
from dlio_bench.harness.commands.generation.options import PlanDataOptions
from dlio_bench.reports.view.table import table_lines
from dlio_bench.units import format_bytes, format_seconds

TIMES_MEMORY = 5  # MLPerf Storage benchmark rules: the dataset is at least five times the hosts' memory


def plan_data(options: PlanDataOptions) -> int:
    """The whole command. UsageError."""
    layout = find_layout(registry.find(options.workload), options.variant, tiny=False, fill=RANDOM)
    document = plan_facts(layout, options)
    print(json.dumps(document, indent=1) if options.json else render(document))
    return 0


def plan_facts(layout: Layout, options: PlanDataOptions) -> dict[str, Any]:
    """The plan as JSON: sizes in bytes, times in seconds. UsageError for counts out of range."""
    if options.memory_per_node is None and not options.full:
        raise UsageError(
            "Say how much memory a node has with --memory-per-node, or ask for the published size: --full."
        )
    memory = None if options.memory_per_node is None else options.nodes * options.memory_per_node
    needed = None if memory is None else TIMES_MEMORY * memory
    published = {split.name: split.full_files for split in layout.splits}
    files = published if options.full else smallest_with(layout, needed or 0)
    amount = "--full" if files == published else f"--files {sum(files.values())}"
    is_default = layout.variant == registry.find(layout.workload).default_variant
    variant = "" if is_default else f" --variant {layout.variant}"
    split_sizes = sizes(layout, files)
    stored = sum(size.stored_bytes for size in split_sizes)
    return {
        "workload": layout.workload,
        "variant": layout.variant,
        "full": files == published,
        "times_published": sum(files.values()) / sum(published.values()),
        "generate": f"dlio-bench generate {layout.workload}{variant} --fill {RANDOM} {amount} --out DIR",
        "nodes": options.nodes,
        "aggregate_memory_bytes": memory,
        "needed_bytes": needed,
        # an epoch reads the training split: it is what must not fit
        "large_enough": None if needed is None else split_sizes[0].stored_bytes >= needed,
        "splits": [asdict(size) for size in split_sizes],
        "files": sum(size.files for size in split_sizes),
        "samples": sum(size.samples for size in split_sizes),
        "stored_bytes": stored,
        "payload_bytes": sum(size.payload_bytes for size in split_sizes),
        "rate": options.rate,
        "seconds": stored / options.rate if options.rate else None,
        "source": layout.source,
    }


def render(document: dict[str, Any]) -> str:
    """At most 80 columns, a long command excepted."""
    lines = [f"{document['workload']} {document['variant']}{', the published size' if document['full'] else ''}"]
    if document["needed_bytes"] is not None:
        memory, needed = format_bytes(document["aggregate_memory_bytes"]), format_bytes(document["needed_bytes"])
        nodes = f"{document['nodes']} node{'s' if document['nodes'] > 1 else ''}"
        lines.append(f"  {nodes} with {memory} of memory: a cold run reads at least {needed} ({TIMES_MEMORY} x)")
    rows = [
        [size[key] for key in ("name", "files", "samples")]
        + [format_bytes(size[key]) for key in ("stored_bytes", "payload_bytes")]
        for size in (*document["splits"], document | {"name": "all"})
    ]
    lines += table_lines(["", "files", "samples", "stored", "payload"], rows)
    if document["large_enough"] is False:
        lines.append("  The published training split is smaller than that. Leave --full out.")
    if document["times_published"] > 1:
        times = f"{document['times_published']:.3g}"
        lines.append(f"  {times} x the published size: the layout repeats, with new samples")
    if document["seconds"] is not None:
        lines.append(f"  written in {format_seconds(document['seconds'])} at {format_bytes(document['rate'])}/s")
    lines.append(f"  make it  {document['generate']}")
    return "\n".join(lines)
