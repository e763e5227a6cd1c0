"""Hit rates in Prometheus text: with a tenant and the operator's route, and bounded whatever clients do."""

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from router.hit_series import HitSeries
from router.hits import Hits
from tests.fakes import client_of, fake_replica, posted, router_over
from tests.router.test_hits import ended


def samples(hits: Hits, series: HitSeries) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    registry.register(series)
    return {
        (one.name, *one.labels.values()): one.value
        for family in registry.collect()
        for one in family.samples
        if not one.name.endswith("_created")
    }


def test_every_number_of_the_book_is_there():
    hits = Hits()
    ended(hits, "batch")
    ended(hits, "batch", delivered_tokens=None)
    found = samples(hits, HitSeries(hits))
    assert found.pop(("router_hit_requests_total", "batch", "acme", "r1")) == 2
    assert {key[-1]: value for key, value in found.items()} == {
        "prompt": 200,
        "available": 160,
        "predicted": 128,
        "reported": 100,
        "delivered": 48,
    }


def test_ten_thousand_tenants_and_a_million_users_name_no_more_rows_than_fit():
    hits = Hits()
    series = HitSeries(hits, rows=100)
    for number in range(10_000):
        ended(hits, f"route-{number % 7}", tenant=f"tenant-{number}")
        if number % 1000 == 999:
            found = samples(hits, series)
    assert len(hits.rows()) <= 257 * 7
    assert len({key[1:4] for key in found}) == 101
    requests = {key[1:]: value for key, value in found.items() if key[0] == "router_hit_requests_total"}
    assert sum(requests.values()) == 10_000
    assert requests["other", "other", "r1"] == 256 - 93  # beside the tenants beyond 256 of the seven routes


def test_rows_of_the_book_are_bounded_too(monkeypatch):
    monkeypatch.setattr("router.hits._ROWS", 50)
    hits = Hits()
    for number in range(200):
        ended(hits, f"route-{number}")
    assert len(hits.rows()) == 51
    assert hits.rows()["other", "other", "r1"].requests == 150


def test_the_largest_come_first_and_no_counter_goes_back():
    hits = Hits()
    series = HitSeries(hits, rows=2)
    for label, often in (("small", 1), ("large", 5), ("middle", 3)):
        for _ in range(often):
            ended(hits, label)
    before = samples(hits, series)
    assert {key[1] for key in before} == {"large", "middle", "other"}
    for _ in range(20):
        ended(hits, "small")
    ended(hits, "new")
    after = samples(hits, series)
    assert after.keys() == before.keys()
    assert all(after[key] >= value for key, value in before.items())
    assert after["router_hit_requests_total", "other", "other", "r1"] == 22


def test_a_replica_that_left_leaves_room():
    hits = Hits()
    series = HitSeries(hits, rows=1)
    ended(hits, "a", replica="r1")
    assert ("router_hit_requests_total", "a", "acme", "r1") in samples(hits, series)
    hits.forgotten("r1")
    assert samples(hits, series)["router_hit_requests_total", "a", "acme", "other"] == 1


async def test_they_are_scraped_from_a_running_router():
    async with fake_replica() as replica, router_over(replica, route_by="header:x-team") as up:
        assert (await posted(up.url, b'{"model":"m","prompt":"a b c"}', b"X-Team: search")).status == 200
        async with client_of(up.admin_url) as client:
            await client.send(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
            text = (await client.reply()).body.decode()
    rows = [
        one
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name == "router_hit_requests_total"
    ]
    assert [(one.labels, one.value) for one in rows] == [({"route": "search", "tenant": "", "replica": "r1"}, 1)]
