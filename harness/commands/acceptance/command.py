"""`dlio-bench accept`: a plan is read and told, its parts are carried out, their results judged and handed over."""

import json
import sys

from dlio_bench.errors import UsageError
from dlio_bench.free_space import free_bytes
from dlio_bench.harness.cluster import allocation
from dlio_bench.harness.commands.acceptance import campaign, contract, handover, outlook
from dlio_bench.harness.commands.acceptance.datasets import Site, places, require_places, require_space, sources
from dlio_bench.harness.commands.acceptance.options import Options
from dlio_bench.harness.commands.acceptance.parts import parts
from dlio_bench.harness.commands.acceptance.plan import errors_at, load
from dlio_bench.harness.ground.folders import cache_folder
from dlio_bench.harness.ground.outcome import Outcome
from dlio_bench.harness.ground.parts import print_line, work_in
from dlio_bench.harness.ground.subcommands import going_on
from dlio_bench.harness.machine.memory import memory_bytes
from dlio_bench.harness.machine.mounts import existing
from dlio_bench.reports.document.files import write_whole
from dlio_bench.reports.document.typed import to_json
from dlio_bench.reports.judging import text as judgement_text


def accept(options: Options) -> int:
    """The whole command. Returns the exit status of the judgement; 0 for a dry run. BenchError."""
    plan, content = load(options.plan)
    limits, limits_content = contract.limits_of(plan, options.plan)
    before = campaign.load(options.out)
    if before is not None:
        campaign.require_same(before, plan, options.out)
    here = Site(plan.memory or memory_bytes(), allocation.nodes() is not None, str(cache_folder().absolute()))
    site = here if before is None else before.site
    with errors_at(f"'{options.plan}'"):
        by_table = sources(plan, options.plan.parent, site)
        different = list({source.name: source for source in by_table.values()}.values())
        there = places(plan, options.plan.parent, different)
        require_places(plan, there, different)
        planned = parts(plan, options.plan.parent, by_table)
        foreseen = [outlook.foresee(plan, part, site, options.out) for part in planned]
    contract.require_answerable(plan, options.plan, limits, [entry for entry in foreseen if entry.measured])
    left = [entry for entry in foreseen if entry.reason is not None]
    if left and not options.dry_run:
        _require_here(options, site, here)
    outlook.require_all(plan, left, in_allocation=here.real_nodes or not options.dry_run)

    made = [source for source in different if not source.is_given]
    free = free_bytes(existing(made[0].folder)) if made else None
    if options.json and options.dry_run:
        print(json.dumps(outlook.document(plan, campaign.digest(plan), site, there, free, foreseen), indent=1))
    else:
        shown = "\n".join(outlook.lines(plan, site, different, there, foreseen, options.out, free))
        print(shown, file=sys.stderr if options.json else sys.stdout, flush=True)
    require_space(made)
    if options.dry_run:
        return 0

    with work_in(options.out, len(planned), going_on(options.out)) as work:
        if (now := campaign.load(options.out)) is not None:  # of a process that has just ended
            campaign.require_same(now, plan, options.out)
        record = campaign.save(plan, site, there, limits.sha256, now, options.out)
        write_whole(options.out / handover.PLAN, content)
        write_whole(options.out / contract.NAME, limits_content)
        campaign.carry_out(plan, planned, work, [entry.seconds for entry in foreseen])
        print_line("judging, and writing the page")
        judgement = handover.hand_over(plan, record, options.out, limits)
    if options.json:
        print(json.dumps({"folder": str(options.out), **to_json(judgement)}, indent=1))
    else:
        print(judgement_text.render(judgement))
        print(f"  folder   {options.out}\n  page     {options.out / handover.PAGE}")
    return Outcome(require=options.require).status(judgement)


def _require_here(options: Options, began: Site, here: Site) -> None:
    """UsageError if the parts that are left would not compare with those that are there."""
    if began.real_nodes != here.real_nodes:
        raise UsageError(
            f"The campaign in {options.out} began {_where(began)}, and this is {_where(here)}: its parts would not "
            "compare. Give the command where it began."
        )


def _where(site: Site) -> str:
    return "in a scheduler's allocation" if site.real_nodes else "outside of any scheduler's allocation"
