"""What a reply said, from the pieces of it that pass by; of real streams, and of any that are cut anywhere."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.blocks import Chain
from policies.conformance import sample_request
from policies.fleet import Fleet
from router.answers import Answer
from router.heard import Answers, Heard
from router.openai import CHAT
from router.readers import TINY, local_reader
from tests.fakes import IDLE, Exchange, fake_replica, load_of, posted, router_over, until

READ = {"tokenizer__path": str(TINY), "tokenizer__where": "local"}
TEXT = "A prefix cache keeps blocks.\n\n- keys, **values**\n- 1 234 of them; Grüße 你好 \U0001f642."


def event(content: str | None = None, *, finish: str | None = None, **delta: object) -> dict:
    told = {} if content is None else {"content": content}
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": told | delta, "finish_reason": finish}]}


def stream(parts: list[str], usage: tuple[int, int] | None, *, finish: str = "stop", **last: object) -> bytes:
    """As vLLM 0.32 sends it."""
    events = [event("", role="assistant"), *(event(part) for part in parts), event("", finish=finish)]
    events[-1]["choices"][0] |= last
    if usage is not None:
        events.append({"choices": [], "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}})
    told = "".join(f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in events)
    return f"{told}data: [DONE]\n\n".encode()


def heard(*pieces: bytes) -> Answer | None:
    listening = Heard()
    for piece in pieces[:-1]:
        listening.heard(piece)
    return listening.answer(pieces[-1])


@given(st.lists(st.text(), max_size=30), st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99)), st.data())
def test_wherever_a_stream_is_cut_it_says_the_same(parts, usage, data):
    told = stream(parts, usage)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(told)), max_size=5)))
    pieces = [told[start:end] for start, end in zip([0, *cuts], [*cuts, len(told)], strict=True)]
    spoken = sum(bool(part) for part in parts) + 1
    assert heard(*pieces) == Answer("".join(parts), *(usage or (None, spoken)))


def test_a_long_stream_is_read_as_it_passes():
    told = stream(["word "] * 20_000, (5, 20_001))
    listening = Heard()
    for start in range(0, len(told), 2048):
        listening.heard(told[start : start + 2048])
        assert listening._bytes < 68 * 1024
    assert listening.answer(b"") == Answer("word " * 20_000, 5, 20_001)


@pytest.mark.parametrize(
    "reply",
    [
        stream(["a"] * 300_000, None),
        stream(["a"], None, finish="length"),
        stream(["a"], None, stop_reason="a"),
        stream(["a"], None)[:-200],
        stream(["a"], None)[7:],
        b": ping\n\n" + stream(["a"], None),
        stream(["a"], None).replace(b"\n\n", b"\r\n\r\n"),
        stream(["a"], None).replace(b'"content": "a"', b'"tool_calls": [{"index": 0}]'),
        stream(["a"], None).replace(b'"content": "a"', b'"reasoning_content": "hm"'),
        stream(["a"], None).replace(b'"index": 0', b'"index": 1'),
        stream(["a"], None).replace(b'"choices": [', b'"choices": [{"delta": {}}, ', 1),
        b'data: {"error": {"message": "died", "code": 500}}\n\ndata: [DONE]\n\n',
        b"data: [DONE]\n\n",
        b"data: ",
        b"\x1f\x8b\x08" + bytes(300_000),
        b"{" + bytes(300_000),
        b'data: {"choices":[],"x":%b%b}\n\n' % (b"[" * 1010, b"]" * 1010),
    ],
    ids=range(17),
)
def test_what_is_no_plain_answer_is_given_up(reply):
    assert heard(*(reply[start : start + 3000] for start in range(0, len(reply), 3000)), b"") is None


def uncounted(reply: bytes, size: int = 2048) -> int:
    listening = Heard()
    for start in range(0, len(reply), size):
        listening.heard(reply[start : start + size])
    listening.answer(b"")
    return listening.uncounted_tokens()


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("tokens", [0, 1, 40, 20_000])
def test_the_tokens_of_a_stream_without_usage_are_its_events(finish: str, tokens: int) -> None:
    """Its end is one of them: the token it stopped at; one that was cut by its length ends with a token of text."""
    told = stream(["word "] * tokens, None, finish=finish)
    assert uncounted(told) == tokens + 1
    assert uncounted(stream(["word "] * tokens, (5, tokens + 1), finish=finish)) == 0


@pytest.mark.parametrize(
    "otherwise",
    [
        lambda told: told.replace(b"\n\n", b"\n\n: keep-alive\n\n"),
        lambda told: told.replace(b"data: {", b"event: message\ndata: {"),
        lambda told: told.replace(b"data: {", b"id: 7\nevent: message\ndata: {"),
        lambda told: told.replace(b"\n", b"\r\n"),
    ],
    ids=["comments", "events", "ids", "crlf"],
)
@pytest.mark.parametrize("size", [7, 50, 2048])
def test_only_events_with_data_count_as_tokens(otherwise, size: int) -> None:
    told = stream(["word "] * 40, None, finish="length")
    first, rest = told.split(b"\n\n", 1)
    assert uncounted(first + b"\n\n" + otherwise(rest), size) == 41


def test_an_answer_whose_last_words_are_hidden_by_a_longer_event_is_not_entered() -> None:
    told = stream(["word "] * 40, (5, 41)).replace(b"data: [DONE]", b'data: {"choices":[],"x":"%b"}\n\ndata: [DONE]')
    assert heard(told % (b"y" * 100)) == Answer("word " * 40, 5, 41)
    assert heard(told % (b"y" * 9000)) is None


async def test_a_count_that_was_told_is_not_guessed_again() -> None:
    told = stream(["word "] * 40, (5, 41), finish="length")
    told = told.replace(b"data: [DONE]", b'data: {"choices":[],"x":"%b"}\n\ndata: [DONE]' % (b"y" * 9000))
    listening, fleet = Heard(), Fleet(block_tokens=16)
    messages = {"messages": [{"role": "user", "content": TEXT}]}
    prompt = await local_reader(TINY, block_tokens=16).read(CHAT, messages, Chain.root("m"))
    request = replace(sample_request(), blocks=prompt.blocks, prompt_tokens=prompt.tokens, block_tokens=16)
    fleet.joined("r1")
    fleet.sent(request, "r1")
    fleet.generated(request, 41)
    listening.heard(told[:-4096])
    Answers(fleet).stored(listening, told[-4096:], request, prompt, "r1", 41)
    fleet.done(request)
    assert fleet.held_blocks("r1") == (prompt.tokens + 41 - 1) // 16


@pytest.mark.parametrize("reply", [b'{"choices": []}', b"", b"data: [DONE]\n\n", stream(["a"], None)[7:]])
def test_what_is_no_stream_has_no_uncounted_tokens(reply: bytes) -> None:
    assert uncounted(reply) == 0


async def test_a_stream_without_usage_takes_the_room_of_its_tokens() -> None:
    """Cut by its length, so that its blocks have no names; an engine counts them all the same."""
    body = stream(["word "] * 99, None, finish="length")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    messages = [{"role": "user", "content": TEXT}]
    prompt = await local_reader(TINY, block_tokens=16).read(CHAT, {"messages": messages}, Chain.root("m"))
    async with fake_replica(head + body) as replica, router_over(replica, **READ) as up:
        asked = json.dumps({"model": "m", "messages": messages, "stream": True}).encode()
        assert (await posted(up.url, asked, path=CHAT.encode())).status == 200
        await until(lambda: load_of(up) == IDLE)
        assert up.fleet.held_blocks("r1") == (prompt.tokens + 100 - 1) // 16


def test_an_event_longer_than_what_is_read_at_once():
    told = stream(["word " * 20_000], (5, 20_001))
    pieces = [told[start : start + 2048] for start in range(0, len(told), 2048)]
    assert heard(*pieces) == Answer("word " * 20_000, 5, 20_001)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=8))
def test_garbage(pieces):
    assert heard(*pieces) is None


def tokens_of(reader, text: str) -> int:
    return len(reader.tokenizer.encode([f"{text}<|im_end|>"])[0]) // 4


@pytest.mark.parametrize("times", [1, 20, 300])
@pytest.mark.parametrize("told", ["usage", "no usage"])
async def test_a_streamed_answer_is_known_for_the_next_turn(times: int, told: str) -> None:
    """Short, longer than what the connection keeps of a reply, and so long that a thread reads it."""
    messages = [{"role": "user", "content": TEXT}]
    reader = local_reader(TINY, block_tokens=16)
    first = await reader.read(CHAT, {"messages": messages}, Chain.root("m"))
    ids = list(memoryview(reader.tokenizer.encode([TEXT])[0]).cast("I"))
    parts = [reader.tokenizer.decode([token]) for token in ids] * times
    answer = TEXT * times
    parts = parts if "".join(parts) == answer and "�" not in answer else [answer]
    tokens = tokens_of(reader, answer)
    usage = (first.tokens, tokens) if told == "usage" else None
    body = stream(parts, usage)

    async def reply(exchange: Exchange) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        await exchange.send(head)
        for start in range(0, len(body), 1000):
            part = body[start : start + 1000]
            await exchange.send(b"%x\r\n%b\r\n" % (len(part), part))
        await exchange.send(b"0\r\n\r\n")

    async with fake_replica(reply) as replica, router_over(replica, **READ) as up:
        asked = json.dumps({"model": "m", "messages": messages, "stream": True}).encode()
        assert (await posted(up.url, asked, path=CHAT.encode())).status == 200
        known = tokens == len(parts) + 1 or usage is not None
        blocks = (first.tokens + tokens - 1) // 16 if known else first.tokens // 16
        await until(lambda: up.fleet.held_blocks("r1") == blocks and not up.gateway._answers._threaded)
        assert up.fleet.held_blocks("r1") == blocks


async def test_an_answer_that_can_not_be_read_leaves_no_load(monkeypatch, caplog) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret words")

    body = stream(["hi"], (5, 40))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with fake_replica(head + body) as replica, router_over(replica, **READ) as up:
        monkeypatch.setattr("router.heard.events", SimpleNamespace(decode=broken))
        asked = json.dumps({"model": "m", "messages": [{"role": "user", "content": TEXT}]}).encode()
        assert (await posted(up.url, asked, path=CHAT.encode())).status == 200
        await until(lambda: load_of(up) == IDLE)
        assert "can't be read (RuntimeError)" in caplog.text
        assert "secret" not in caplog.text
        assert up.fleet.held_blocks("r1") > 0


@pytest.mark.parametrize("more_tokens", [0, 1])
async def test_an_answer_is_read_only_if_it_fills_a_block(more_tokens: int) -> None:
    reader = local_reader(TINY, block_tokens=16)
    messages = [{"role": "user", "content": TEXT}]
    prompt = await reader.read(CHAT, {"messages": messages}, Chain.root("m"))
    answer = TEXT * 2
    room = 16 - prompt.tokens % 16 + more_tokens  # the last token is only said: so many fill nothing, or one block
    fleet = Fleet(block_tokens=16)
    request = replace(sample_request(1), blocks=prompt.blocks, prompt_tokens=prompt.tokens, block_tokens=16)
    heard = Heard()
    reply = stream([answer], (prompt.tokens, tokens_of(reader, answer)))
    stored = Answers(fleet).stored(heard, reply, request, prompt, "r1", room)
    assert (len(stored) > len(prompt.stored)) is (more_tokens > 0)


async def test_nobody_listens_to_a_replica_that_tells_by_events() -> None:
    async with fake_replica() as replica, router_over(replica, **READ) as up:
        prompt = await local_reader(TINY, block_tokens=16).read(
            CHAT, {"messages": [{"role": "user", "content": TEXT}]}, Chain.root("m")
        )
        answers = up.gateway._answers
        assert answers.listening(prompt, "r1") is not None
        up.fleet.stored("r1", [bytes(16)])
        assert answers.listening(prompt, "r1") is None
        await asyncio.sleep(0)
