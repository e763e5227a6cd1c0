"""How busy a publisher is, by the times in its batches, whatever its clock does."""

from hypothesis import given
from hypothesis import strategies as st

from router.kv_pace import Pace


def paced(*told: tuple[int, float | None]) -> float | None:
    pace = Pace()
    for number, at_s in told:
        pace.took(number, at_s)
    return pace.per_s


def test_the_busiest_stretch_counts():
    calm = [(at, 1000.0 + at) for at in range(60)]
    busy = [(60 + at, 1060.0 + at / 50) for at in range(500)]
    after = [(560 + at, 1070.0 + at) for at in range(60)]
    assert paced(*calm, *busy, *after) == 50.0
    assert paced(*calm) == 1.0


def test_too_little_says_nothing():
    assert paced() is None
    assert paced((0, 1000.0), (1, 1000.5)) is None
    assert paced((0, 1000.0), (20, 1002.0)) == 10.0
    assert paced((0, None), (1, None)) is None


def test_a_clock_that_jumps_is_no_pace():
    assert paced((0, 1000.0), (1, 10.0), (2, 9_999_999.0), (3, 9_999_999.5)) is None
    assert paced((5, 1000.0), (0, 1001.0), (1, 1001.5)) is None, "a new process counts from 0"
    assert paced((0, 1000.0), (1, 10.0), (41, 14.0)) == 10.0


@given(st.lists(st.tuples(st.integers(0, 99), st.none() | st.floats())))
def test_whatever_is_told(told):
    found = paced(*told)
    assert found is None or found >= 0.0
