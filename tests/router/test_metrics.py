"""What is counted, under which labels, and how it reads when scraped."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from policies.fleet import Fleet
from policies.round_robin import RoundRobin
from policies.types import Request
from router.admission import Admission
from router.families import DECISION_BOUNDS_S, Histogram, gauge
from router.health import Watcher
from router.hit_series import HitSeries
from router.hits import Hits
from router.kv_events import KvEvents
from router.losses import Losses
from router.metrics import FAMILIES, Metrics
from router.rereading import Fixed
from router.sections import Admission as Rules
from router.shadow import Shadow
from router.stalls import Stalls
from router.tenant_keys import Register
from router.tenant_metrics import TenantCounts
from tests.router.outcomes import CHAT, altered, outcome

DONE = outcome(100, available=64, predicted=48, delivered=32, output_tokens=10, model="tiny")


async def answer(_url: str, _path: str) -> tuple[int, bytes]:
    return 404, b""


@pytest.fixture
def fleet():
    fleet = Fleet()
    fleet.joined("r1")
    fleet.serves("r1", ["tiny"])
    return fleet


@pytest.fixture
def metrics(fleet):
    watcher = Watcher(fleet, clock=lambda: 0.0)
    watcher.watch("r1", "http://127.0.0.1:1")
    fleet.opened("r1")
    events = KvEvents(fleet, ask=answer, root=watcher.root, untold=fleet.left)
    events.follow("r1", "http://127.0.0.1:1", "off")
    tenants = TenantCounts(Fixed(Register()))
    losses = Losses(fleet, lambda: 0.0, [CHAT], blind=False, label=str)
    admission = Admission(Rules(max_in_flight=1), lambda _: (), lambda: 0.0)
    shadow = Shadow("round-robin", RoundRobin(), [CHAT], lambda told, placed: told(placed))
    others = [one.collect for one in (tenants, losses, admission, shadow, Stalls())]
    return Metrics(fleet=fleet, watcher=watcher, events=events, routes=[CHAT], others=others)


def scraped(metrics: Metrics) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by sample name and label values (sorted by label name)."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def test_one_request(metrics):
    metrics.answered(DONE)
    found = scraped(metrics)
    assert found["router_requests_total"] == {("tiny", "ok", "r1", CHAT, "200"): 1.0}
    assert found["router_choices_total"] == {("prefix", "r1"): 1.0}
    key = ("exact", "tiny", "r1", "yes", CHAT)
    assert found["router_prompt_tokens_total"] == {key: 100.0}
    assert found["router_available_tokens_total"] == {key: 64.0}
    assert found["router_predicted_tokens_total"] == {key: 48.0}
    assert found["router_delivered_tokens_total"] == {key: 32.0}
    assert found["router_output_tokens_total"] == {("tiny", "r1", CHAT): 10.0}
    assert found["router_request_duration_seconds_sum"] == {(CHAT,): 0.3}
    assert found["router_ttft_seconds_count"] == {("r1", CHAT): 1.0}


def test_a_replica_that_reports_nothing_is_kept_apart(metrics):
    metrics.answered(DONE)
    metrics.answered(altered(DONE, delivered_tokens=None, ttft_s=None, output_tokens=None))
    found = scraped(metrics)
    assert {key[3]: value for key, value in found["router_prompt_tokens_total"].items()} == {"yes": 100.0, "no": 100.0}
    assert found["router_ttft_seconds_count"] == {("r1", CHAT): 1.0}
    assert found["router_output_tokens_total"] == {("tiny", "r1", CHAT): 10.0}


def test_refusals_are_no_success(metrics):
    metrics.refused(CHAT, 404, "model_not_found")
    metrics.refused("/etc/passwd", 404, "path_not_served")
    found = scraped(metrics)
    assert found["router_requests_total"] == {
        ("", "refused", "", CHAT, "404"): 1.0,
        ("", "refused", "", "other", "404"): 1.0,
    }
    assert found["router_refusals_total"] == {("model_not_found", CHAT): 1.0, ("path_not_served", "other"): 1.0}


def test_labels_come_from_closed_sets_whatever_clients_send(metrics):
    for number in range(10_000):
        metrics.answered(
            altered(DONE, route=f"/v1/{number}", model=f"m{number}", reason=f"why {number}", status=number)
        )
        metrics.refused(f"/{number}", 404, "model_not_found")
    found = scraped(metrics)
    assert sum(found["router_requests_total"].values()) == 20_000
    assert len(found["router_prompt_tokens_total"]) == 1
    assert len(found["router_choices_total"]) <= 257
    assert len(found["router_requests_total"]) <= 502
    assert len(found["router_refusals_total"]) == 1
    assert "m77" not in str(found)


def test_a_model_keeps_its_label_after_its_replica_closed(metrics, fleet):
    metrics.answered(DONE)
    fleet.closed("r1")
    metrics.answered(DONE)
    assert scraped(metrics)["router_requests_total"] == {("tiny", "ok", "r1", CHAT, "200"): 2.0}


def test_retries_failures_of_the_policy_and_decisions(metrics):
    metrics.answered(altered(DONE, retries=2))
    metrics.policy_failed()
    metrics.decided(0.0004)
    found = scraped(metrics)
    assert found["router_retries_total"] == {(CHAT,): 2.0}
    assert found["router_policy_failures_total"] == {(): 1.0}
    assert found["router_decision_seconds_count"] == {(): 1.0}
    assert found["router_decision_seconds_bucket"][("0.0005",)] == 1.0
    assert found["router_decision_seconds_bucket"][("0.00025",)] == 0.0


def test_gauges_are_read_when_scraped(metrics, fleet):
    blocks = tuple(bytes([number]) * 16 for number in range(5))
    request = Request("1", CHAT, "tiny", "", None, None, 100, None, blocks, 16)
    fleet.sent(request, "r1")
    found = scraped(metrics)
    assert found["router_in_flight"] == {("r1",): 1.0}
    assert found["router_pending_prefill_tokens"] == {("r1",): 100.0}
    assert found["router_held_blocks"] == {("r1",): 5.0}
    assert found["router_replica_up"] == {("r1",): 0.0}
    assert found["router_replica_state"][("r1", "starting")] == 1.0
    fleet.done(request)
    assert scraped(metrics)["router_in_flight"] == {("r1",): 0.0}


def test_what_an_engine_did_not_report_has_no_sample(metrics):
    assert "router_replica_running" not in scraped(metrics)


def test_a_bucket_holds_what_equals_its_bound():
    histogram = Histogram(DECISION_BOUNDS_S)
    histogram.observed(0.001)
    histogram.observed(7.0)
    buckets = dict(histogram.buckets())
    assert (buckets["0.0005"], buckets["0.001"], buckets["1.0"], buckets["+Inf"]) == (0.0, 1.0, 1.0, 2.0)


def test_the_table_of_families_is_what_is_exposed(metrics):
    metrics.answered(DONE)
    exposed = {family.name for family in (*metrics.collect(), *HitSeries(Hits()).collect())}
    assert exposed == {family.name.removesuffix("_total") for family in FAMILIES}
    for family in FAMILIES:
        assert family.name.endswith("_total") == (family.kind == "counter")
        assert family.help
        assert not family.help.endswith(".")


def test_repr(metrics):
    metrics.answered(DONE)
    assert repr(metrics) == "<Metrics 1 requests>"


def test_how_well_a_cache_is_known(metrics):
    found = scraped(metrics)
    standing = {("r1", "exact"): 0.0, ("r1", "alias"): 0.0, ("r1", "approximate"): 1.0}
    assert found["router_kv_standing"] == standing
    assert found["router_kv_degraded"] == {("r1",): 0.0}
    assert found["router_kv_batches_total"] == {("r1",): 0.0}


async def test_what_is_put_into_text_beside_the_loop_is_the_same(metrics):
    metrics.answered(DONE)
    ours = [line for line in metrics.exposition().splitlines() if line.startswith(b"router_")]
    assert [line for line in (await metrics.scraped()).splitlines() if line.startswith(b"router_")] == ours
    assert len(ours) > 50


@pytest.mark.parametrize("leaves_after", range(40))
async def test_a_scrape_lets_others_run_between_families(metrics, fleet, leaves_after):
    """And what they change meanwhile is no fault: a replica leaves after some of them."""
    metrics.answered(DONE)
    fleet.joined("r2")
    turns, before_last = 0, []

    class Last:
        def collect(self):
            before_last.append(turns)
            yield gauge("router_index_runs", [((), 0)])

    metrics.also(Last())
    scraping = asyncio.ensure_future(metrics.scraped())
    while not scraping.done():
        if turns == leaves_after:
            fleet.left("r2")
        await asyncio.sleep(0)
        turns += 1
    assert before_last[-1] > 40
    assert (await scraping).decode().count("# TYPE router_") > 40
