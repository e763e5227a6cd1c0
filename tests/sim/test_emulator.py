"""The emulator over loopback sockets: what a client of vLLM would see."""

import asyncio
import base64
import gzip
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sim.emulator import Emulator
from sim.emulator_latency import Histogram
from sim.replica import SimReplica
from tests.emulated import (
    ASKED,
    CHAT,
    COMPLETIONS,
    LONG,
    MESSAGES,
    RESPONSES,
    cached,
    detokenize,
    emulated,
    metrics,
    post,
    stream,
    until,
)

RECORDINGS = Path(__file__).parent.parent / "recordings"


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    running = await emulated()
    yield running
    await running.close()


@pytest.fixture
async def client(emulator: Emulator) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(emulator.url) as session:
        yield session


def samples(text: str) -> dict[str, tuple[str, set[str]]]:
    """Kind and label names of each sample name."""
    return {
        sample.name: (family.type, set(sample.labels))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("path", ASKED)
async def test_the_second_call_finds_the_prompt_cached(client: aiohttp.ClientSession, path: str) -> None:
    first, second = await post(client, path, ASKED[path]), await post(client, path, ASKED[path])
    assert cached(first) == 0
    assert cached(second) == 80


@pytest.mark.parametrize("path", ASKED)
async def test_a_stream_says_what_the_plain_answer_says(client: aiohttp.ClientSession, path: str) -> None:
    plain = await post(client, path, ASKED[path])
    events = await stream(client, path, ASKED[path])
    match path:
        case "/v1/chat/completions":
            said = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
            assert said == plain["choices"][0]["message"]["content"]
            assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert events[-1]["choices"][0]["finish_reason"] == "length"
        case "/v1/completions":
            assert "".join(event["choices"][0]["text"] for event in events) == plain["choices"][0]["text"]
        case "/v1/messages":
            deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
            assert "".join(deltas) == plain["content"][0]["text"]
            assert events[-2]["usage"]["cache_read_input_tokens"] == 80
            assert events[-2]["delta"]["stop_reason"] == plain["stop_reason"] == "max_tokens"
        case _:
            deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
            assert "".join(deltas) == plain["output"][0]["content"][0]["text"]
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert cached(events[-1]["response"]) == 80
            assert events[-1]["response"]["status"] == plain["status"] == "incomplete"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_usage_is_streamed_only_when_asked_for(client: aiohttp.ClientSession, path: str) -> None:
    without = await stream(client, path, ASKED[path])
    with_usage = await stream(client, path, ASKED[path] | {"stream_options": {"include_usage": True}})
    assert not any("usage" in event for event in without)
    assert with_usage[-1]["choices"] == []
    assert with_usage[-1]["usage"]["completion_tokens"] == 5
    assert cached(with_usage[-1]) == 80


async def test_an_answer_sent_back_as_history_is_cached(client: aiohttp.ClientSession) -> None:
    body = ASKED[CHAT] | {"max_tokens": 100}
    said = (await post(client, CHAT, body))["choices"][0]["message"]["content"]
    turns = [*body["messages"], {"role": "assistant", "content": said}, {"role": "user", "content": "and more"}]
    again = await post(client, COMPLETIONS, {"prompt": LONG + "\n" + said + "\nand more", "max_tokens": 1})
    chat = await post(client, CHAT, {"messages": turns, "max_tokens": 1})
    assert cached(again) == cached(chat) == (len(LONG) + 1 + 99) // 16 * 16


async def test_choices_and_batches_are_counted_as_one_usage(client: aiohttp.ClientSession) -> None:
    two = await post(client, CHAT, ASKED[CHAT] | {"n": 2})
    assert [choice["index"] for choice in two["choices"]] == [0, 1]
    assert two["usage"]["prompt_tokens"] == len(LONG) + 1
    assert two["usage"]["completion_tokens"] == 10
    batch = await post(client, COMPLETIONS, {"prompt": ["one", "three"], "max_tokens": 2})
    assert len(batch["choices"]) == 2
    assert batch["usage"]["prompt_tokens"] == 8
    assert cached(two) == len(LONG) // 16 * 16  # the second choice finds what the first has just stored
    streamed = await stream(client, CHAT, ASKED[CHAT] | {"n": 2})
    for index in (0, 1):
        deltas = [event["choices"][0]["delta"] for event in streamed if event["choices"][0]["index"] == index]
        said = "".join(delta.get("content", "") for delta in deltas)
        assert said == two["choices"][index]["message"]["content"]


async def test_token_ids_are_a_prompt(client: aiohttp.ClientSession) -> None:
    await post(client, COMPLETIONS, {"prompt": LONG, "max_tokens": 1})
    assert cached(await post(client, COMPLETIONS, {"prompt": list(LONG.encode()), "max_tokens": 1})) == 80


async def test_without_a_length_the_model_stops_by_itself(client: aiohttp.ClientSession) -> None:
    answer = await post(client, CHAT, {"messages": [{"role": "user", "content": "hi"}]})
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert 50 <= answer["usage"]["completion_tokens"] <= 400


async def test_without_an_end_the_model_fills_its_context(client: aiohttp.ClientSession) -> None:
    answer = await post(client, CHAT, {"messages": [{"role": "user", "content": "x" * 1899}], "ignore_eos": True})
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 2048


async def test_a_length_beyond_the_context_is_cut(client: aiohttp.ClientSession) -> None:
    answer = await post(client, COMPLETIONS, {"prompt": "x" * 2000, "max_tokens": 100})
    assert answer["usage"]["completion_tokens"] == 48
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_salts_and_adapters_share_nothing(client: aiohttp.ClientSession) -> None:
    await post(client, CHAT, ASKED[CHAT])
    salted = ASKED[CHAT] | {"cache_salt": "tenant"}
    assert cached(await post(client, CHAT, salted)) == 0
    assert cached(await post(client, CHAT, salted)) == 80
    adapted = await post(client, CHAT, ASKED[CHAT] | {"model": "sql"})
    assert adapted["model"] == "sql"
    assert cached(adapted) == 0


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_goes_away_aborts_its_job(streamed: bool) -> None:
    emulator = await emulated(speed=1.0)
    try:
        async with aiohttp.ClientSession(emulator.url) as client:
            body = ASKED[CHAT] | {"max_tokens": 1500, "stream": streamed}
            call = asyncio.create_task(client.post(CHAT, json=body).__aenter__())
            await until(lambda: emulator.engine.running == 1)
            if streamed:
                (await call).close()
            call.cancel()
            await until(lambda: emulator.live.live == 0)
            assert emulator.engine.idle
            assert emulator.engine.counters.aborted == 1
            assert cached(await post(client, CHAT, ASKED[CHAT] | {"max_tokens": 1})) == 80
    finally:
        await emulator.close()


@pytest.mark.parametrize(
    ("change", "status", "kind", "param"),
    [
        ({"model": "nope"}, 404, "NotFoundError", "model"),
        ({"cache_salt": ""}, 400, "BadRequestError", "cache_salt"),
        ({"cache_salt": "a/b"}, 400, "BadRequestError", "cache_salt"),
        ({"cache_salt": "s" * 129}, 400, "BadRequestError", "cache_salt"),
        ({"max_tokens": 9999}, 400, "BadRequestError", "max_tokens"),
        ({"temperature": -3}, 400, "BadRequestError", "temperature"),
        ({"n": 0}, 400, "BadRequestError", "n"),
        ({"n": 10**9}, 400, "BadRequestError", "n"),
        ({"messages": [{"role": "user", "content": "x" * 3000}]}, 400, "BadRequestError", "input_tokens"),
    ],
)
async def test_a_bad_value_is_refused_as_vllm_refuses_it(
    client: aiohttp.ClientSession, change: dict[str, Any], status: int, kind: str, param: str
) -> None:
    error = (await post(client, CHAT, ASKED[CHAT] | change, status))["error"]
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)
    assert error["message"]


