"""Stops, echoes and logprobs, as a client of vLLM would ask for them."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.emulator_refusals import Refusal
from sim.emulator_sampling import End, Sampling, cut, read_sampling
from tests.emulated import ASKED, CHAT, COMPLETIONS, LONG, MESSAGES, cached, emulated, post, stream


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    running = await emulated()
    async with aiohttp.ClientSession(running.url) as session:
        yield session
    await running.close()


async def said(client: aiohttp.ClientSession, path: str) -> str:
    """What the model answers to `LONG` when nothing stops it: one character for each token."""
    answer = await post(client, path, ASKED[path] | {"max_tokens": 40})
    if path == MESSAGES:
        return str(answer["content"][0]["text"])
    choice = answer["choices"][0]
    return str(choice["text"] if path == COMPLETIONS else choice["message"]["content"])


def streamed_text(path: str, events: list[dict[str, Any]]) -> str:
    choices = [event["choices"][0] for event in events]
    if path == COMPLETIONS:
        return "".join(choice["text"] for choice in choices)
    return "".join(choice["delta"].get("content", "") for choice in choices)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_answer_ends_before_its_stop(client: aiohttp.ClientSession, path: str) -> None:
    whole = await said(client, path)
    stop = whole[10:13]
    at = whole.index(stop)
    body = ASKED[path] | {"max_tokens": 40, "stop": ["never said", stop]}
    answer = await post(client, path, body)
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert (choice["text"] if path == COMPLETIONS else choice["message"]["content"]) == whole[:at]
    assert answer["usage"]["completion_tokens"] == at + len(stop)
    events = await stream(client, path, body)
    assert streamed_text(path, events) == whole[:at]
    assert events[-1]["choices"][0]["stop_reason"] == stop
    shown = await stream(client, path, body | {"include_stop_str_in_output": True})
    assert streamed_text(path, shown) == whole[:at] + stop


async def test_a_stop_may_be_a_token(client: aiohttp.ClientSession) -> None:
    whole = await said(client, COMPLETIONS)
    body = ASKED[COMPLETIONS] | {"max_tokens": 40, "stop_token_ids": [ord(whole[5])]}
    choice = (await post(client, COMPLETIONS, body))["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == (whole[: whole.index(whole[5])], ord(whole[5]))


async def test_anthropic_calls_stops_otherwise(client: aiohttp.ClientSession) -> None:
    whole = await said(client, MESSAGES)
    answer = await post(client, MESSAGES, ASKED[MESSAGES] | {"max_tokens": 40, "stop_sequences": [whole[3]]})
    assert answer["content"][0]["text"] == whole[: whole.index(whole[3])]
    assert answer["stop_reason"] == "end_turn"


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), st.integers(1, 4))
def test_the_first_stop_cuts_wherever_the_tokens_end(whole: str, stops: list[str], width: int) -> None:
    texts = [whole[start : start + width] for start in range(0, len(whole), width)]
    found = cut(list(range(len(texts))), texts, Sampling(stops=tuple(stops)))
    if not any(stop in whole for stop in stops):
        assert found is None
        return
    assert found is not None
    made, shown, end = found
    before, until = "".join(texts[: made - 1]), "".join(texts[:made])
    assert end.why == "stop"
    assert whole[shown:].startswith(str(end.at))
    assert any(stop in until for stop in stops)
    assert not any(stop in before for stop in stops)
    assert shown == min(until.find(stop) for stop in stops if stop in until)


def test_without_stops_nothing_is_cut() -> None:
    assert cut([1], ["x"], Sampling()) is None
    assert cut([7], ["x"], Sampling(stop_ids=frozenset({7}), shows_stop=True)) == (1, 1, End("stop", 7))


@pytest.mark.parametrize(
    "body",
    [
        {"stop": [""]},
        {"stop": 7},
        {"stop_token_ids": "x"},
        {"top_logprobs": 2},
        {"logprobs": True, "top_logprobs": 21},
        {"prompt_logprobs": -2},
        {"prompt_logprobs": 1, "stream": True},
        {"prompt_logprobs": "1"},
        {"temperature": -1},
    ],
)
def test_what_vllm_refuses_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        read_sampling(body, chat=True)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("body", "chat", "reads"),
    [
        ({}, True, True),
        ({"logprobs": True}, True, True),
        ({"prompt_logprobs": 0}, True, False),
        ({"echo": True}, False, True),
        ({"echo": True, "logprobs": 0}, False, False),
        ({"logprobs": 1}, False, True),
    ],
)
def test_logprobs_of_the_prompt_can_not_read_the_cache(body: dict[str, Any], chat: bool, reads: bool) -> None:
    assert read_sampling(body, chat=chat).reads_cache is reads


async def test_an_uncached_prompt_fills_the_cache_all_the_same(client: aiohttp.ClientSession) -> None:
    body = ASKED[CHAT] | {"prompt_logprobs": 0}
    first, second = await post(client, CHAT, body), await post(client, CHAT, body)
    assert cached(first) == cached(second) == 0
    assert cached(await post(client, CHAT, ASKED[CHAT])) == 80
    assert second["prompt_logprobs"][0] is None
    assert len(second["prompt_logprobs"]) == len(LONG) + 1


async def test_an_echo_comes_first(client: aiohttp.ClientSession) -> None:
    plain = (await post(client, COMPLETIONS, ASKED[COMPLETIONS]))["choices"][0]["text"]
    body = ASKED[COMPLETIONS] | {"echo": True, "logprobs": 1}
    choice = (await post(client, COMPLETIONS, body))["choices"][0]
    assert choice["text"] == LONG + plain
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == LONG + plain
    assert logprobs["text_offset"] == list(range(len(LONG) + 5))
    assert logprobs["token_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    assert streamed_text(COMPLETIONS, await stream(client, COMPLETIONS, body | {"logprobs": None})) == LONG + plain
    alone = await post(client, COMPLETIONS, ASKED[COMPLETIONS] | {"echo": True, "max_tokens": 0})
    assert alone["choices"][0]["text"] == LONG


async def test_logprobs_are_streamed_with_their_tokens(client: aiohttp.ClientSession) -> None:
    chat = await stream(client, CHAT, ASKED[CHAT] | {"logprobs": True, "top_logprobs": 1})
    for choice in (event["choices"][0] for event in chat[1:]):
        (entry,) = choice["logprobs"]["content"]
        assert entry["token"] == choice["delta"]["content"]
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"] < 0
    completion = await stream(client, COMPLETIONS, ASKED[COMPLETIONS] | {"logprobs": 0})
    offsets = [event["choices"][0]["logprobs"]["text_offset"] for event in completion]
    assert offsets == [[0], [1], [2], [3], [4]]
    assert json.dumps(offsets)
