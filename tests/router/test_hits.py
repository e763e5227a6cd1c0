"""Hit rates by route, tenant and replica: the sums, the bounds, and over a whole router."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.conformance import sample_request
from policies.types import Choice, Replica
from router.hits import Hits, Routes
from router.http.messages import Call
from router.placing import Placed
from router.prompts import Prompt
from tests.router.outcomes import CHAT, altered, outcome

REQUEST = replace(sample_request(1, blocks=10), route=CHAT, model="m", tenant="acme", prompt_tokens=100)
DONE = outcome(100, available=80, predicted=64, delivered=48, duration_s=0.1, ttft_s=0.1)


def call(*headers: tuple[bytes, bytes]) -> Call:
    return Call.of(b"POST", CHAT.encode(), list(headers), b"{}", b"h", "p")


def placed(request) -> Placed:
    chosen = Replica("r1", 0, 0, 4, 0, 0, None, 1.0)
    return Placed(request, Prompt(100, request.blocks, "exact"), (chosen,), Choice("r1", "prefix"), chosen)


def ended(hits: Hits, label: str = "a", **changes) -> None:
    tenant = changes.pop("tenant", "acme")
    request = replace(REQUEST, tenant=tenant)
    hits.came(request, label)
    hits.answered(placed(request), altered(DONE, **changes))


def test_three_numbers_side_by_side():
    hits = Hits()
    ended(hits)
    ended(hits, delivered_tokens=None, available_tokens=0, predicted_tokens=0)
    (row,) = hits.document()["rows"]
    assert (row["route"], row["tenant"], row["replica"], row["requests"]) == ("a", "acme", "r1", 2)
    assert (row["available_fraction"], row["predicted_fraction"], row["delivered_fraction"]) == (0.4, 0.32, 0.48)


def test_unknown_is_none():
    hits = Hits()
    assert hits.document()["total"]["delivered_fraction"] is None
    ended(hits, delivered_tokens=None)
    assert hits.document()["total"]["delivered_tokens"] is None
    ended(hits, status=500)
    ended(hits, basis="none")
    assert hits.document()["total"]["requests"] == 1


def test_sums_by_route_and_tenant_and_a_replica_that_left():
    hits = Hits()
    for label, tenant, replica in (("a", "x", "r1"), ("a", "y", "r1"), ("b", "x", "r2")):
        ended(hits, label, tenant=tenant, replica=replica)
    hits.forgotten("r1")
    told = hits.document()
    assert [(one["route"], one["requests"]) for one in told["routes"]] == [("a", 2), ("b", 1)]
    assert [(one["tenant"], one["requests"]) for one in told["tenants"]] == [("x", 2), ("y", 1)]
    assert {one["replica"] for one in told["rows"]} == {"other", "r2"}
    assert told["total"]["requests"] == 3


@settings(deadline=None)
@given(st.text(max_size=70), st.integers(280, 400))
def test_names_are_bounded(word, count):
    names = [f"{number}{word}" for number in range(count)]
    hits, routes = Hits(), Routes("header:x-route")
    for name in names:
        label = routes.of(REQUEST, call((b"X-Route", name.encode("utf-8")[:90])))
        ended(hits, label, tenant=name)
    told = hits.document()
    assert len(told["routes"]) <= 257
    assert len(told["tenants"]) <= 257
    assert told["total"]["requests"] == len(names)


def test_sums_are_those_of_the_document():
    hits = Hits()
    for number in range(20):
        ended(hits, f"route{number % 3}", tenant=f"t{number % 4}")
    told, sums = hits.document(), hits.sums()
    assert sums["replica"] == {"r1": [2000, 1600, 1280, 2000, 960]}
    for kind, rows in (("route", told["routes"]), ("tenant", told["tenants"])):
        assert {
            row[kind]: [row["prompt_tokens"], row["available_tokens"], row["predicted_tokens"]] for row in rows
        } == {name: found[:3] for name, found in sums[kind].items()}
        assert [row["delivered_fraction"] for row in rows] == [
            round(min(1.0, found[4] / found[3]), 6) for _, found in sorted(sums[kind].items())
        ]


def test_what_a_route_is():
    assert Routes("path").of(REQUEST, call()) == CHAT
    assert Routes("path").of(replace(REQUEST, route="/v1/whatever"), call()) == "other"
    assert Routes("model").of(REQUEST, call()) == "m"
    assert Routes("header:X-Route").of(REQUEST, call((b"x-ROUTE", b"agents"))) == "agents"
    assert Routes("header:X-Route").of(REQUEST, call((b"x-route", b"a\x01b"))) == ""


def test_requests_that_never_end_are_bounded():
    hits = Hits()
    for number in range(21_000):
        hits.came(replace(REQUEST, id=str(number)), "a")
    assert len(hits._open) == 20_000