async def test_a_bad_body_is_refused(client: aiohttp.ClientSession) -> None:
    async def error_of(data: bytes, content_type: str = "application/json") -> dict[str, Any]:
        async with client.post(CHAT, data=data, headers={"Content-Type": content_type}) as response:
            assert response.status == 400
            error: dict[str, Any] = (await response.json())["error"]
            return error

    assert (await error_of(b"{bad"))["param"] == "body.1"
    assert (await error_of(b""))["param"] == "body"
    assert (await error_of(b"[1]"))["type"] == "Bad Request"
    assert (await error_of(b'{"a":' + b"[" * 100_000))["param"] == "body"
    assert (await error_of(b'{"n":"\xff"}'))["param"] == "body"
    assert "Unsupported Media Type" in (await error_of(b"{}", "text/plain"))["message"]
    assert (await error_of(b'{"model":"tiny"}'))["param"] == "body.messages"
    missing = await post(client, MESSAGES, {"messages": []}, 400)
    assert missing["error"]["param"] == "body.max_tokens"


async def test_unknown_paths_and_methods(client: aiohttp.ClientSession) -> None:
    assert await post(client, "/v1/nothing", {}, 404) == {"detail": "Not Found"}
    async with client.get(CHAT) as response:
        assert response.status == 405
        assert response.headers["Allow"] == "POST"
        assert await response.json() == {"detail": "Method Not Allowed"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
async def test_a_forced_tool_is_called(client: aiohttp.ClientSession, choice: object) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    body = ASKED[CHAT] | {"tools": tools, "tool_choice": choice}
    plain = (await post(client, CHAT, body))["choices"][0]
    assert plain["finish_reason"] == "tool_calls"
    call = plain["message"]["tool_calls"][0]["function"]
    assert call["name"] == "look"
    events = await stream(client, CHAT, body)
    calls = [c for event in events for c in event["choices"][0]["delta"].get("tool_calls", [])]
    assert calls[0]["function"]["name"] == "look"
    arguments = "".join(part["function"]["arguments"] for part in calls)
    assert json.loads(arguments) == json.loads(call["arguments"])
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_forced_tool_is_used_in_messages(client: aiohttp.ClientSession) -> None:
    body = ASKED[MESSAGES] | {"tools": [{"name": "look"}], "tool_choice": {"type": "tool", "name": "look"}}
    plain = await post(client, MESSAGES, body)
    assert plain["stop_reason"] == "tool_use"
    assert plain["content"][0]["name"] == "look"
    events = await stream(client, MESSAGES, body)
    parts = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert json.loads("".join(parts)) == plain["content"][0]["input"]


async def test_a_forced_tool_is_called_in_responses(client: aiohttp.ClientSession) -> None:
    tool = {"type": "function", "name": "look", "parameters": {}}
    body = ASKED[RESPONSES] | {"tools": [tool], "tool_choice": "required"}
    call = (await post(client, RESPONSES, body))["output"][0]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "look", "completed")
    events = await stream(client, RESPONSES, body)
    kind = "response.function_call_arguments"
    assert "".join(event["delta"] for event in events if event["type"] == f"{kind}.delta") == call["arguments"]
    assert [event["arguments"] for event in events if event["type"] == f"{kind}.done"] == [call["arguments"]]
    assert set(json.loads(call["arguments"])) == {"text"}
    assert events[-1]["response"]["output"][0]["arguments"] == call["arguments"]


