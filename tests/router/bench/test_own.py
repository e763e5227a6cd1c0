"""The user's own prompts: files of bodies, traces, and what can't be used."""

import json
from dataclasses import dataclass

import pytest

from router.bench.groups import CHAT, COMPLETIONS, MARK_TOKENS, Shape, mark_of
from router.bench.own import Traced, marked, read_bodies, traced
from router.errors import RouterError

ONE, OTHER = mark_of("run", "one"), mark_of("run", "other")
USER = {"role": "user", "content": "hello"}


@dataclass(frozen=True)
class Arrival:
    keys: tuple[bytes, ...]
    prompt_tokens: int
    time_s: float = 0.0
    output_tokens: int = 3
    user: str | None = None
    session: str | None = None


def opened(tmp_path, *lines, shape=None, **options):
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    given = {"most": 100, "max_tokens": None, "as_is": False} | options
    return read_bodies(file, shape or Shape(""), "served", **given)


def test_bodies_and_batch_lines_are_asked_as_they_are_but_for_mark_and_stream(tmp_path):
    group = opened(
        tmp_path,
        {"messages": [USER], "temperature": 0},
        "",
        {"custom_id": "1", "url": "/v1/completions", "body": {"model": "own", "prompt": "once", "max_tokens": 9}},
    )
    one, other = group.prompt(0, ONE), group.prompt(1, ONE)
    assert (group.name, group.requests) == ("own.jsonl", 2)
    assert (one.path, other.path) == (CHAT, COMPLETIONS)
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    assert json.loads(one.body) == {
        "model": "served",
        "messages": [{"role": "user", "content": f"{ONE} hello"}],
        "temperature": 0,
        **usage,
    }
    assert json.loads(other.body) == {"model": "own", "prompt": f"{ONE} once", "max_tokens": 9, **usage}


def test_what_the_user_names_replaces_what_bodies_say(tmp_path):
    shape = Shape("named", extra={"seed": 7})
    group = opened(tmp_path, {"model": "own", "messages": [USER]}, shape=shape, max_tokens=5, as_is=True)
    body = json.loads(group.prompt(0, ONE).body)
    assert (body["model"], body["max_tokens"], body["seed"]) == ("named", 5, 7)
    assert body["messages"] == [USER]


def test_a_file_is_read_as_far_as_it_is_asked(tmp_path):
    assert opened(tmp_path, {"prompt": "a"}, {"prompt": "b"}, "{broken", most=2).requests == 2


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{secret words", "request 2: is no JSON"),
        ("[1]", "request 2: is no JSON object"),
        ({"url": "/v1/embeddings", "body": {"input": "secret words"}}, "generates nothing"),
        ({"url": "/v1/completions", "body": "secret words"}, "has a body that is no object"),
        ({"model": "secret words"}, "no text in messages, prompt or input to mark; --as-is"),
    ],
)
def test_a_line_that_cannot_be_used_is_told_without_its_text(tmp_path, line, told):
    with pytest.raises(RouterError) as raised:
        opened(tmp_path, {"prompt": "a"}, line)
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)


def test_an_empty_file_is_told(tmp_path):
    with pytest.raises(RouterError, match="holds no request"):
        opened(tmp_path, "", "  ")


@pytest.mark.parametrize(
    ("body", "done"),
    [
        ({"prompt": ["a", "b"]}, {"prompt": ["M a", "M b"]}),
        ({"input": "a"}, {"input": "M a"}),
        (
            {"system": [{"type": "text", "text": "a"}], "messages": [USER]},
            {"system": [{"type": "text", "text": "M a"}]},
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "a"}]}]},
            {"messages": [{"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "M a"}]}]},
        ),
        (
            {"messages": [{"role": "assistant", "content": None}, {"role": "user", "content": "a"}]},
            {"messages": [{"role": "assistant", "content": None}, {"role": "user", "content": "M a"}]},
        ),
    ],
)
def test_the_mark_stands_before_the_first_text(body, done):
    before = json.dumps(body)
    assert marked(body, "M") == body | done
    assert json.dumps(body) == before


def test_the_mark_of_token_ids_is_token_ids():
    one, other = (marked({"prompt": [[1, 2], [3]]}, mark)["prompt"] for mark in (ONE, OTHER))
    assert [len(prompt) for prompt in one] == [2 + MARK_TOKENS, 1 + MARK_TOKENS]
    assert one[0][:MARK_TOKENS] == one[1][:MARK_TOKENS] != other[0][:MARK_TOKENS]


def test_prompts_of_a_trace_are_equal_as_far_as_their_keys():
    a, b, c = b"a" * 16, b"b" * 16, b"c" * 16
    arrivals = [
        Arrival((a, b, c), 40, 5.0, user="u"),
        Arrival((a, b), 40, 6.5, session="s"),
        Arrival((a, c), 32, 7.0),
        Arrival((), 20, 8.0),
        Arrival((a,), 0, 9.0),
    ]
    group = traced("trace", arrivals, 16, Shape("m"), most=10, max_tokens=None)
    prompts = [group.prompt(number, ONE) for number in range(group.requests)]
    ids = [json.loads(prompt.body)["prompt"] for prompt in prompts]
    assert list(group.times_s) == [0.0, 1.5, 2.0, 3.0]
    assert [len(one) for one in ids] == [40, 40, 32, 20]
    assert ids[0][:32] == ids[1][:32]
    assert ids[0][:16] == ids[2][:16]
    assert ids[0][16:32] != ids[2][16:32]
    assert ids[0][32:] != ids[1][32:]
    assert ids[0][:MARK_TOKENS] == ids[3][:MARK_TOKENS]
    assert [prompt.headers for prompt in prompts] == [{"X-User-Id": "u"}, {"X-Session-Id": "s"}, {}, {}]
    assert json.loads(prompts[0].body)["max_tokens"] == 3
    cold = json.loads(group.prompt(0, OTHER).body)["prompt"]
    assert cold[:MARK_TOKENS] != ids[0][:MARK_TOKENS]
    assert cold[MARK_TOKENS:] == ids[0][MARK_TOKENS:]


def test_a_trace_without_prompts_is_told_and_limits_hold():
    with pytest.raises(RouterError, match="no request with a prompt"):
        traced("trace", [Arrival((), 0)], 16, Shape("m"), most=10, max_tokens=None)
    group = traced("trace", [Arrival((), 9)] * 3, 16, Shape("m"), most=2, max_tokens=1)
    assert group.requests == 2
    assert json.loads(group.prompt(0, ONE).body)["max_tokens"] == 1
    assert group.digest == Traced("trace", group.arrivals, 16, Shape("m"), 1).digest
