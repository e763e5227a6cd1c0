import pytest

from router.doctor.report import document, lines, live_lines, masked
from tests.router.doctor.traffic import BREAKERS, broken, chats, diagnosed, found


@pytest.mark.parametrize("name", BREAKERS)
def test_no_text_of_a_prompt_is_told(name):
    diagnosis = diagnosed(broken(name))
    told = "\n".join(lines(document(diagnosis))) + str(document(diagnosis))
    (one,) = found(diagnosis)
    for value in one.values:
        assert len(value) < 8 or one.cause.kind == "model" or value not in told


def test_text_is_told_where_asked_for():
    diagnosis = diagnosed(broken("user name"))
    assert any(name in "\n".join(lines(document(diagnosis, show_text=True))) for name in ("Ada", "Alan"))


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("2026-03-01T10:00:01Z", "timestamp", "2026-… (20 characters)"),
        ("10:00:01 for Ada", "timestamp", "10:… (16 characters)"),
        ("Ada at 10:00:01", "timestamp", "… (15 characters)"),
        ("36ee5", "request_id", "36… (5 characters)"),
        ("Ada", "personal", "… (3 characters)"),
        ("m-7", "model", "m-7"),
        ("", "salt", ""),
    ],
)
def test_masks(value, kind, expected):
    assert masked(value, kind, show_text=False) == expected


def test_both_reports_say_where_what_and_what_it_costs():
    diagnosis = diagnosed(broken("clock"))
    told = document(diagnosis)
    (finding,) = told["families"][0]["findings"]
    assert (finding["kind"], finding["path"], finding["block"], finding["sure"]) == (
        "timestamp",
        "messages[0].content",
        16,
        "certain",
    )
    assert told["breaks"]
    assert finding["lost_tokens_per_hour"] > finding["lost_tokens"] > 0
    text = "\n".join(lines(document(diagnosis)))
    assert "BREAKS: messages[0].content (system), character" in text
    assert "1 place breaks the prefix" in text
    assert "2026-…" in text


def test_healthy_traffic_is_said_to_be_so():
    assert list(lines(document(diagnosed(chats()))))[-1] == "0 places break the prefix"


def test_nothing_steers_the_terminal():
    bodies = [{**body, "model": "m\x1b[2J"} for body in broken("user name")]
    told = "\n".join(lines(document(diagnosed(bodies), show_text=True)))
    assert "\x1b" not in told
    assert "m·[2J" in told


def test_a_running_router_and_its_texts():
    finding = {
        "route": "agents",
        "breaks": True,
        "path": "messages[0].content",
        "role": "system",
        "offset": 7,
        "what": "a date that changes",
        "sure": "likely",
        "lost_tokens": 1200,
        "lost_fraction": 0.3,
        "lost_tokens_per_hour": 2400,
        "advice": "move it",
    }
    route = {"route": "agents", "requests": 10, "prompt_tokens": 4000, "looked_at": 8}
    told = {"routes": [route], "findings": [finding], "text": document(diagnosed(broken("clock")))}
    text = "\n".join(live_lines(told))
    assert "BREAKS: messages[0].content (system), character 7: a date that changes (likely)" in text
    assert "1,200 tokens computed again, 30% of the route's (2,400 per hour)" in text
    assert "family 1" in text
