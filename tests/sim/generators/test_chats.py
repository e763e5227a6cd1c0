"""Chat, documents and tools have the statistics that the Mooncake traces show."""

import pytest

from sim.presets import preset
from tests.sim.traffic import found

TRACE_BLOCK = 512


def near(value: float, within: float) -> object:
    return pytest.approx(value, rel=within)


def test_chat_is_like_the_conversation_trace():
    seen = found(preset("chat", requests=12_031, rate=3.4, cache_outputs=False, block_tokens=TRACE_BLOCK))
    assert seen.rate == near(3.4, 0.03)
    assert (seen.prompt_mean, seen.prompt_p50, seen.prompt_p90) == near((12_035, 6_909, 27_367), 0.08)
    assert (seen.output_mean, seen.output_p50) == near((342.6, 350), 0.06)
    assert seen.hit == pytest.approx(0.3734, abs=0.03)
    assert seen.later_turns == pytest.approx(0.33, abs=0.04)


def test_docs_are_like_the_synthetic_trace():
    seen = found(preset("docs", requests=3_993, rate=3.907, cache_outputs=False, block_tokens=TRACE_BLOCK))
    assert (seen.prompt_mean, seen.prompt_p50, seen.prompt_p90) == near((15_325, 11_587, 38_611), 0.15)
    assert seen.output_mean == near(149.1, 0.05)
    assert seen.hit == pytest.approx(0.6504, abs=0.03)
    assert seen.gap_cv == pytest.approx(1.01, abs=0.06)


def test_tools_are_like_what_is_published_of_the_tool_trace():
    workload = preset("tools", requests=12_000, rate=6.67, cache_outputs=False, block_tokens=TRACE_BLOCK)
    seen = found(workload)
    assert seen.prompt_mean == near(8_596, 0.06)
    assert seen.output_mean == near(182, 0.06)
    assert seen.hit == pytest.approx(0.5595, abs=0.03)
    routes = [arrival.route for arrival in workload.arrivals]
    assert routes.count("tool-a") / len(routes) == pytest.approx(9_203 / 23_608, abs=0.03)
    assert routes.count("tool-b") / len(routes) == pytest.approx(3_449 / 23_608, abs=0.02)


def test_a_salt_for_every_user_loses_the_heads_of_tools():
    kept, lost = (
        found(preset("tools", requests=4_000, salt=salt, block_tokens=TRACE_BLOCK)).hit for salt in ("tenant", "user")
    )
    assert kept - lost > 0.25
