"""Limits: what a bucket lets in, when to come again, and that idle tenants are forgotten."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import RateLimited
from router.quotas import Bucket, Quotas
from router.tenant_keys import Quota, Tenant


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@given(st.integers(1, 1000), st.lists(st.tuples(st.integers(1, 50), st.floats(0, 20)), max_size=60))
@settings(deadline=None)
def test_no_more_passes_than_a_burst_and_the_rate(per_minute, asked):
    bucket, now_s, taken = Bucket(per_minute, 0.0), 0.0, 0
    for amount, pause_s in asked:
        now_s += pause_s
        wait_s = bucket.wait_s(amount, now_s)
        assert wait_s == 0 or bucket.wait_s(amount, now_s + wait_s + 1e-6) == 0
        if wait_s == 0 and amount <= per_minute:
            bucket.take(amount, now_s)
            taken += amount
        assert taken <= per_minute + now_s * per_minute / 60 + 1e-6
        assert bucket.level(now_s) <= per_minute


def test_requests_a_minute(clock):
    usage = Quotas(clock).of(Tenant("a", quota=Quota(requests_per_minute=2)))
    usage.enter()
    usage.enter()
    with pytest.raises(RateLimited) as limited:
        usage.enter()
    assert limited.value.retry_after_s == 30
    assert usage.in_flight == 2
    clock.now_s += 30
    usage.enter()


def test_tokens_a_minute_and_the_debt_of_answers(clock):
    usage = Quotas(clock).of(Tenant("a", quota=Quota(tokens_per_minute=600)))
    usage.enter()
    usage.ask(500)
    with pytest.raises(RateLimited) as limited:
        usage.ask(200)
    assert dict(limited.value.headers)[b"x-ratelimit-remaining-tokens"] == b"100"
    usage.used(700)
    with pytest.raises(RateLimited) as limited:
        usage.enter()
    assert limited.value.retry_after_s == 61
    assert dict(limited.value.headers)[b"x-ratelimit-remaining-tokens"] == b"0"
    clock.now_s += 61
    usage.enter()


def test_a_prompt_over_a_whole_minute_waits_for_a_full_bucket(clock):
    usage = Quotas(clock).of(Tenant("a", quota=Quota(tokens_per_minute=600)))
    usage.ask(5000)
    with pytest.raises(RateLimited) as limited:
        usage.ask(5000)
    assert limited.value.retry_after_s == 500
    clock.now_s += 501
    usage.ask(5000)


def test_requests_in_flight(clock):
    usage = Quotas(clock).of(Tenant("a", quota=Quota(in_flight=1)))
    usage.enter()
    with pytest.raises(RateLimited) as limited:
        usage.enter()
    assert limited.value.retry_after_s == 1
    assert "1 requests in flight" in str(limited.value)
    usage.leave()
    usage.enter()


def test_new_limits_hold_at_once_and_what_was_used_is_remembered(clock):
    quotas = Quotas(clock)
    usage = quotas.of(Tenant("a", quota=Quota(requests_per_minute=1, in_flight=9)))
    usage.enter()
    again = quotas.of(Tenant("a", quota=Quota(requests_per_minute=1, in_flight=1)))
    assert again is usage
    with pytest.raises(RateLimited, match="in flight"):
        again.enter()
    again.leave()
    with pytest.raises(RateLimited, match="1 requests a minute"):
        again.enter()
    quotas.of(Tenant("a", quota=Quota(requests_per_minute=5, tokens_per_minute=7))).enter()


def test_who_has_no_limits_is_not_kept(clock):
    quotas = Quotas(clock)
    assert quotas.of(Tenant("a")) is None
    quotas.used("a", 5)
    assert len(quotas) == 0


def test_idle_tenants_are_forgotten(clock):
    quotas = Quotas(clock)
    busy = quotas.of(Tenant("busy", quota=Quota(requests_per_minute=60)))
    busy.enter()
    for number in range(20_000):
        clock.now_s += 0.1
        usage = quotas.of(Tenant(f"t{number}", quota=Quota(requests_per_minute=60, tokens_per_minute=60)))
        usage.enter()
        usage.leave()
    assert len(quotas) <= 2_100
    assert quotas.of(Tenant("busy", quota=Quota(requests_per_minute=60))) is busy
