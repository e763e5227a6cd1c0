"""Many decode steps take together what they take one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost import PROFILES
from sim.decode_span import DecodeCost

PROFILE = PROFILES["qwen3-32b-h100-x2"]


def one_by_one_s(steps: int, sequences: int, kv_tokens: int) -> float:
    return sum(
        PROFILE.step_s(
            prefill_tokens=0,
            prefill_pairs=0,
            decode_sequences=sequences,
            decode_kv_tokens=kv_tokens + step * sequences,
            sequences=sequences,
        )
        for step in range(steps)
    )


@given(st.integers(1, 300), st.integers(1, 64), st.integers(1, 200_000))
def test_a_span_takes_what_its_steps_take(steps: int, sequences: int, kv_tokens: int) -> None:
    span = DecodeCost(PROFILE).span(2.0, steps, sequences, kv_tokens)
    assert span.end_s == pytest.approx(2.0 + one_by_one_s(steps, sequences, kv_tokens), rel=1e-12)


@given(st.integers(1, 300), st.integers(1, 64), st.floats(0, 1))
def test_the_step_in_progress_is_the_one_that_has_begun_last(steps: int, sequences: int, part: float) -> None:
    span = DecodeCost(PROFILE).span(2.0, steps, sequences, 4_000)
    now_s = 2.0 + part * span.after_s(steps)
    begun = span.begun(now_s)
    assert 1 <= begun <= steps
    assert begun == 1 or span.after_s(begun - 1) < now_s - 2.0
    assert begun == steps or span.after_s(begun) >= now_s - 2.0


def test_who_comes_at_the_very_end_of_a_step_meets_the_next_decision() -> None:
    span = DecodeCost(PROFILE).span(0.0, 10, 3, 4_000)
    assert span.begun(0.0) == 1
    assert span.begun(span.after_s(4)) == 4
    assert span.begun(span.after_s(4) + 1e-6) == 5
