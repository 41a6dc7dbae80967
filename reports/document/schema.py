"""The JSON schemas of the documents, made from their types: `python -m dlio_bench.reports.document.schema NAME`."""

import json
import sys
from typing import Any

import msgspec

from dlio_bench.reports.capacity import Capacity
from dlio_bench.reports.checkpoint.types import Document as Checkpoints
from dlio_bench.reports.coupling.document import Document as Coupled
from dlio_bench.reports.document import types
from dlio_bench.reports.document.types import Result
from dlio_bench.reports.judging.judgement import Judgement
from dlio_bench.reports.numbers.metrics import METRICS
from dlio_bench.reports.simulation.types import Simulation
from dlio_bench.reports.storage import Document
from dlio_bench.reports.study.types import Document as Reproduced

DOCUMENTS: dict[str, type[msgspec.Struct]] = {
    "result": Result,
    "storage": Document,
    "simulation": Simulation,
    "judgement": Judgement,
    "checkpoint": Checkpoints,
    "reproduce": Reproduced,
    "couple": Coupled,
    "capacity": Capacity,
}


def schema(name: str) -> dict[str, Any]:
    """The schema (JSON Schema 2020-12) of the document of that name; of a result, with every metric of the table."""
    document: dict[str, Any] = msgspec.json.schema(DOCUMENTS[name])
    if name == "result":
        metrics = {
            metric.name: {"$ref": "#/$defs/Metric", "title": metric.title, "description": metric.meaning}
            for metric in METRICS.values()
        }
        required = [metric.name for metric in METRICS.values() if not metric.optional]
        document["$defs"]["Result"]["properties"]["metrics"] = {
            "type": "object", "properties": metrics, "required": required, "additionalProperties": False,
        }  # fmt: skip
        document["$id"] = types.SCHEMA
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}


if __name__ == "__main__":
    print(json.dumps(schema(sys.argv[1]), indent=1))
