"""Made prompts: what they share, what a mark changes, and that the seed decides the rest."""

import json

import pytest

from router.bench.groups import MARK_TOKENS, Made, Shape, mark_of

ONE, OTHER = mark_of("run", "one"), mark_of("run", "other")
EXACT = Shape("m", endpoint="completions", prefix_tokens=40, question_tokens=8)
CHAT = Shape("m", prefix_tokens=40, question_tokens=8, extra={"ignore_eos": True})


def ids(group, number, mark=ONE):
    return json.loads(group.prompt(number, mark).body)["prompt"]


def test_shared_prefixes_are_taken_in_turn_and_questions_are_not_shared():
    group = Made("shared", EXACT, prefixes=2)
    first, second, third = (ids(group, number) for number in range(3))
    assert len(first) == len(second) == 48
    assert first[:40] == third[:40] != second[:40]
    assert first[40:] != third[40:]


def test_unique_prefixes_are_as_long_and_share_nothing_but_the_mark():
    group = Made("unique", EXACT, prefixes=None)
    prompts = [ids(group, number) for number in range(20)]
    assert {len(prompt) for prompt in prompts} == {48}
    assert {tuple(prompt[:MARK_TOKENS]) for prompt in prompts} == {tuple(prompts[0][:MARK_TOKENS])}
    assert len({tuple(prompt[: MARK_TOKENS + 3]) for prompt in prompts}) == 20


@pytest.mark.parametrize("shape", [EXACT, CHAT])
@pytest.mark.parametrize("prefixes", [3, None])
def test_a_mark_changes_the_front_and_nothing_else(shape, prefixes):
    group = Made("shared", shape, prefixes)
    one, other = (json.loads(group.prompt(5, mark).body) for mark in (ONE, OTHER))
    if shape is CHAT:
        texts = [body["messages"][0]["content"] for body in (one, other)]
        assert texts[0].removeprefix(ONE) == texts[1].removeprefix(OTHER)
        assert one["messages"][1] == other["messages"][1]
    else:
        assert one["prompt"][0:MARK_TOKENS] != other["prompt"][0:MARK_TOKENS]
        assert one["prompt"][MARK_TOKENS:] == other["prompt"][MARK_TOKENS:]
    assert group.prompt(5, ONE) == Made("shared", shape, prefixes).prompt(5, ONE)


def test_a_chat_asks_for_a_stream_with_usage_and_what_the_user_adds():
    body = json.loads(Made("unique", CHAT, None).prompt(0, ONE).body)
    assert body["messages"][0]["content"].startswith(ONE)
    assert len(body["messages"][0]["content"].split()) == 41
    assert {name: body[name] for name in body if name != "messages"} == {
        "model": "m",
        "max_tokens": 32,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_the_digest_follows_from_shape_and_seed():
    digests = {
        Made(name, Shape("m", seed=seed, prefix_tokens=tokens), prefixes).digest
        for name, seed, tokens, prefixes in (
            ("shared", 1, 40, 2),
            ("shared", 2, 40, 2),
            ("shared", 1, 41, 2),
            ("unique", 1, 40, None),
            ("shared", 1, 40, 1),
            ("shared", 1, 40, 2),
        )
    }
    assert len(digests) == 5
    assert Made("shared", Shape("other", prefix_tokens=40), 2).digest in digests


def test_marks_of_two_runs_differ():
    assert len({mark_of(run, *words) for run in ("a", "b") for words in (("x",), ("x", ""), ("", "x"), ("xy",))}) == 8
    assert len(ONE) == len(OTHER) == 16
