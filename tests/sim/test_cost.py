"""Step times keep the shape of the table they were fitted to."""

import math
from dataclasses import replace

import pytest

from sim.cost import DEFAULT_PROFILE, PROFILES, Profile


def prefill_s(profile: Profile, tokens: int) -> float:
    pairs = tokens * (tokens + 1) // 2
    return profile.step_s(
        prefill_tokens=tokens, prefill_pairs=pairs, decode_sequences=0, decode_kv_tokens=0, sequences=1
    )


def decode_s(profile: Profile, sequences: int, context: int) -> float:
    return profile.step_s(
        prefill_tokens=0,
        prefill_pairs=0,
        decode_sequences=sequences,
        decode_kv_tokens=sequences * context,
        sequences=sequences,
    )


def engine_s(profile: Profile, sequences: int) -> float:
    return profile.d0_s + profile.d1_s * sequences


@pytest.mark.parametrize(
    ("name", "prefill_1k_ms", "prefill_8k_ms", "decode_64_ms"),
    [
        ("llama-3.1-8b-h100", 22.1, 199.7, 10.35),
        ("llama-3.1-8b-a100", 64.7, 557.0, 17.8),
        ("llama-3.1-8b-l40s", 70.3, 700.0, 38.3),
        ("llama-3.1-70b-h100-x4", 67.4, 577.0, 19.1),
        ("llama-3.1-70b-a100-x4", 182.0, 1372.0, 36.4),
    ],
)
def test_kernel_times_are_those_of_the_source(
    name: str, prefill_1k_ms: float, prefill_8k_ms: float, decode_64_ms: float
) -> None:
    profile = PROFILES[name]
    assert (prefill_s(profile, 1024) - engine_s(profile, 1)) * 1e3 == pytest.approx(prefill_1k_ms, rel=0.12)
    assert (prefill_s(profile, 8192) - engine_s(profile, 1)) * 1e3 == pytest.approx(prefill_8k_ms, rel=0.12)
    assert (decode_s(profile, 64, 1024) - engine_s(profile, 64)) * 1e3 == pytest.approx(decode_64_ms, rel=0.12)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_every_profile_is_finite_and_grows_with_the_work(profile: Profile) -> None:
    times = [prefill_s(profile, tokens) for tokens in (16, 256, 4096)] + [decode_s(profile, 256, 30_000)]
    assert all(math.isfinite(time) for time in times)
    assert times[0] < times[1] < times[2]
    assert profile.capacity_tokens > 20_000
    assert profile.source


def test_only_fitted_profiles_call_themselves_calibrated() -> None:
    assert {name for name, profile in PROFILES.items() if profile.calibrated} == {
        "llama-3.1-8b-rtx-pro-6000",
        "llama-3.1-8b-rtx-4090",
        "qwen3-32b-h100-x2",
    }
    assert DEFAULT_PROFILE in PROFILES


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("llama-3.1-8b-rtx-4090", 41_408), ("qwen3-32b-h100-x2", 307_328), ("llama-3.1-70b-h100-x4", 461_376)],
)
def test_capacity_is_what_servers_report_and_the_rough_sum_is_near(name: str, tokens: int) -> None:
    profile = PROFILES[name]
    assert profile.capacity_tokens == tokens
    assert replace(profile, reported_tokens=0).capacity_tokens == pytest.approx(tokens, rel=0.35)


def test_an_unknown_capacity_is_0() -> None:
    assert replace(PROFILES[DEFAULT_PROFILE], kv_bytes_per_token=0).capacity_tokens == 0


def test_a_front_end_is_assumed_where_nothing_was_fitted() -> None:
    assert {profile.front_s for profile in PROFILES.values() if not profile.calibrated} == {0.0156}
    assert {profile.front_s for profile in PROFILES.values() if profile.calibrated} == {0.0}
