"""Who reads when data come from memory and nothing hides the reading: the trainer alone, or threads beside it."""

from dlio_bench.harness.readers.race import AGAIN, SETTLE, TURN, Race


def raced(alone: float, threads: float, steps: int) -> list[bool]:
    """Who reads each step, where steps of a kilobyte take so many seconds; the first is the trainer's."""
    race, found = Race(), [True]
    for _ in range(steps):
        mine = found[-1]
        found.append(race.alone(1000, alone if mine else threads, own=mine))
    return found


def test_both_have_a_turn_and_the_faster_goes_on() -> None:
    for alone, threads in ((1.0, 2.0), (2.0, 1.0), (1.0, 1.0)):
        found = raced(alone, threads, TURN + AGAIN)
        assert all(found[:TURN])
        assert not any(found[TURN : TURN + SETTLE + TURN])
        assert set(found[TURN + SETTLE + TURN :]) == {alone <= threads}


def test_both_have_a_turn_again_after_a_while() -> None:
    found = raced(2.0, 1.0, 2 * (TURN + AGAIN))
    assert sum(found) >= 2 * TURN


def test_steps_that_threads_have_prepared_say_nothing_of_the_trainer() -> None:
    race = Race()
    for _ in range(20):
        assert race.alone(1000, 1e-6, own=False)  # its turn has not begun
    for _ in range(TURN):
        race.alone(1000, 2.0, own=True)
    last = [race.alone(1000, 1.0, own=False) for _ in range(SETTLE + TURN)]
    assert not any(last)  # threads are the faster ones


def test_what_was_seen_can_be_forgotten() -> None:
    race = Race()
    for _ in range(TURN - 1):
        race.alone(1000, 1.0, own=True)
    race.restart()
    assert race.alone(1000, 1.0, own=True)
