"""The lesson as requests is the lesson of the table."""

from sim.arrivals import Arrival
from sim.generators.lesson import lesson
from sim.presets import preset
from sim.sessions import Options
from sim.workload import LruStore, lesson_turns


def computed(arrivals: list[Arrival]) -> int:
    store = LruStore(20_000)
    hits = sum(store.hit(arrival.keys, (arrival.prompt_tokens - 1) // 16) for arrival in arrivals)
    return sum(arrival.prompt_tokens for arrival in arrivals) - 16 * hits


def test_turns_and_tokens_are_those_of_the_table():
    arrivals = list(preset("lesson").arrivals)
    assert sum(arrival.prompt_tokens for arrival in arrivals) == 2_581_118
    assert computed(arrivals) == 187_102
    assert [arrival.user for arrival in arrivals[:9]] == [f"u{turn.user}" for turn in lesson_turns()[:9]]


def test_stamps_and_salts_are_those_of_the_table():
    late = list(lesson(Options(1_200, 20, volatile="before-message")))
    assert computed(late) == 572_238
    salted = list(lesson(Options(1_200, 20, salt="tenant")))
    assert computed(salted) == 211_774
