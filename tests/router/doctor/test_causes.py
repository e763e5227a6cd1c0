import pytest

from router.doctor.causes import cause_of
from router.doctor.divergence import gaps
from router.doctor.parts import asked

RULES = "\n".join(f"Rule {number}: always be careful with {number * 7} things at once." for number in range(12))


def kind(old: str, new: str, template: str = "{}") -> str | None:
    bodies = [
        {"messages": [{"role": "system", "content": f"{template.format(value)}\n{RULES}"}]} for value in (old, new)
    ]
    (gap,) = gaps(asked("/r", bodies[0]), asked("/r", bodies[1]))
    cause = cause_of(gap)
    return cause.kind if cause else None


@pytest.mark.parametrize(
    ("old", "new", "template", "expected"),
    [
        ("2026-03-01T10:00:01Z", "2026-03-01T10:00:02Z", "Now: {}", "timestamp"),
        ("2026-03-01 10:00", "2026-03-02 11:30", "{} is the time", "timestamp"),
        ("3:05 PM", "3:06 PM", "It is {} now.", "timestamp"),
        ("1772359201", "1772359209", "t={}", "timestamp"),
        ("1772359201123", "1772359209456", '{{"ts": {}}}', "timestamp"),
        ("Monday", "Tuesday", "Today is {}.", "date"),
        ("March 3, 2026", "March 4, 2026", "Today is {}.", "date"),
        ("3 March 2026", "4 March 2026", "Today is {}.", "date"),
        ("03/04/2026", "03/05/2026", "Date {}", "date"),
        ("2026年3月1日", "2026年3月2日", "今日: {}", "date"),
        ("7f9c24e8-3b12-4f6a-9d3e-2a1b5c7d8e9f", "0f9c24e8-3b12-4f6a-9d3e-2a1b5c7d8e90", "run {}", "uuid"),
        ("req_8fJ2kLq9", "req_Zz81mQp0", "Request {}", "request_id"),
        ("a81f", "77c2", "nonce={};", "request_id"),
        ("17", "18", "Turn {}", "counter"),
        ("1,017", "1,018", "You have answered {} questions", "counter"),
        ("Ada", "Grace", "The user's name is {}.", "personal"),
        ("ada@example.org", "bob@example.org", "Write to {}", "personal"),
        ("acme", "globex", "Company: {}", "personal"),
        ("Be kind. ", "Be  kind.", "{}", "whitespace"),
        ("cats are small animals that purr", "the moon is far away from here", "{}", "varying_text"),
    ],
)
def test_values_by_their_shape_and_the_words_before_them(old, new, template, expected):
    assert kind(old, new, template) == expected


def test_other_conversations_have_no_cause():
    shared = "the same long answer that happens to come twice, in two conversations of different users. " * 4
    bodies = [
        {
            "messages": [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "hello"},
                {"role": "user", "content": text},
                {"role": "assistant", "content": shared},
                {"role": "user", "content": "thanks"},
            ]
        }
        for text in ("what is love, and why does it hurt", "where do the ducks go in winter, do you know")
    ]
    found = gaps(asked("/r", bodies[0]), asked("/r", bodies[1]))
    assert found
    assert {cause_of(gap).kind for gap in found} <= {"edited_history"}


def test_a_cut_history():
    turns = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"message {n} " + "x" * 200} for n in range(9)]
    head = {"role": "system", "content": RULES}
    (gap,) = gaps(asked("/r", {"messages": [head, *turns[:7]]}), asked("/r", {"messages": [head, *turns[2:]]}))
    assert cause_of(gap).kind == "truncated_history"
