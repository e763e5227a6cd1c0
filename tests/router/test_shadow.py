"""A second policy beside the live one: what is counted, and that nothing it does reaches a request."""

import logging

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from policies.conformance import sample_request
from policies.errors import PolicyError
from policies.types import Choice, Replica
from router.placing import Placed
from router.prompts import Prompt
from router.shadow import Shadow
from tests.fakes import fake_replica, posted, router_over, until
from tests.router.outcomes import altered

CHAT = "/v1/chat/completions"
REQUEST = replace(sample_request(1, blocks=10), route=CHAT, prompt_tokens=165)
VIEW = (Replica("r1", 0, 0, 10, 0, 0, None, 1.0), Replica("r2", 0, 0, 3, 0, 0, None, 1.0))
PLACED = Placed(REQUEST, Prompt(165, REQUEST.blocks, "exact"), VIEW, Choice("r1", "prefix"), VIEW[0])


class Says:
    def __init__(self, said: object) -> None:
        self.said = said

    def choose(self, request, replicas):
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def shadowed(said: object) -> Shadow:
    return Shadow("other", Says(said), [CHAT], lambda what, *of: what(*of))


def counted(shadow: Shadow) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("router_shadow_"), *sample.labels.values()): sample.value
        for family in shadow.collect()
        for sample in family.samples
    }


@pytest.mark.parametrize(("said", "agrees", "computed"), [("r1", "yes", 5), (Choice("r2", "load"), "no", 117)])
def test_what_it_would_have_computed(said, agrees, computed):
    shadow = shadowed(said)
    shadow.placed(PLACED)
    shadow.placed(altered(PLACED, request=replace(REQUEST, route="/client/made/this/up")))
    found = counted(shadow)
    assert found[("choices_total", CHAT, agrees)] == found[("choices_total", "other", agrees)] == 1
    assert found[("tokens_total", CHAT, "live")] == 5
    assert found[("tokens_total", CHAT, "shadow")] == computed
    assert found[("failures_total",)] == 0


@pytest.mark.parametrize("said", [ValueError("broken"), "r9", None, 7])
def test_its_failures_are_counted_and_told_ever_more_rarely(said, caplog):
    shadow = shadowed(said)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            shadow.placed(PLACED)
    assert counted(shadow) == {("failures_total",): 100}
    assert len(caplog.records) == 7


def choices(up) -> dict[str, float]:
    """How many choices of the shadow agreed, and did not."""
    families = text_string_to_metric_families(up.metrics.exposition().decode())
    named = [one for family in families for one in family.samples if one.name == "router_shadow_choices_total"]
    return {one.labels["agrees"]: one.value for one in named if one.labels["route"] == "/v1/completions"}


async def test_the_live_policy_places_and_the_shadow_is_only_counted():
    async with (
        fake_replica() as one,
        fake_replica() as two,
        router_over(one, two, policy__name="round-robin", policy__shadow="least-loaded") as up,
    ):
        for _ in range(6):
            assert (await posted(up.url)).status == 200
        assert (len(one.seen), len(two.seen)) == (3, 3)
        await until(lambda: sum(choices(up).values()) == 6)
        assert set(choices(up)) <= {"yes", "no"}


async def test_an_unknown_shadow_does_not_start():
    async with fake_replica() as one:
        with pytest.raises(PolicyError, match="no-such"):
            async with router_over(one, policy__shadow="no-such"):
                pass


async def test_without_a_shadow_nobody_is_told_of_choices():
    async with fake_replica() as one, router_over(one) as up:
        assert (await posted(up.url)).status == 200
        assert b"router_shadow" not in up.metrics.exposition()
