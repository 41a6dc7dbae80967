"""The check of README's two commands on a machine that has nothing, without the machine."""

import pytest

from tests.bare import newcomer

SHOWN = """Run the main job:

```
{}
```

Run the tests:

```bash
{}
```

```
dlio-bench doctor
```
"""


def test_the_readme_shows_two_commands() -> None:
    assert newcomer.commands(newcomer.README.read_text()) == ("./scripts/quickstart", "./scripts/test")
    asked = "./scripts/quickstart run cdb", "./scripts/test -q"
    assert newcomer.commands(SHOWN.format(*asked)) == asked


@pytest.mark.parametrize(
    "shown",
    [
        ("pip install dlio-bench", "./scripts/test"),
        ("./scripts/quickstart\n./scripts/quickstart doctor", "./scripts/test"),
        ("./scripts/test", "./scripts/quickstart"),
    ],
)
def test_other_commands_must_be_told_to_the_check(shown: tuple[str, str]) -> None:
    with pytest.raises(newcomer.DoesNotHold, match=r"change newcomer\.py together with README\.md"):
        newcomer.commands(SHOWN.format(*shown))


def test_the_main_job_must_find_that_prefetch_wins() -> None:
    newcomer.require_answer("...\n  prefetch takes 0.78 × the time of naive (95 % 0.71-0.95): its placement saves\n")
    for answer in ("prefetch takes 1.11 × the time of naive", "prefetch and naive do not differ measurably", ""):
        with pytest.raises(newcomer.DoesNotHold, match="prefetch wins"):
            newcomer.require_answer(answer)


def test_a_machine_may_skip_few_tests() -> None:
    newcomer.require_few_skipped("....\n==== 4380 passed, 110 skipped in 258.56s (0:04:18) ====\n")
    newcomer.require_few_skipped("4470 passed in 240.10s")
    for last in ("90 passed, 10 skipped in 3.1s", "", "no tests ran in 0.1s"):
        with pytest.raises(newcomer.DoesNotHold, match=r"of \d+ tests were skipped"):
            newcomer.require_few_skipped(last)
