"""Runs the two commands of README.md, as they stand there, on a machine that has nothing (`bare-machine`).

    python3 tests/bare/newcomer.py FOLDER                           with Debian's Python
    PYTHON=.../python3.12 python3 tests/bare/newcomer.py FOLDER     with another one

FOLDER: the machine, built if it is not there. Words behind it are added to the second command, to run some tests alone.
Exit status: 0 where both commands ended with 0, the first one finds that `prefetch` wins, and few tests were skipped.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
FIRST, SECOND = "./scripts/quickstart", "./scripts/test"
ANSWER = "prefetch takes 0."  # ... times the time of naive: said only where their difference is shown
MOST_SKIPPED = 0.05  # of all tests


class DoesNotHold(Exception):  # noqa: N818 - what is said is no error of this program
    """What a newcomer would stumble over, in one sentence."""


def commands(readme: str) -> tuple[str, str]:
    """The first two commands that a README shows: of its first two blocks of code."""
    blocks = [block.strip() for block in re.findall(r"^```\w*\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)[:2]]
    if [block.partition(" ")[0] for block in blocks] != [FIRST, SECOND] or any("\n" in block for block in blocks):
        raise DoesNotHold(
            f"README.md's first two blocks of code are {blocks}, and not one command of {FIRST} and one of {SECOND}. "
            f"Put them there, or change {Path(__file__).name} together with README.md."
        )
    return blocks[0], blocks[1]


def require_answer(shown: str) -> None:
    """By what the main job prints."""
    if ANSWER not in shown:
        raise DoesNotHold(f"the answer of '{FIRST}' is not that prefetch wins: '{ANSWER}...' does not appear.")


def require_few_skipped(shown: str) -> None:
    """By pytest's last line."""
    last = (shown.splitlines() or [""])[-1]
    found = {word: int(number) for number, word in re.findall(r"(\d+) (passed|skipped)", last)}
    skipped, of_all = found.get("skipped", 0), sum(found.values())
    if not of_all or skipped > MOST_SKIPPED * of_all:
        raise DoesNotHold(f"{skipped} of {of_all} tests were skipped, and at most {MOST_SKIPPED:.0%} may be: {last}")


def run(verb: str, folder: str, command: str) -> str:
    """Run a command on the machine, and show what it says; that text."""
    print(f"$ {command}", flush=True)
    shown = []
    words = [str(HERE / "bare-machine"), verb, folder, command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            shown.append(line)
    if process.returncode:
        raise DoesNotHold(f"'{command}' ended with status {process.returncode}.")
    return "".join(shown)


def main(folder: str, *part: str) -> None:
    """See the module."""
    first, second = commands(README.read_text())
    if not Path(folder).exists():
        subprocess.run([str(HERE / "bare-machine"), "make", folder], check=True)
    require_answer(run("run", folder, first))
    require_few_skipped(run("in", folder, shlex.join([*shlex.split(second), *part])))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except DoesNotHold as reason:
        sys.exit(f"newcomer: {reason}")