async def test_ids_are_returned_when_asked_for(client: aiohttp.ClientSession) -> None:
    body = ASKED[COMPLETIONS] | {"return_token_ids": True}
    plain = (await post(client, COMPLETIONS, body))["choices"][0]
    assert plain["prompt_token_ids"] == list(LONG.encode())
    assert detokenize(plain["token_ids"]) == plain["text"]
    choices = [event["choices"][0] for event in await stream(client, COMPLETIONS, body)]
    assert [choice["prompt_token_ids"] for choice in choices] == [plain["prompt_token_ids"]] + 4 * [None]
    assert [token for choice in choices for token in choice["token_ids"]] == plain["token_ids"]


class Dying:
    """An engine that comes upon a fault in its next step."""

    def __init__(self, engine: SimReplica) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> None:
        raise ZeroDivisionError


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_dead_engine_says_so(monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    emulator = await emulated(speed=1.0)
    death = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    error = {"error": {"message": death, "type": "InternalServerError", "param": None, "code": 500}}
    try:
        async with aiohttp.ClientSession(emulator.url) as client:
            call = client.post(CHAT, json=ASKED[CHAT] | {"max_tokens": 1500, "stream": streamed})
            answer = asyncio.ensure_future(call.__aenter__())
            await until(lambda: emulator.engine.counters.generated_tokens > 2)
            monkeypatch.setattr(emulator.live, "engine", Dying(emulator.engine))
            response = await answer
            text = await response.text()
            assert response.status == (200 if streamed else 500)
            assert json.loads(text.split("data: ")[-2] if streamed else text) == error
            assert text.endswith("data: [DONE]\n\n") == streamed
            assert await post(client, CHAT, ASKED[CHAT], 500) == error
            async with client.get("/health") as health:
                assert health.status == 503
    finally:
        await emulator.close()


async def test_tokens_are_counted_made_and_unmade(client: aiohttp.ClientSession) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    assert (await post(client, "/v1/messages/count_tokens", chat))["input_tokens"] == 6
    made = await post(client, "/tokenize", {"prompt": "hi"})
    assert made == {"count": 2, "max_model_len": 2048, "tokens": [104, 105], "token_strs": None}
    assert (await post(client, "/tokenize", chat))["count"] == 6
    assert await post(client, "/detokenize", {"tokens": [104, 105]}) == {"prompt": "hi"}
    await post(client, "/detokenize", {"tokens": [999]}, 400)


async def test_pooling_routes_answer_and_fill_the_cache(client: aiohttp.ClientSession, emulator: Emulator) -> None:
    vectors = await post(client, "/v1/embeddings", {"input": [LONG, LONG]})
    assert vectors["data"][0]["embedding"] == vectors["data"][1]["embedding"]
    assert vectors["usage"]["prompt_tokens"] == 2 * len(LONG)
    assert emulator.engine.counters.hit_tokens == 80
    packed = await post(client, "/v1/embeddings", {"input": list(LONG.encode()), "encoding_format": "base64"})
    floats = struct.unpack("<16f", base64.b64decode(packed["data"][0]["embedding"]))
    assert floats == pytest.approx(vectors["data"][0]["embedding"])
    error = (await post(client, "/v1/embeddings", {"input": "x" * 3000}, 400))["error"]
    assert error["param"] == "input_tokens"
    ranked = await post(client, "/rerank", {"query": "q", "documents": ["a", "b", "c"], "top_n": 2})
    scores = [result["relevance_score"] for result in ranked["results"]]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    assert len((await post(client, "/score", {"text_1": "a", "text_2": ["b", "c"]}))["data"]) == 2


async def test_the_server_describes_itself(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/models") as response:
        base, adapter = (await response.json())["data"]
    assert (base["id"], base["root"], base["parent"], base["max_model_len"]) == ("tiny", "/models/tiny", None, 2048)
    assert (adapter["id"], adapter["parent"]) == ("sql", "tiny")
    for path in ("/health", "/ping", "/version", "/load"):
        async with client.get(path) as response:
            assert response.status == 200, path


async def test_metrics_have_vllms_meaning(client: aiohttp.ClientSession) -> None:
    for _ in range(2):
        await post(client, COMPLETIONS, ASKED[COMPLETIONS])
    await post(client, CHAT, {"messages": [{"role": "user", "content": "hi"}]})
    await post(client, "/v1/embeddings", {"input": "hi"})
    seen = await metrics(client)
    prompts = 2 * len(LONG) + 3 + 2
    assert seen["vllm:prefix_cache_queries_total"] == seen["vllm:prompt_tokens_total"] == prompts
    assert seen["vllm:prefix_cache_hits_total"] == seen["vllm:prompt_tokens_cached_total"] == 80
    assert seen['vllm:prompt_tokens_by_source_total source="local_compute"'] == prompts - 80
    assert seen['vllm:request_success_total finished_reason="length"'] == 2
    assert seen['vllm:request_success_total finished_reason="stop"'] == 2
    assert seen["vllm:num_requests_running"] == seen["vllm:kv_cache_usage_perc"] == 0


async def test_metrics_have_vllms_names_and_labels(client: aiohttp.ClientSession) -> None:
    async with client.get("/metrics") as response:
        ours = samples(await response.text())
    real = samples(gzip.decompress((RECORDINGS / "metrics_under_load.txt.gz").read_bytes()).decode())
    assert len(ours) >= 14
    for name, (kind, labels) in ours.items():
        assert kind == real[name][0], name
        assert labels <= real[name][1], name
    assert {"block_size", "num_gpu_blocks"} <= ours["vllm:cache_config_info"][1]


async def test_the_cache_can_be_reset(client: aiohttp.ClientSession) -> None:
    await post(client, CHAT, ASKED[CHAT])
    assert await post(client, "/reset_prefix_cache", {}) == {"success": True}
    assert cached(await post(client, CHAT, ASKED[CHAT])) == 0


async def test_a_request_id_becomes_part_of_the_answers_id(client: aiohttp.ClientSession) -> None:
    async with client.post(CHAT, json=ASKED[CHAT], headers={"X-Request-Id": "rid-42"}) as response:
        assert (await response.json())["id"] == "chatcmpl-rid-42"


async def test_many_streams_share_the_engine(client: aiohttp.ClientSession, emulator: Emulator) -> None:
    bodies = [{"prompt": f"{number} {LONG}", "max_tokens": 40} for number in range(24)]
    answers = await asyncio.gather(*(stream(client, COMPLETIONS, body) for body in bodies))
    assert [len(answer) for answer in answers] == [40] * 24
    assert emulator.engine.idle
    assert emulator.live.live == 0


async def test_a_full_queue_is_busy() -> None:
    emulator = await emulated(speed=1.0, max_queued=2)
    try:
        async with aiohttp.ClientSession(emulator.url) as client:
            body = ASKED[CHAT] | {"max_tokens": 1500}
            calls = [asyncio.create_task(client.post(CHAT, json=body).__aenter__()) for _ in range(2)]
            await until(lambda: emulator.live.live == 2)
            error = (await post(client, COMPLETIONS, ASKED[COMPLETIONS], 503))["error"]
            assert (error["type"], error["code"]) == ("Service Unavailable", 503)
            assert error["message"].startswith("The engine is currently busy")
            seen = await metrics(client)
            assert seen['vllm:admission_rejections_total reason="max_num_queued_reqs"'] == 1
            for call in calls:
                call.cancel()
            await until(lambda: emulator.live.live == 0)
            await post(client, COMPLETIONS, ASKED[COMPLETIONS])
    finally:
        await emulator.close()


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_draining_server_ends_its_answers_and_takes_no_more(streamed: bool) -> None:
    emulator = await emulated(speed=20.0)
    try:
        async with aiohttp.ClientSession(emulator.url) as client:
            body = ASKED[CHAT] | {"max_tokens": 300, "stream": True}
            async with client.post(CHAT, json=body) as begun:
                emulator.drain()
                error = (await post(client, CHAT, ASKED[CHAT] | {"stream": streamed}, 500))["error"]
                assert (error["message"], error["type"]) == (
                    "cannot schedule new futures after shutdown",
                    "InternalServerError",
                )
                await post(client, "/tokenize", {"prompt": "x"}, 500)
                ids = {"prompt": [1, 2, 3], "stream": streamed, "stream_options": {"include_usage": True}}
                async with client.post(COMPLETIONS, json=ids) as response:
                    empty = await response.text()
                    assert response.status == 200
                if streamed:
                    (usage,) = [json.loads(line[6:]) for line in empty.splitlines() if "usage" in line]
                    assert usage["choices"] == []
                    assert empty.endswith("data: [DONE]\n\n")
                else:
                    usage = json.loads(empty)
                    assert usage["choices"][0]["finish_reason"] == "abort"
                    assert usage["choices"][0]["text"] == ""
                assert usage["usage"]["completion_tokens"] == 0
                async with client.get("/health") as health:
                    assert health.status == 200
                assert (await begun.text()).count('"content":"') == 301
    finally:
        await emulator.close()


@pytest.mark.parametrize(("rank", "status"), [("0", 200), ("1", 400), ("x", 200)])
async def test_there_is_one_rank(client: aiohttp.ClientSession, rank: str, status: int) -> None:
    async with client.post(CHAT, json=ASKED[CHAT], headers={"X-data-parallel-rank": rank}) as response:
        answer = await response.json()
        assert response.status == status
    if status == 400:
        assert answer["error"]["message"] == "data_parallel_rank 1 is out of range [0, 1)."


async def test_latencies_are_told_in_histograms(client: aiohttp.ClientSession, emulator: Emulator) -> None:
    for _ in range(3):
        await post(client, COMPLETIONS, ASKED[COMPLETIONS])
    seen = await metrics(client)
    for name in ("time_to_first_token", "e2e_request_latency"):
        unit = "seconds"
        assert seen[f"vllm:{name}_{unit}_count"] == seen[f"vllm:{name}_{unit}_bucket"] == 3
    assert 0 < seen["vllm:time_to_first_token_seconds_sum"] < seen["vllm:e2e_request_latency_seconds_sum"]
    assert seen["process_start_time_seconds"] == emulator.started_unix_s


async def test_another_start_has_another_start_time() -> None:
    first = await emulated()
    await first.close()
    second = await emulated()
    await second.close()
    assert second.started_unix_s > first.started_unix_s


async def test_clients_that_leave_between_tokens_are_no_error(caplog: pytest.LogCaptureFixture) -> None:
    emulator = await emulated(speed=100.0)
    try:
        async with aiohttp.ClientSession(emulator.url, connector=aiohttp.TCPConnector(limit=0)) as client:

            async def leave(number: int) -> None:
                body = {"prompt": f"{number} {LONG}", "max_tokens": 1000, "stream": True}
                async with client.post(COMPLETIONS, json=body) as response:
                    for _ in range(number):
                        await response.content.readany()
                    response.close()

            await asyncio.gather(*(leave(number) for number in range(40)))
            await until(lambda: emulator.live.live == 0)
    finally:
        await emulator.close()
    assert [record.getMessage() for record in caplog.records] == []


def test_a_bound_of_a_histogram_belongs_to_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 3.0):
        histogram.observed(value)
    assert histogram.cumulated == [("1.0", 1), ("2.0", 2), ("+Inf", 3)]
    assert histogram.total == 5.5
