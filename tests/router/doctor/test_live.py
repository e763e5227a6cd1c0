"""The doctor of a running router: bounded, without text, paid for by time it has earned."""

import orjson
import pytest

from router.doctor import live as module
from router.doctor.live import Live
from tests.router.doctor.traffic import BREAKERS, CHAT, broken, chats, truncated


class Clock:
    def __init__(self, step_s: float = 1e-6) -> None:
        self.now_s = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def looked(bodies, clock=None, *, label="r", **options):
    doctor = Live(clock or Clock(1e-7), **options)
    for body in bodies:
        data = orjson.dumps(body)
        doctor.seen(label, CHAT, len(data) // 4, data)
    return doctor


def broken_kinds(told):
    return [one["kind"] for one in told["findings"] if one["breaks"]]


@pytest.mark.parametrize("name", BREAKERS)
def test_planted_breaker_is_found_without_text(name):
    told = looked(broken(name)).document()
    assert told["breaks"]
    assert broken_kinds(told) == [BREAKERS[name][0]]
    (one,) = [one for one in told["findings"] if one["breaks"]]
    assert one["route"] == "r"
    assert 0 < one["lost_tokens"] <= told["routes"][0]["prompt_tokens"]


def test_where_the_clock_stands():
    (one,) = looked(broken("clock in the middle")).document()["findings"]
    text = broken("clock in the middle")[1]["messages"][0]["content"]
    assert (one["path"], one["role"], one["message"]) == ("messages[0].content", "system", 0)
    assert text[one["offset"] :].startswith("23:00:37")


def test_a_history_that_was_cut():
    assert broken_kinds(looked(truncated()).document()) == ["truncated_history"]


@pytest.mark.parametrize("seed", range(5))
def test_healthy_chats_have_no_finding(seed):
    assert looked(chats(seed)).document()["findings"] == []


def test_a_salt_per_tenant_is_wanted():
    bodies = [{**body, "cache_salt": f"t{number % 4}"} for number, body in enumerate(chats())]
    assert not looked(bodies).document()["breaks"]


def test_looks_are_paid_for():
    clock = Clock(0.001)  # every look takes a millisecond or more, and every request earns 3 µs and 2 µs
    doctor = looked(broken("clock", users=100), clock)
    route = doctor.document()["routes"][0]
    assert route["requests"] == 300
    assert 1 <= route["looked_at"] < 30


def test_looks_are_paid_for_by_the_processor_and_not_by_the_machine():
    doctor = looked(broken("clock", users=100), Clock(0.001), cpu_clock=Clock(1e-7))
    assert doctor.document()["routes"][0]["looked_at"] == 300


def test_no_text_is_kept():
    doctor = looked(broken("request id"))
    kept = repr(orjson.dumps(doctor.document())) + repr([route.ring for route in doctor._routes.values()])
    assert "Rule 1" not in kept
    assert "bank" not in kept
    assert doctor.with_text() is None


def test_text_is_looked_at_where_it_may_be_kept():
    doctor = looked(broken("clock"), keep_text=True)
    assert doctor.document()["keeps_text"]
    told = doctor.with_text()
    assert told["families"][0]["findings"][0]["kind"] == "timestamp"
    assert "23:00" not in str(told)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_LINES", 50)
    monkeypatch.setattr(module, "_KEPT_BYTES", 30_000)
    doctor = Live(Clock(1e-7), keep_text=True)
    for number, body in enumerate(chats(users=40)):
        doctor.seen(f"route {number}", CHAT, 10, orjson.dumps(body))
    assert len(doctor._routes) <= module._ROUTES + 1
    assert all(len(route.lines) <= 50 and len(route.ring) <= 64 for route in doctor._routes.values())
    assert sum(len(data) for _, data in doctor._kept) == doctor._kept_bytes <= 30_000


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"{}", b'{"messages": 3}', b'{"prompt": {"a": []}}', b"x" * 600_000]
)
def test_any_body_will_do(body):
    doctor = Live(Clock())
    doctor.seen("r", CHAT, 1, body)
    assert doctor.document()["routes"][0]["requests"] == 1


def test_what_is_mended_is_forgotten():
    clock = Clock(1e-7)
    doctor = looked(broken("clock"), clock)
    assert doctor.document()["breaks"]
    for _ in range(2):
        clock.now_s += 3600
        for body in chats(2, users=20):
            doctor.seen("r", CHAT, 100, orjson.dumps(body))
    assert not doctor.document()["breaks"]
