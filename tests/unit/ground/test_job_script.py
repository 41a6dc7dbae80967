"""Job scripts: what they ask for, what they start, and what is refused before a job waits in a queue."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from dlio_bench.harness.cli import main
from dlio_bench.harness.commands.job_script.script import Script, largest_count, minutes_for, render

SCRIPT = Script(
    command=("run", "cdb", "--nodes", "2", "--max-data", "1 GB"), program="/opt/a b/dlio-bench", folder="/data/it's",
    nodes=2, ranks_per_node=4, minutes=90, name="night", options={"account": "m1"}, setup=["module load mpi"],
    variables={"DLIO_BENCH_CACHE": "/scratch/$me"},
)  # fmt: skip


def directives(text: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH --")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_a_script_asks_for_whole_nodes() -> None:
    asked = directives(render(SCRIPT))
    assert asked["nodes"] == "2"
    assert asked["ntasks-per-node"] == "4"
    assert asked["time"] == "1:30:00"
    assert asked["account"] == "m1"
    assert {"exclusive", "requeue"} <= set(asked)


def test_bash_starts_what_was_asked_for(tmp_path: Path) -> None:
    """The script as bash reads it, blanks and quotes in names included."""
    program, folder = tmp_path / "a b" / "dlio-bench", tmp_path / "it's"
    program.parent.mkdir()
    folder.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$DLIO_BENCH_CACHE" "$SET_UP" "$@"\n')
    program.chmod(0o755)
    text = render(
        Script(
            SCRIPT.command, str(program), str(folder), 2, None, 90, "night", setup=["export SET_UP=1"],
            variables=SCRIPT.variables,
        )
    )  # fmt: skip
    env = os.environ | {"SLURM_JOB_ID": "17"}
    done = subprocess.run(["bash"], input=text, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        str(folder), "/scratch/$me", "1", *SCRIPT.command, "--out", "dlio-results/17"
    ]  # fmt: skip


def test_a_folder_that_was_named_stays() -> None:
    assert "dlio-results" not in render(replace(SCRIPT, command=("run", "cdb", "--out=/x")))


def test_a_container_holds_every_rank() -> None:
    inside = Script(("run", "cdb"), "dlio-bench", "/w", 2, 4, 10, "n", container="a b.sif")
    last = shlex.split(render(inside).split("exec srun", 1)[1])
    assert last[0] == "--mpi=pmix"
    assert last[last.index("apptainer") :] == [
        "apptainer", "exec", "a b.sif", "dlio-bench", "run", "cdb", "--out", "dlio-results/$SLURM_JOB_ID",
        "--launcher", "none",
    ]  # fmt: skip
    assert "--ntasks-per-node=4" in last
    assert "DLIO_BENCH_ENDS" in render(inside)


@pytest.mark.parametrize(
    ("words", "count"), [(["--nodes", "1,8,2"], 8), (["--nodes=3"], 3), (["--nodes"], None), (["--nodes", "x"], None)]
)
def test_the_largest_count(words: list[str], count: int | None) -> None:
    assert largest_count(["run", *words], "--nodes") == count


def test_time_leaves_room() -> None:
    assert minutes_for(0) == 10
    assert minutes_for(3600) * 60 > 1.5 * 3600


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs named sbatch and srun: the first keeps the script that it gets."""
    for name, text in {"sbatch": f"cat >{tmp_path}/submitted; echo '17;cluster'", "srun": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DLIO_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_run_is_submitted(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["sbatch", "--submit", "--json", "run", "cdb", "--tiny", "--nodes", "1,2", "--ranks-per-node", "2"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["job"] == "17"
    assert told["nodes"] == 2
    submitted = (slurm / "submitted").read_text()
    assert submitted == told["script"]
    assert directives(submitted)["ntasks-per-node"] == "2"
    assert f"export DLIO_BENCH_CACHE={slurm / 'cache'}" in submitted


def test_a_plan_asks_for_its_most_nodes(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = slurm / "plan.toml"
    assert main(["accept", "--example", "one-machine"]) == 0
    plan.write_text(f"nodes = [1, 3]\n{capsys.readouterr().out}")
    assert main(["sbatch", "--json", "accept", str(plan), "--out", str(slurm / "out")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nodes"] == 3
    assert told["minutes"] >= 10
    assert not (slurm / "out").exists()


def test_what_is_told_to_submit_can_be_pasted(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = slurm / "my job; ls"
    assert main(["sbatch", "--time", "1h", "--out", str(file), "run", "cdb", "--tiny"]) == 0
    assert f"`sbatch '{file}'`" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["run", "cdb", "--reader", "nave"], "Did you mean 'naive'?"),
        (["--time", "1min", "run", "cdb", "--tiny"], "does not suffice"),
        (["--account", "a\n#SBATCH --uid=0", "run", "cdb"], "--account 'a\\n#SBATCH --uid=0' has a line break"),
        (["--job-name", "a\nb", "run", "cdb"], "has a line break"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], reason: str, slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sbatch", "--submit", *words]) == 2
    assert reason in capsys.readouterr().err
    assert not (slurm / "submitted").exists()


def test_a_refusal_of_slurm_is_told(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid account' >&2; exit 1\n")
    assert main(["sbatch", "--submit", "--time", "1h", "generate", "cdb", "--out", "x", "--full"]) == 4
    assert "invalid account" in capsys.readouterr().err
