"""Faults made by hand, over all rooms: each must make a test fail, or the tests have lost power.

Not collected by pytest; `python tests/power/check.py` puts them one at a time into a copy and says which survive.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """`old`, which is in one file once, becomes `new`, which `breaks` something that `tests` should see.

    file: where it was when this was written; it is looked for in all files where it is there no more.
    """

    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]


def _faults(file: str, *rows: tuple[str, ...]) -> list[Fault]:
    """(old, new, what it breaks, test...) for each fault of a file."""
    return [
        Fault(file, old, new, breaks, tuple(f"tests/{test}" for test in tests)) for old, new, breaks, *tests in rows
    ]


ORDERS, PLACEMENT = ("unit/plan/test_orders.py", "unit/plan/test_every_order.py"), ("unit/plan/test_placement.py",)
READERS, PLACED = ("contract/test_readers.py",), ("contract/test_placed.py", "unit/readers/test_placed.py")
LOADER = "unit/library/test_library.py"
WORLD = "mpi/test_worlds.py::test_the_shared_suites_pass_on_every_rank[2]"

FAULTS = [
    *_faults(
        "benchmarks/cosmoflow/pipeline.py",
        (
            "islice(stream, LEAST + 1 - len(pool))", "islice(stream, 1)", "samples are drawn before the pool is full",
            "unit/readers/test_upstream.py",
        ),
        (
            "draws.integers(min(left, len(pool)))", "draws.integers(len(pool))", "a sample of the next epoch is drawn",
            "unit/readers/test_upstream.py",
        ),
    ),
    *_faults(
        "harness/plan/orders.py",
        (
            "part = stream[:length].reshape(shape.steps, sharers, shape.batch)[:, place].copy()",
            "part = stream[:length].reshape(shape.steps, sharers, shape.batch)[:, 0].copy()",
            "every rank reads what the first one reads", *ORDERS,
        ),
        ("    part += shape.first", "    part += 0", "a split that does not lie first", "unit/run/test_validation.py"),
        ("    if epoch > 0:", "    if epoch > 1:", "the second epoch's order of files", *ORDERS),
        ("range(1, epoch + 1)", "range(0, epoch + 1)", "the first epoch's order of files", *ORDERS),
        ("node + local * shape.nodes", "local + node * shape.nodes", "the files of a node", *ORDERS),
        ("(place + 1) * len(rest) // sharers]", "(place + 1) * len(rest) // sharers - 1]", "the last samples", *ORDERS),
        ("min(at + batch, last)", "at + batch", "the end of a rank's share of a pass", *ORDERS, *READERS),
    ),
    *_faults(
        "harness/plan/draws.py",
        ("np.arange(share, shape.files, shares", "np.arange(share, shape.files - 1, shares", "the last file", *ORDERS),
    ),
    *_faults(
        "harness/plan/placement/rule.py",
        (
            'before + capacity, side="right"', 'before + capacity, side="left"',
            "a sample that just fits into a tier", *PLACEMENT,
        ),
        ("> nodes * capacities[0]", "> capacities[0]", "when a data store applies", *PLACEMENT),
    ),
    *_faults(
        "harness/plan/placement/frequency.py",
        ("len(sizes), -counts))", "len(sizes), counts))", "what is read most often is kept", *PLACEMENT),
    ),
    *_faults(
        "harness/plan/placement/shares.py",
        ("first[(node + step) % nodes]", "first[step % nodes]", "copies behind a node's own share", *PLACEMENT),
    ),
    *_faults(
        "harness/plan/placement/cooperative.py",
        ("& (counts > 1)", "& (counts > 0)", "copies of what is read once", *PLACEMENT),
    ),
    *_faults(
        "harness/plan/placement/redrawn.py",
        ("max(1, nodes - 1)) == 0", "max(1, nodes)) == 0", "the share of local draws", *PLACEMENT),
    ),
    *_faults(
        "harness/readers/ahead.py",
        ("staging_bytes // max(batch_bytes, 1))", "staging_bytes // max(batch_bytes, 1) + 1)",
         "the bound of the buffer",
         "contract/test_ahead.py"),
        ("(step == first or not self._missing[first])", "True", "the first batch has the storage to itself",
         "contract/test_ahead.py"),
        ("self._errors.setdefault(step, error)", "pass", "a bad file is told", "contract/test_ahead.py"),
        ("                tally.add(own)", "                pass", "what threads have read counts",
         "contract/test_ahead.py"),
    ),
    *_faults(
        "harness/storage/extents.py",
        ("left, offset = left[count:], offset + count", "left, offset = left[count:], offset", "short reads", *READERS),
        ("        if file in self._staged:\n            cost", "        if not self._staged:\n            cost",
         "bytes of copies", *READERS, "contract/test_staged.py"),
        ("crc32c.crc32c(piece, crc)", "crc32c.crc32c(piece)", "checksums of long fields",
         "unit/storage/test_extents.py"),
        ("if one != wanted:", "if one > wanted:", "half of all wrong checksums", *READERS,
         "unit/storage/test_extents.py"),
        ("before[3] += size", "before[3] = size", "reads that were joined", "unit/storage/test_extents.py"),
        ("FOLLOWING * whole * len(ids)", "0 * whole * len(ids)", "how files of one sample are opened",
         "unit/storage/test_files.py", "unit/storage/test_extents.py", *READERS),
    ),
    *_faults(
        "harness/plan/placement/files.py",
        ("kept[rank % ranks_per_node :: ranks_per_node]", "kept[rank % ranks_per_node :: 1]",
         "a node reads a file once",
         "unit/plan/test_shares.py"),
        ("foreign = owners // ranks_per_node != node", "foreign = owners != node", "files of ranks of one node",
         "unit/plan/test_shares.py"),
    ),
    *_faults(
        "harness/readers/placed/claims.py",
        ("if not self._mine[number]:", "if False:", "one rank alone brings a sample",
         "unit/readers/test_placed_layout.py"),
    ),
    *_faults(
        "harness/readers/placed/tier_server.py",
        ("answered.bytes_spared = 0", "answered.bytes_spared += 0", "what is copied to a tier counts once",
         *PLACED, WORLD),
        (
            "cost.bytes_kept += cost.bytes_requested - before",
            "cost.bytes_kept += 0",
            "what is brought to a tier counts",
            *PLACED,
        ),
    ),
    *_faults(
        "harness/readers/placed/rules.py",
        ("holder_place[sample]) + AHEAD_OF_HOLDER", "holder_place[sample])", "guesses of what others have",
         *PLACED[::-1]),
        ("now.ahead and not behaviour.ahead_pfs", "not behaviour.ahead_pfs", "what threads leave out",
         *PLACED),
    ),
    *_faults(
        "harness/readers/placed/layout.py",
        ("(turns % len(streams)).ravel()", "(turns * 0).ravel()", "ranks that read the same take turns",
         "unit/readers/test_placed_layout.py"),
    ),
    *_faults(
        "harness/readers/placed/rules.py",
        ("(layout.copy == copies)", "(layout.copy != copies)", "copies are filled behind all else", *PLACED, WORLD),
    ),
    *_faults(
        "harness/readers/placed/backends.py",
        (
            "cost.bytes_spared += int(self._stored[sample])",
            "cost.bytes_spared += len(out)",
            "bytes spared of compressed samples",
            *PLACED,
        ),
    ),
    *_faults(
        "harness/commands/run/told/checks.py",
        ("planned + kept == requested + spared", "planned + kept <= requested + spared", "bytes read twice",
         "unit/run/test_checks.py"),
        ("worst <= MOST_RESIDENT", "worst <= LEAST_WARM", "what counts as cold", "unit/run/test_checks.py"),
        ("passed == epochs, expected, found", "passed > 0, expected, found", "epochs with samples twice",
         "unit/run/test_checks.py"),
    ),
    *_faults(
        "harness/commands/run/measured/consumer.py",
        ("(total + _ALL_WEIGHTS) * ", "total * ", "bytes of 0 leave a mark", "unit/readers/test_consumer.py"),
        ("if crc != expected[i, j]:", "if crc != expected[i, 0]:", "content of samples of several fields",
         *READERS),
    ),
    *_faults(
        "harness/commands/run/measured/trial.py",
        ("self._seed = job.seed + number", "self._seed = job.seed", "each trial has its order",
         "unit/run/test_trial.py"),
    ),
    *_faults(
        "harness/commands/run/asked/sizing.py",
        ("epochs = -(-needed(chosen) // steps)", "epochs = needed(chosen) // steps", "trials long enough",
         "unit/run/test_sizing.py"),
        ("samples // samples_per_file + 1)", "samples // samples_per_file)", "more data than tiers hold",
         "unit/run/test_sizing.py"),
    ),
    *_faults(
        "reports/numbers/statistics.py",
        ("job_stall(timed, meeting) / training", "job_stall(timed, meeting) / elapsed", "stall is of training's time",
         "unit/reports/test_reports_statistics.py"),
        ("own_stall.max(axis=1)", "own_stall.mean(axis=1)", "the worst rank",
         "unit/reports/test_reports_statistics.py"),
    ),
    *_faults(
        "reports/numbers/intervals.py",
        (">= LEVEL]", ">= 0.9]", "the interval covers 95 %", "unit/reports/test_reports_statistics.py"),
        ("np.abs(values - median).max()", "np.abs(values - median).mean()", "the spread", "unit/reports/test_judge.py"),
    ),
    *_faults(
        "reports/numbers/bound.py",
        ("facts.own_share < OWN_SHARE * busy", "facts.own_share > OWN_SHARE * busy", "who kept the cores busy",
         "unit/reports/test_reports_bound.py"),
        ("return min(known)", "return max(known)", "the least resident host", "unit/reports/test_reports_bound.py"),
    ),
    *_faults(
        "reports/judging/judge.py",
        ("found = None if interval is None else interval[limit.statistic == \"ci_high\"]",
         "found = None if interval is None else interval[0]", "the unfavourable end", "unit/reports/test_judge.py"),
        ("flawed = any(finding.chosen for finding in missing) or bool(files)", "flawed = bool(files)",
         "a limit without a result", "unit/reports/test_judge.py"),
        ("float(f\"{value:.{DIGITS}g}\")", "value", "digits that differ between processors",
         "unit/reports/test_judge.py"),
    ),
    *_faults(
        "reports/judging/admission.py",
        ("if len(trial_seconds) < asked.trials:", "if len(trial_seconds) < 2:", "too few trials",
         "unit/reports/test_judge.py"),
        ("if not _are_same(here, there):", "if False:", "numbers that do not follow from the steps",
         "unit/reports/test_judge.py"),
        ("held and bool(hosts) and all(host.attestable and", "held and bool(hosts) and all(", "a cache nobody saw",
         "unit/reports/test_judge.py"),
    ),
    *_faults(
        "reports/document/marks.py",
        ("mark == TINY or mark not in", "mark not in", "TINY can be allowed", "unit/reports/test_judge.py"),
    ),
    *_faults(
        "reports/document/result.py",
        ('if k != "digest"})', 'if k not in ("digest", "trials")})', "an edited result is found",
         "unit/reports/test_reports_result.py"),
        ("if (altered or not same_steps) and", "if altered and", "edited steps are found",
         "unit/reports/test_reports_result.py"),
    ),
    *_faults(
        "reports/view/drawing.py",
        ("ENTITIES.get(letter, letter)", "letter", "names are no markup of figures",
         "unit/reports/test_reports_outputs.py"),
    ),
    *_faults(
        "reports/run/published.py",
        ("PUBLISHED in compute.kind", "compute.kind", "an estimate is not shown as published",
         "unit/reports/test_report_command.py"),
    ),
    *_faults(
        "reports/judging/page.py",
        ("finding.ok is not False", "finding.ok is False", "missed limits come first",
         "unit/reports/test_report_command.py"),
    ),
    *_faults(
        "reports/comparing/comparison.py",
        ("return not _overlap(before, after) if shown is None else shown", "return True", "no difference is shown",
         "unit/reports/test_answer.py"),
        ("if len(longest) > 2 or len(axes) == 1 else []", "", "an axis at a time is credited",
         "unit/reports/test_answer.py"),
    ),
    *_faults(
        "reports/run/text.py",
        ("LINES = 20", "LINES = 23", "results fit one screen",
         "unit/reports/test_text.py"),
    ),
    *_faults(
        "harness/root/wrapping.py",
        ("character if character.isprintable()", "character if True", "escape sequences of files",
         "unit/reports/test_text.py"),
    ),
    *_faults(
        "datagen/formats/tfrecord.py",
        ("+ 0xA282EAD8)", "+ 0xA282EAD9)", "records that others read", "unit/datagen/test_tfrecord.py"),
        ("if len(rest) != TAIL or not unpacker.eof:", "if False:", "what stands behind a record",
         "unit/datagen/test_tfrecord.py"),
    ),
    *_faults(
        "datagen/dataset.py",
        ('ids, side="right") - 1', 'ids, side="left") - 1', "the first sample of each file", *READERS),
        ("        if size != expected:", "        if size < expected:", "files that have grown",
         "unit/datagen/test_manifest.py",
         "unit/datagen/test_generate.py"),
        ("if lengths.max() > MOST_SAMPLE_BYTES:", "if False:", "samples of absurd size",
         "unit/datagen/test_manifest.py",
         "unit/datagen/test_indexing.py"),
    ),
    *_faults(
        "harness/simulator/stepwise.py",
        ("self.turn[0] += 1", "self.turn[0] += 0", "threads take turns", "unit/simulator/test_simulator_engines.py"),
        ("self.stall += served - clock", "self.stall += served - start", "the stall of a node",
         "unit/simulator/test_simulator_engines.py"),
    ),
    *_faults(
        "harness/commands/run/predicted/runtime.py",
        ("self._free += step - 1 in self._taken", "self._free += 1", "slots of batches of nothing",
         "unit/simulator/test_runtime.py"),
        ("self._open.move_to_end(key)", "pass", "which files stay open", "unit/simulator/test_runtime.py"),
    ),
    *_faults(
        "harness/storage/pfs/bucket.py",
        ("max(now - min(max(credit, 0.0), SLACK), next_free)", "max(now - max(credit, 0.0), next_free)",
            "bursts of an emulated file system",
         "unit/storage/test_pfs_bucket.py"),
    ),
    *_faults(
        "harness/storage/pfs/cache.py",
        ("self._blocks.move_to_end(key)", "pass", "what a client cache forgets", "unit/storage/test_pfs_cache.py"),
    ),
    *_faults(
        "harness/cluster/peers.py",
        ("self.misses += piece is None", "self.misses += 1", "misses are counted", "unit/cluster/test_peers.py"),
        ("    if count > MOST_ASKED:", "    if False:", "one request asks for a bounded number of samples",
         "unit/cluster/test_peers.py"),
        ("[*self._connections.values(), *self._leaving]", "list(self._connections.values())",
         "no thread outlives its server", "unit/cluster/test_peers.py"),
    ),
    *_faults(
        "harness/root/signals.py",
        ("    if not _held:\n", "    if True:\n", "who starts a process has it", "unit/cluster/test_process.py"),
    ),
    *_faults(
        "harness/cluster/watch.py",
        ("and not self._pulses[rank][\"waiting\"]", "", "who waits for others stands not still",
         "unit/cluster/test_rank_watch.py"),
    ),
    *_faults(
        "harness/cluster/launchers.py",
        ("ppr:{job.ranks_per_host}:node", "ppr:1:node", "ranks of a node", "unit/cluster/test_launchers.py"),
    ),
    *_faults(
        "harness/training/exchange/exchange.py",
        ("self._late = None if lagged is None else list(lagged)", "self._late = None", "a lagged training goes on",
         "contract/test_exchange.py"),
    ),
    *_faults(
        "harness/training/exchange/mpi.py",
        ("if len(buffers) <= self._options.lag:", "if not buffers:", "means in use are not written over",
         "mpi/test_exchange_worlds.py::test_the_suites_pass_on_every_rank[4]"),
        ("            values[mine] = sums[mine]\n", "            pass\n", "sums of a node go on to other nodes",
         "mpi/test_exchange_worlds.py::test_the_suites_pass_on_every_rank[4]"),
    ),
    *_faults(
        "harness/training/exchange/options.py",
        ("for number in range(leaders)] + [count]", "for number in range(leaders + 1)]", "the last leader has the rest",
         "unit/training/test_exchange.py"),
        ("number * len(ranks) // self.leaders", "number", "leaders are spread over a node",
         "unit/training/test_exchange.py"),
    ),
    *_faults(
        "reports/simulation/access_frequency.py",
        ("* epochs * share) + 1", "* epochs * share)", "more than is strict",
         "unit/simulator/test_access_frequency.py"),
    ),
    *_faults(
        "harness/simulator/control_tree.py",
        ("(number < longer)", "(number >= width - longer)", "the longer ranges come first",
         "unit/simulator/test_control_tree.py"),
    ),
    *_faults(
        "harness/plan/model_parallel.py",
        ("(last if name in labels else first)", "(last or first)", "a field is read by one stage",
         "unit/training/test_model_parallel.py"),
    ),
    *_faults(
        "harness/plan/properties.py",
        ("return None\n", "return []\n", "a placement that does not apply scales to no dataset",
         "unit/plan/test_properties.py"),
    ),
    *_faults(
        "harness/training/network.py",
        ("[*self._network.variables, *self._states", "[*self._network.trainable_variables, *self._states",
         "statistics of batches begin anew", "unit/training/test_train.py"),
    ),
    *_faults(
        "benchmarks/metrics.py",
        ("(true[:-1] + true[1:]) / 2)", "true[:-1])", "the area under the curve", "unit/training/test_metrics.py"),
    ),
    *_faults(
        "benchmarks/schedules.py",
        ("of_variable, of_gradient), LEAST", "of_variable, of_gradient), TRUST", "the least local rate",
         "unit/training/test_larc.py::test_larc_is_adam_over_scaled_gradients"),
    ),
    *_faults(
        "reports/traces/accounting.py",
        ("heapq.heappush(under_way, (-at, begun[at]))", "heapq.heappush(under_way, (at, begun[at]))",
         "what a thread began last counts", "unit/traces/test_input_time.py"),
        ("round(sums - elapsed, 9)", "round(sums - sums, 9)", "readers that read ahead take more than elapsed",
         "unit/traces/test_io_accounts.py"),
    ),
    *_faults(
        "reports/traces/tensorflow.py",
        ("busy = busy or {", "busy = busy and {", "a Python function of which nothing is known",
         "unit/traces/test_input_time.py"),
        ("yield name, count / threads", "yield name, 1 / len(busy)", "equal parts of threads",
         "unit/traces/test_input_time.py"),
    ),
    *_faults(
        "harness/training/tf_trace.py",
        ("min(begin[0], end[0]), max(begin[1], end[1])", "max(begin[0], end[0]), min(begin[1], end[1])",
         "drift is a part of the error", "unit/training/test_tf_events.py"),
        ("if union and start <= union[-1][1] + gap:", "if union and start <= union[-1][1]:",
         "short operations are added up", "unit/training/test_tf_events.py"),
        ("line.timestamp_ns * 1000 + event.offset_ps, event", "event.offset_ps, event",
         "when a thread's line begins", "unit/training/test_tf_events.py"),
    ),
    *_faults(
        "harness/commands/run/measured/runtime_rows.py",
        ("sizes[among[:rest]] += 1", "sizes[among[:rest]] += 0", "the bytes that do not come out even",
         "unit/run/test_runtime_rows.py"),
    ),
    *_faults(
        "reports/comparing/difference.py",
        ("shown=left_out and (p is None or p < LEVEL)", "shown=left_out", "a rank test overrules an interval",
         "unit/reports/test_difference.py"),
        ("(2 / 2**n if paired", "(0 if paired", "a test that cannot reach its level is left out",
         "unit/reports/test_difference.py"),
    ),
    *_faults(
        "reports/comparing/comparison.py",
        ("return result.command, result.environment.startup_seconds, ", "return result.command, ",
         "runs of one command are not paired", "unit/reports/test_changes.py"),
    ),
    *_faults(
        "reports/comparing/change_limits.py",
        ("return high < self.amount", "return low < self.amount", "the whole interval lies beyond a limit",
         "unit/reports/test_changes.py"),
    ),
    *_faults(
        "reports/comparing/trend.py",
        ("earlier[(len(earlier) - 1) // 2]", "earlier[0]", "the last run is held against the median one",
         "unit/reports/test_trend.py"),
    ),
    *_faults(
        "harness/root/errors.py",
        ("difflib.get_close_matches(name.lower(), {word.lower(): word for word in known}, n=1)", "[]",
         "what was probably meant", "unit/ground/test_refusals.py"),
    ),
    *_faults(
        "reports/traces/chrome.py",
        ("if not under_way or ends <= under_way[-1]:", "if True:", "spans that overlap get rows of their own",
         "unit/traces/test_chrome_trace.py"),
    ),
    *_faults(
        "reports/traces/result_spans.py",
        ("> SAME) & (lasted > 0)", "> 1) & (lasted > 0)", "spans of another run are told",
         "unit/traces/test_broken_spans.py"),
    ),
    *_faults(
        "reports/traces/chrome.py",
        ("return min(0, int(", "return max(0, int(", "no event lies before 0", "unit/traces/test_chrome_trace.py"),
    ),
    *_faults(
        "reports/traces/timelogger.py",
        ("with_passes(timeline.part(timeline.trial == trial))", "with_passes(timeline)",
         "the log has the spans of one trial",
         "unit/traces/test_published_spans.py"),
    ),
    *_faults(
        "harness/library/course.py",
        ("ids = course.ids(of_rank, of_epoch)[step if of_epoch == epoch else 0 :]",
         "ids = course.ids(of_rank, of_epoch)",
         "what others read is told wrongly after a loader went on in mid-epoch", LOADER),
        ("parts = [(each, course.part(rank, each, step if each == epoch else 0))",
         "parts = [(each, course.part(rank, each, 0))",
         "a loader that goes on begins the epoch anew", LOADER),
        ("self._stack.__exit__(_Abandoned, left, None)", "del left", "an abandoned loader leaves its threads", LOADER),
    ),
    *_faults(
        "harness/library/loader.py",
        ("self._comm.fail(str(why) or type(why).__name__)", "pass", "ranks are not told that one has failed",
         "mpi/test_library.py"),
        ("return self._copies.copy_arrays(arrays) if self._copy else arrays", "return arrays",
         "copies share the reader's memory", LOADER),
        ("if state.get(name) != value:", "if name not in state:", "a state of other samples is taken", LOADER),
    ),
    *_faults(
        "harness/library/arrays.py",
        ("if sys.getrefcount(buffer.base) == _UNUSED:", "if buffer is not None:",
         "a copy is overwritten while somebody has it", LOADER),
        ("start += column.bytes\n    arrays", "start += column.bytes // 2\n    arrays",
         "fields are cut at the wrong places", LOADER),
    ),
    *_faults(
        "harness/library/ranks.py",
        ("world = lent.Dup()", "world = lent.Split(lent.Get_rank())", "ranks do not share the samples",
         "mpi/test_library.py"),
    ),
]  # fmt: skip
