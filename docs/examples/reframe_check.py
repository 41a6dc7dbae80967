"""A ReFrame check around a run or an acceptance: `reframe -c THIS_FILE -r`. ReFrame needs no dlio-bench in its Python.

How to set its command and its references: `dlio-bench help export`.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import reframe as rfm
import reframe.utility.sanity as sn
import reframe.utility.typecheck as typ
from reframe.core.backends import getlauncher
from reframe.core.builtins import run_before, sanity_function, variable


class DlioBench(rfm.RunOnlyRegressionTest):
    """Sound if no result is INVALID and, where limits judged them, the verdict is pass; its metrics are performance.

    command: of dlio-bench, without --out. metrics: names that `dlio-bench help metrics` lists; with several results a
    name begins with the result's folder: `naive-8x1.stall_share`.
    """

    command = variable(str, value="run cdb --nodes 1 --reader prefetch")
    metrics = variable(typ.List[str], value=["delivered_bandwidth", "samples_per_second", "stall_share"])
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "dlio-bench"
    keep_files = ["results"]

    @run_before("run")
    def set_command(self) -> None:
        """The command starts its ranks itself, in the allocation that num_tasks and num_tasks_per_node ask for."""
        self.job.launcher = getlauncher("local")()
        self.executable_opts = [*map(shlex.quote, shlex.split(self.command)), "--out", "results"]

    def documents(self, name: str) -> dict[str, Any]:
        """Folder below the results -> the JSON of a file in it."""
        out = Path(self.stagedir, "results")
        paths = sorted(out.rglob(name))
        return {path.parent.relative_to(out).as_posix(): json.loads(path.read_text("utf-8")) for path in paths}

    @sanity_function
    def is_sound(self) -> Any:
        """Whether the numbers may be used, and hold the limits if there were some."""
        results, judgements = self.documents("result.json"), self.documents("judgement.json")
        why = [] if results else ["no result was written"]
        for folder, result in results.items():
            broken = [f"{check['name']}: {check['found']}" for check in result["checks"] if not check["ok"]]
            why += [f"{folder} is INVALID: {'; '.join(broken)}"] if result["class"] == "INVALID" else []
        for judgement in judgements.values():
            why += judgement["reasons"] if judgement["verdict"] != "pass" else []
        return sn.assert_false(why, msg="; ".join(why))

    @run_before("performance")
    def set_metrics(self) -> None:
        """A performance variable for each metric of each result that has it, in the metric's own unit."""
        results = self.documents("result.json")
        for folder, result in results.items():
            for name in self.metrics:
                metric = result["metrics"][name]
                if metric["value"] is not None:
                    key = name if len(results) == 1 else f"{folder}.{name}"
                    self.perf_variables[key] = sn.make_performance_function(
                        lambda value: value, metric["unit"], metric["value"]
                    )


@rfm.simple_test
class DlioBenchCheck(DlioBench):
    """The check as it is. `-S DlioBenchCheck.command='run cdb --nodes 8'` gives it another command."""
