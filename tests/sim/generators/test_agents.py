"""Agents have the statistics that the WEKA sessions show, cut as a routing study cuts them."""

import numpy as np
import pytest

from sim.generators.agents import CONTEXT_TOKENS
from sim.presets import preset
from tests.sim.traffic import found

WEKA_BLOCK = 64
WORKLOAD = preset("agents", requests=4_000, rate=1.05, cache_outputs=False, block_tokens=WEKA_BLOCK)


def test_nearly_all_of_a_prompt_was_there_before():
    seen = found(WORKLOAD)
    assert seen.hit == pytest.approx(0.9632, abs=0.02)
    assert (seen.output_mean, seen.output_p50) == pytest.approx((440, 216), rel=0.12)
    assert seen.prompt_mean == pytest.approx(382.1e6 / 4_992, rel=0.2)


def test_a_session_begins_with_its_head_and_its_task():
    begun: dict[str | None, int] = {}
    for arrival in WORKLOAD.arrivals:
        begun.setdefault(arrival.session, arrival.prompt_tokens)
    assert np.median(list(begun.values())) == pytest.approx(24_454, rel=0.15)


def test_no_prompt_is_longer_than_the_context():
    assert max(arrival.prompt_tokens + arrival.output_tokens for arrival in WORKLOAD.arrivals) <= CONTEXT_TOKENS


def test_pauses_are_those_of_the_sessions():
    pauses = [arrival.think_s for arrival in WORKLOAD.arrivals if arrival.think_s is not None]
    assert np.median(pauses) == pytest.approx(10, rel=0.15)
    assert max(pauses) == 60


def test_requests_come_in_a_swell():
    """Published of 100 such sessions: 1.05 requests a second, dispersion 40 to 46; a steady stream has 1 to 3."""
    times = np.array([arrival.time_s for arrival in WORKLOAD.arrivals])
    minutes = np.bincount((times // 60).astype(int))[:-1]
    assert len(times) / times[-1] == pytest.approx(1.05, rel=0.15)
    assert 25 < minutes.var() / minutes.mean() < 60


def test_there_are_as_many_requests_as_asked():
    for requests in (1, 2, 77):
        assert len(list(preset("agents", requests=requests).arrivals)) == requests
