"""Programs' prompts have the statistics of the traces they are made after."""

import pytest

from sim.presets import preset
from tests.sim.traffic import found


@pytest.mark.parametrize("seed", [1, 2])
def test_api_is_like_the_business_trace(seed):
    seen = found(preset("api", requests=20_000, rate=24, seed=seed))
    assert (seen.prompt_mean, seen.prompt_p50) == pytest.approx((915, 574), rel=0.1)
    assert seen.output_mean == pytest.approx(92, rel=0.05)
    assert seen.hit == pytest.approx(0.542, abs=0.03)
    assert seen.rate == pytest.approx(24, rel=0.03)
    assert seen.later_turns == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bursts_come_like_code_completion(seed):
    seen = found(preset("bursts", requests=8_819, rate=2.57, seed=seed))
    assert (seen.prompt_mean, seen.prompt_p50) == pytest.approx((2_048, 1_469), rel=0.12)
    assert (seen.output_mean, seen.output_p50) == pytest.approx((27.9, 13), rel=0.12)
    assert seen.minute_dispersion > 50
    assert seen.gap_cv > 4
    assert seen.rate == pytest.approx(2.57, rel=0.5)
